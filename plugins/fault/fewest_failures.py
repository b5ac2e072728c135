"""Send where the fewest sends failed; among equals, round robin.

    failures   broker-a 0   broker-b 3   broker-c 0      →  a, c, a, c, …

A count that only grew would banish a broker for an old outage until the others had failed as often, so
counts are halved once per period: three failures are forgotten after two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from verniermq.kernel import MessageQueue, setting
from verniermq.plugins.fault.rotation import Rotation, is_failure


@attrs.frozen
class FewestFailures:
    """``[plugins.fault.fewest_failures]``"""

    halve_every_ms: int = setting(
        10000,
        "The period after which counts are halved (rounding down); 0 keeps them for ever.",
        at_least=0,
    )
    slow_ms: int = setting(1000, "A send that took longer counts as failed; 0 counts none.", at_least=0)


class FailureCounts:
    """Named ``fewest_failures``."""

    def __init__(self, settings: FewestFailures, clock_ms: Callable[[], float], rotation: Rotation) -> None:
        self.settings = settings
        self._clock_ms = clock_ms
        self._rotation = rotation
        self._failures_of: dict[str, int] = {}
        self._period_from = clock_ms()

    def choose(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        self._halve_when_due()
        others = {queue.broker_name for queue in queues} - {last_broker}
        if not others:
            return self._rotation.next(queues)
        fewest = min(self._failures_of.get(name, 0) for name in others)
        best = {name for name in others if self._failures_of.get(name, 0) == fewest}
        return self._rotation.first(queues, best.__contains__, last_broker) or self._rotation.next(queues)

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, reachable: bool = True) -> None:
        self._halve_when_due()
        if is_failure(latency_ms, failed, reachable, self.settings.slow_ms):
            self._failures_of[broker_name] = self._failures_of.get(broker_name, 0) + 1

    def failures(self) -> dict[str, int]:
        """How often each broker failed, as it counts now."""
        return dict(self._failures_of)

    def _halve_when_due(self) -> None:
        if not self.settings.halve_every_ms:
            return
        periods = int((self._clock_ms() - self._period_from) // self.settings.halve_every_ms)
        if periods > 0:
            self._period_from += periods * self.settings.halve_every_ms
            halved = {name: count >> min(periods, 64) for name, count in self._failures_of.items()}
            self._failures_of = {name: count for name, count in halved.items() if count}
