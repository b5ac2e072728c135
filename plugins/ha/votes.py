"""What slaves have said that they have, and which sends wait for it (RocketMQ: ``GroupTransferService``).

A slave of RocketMQ's protocol says nothing of itself, so it is known by the machine that it comes from. All slaves of
one machine have one vote: nobody gets two by connecting twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from verniermq.kernel import Clock, ResponseCode
from verniermq.plugins.ha.confirmations import Confirmations


class Votes:
    """``needed`` machines beside our own must have a message."""

    def __init__(self, clock: Clock, needed: int, timeout: float) -> None:
        self._needed = needed
        self._acks: dict[Hashable, tuple[str, int]] = {}
        """Connection → its machine, and where its log ends."""
        self._waiting = Confirmations(clock, timeout)
        self.machines: frozenset[str] = frozenset()
        """That slaves are connected from."""
        self.confirmed = 0 if needed else 1 << 63
        """Up to where enough machines have the log."""

    async def run(self) -> None:
        """Tell those whose time is over, for ever."""
        await self._waiting.run()

    def wait(self, end: int) -> asyncio.Future[ResponseCode] | None:
        """What to await before a message may be acknowledged; ``None`` when enough have it."""
        if self.confirmed >= end:
            return None
        if len(self.machines) >= self._needed:
            return self._waiting.wait(end)
        answer: asyncio.Future[ResponseCode] = asyncio.get_running_loop().create_future()
        answer.set_result(ResponseCode.SLAVE_NOT_AVAILABLE)
        return answer

    def acknowledge(self, connection: Hashable, machine: str, end: int) -> None:
        """A slave has the log up to ``end``; whoever calls this has checked that it can."""
        self._acks[connection] = (machine, end)
        self._count()
        self._waiting.advance(self.confirmed)

    def forget(self, connection: Hashable) -> None:
        """A slave is gone. Those who wait go on waiting: it may come back in time."""
        self._acks.pop(connection, None)
        self._count()

    def _count(self) -> None:
        best: dict[str, int] = {}
        for machine, end in self._acks.values():
            best[machine] = max(best.get(machine, 0), end)
        if len(best) != len(self.machines):
            self.machines = frozenset(best)
        if self._needed:
            ends = sorted(best.values(), reverse=True)
            self.confirmed = ends[self._needed - 1] if len(ends) >= self._needed else 0
