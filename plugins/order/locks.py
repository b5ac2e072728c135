"""Who may consume a queue in order: one client of a group at a time (RocketMQ: ``RebalanceLockManager``).

An orderly consumer locks its queues and locks them again every 20 s. A lock that was not renewed for its whole
life time is free for anybody; so is, at once, that of a client whose connection is gone. Locks live in memory only:
after a restart of the broker whoever comes first gets them, and a client that lost one stops before it is lost.
"""

from __future__ import annotations

import attrs

from verniermq.kernel import Clock, Connection, LimitReached, MessageQueue


@attrs.define(eq=False)
class Lock:
    client_id: str
    connection: Connection
    """Where it was last renewed from."""
    renewed: float
    """By the clock's ``monotonic``: setting the clock frees no lock, and keeps none."""


@attrs.define(eq=False)
class QueueLocks:
    clock: Clock
    lifetime: float
    """Seconds."""
    most: int
    most_per_client: int
    """Of one connection."""
    _groups: dict[str, dict[MessageQueue, Lock]] = attrs.field(factory=dict, init=False)
    _of: dict[Connection, set[tuple[str, MessageQueue]]] = attrs.field(factory=dict, init=False)
    """By the connection that a lock was last renewed from, so that a lost one costs what it held."""
    _count: int = attrs.field(default=0, init=False)

    def __len__(self) -> int:
        """How many locks there are, also such that are over and were not looked at since."""
        return self._count

    def lock(self, group: str, queue: MessageQueue, client_id: str, connection: Connection) -> bool:
        """Take or renew a lock if it is free or the client's own; say whether the client holds it now.

        Raises:
            LimitReached: the client, or all of them together, hold as many as they may.
        """
        now = self.clock.monotonic()
        lock = self._groups.get(group, {}).get(queue)
        if lock is not None:
            if lock.client_id != client_id and not self._is_over(lock, now):
                return False
            if lock.connection is connection:
                lock.client_id, lock.renewed = client_id, now
                return True
            self._free(group, queue)
        own = self._of.get(connection, ())
        if len(own) >= self.most_per_client:
            what = "this client holds queue locks:"
            raise LimitReached(what, self.most_per_client, "max_locks_per_client", "plugins.order")
        if self._count >= self.most and not self._free_what_is_over(now):
            raise LimitReached("the clients hold queue locks:", self.most, "max_locks", "plugins.order")
        self._groups.setdefault(group, {})[queue] = Lock(client_id, connection, now)
        self._of.setdefault(connection, set()).add((group, queue))
        self._count += 1
        return True

    def unlock(self, group: str, queue: MessageQueue, client_id: str) -> None:
        """Give back; a lock of somebody else stays."""
        lock = self._groups.get(group, {}).get(queue)
        if lock is not None and lock.client_id == client_id:
            self._free(group, queue)

    def free_connection(self, connection: Connection) -> int:
        """Free what was locked from a connection that is gone; say how many. A client that came back by another
        connection and renewed its locks there keeps them."""
        held = list(self._of.get(connection, ()))
        for group, queue in held:
            self._free(group, queue)
        return len(held)

    def is_held(self, group: str) -> bool:
        """Whether somebody of the group holds a lock that is not over."""
        now = self.clock.monotonic()
        for queue, lock in list(self._groups.get(group, {}).items()):
            if not self._is_over(lock, now):
                return True
            self._free(group, queue)
        return False

    def _is_over(self, lock: Lock, now: float) -> bool:
        return now - lock.renewed > self.lifetime

    def _free_what_is_over(self, now: float) -> int:
        places = [(group, queue) for group, held in self._groups.items() for queue, lock in held.items()
                  if self._is_over(lock, now)]  # fmt: skip
        for group, queue in places:
            self._free(group, queue)
        return len(places)

    def _free(self, group: str, queue: MessageQueue) -> None:
        held = self._groups[group]
        connection = held.pop(queue).connection
        self._of[connection].remove((group, queue))
        self._count -= 1
        if not held:
            del self._groups[group]
        if not self._of[connection]:
            del self._of[connection]
