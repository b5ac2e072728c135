"""No memory: only a retry avoids the broker that failed in the same call.

RocketMQ's way when its latency table is off, which is its default.
"""

from __future__ import annotations

from collections.abc import Sequence

from verniermq.kernel import MessageQueue
from verniermq.plugins.fault.rotation import Rotation


class RoundRobin:
    """Named ``round_robin``."""

    def __init__(self, rotation: Rotation) -> None:
        self._rotation = rotation

    def choose(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        return self._rotation.anywhere(queues, last_broker)

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, reachable: bool = True) -> None:
        """Nothing is remembered."""
