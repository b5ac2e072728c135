"""How much went through, per topic and per group, in the last minute, hour and day (RocketMQ: ``BrokerStatsManager``).

A counter only counts. A service looks at all of them every 10 s and keeps a few of the readings; a rate is the
difference of two readings. So a message costs an addition, whatever is asked later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import attrs

from verniermq.kernel import Clock, in_steps

SAMPLE_SECONDS: Final = 10.0
COUNTERS_PER_STEP: Final = 2048

PUT_NUMS: Final = "TOPIC_PUT_NUMS"
PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GET_NUMS: Final = "GROUP_GET_NUMS"
GET_SIZE: Final = "GROUP_GET_SIZE"
BROKER_PUT: Final = "BROKER_PUT_NUMS"
BROKER_GET: Final = "BROKER_GET_NUMS"
BROKER_PUT_USERS: Final = "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC"
BROKER_GET_USERS: Final = "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC"
BROKER_PUT_SIZE: Final = "BROKER_PUT_SIZE"
BROKER_GET_MISSED: Final = "BROKER_GET_MISSED"


class Reading(NamedTuple):
    seconds: float
    total: int
    times: int


@attrs.define(eq=False)
class Counter:
    """What was counted since the start, and readings of it: 10 s, 10 min and 1 h apart."""

    total: int = 0
    times: int = 0
    minute: list[Reading] = attrs.Factory(list)
    hour: list[Reading] = attrs.Factory(list)
    day: list[Reading] = attrs.Factory(list)

    def add(self, amount: int) -> None:
        self.total += amount
        self.times += 1

    def window(self, readings: list[Reading], now: float) -> dict[str, float]:
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
        self._sampled_at = clock.monotonic()

    def add(self, statistic: str, key: str, amount: int = 1) -> None:
        counter = self._counters.get((statistic, key))
        if counter is None:
            counter = self._counters[statistic, key] = Counter()
            nothing = Reading(self._sampled_at, 0, 0)
            for readings in (counter.minute, counter.hour, counter.day):
                readings.append(nothing)  # until then
        counter.add(amount)

    def total(self, statistic: str, key: str) -> int:
        counter = self._counters.get((statistic, key))
        return 0 if counter is None else counter.total

    def per_second(self, statistic: str, key: str) -> float:
        """Over the last minute."""
        counter = self._counters.get((statistic, key))
        return 0.0 if counter is None else counter.window(counter.minute, self._clock.monotonic())["tps"]

    def three(self, statistic: str, key: str, *, of_events: bool = False) -> tuple[float, float, float]:
        """Per second, over about 10 s, 60 s and 600 s, as far as the readings reach."""
        counter = self._counters.get((statistic, key))
        if counter is None:
            return 0.0, 0.0, 0.0
        now = self._clock.monotonic()

        def rate(readings: list[Reading]) -> float:
            oldest = readings[0]
            amount = counter.times - oldest.times if of_events else counter.total - oldest.total
            return amount / max(now - oldest.seconds, 1.0)

        return rate(counter.minute[-2:]), rate(counter.minute), rate(counter.hour[-2:])

    def shown(self, statistic: str, key: str) -> dict[str, Any] | None:
        """The body of VIEW_BROKER_STATS_DATA, or ``None`` for what was never counted."""
        counter = self._counters.get((statistic, key))
        if counter is None:
            return None
        now = self._clock.monotonic()
        return {
            "statsDay": counter.window(counter.day, now),
            "statsHour": counter.window(counter.hour, now),
            "statsMinute": counter.window(counter.minute, now),
        }

    async def run(self, before: Callable[[], None]) -> None:
        """Take a sample now and then; ``before`` each, what is not counted yet is brought in."""
        while True:
            await self._clock.sleep(SAMPLE_SECONDS)
            before()
            await self.sample()

    async def sample(self) -> None:
        self._samples += 1
        now = self._sampled_at = self._clock.monotonic()
        async for counter in in_steps(list(self._counters.values()), COUNTERS_PER_STEP):
            reading = Reading(now, counter.total, counter.times)
            _keep(counter.minute, reading, 7)
            if self._samples % 60 == 0:
                _keep(counter.hour, reading, 7)
            if self._samples % 360 == 0:
                _keep(counter.day, reading, 25)

    def forget(self, topics: Iterable[str]) -> None:
        """Topics are deleted."""
        gone = set(topics)
        for place in [place for place in self._counters if place[1].partition("@")[0] in gone]:
            del self._counters[place]


def _keep(readings: list[Reading], reading: Reading, most: int) -> None:
    """A list, since there may be a hundred thousand counters, and a deque takes ten times the memory."""
    readings.append(reading)
    del readings[:-most]
