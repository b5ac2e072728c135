"""Time-stamped failures with a cleaner: a broker that failed is avoided until its failure is old enough.

    failures   { broker-b: 12:00:03 }
    cleaner    every second: drop what is older than 30 s

Between two rounds of the cleaner an old entry still counts, so a broker comes back up to ``clean_every_ms``
late; that is the price for a test that is one look into a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from verniermq.kernel import MessageQueue, setting
from verniermq.plugins.fault.rotation import Rotation, is_failure


@attrs.frozen
class Timeout:
    """``[plugins.fault.timeout]``"""

    avoid_ms: int = setting(30000, "How long a failure keeps producers away.", at_least=0)
    clean_every_ms: int = setting(
        1000,
        "Pause between two rounds of the cleaner; 0 cleans at every send.",
        at_least=0,
    )
    slow_ms: int = setting(1000, "A send that took longer counts as failed; 0 counts none.", at_least=0)


class TimeoutMap:
    """Named ``timeout``."""

    def __init__(self, settings: Timeout, clock_ms: Callable[[], float], rotation: Rotation) -> None:
        self.settings = settings
        self._clock_ms = clock_ms
        self._rotation = rotation
        self._failed_at: dict[str, float] = {}
        self._cleaned_at = clock_ms()

    def choose(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        self._clean()
        fits = self._rotation.first(queues, self.is_available, last_broker)
        return fits or self._rotation.anywhere(queues, last_broker)

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, reachable: bool = True) -> None:
        if is_failure(latency_ms, failed, reachable, self.settings.slow_ms):
            self._failed_at[broker_name] = self._clock_ms()

    def is_available(self, broker_name: str) -> bool:
        return broker_name not in self._failed_at

    def _clean(self) -> None:
        now = self._clock_ms()
        if now - self._cleaned_at < self.settings.clean_every_ms:
            return
        self._cleaned_at = now
        oldest = now - self.settings.avoid_ms
        for broker_name in [name for name, failed_at in self._failed_at.items() if failed_at <= oldest]:
            del self._failed_at[broker_name]
