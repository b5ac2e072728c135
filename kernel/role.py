"""What a broker is among those of its name: their master, or a slave that has a copy (RocketMQ: ``BrokerRole``).

A broker is a master unless a plugin says otherwise. Work that must happen once for all of them, since it appends to the
log (delivering delayed messages, asking producers about transactions), runs on the master only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import attrs


@attrs.frozen
class Role:
    """What a broker is among those of its name: the master, or a slave.

    Attributes:
        broker_id: What name servers are told: 0 for a master, more for its slaves.
        term: How often the name has had a new master, where that is counted; name servers know the later one by it.
        ha_address: ``host:port`` where slaves get the log from, if there is such a place.
    """

    broker_id: int = 0
    term: int = 0
    ha_address: str = ""

    @property
    def is_master(self) -> bool:
        return self.broker_id == 0


class Roles:
    """The role of one broker, and the work that depends on it."""

    def __init__(self) -> None:
        self.now = Role()
        self._changed = anyio.Event()
        self._masters_work: set[anyio.CancelScope] = set()

    def change(self, role: Role) -> None:
        self.now = role
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
        if not role.is_master:
            for scope in self._masters_work:
                scope.cancel()

    async def while_master(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run something while the broker is a master, and again when it is one again; until it returns by itself."""
        finished = False
        while not finished:
            while not self.now.is_master:
                await self._changed.wait()
            with anyio.CancelScope() as scope:
                self._masters_work.add(scope)
                try:
                    await work()
                    finished = True
                finally:
                    self._masters_work.discard(scope)
