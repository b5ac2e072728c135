"""How much went through, per topic and per group, in the last minute, hour and day (RocketMQ: ``BrokerStatsManager``).

A counter only counts. A service looks at all of them every 10 s and keeps a few of the readings; a rate is the
difference of two readings. So a message costs an addition, whatever is asked later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import attrs

from verniermq.kernel import Clock

SAMPLE_SECONDS: Final = 10.0

PUT_NUMS: Final = "TOPIC_PUT_NUMS"
PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GET_NUMS: Final = "GROUP_GET_NUMS"
GET_SIZE: Final = "GROUP_GET_SIZE"
BROKER_PUT: Final = "BROKER_PUT_NUMS"
BROKER_GET: Final = "BROKER_GET_NUMS"


@attrs.frozen
class Reading:
    seconds: float
    total: int
    times: int


@attrs.define(eq=False)
class Counter:
    """What was counted since the start, and readings of it: 10 s, 10 min and 1 h apart."""

    total: int = 0
    times: int = 0
    minute: deque[Reading] = attrs.Factory(lambda: deque(maxlen=7))
    hour: deque[Reading] = attrs.Factory(lambda: deque(maxlen=7))
    day: deque[Reading] = attrs.Factory(lambda: deque(maxlen=25))

    def add(self, amount: int) -> None:
        self.total += amount
        self.times += 1

    def window(self, readings: deque[Reading], now: float) -> dict[str, float]:
        """The sum, the rate and the average per event from the oldest reading to now, as RocketMQ shows them."""
        oldest = readings[0] if readings else Reading(now, 0, 0)
        seconds = max(now - oldest.seconds, 1.0)
        amount, times = self.total - oldest.total, self.times - oldest.times
        return {"sum": amount, "tps": amount / seconds, "avgpt": amount / times if times else 0.0}


class Rates:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counters: dict[tuple[str, str], Counter] = {}
        self._samples = 0
        self._sampled_at = clock.now()

    def add(self, statistic: str, key: str, amount: int = 1) -> None:
        counter = self._counters.get((statistic, key))
        if counter is None:
            counter = self._counters[statistic, key] = Counter()
            for readings in (counter.minute, counter.hour, counter.day):
                readings.append(Reading(self._sampled_at, 0, 0))  # there was nothing to count until then
        counter.add(amount)

    def total(self, statistic: str, key: str) -> int:
        counter = self._counters.get((statistic, key))
        return 0 if counter is None else counter.total

    def per_second(self, statistic: str, key: str) -> float:
        """Over the last minute."""
        counter = self._counters.get((statistic, key))
        return 0.0 if counter is None else counter.window(counter.minute, self._clock.now())["tps"]

    def shown(self, statistic: str, key: str) -> dict[str, Any] | None:
        """The body of VIEW_BROKER_STATS_DATA, or ``None`` for what was never counted."""
        counter = self._counters.get((statistic, key))
        if counter is None:
            return None
        now = self._clock.now()
        return {
            "statsDay": counter.window(counter.day, now),
            "statsHour": counter.window(counter.hour, now),
            "statsMinute": counter.window(counter.minute, now),
        }

    async def run(self, catch_up: Callable[[], None]) -> None:
        """Take a sample now and then; ``catch_up`` brings in what is not counted yet."""
        while True:
            await self._clock.sleep(SAMPLE_SECONDS)
            catch_up()
            self.sample()

    def sample(self) -> None:
        self._samples += 1
        now = self._sampled_at = self._clock.now()
        for counter in self._counters.values():
            reading = Reading(now, counter.total, counter.times)
            counter.minute.append(reading)
            if self._samples % 60 == 0:
                counter.hour.append(reading)
            if self._samples % 360 == 0:
                counter.day.append(reading)
