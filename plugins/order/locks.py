"""Who may consume a queue in order: one client of a group at a time (RocketMQ: ``RebalanceLockManager``).

An orderly consumer locks its queues and locks them again every 20 s. A lock that was not renewed for its whole
life time is free for anybody; so is, at once, that of a client whose connection is gone. Locks live in memory only:
after a restart of the broker whoever comes first gets them, and a client that lost one stops before it is lost.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from verniermq.kernel import Clock, Connection, MessageQueue


@attrs.define(eq=False)
class Lock:
    client_id: str
    connection: Connection
    """Where it was last renewed from."""
    renewed: float


@attrs.define(eq=False)
class Locks:
    clock: Clock
    lifetime: float
    """Seconds."""
    _groups: dict[str, dict[MessageQueue, Lock]] = attrs.field(factory=dict, init=False)

    def lock(
        self, group: str, queues: Iterable[MessageQueue], client_id: str, connection: Connection
    ) -> list[MessageQueue]:
        """Take or renew what is free or the client's own; return the queues that it holds now."""
        now = self.clock.now()
        held = self._groups.setdefault(group, {})
        granted = []
        for queue in queues:
            lock = held.get(queue)
            if lock is None or lock.client_id == client_id or self._is_over(lock, now):
                held[queue] = Lock(client_id, connection, now)
                granted.append(queue)
        self._tidy(group)
        return granted

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Give back; a lock of somebody else stays."""
        held = self._groups.get(group, {})
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]
        self._tidy(group)

    def free_connection(self, connection: Connection) -> int:
        """Free what was locked from a connection that is gone; say how many. A client that came back by another
        connection and renewed its locks there keeps them."""
        freed = 0
        for group in list(self._groups):
            held = self._groups[group]
            for queue in [queue for queue, lock in held.items() if lock.connection is connection]:
                del held[queue]
                freed += 1
            self._tidy(group)
        return freed

    def is_held(self, group: str) -> bool:
        """Whether somebody of the group holds a lock that is not over."""
        now = self.clock.now()
        return any(not self._is_over(lock, now) for lock in self._groups.get(group, {}).values())

    def _is_over(self, lock: Lock, now: float) -> bool:
        return now - lock.renewed > self.lifetime

    def _tidy(self, group: str) -> None:
        if not self._groups.get(group, True):
            del self._groups[group]
