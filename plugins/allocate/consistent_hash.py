"""Queues and clients on one ring: when a client leaves, only its own queues move.

Each client stands on the ring at several points (virtual nodes), at the hashes of ``clientId-0``,
``clientId-1`` and so on. A queue belongs to the first point at or after its own hash; past the last point
the ring starts again. The hash is the first four bytes of MD5, big endian, unsigned.

           0
      .3 ●   ● .1
     .2 ●     ○ queue 2 (853506239)
    .1 ●       ● .2 (1089019578)   ← its owner
      .2 ●   ● .2

The price of stability is balance: shares are only roughly equal, more so with more virtual nodes (RocketMQ:
``AllocateMessageQueueConsistentHash``, name ``CONSISTENT_HASH``, 10 virtual nodes).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from hashlib import md5

import attrs

from verniermq.kernel import MessageQueue
from verniermq.plugins.allocate import VIRTUAL_NODES
from verniermq.plugins.allocate.strategy import index_of


def ring_hash(key: str) -> int:
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def queue_key(queue: MessageQueue) -> str:
    """A queue's text in Java, which is what RocketMQ hashes."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


@attrs.frozen
class Ring:
    """The points in ascending order, and who stands at each."""

    points: tuple[int, ...]
    owners: tuple[str, ...]

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, clients: tuple[str, ...], virtual_nodes: int) -> Ring:
        """Kept for the next topics of the same round: every topic of a group has the same members."""
        owner_at: dict[int, str] = {}
        for client in clients:
            # An id that is listed twice continues its numbering, and of two points at one place the later
            # stays: neither happens in a healthy group, yet all members must then do the same.
            first = sum(owner == client for owner in owner_at.values()) if clients.count(client) > 1 else 0
            for replica in range(first, first + virtual_nodes):
                owner_at[ring_hash(f"{client}-{replica}")] = client
        points = sorted(owner_at)
        return cls(tuple(points), tuple(owner_at[point] for point in points))

    def owner(self, key: str) -> str | None:
        """Whose a key is; ``None`` on a ring without points."""
        if not self.points:
            return None
        return self.owners[bisect_left(self.points, ring_hash(key)) % len(self.points)]


@attrs.frozen
class ConsistentHash:
    """The strategy with its one number bound."""

    virtual_nodes: int = attrs.field(default=VIRTUAL_NODES, validator=attrs.validators.ge(0))

    def __call__(self, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
        if index_of(client_id, queues, clients) is None:
            return []
        ring = Ring.of(tuple(clients), self.virtual_nodes)
        return [queue for queue in queues if ring.owner(queue_key(queue)) == client_id]
