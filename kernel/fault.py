"""The shape of a fault strategy: how a producer learns which broker to avoid.

The strategies themselves are plugins (``plugins/fault``); the client asks one for the next queue and tells
it how each send went.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from verniermq.kernel.message import MessageQueue


class FaultStrategy(Protocol):
    def choose(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        """The queue to send to; ``last_broker`` is the one that just failed in this call, if any."""
        ...

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, reachable: bool = True) -> None:
        """Hear how a send to a broker went."""
        ...
