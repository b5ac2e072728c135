"""A flag per broker, and one timer that takes all flags down: the cheapest memory there is.

    broker-b fails          flag up ──────────────┐
    timer      |─────────────|─────────────|─────────────|
                                           all flags down

A broker is avoided for anything between no time and a whole period, depending on where in the period it
failed. After each reset every broker is tried again, so a dead one costs one failed send per period.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from verniermq.kernel import MessageQueue, setting
from verniermq.plugins.fault.rotation import Rotation, is_failure


@attrs.frozen
class Flag:
    """``[plugins.fault.flag]``"""

    reset_every_ms: int = setting(10000, "The period after which all flags go down.", at_least=1)
    slow_ms: int = setting(1000, "A send that took longer counts as failed; 0 counts none.", at_least=0)


class FlagWithReset:
    """Named ``flag``."""

    def __init__(self, settings: Flag, clock_ms: Callable[[], float], rotation: Rotation) -> None:
        self.settings = settings
        self._clock_ms = clock_ms
        self._rotation = rotation
        self._flagged: set[str] = set()
        self._period_from = clock_ms()

    def choose(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        self._reset_when_due()
        fits = self._rotation.first(queues, self.is_available, last_broker)
        return fits or self._rotation.anywhere(queues, last_broker)

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, reachable: bool = True) -> None:
        self._reset_when_due()
        if is_failure(latency_ms, failed, reachable, self.settings.slow_ms):
            self._flagged.add(broker_name)

    def is_available(self, broker_name: str) -> bool:
        return broker_name not in self._flagged

    def _reset_when_due(self) -> None:
        periods = (self._clock_ms() - self._period_from) // self.settings.reset_every_ms
        if periods > 0:
            self._flagged.clear()
            self._period_from += periods * self.settings.reset_every_ms
