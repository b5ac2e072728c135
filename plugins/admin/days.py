"""How much had been counted when the days began (RocketMQ: ``BrokerStats``).

Tools show today's and yesterday's messages as differences of what was counted up to now, up to this morning and up to
yesterday's. A day begins at midnight where the broker is.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from verniermq.kernel import Clock


class Totals(NamedTuple):
    """Messages since the start, without those of the broker's own topics."""

    put: int = 0
    got: int = 0


class Days:
    def __init__(self, clock: Clock, totals: Callable[[], Totals]) -> None:
        self._clock = clock
        self._totals = totals
        self.this_morning = Totals()
        self.yesterday_morning = Totals()

    async def run(self) -> None:
        while True:
            await self._clock.sleep_until(next_midnight(self._clock.now()))
            self.yesterday_morning, self.this_morning = self.this_morning, self._totals()


def next_midnight(now: float) -> float:
    """When the next day begins, by the time zone of this machine."""
    tomorrow = datetime.fromtimestamp(now).date() + timedelta(days=1)
    return datetime(tomorrow.year, tomorrow.month, tomorrow.day).timestamp()
