"""A day of rates and lag without Prometheus: rings in memory that forget the oldest, and a service that fills them.

A series keeps 5-second steps for 15 minutes and minutes for 24 hours: 26 kB, and there are at most ``MOST_SERIES``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from typing import TYPE_CHECKING, Any, Final

from verniermq.contrib.console.brokers import broker_figures
from verniermq.contrib.console.groups import group_list, group_queues
from verniermq.contrib.console.topics import topic_list, topic_queues
from verniermq.kernel import VernierMQError

if TYPE_CHECKING:
    from verniermq.contrib.console.console import Console

logger = logging.getLogger(__name__)

STEP_SECONDS: Final = 5
SPANS: Final = {"15m": (STEP_SECONDS, 180), "24h": (60, 1440)}
"""Name → seconds of a step, and how many there are."""
MOST_SERIES: Final = 500
MOST_LAST: Final = 50_000
"""Series of which the newest value is known."""
AT_A_TIME: Final = 100
"""Groups, and topics, that one round asks about; of more, each has its turn."""

Key = tuple[str, str]
"""What, and of whom: ``("lag", "billing")``."""
Points = list[tuple[float, float]]


class TimeRing:
    """Values by time, of the last ``count`` steps."""

    __slots__ = ("_slots", "_step", "_values")

    def __init__(self, step: int, count: int) -> None:
        self._step = step
        self._slots = array("q", [-1]) * count
        self._values = array("d", [0.0]) * count

    def put(self, now: float, value: float) -> None:
        """The last value of a step is the one that stays."""
        slot = int(now // self._step)
        place = slot % len(self._slots)
        self._slots[place], self._values[place] = slot, value

    def points(self, now: float) -> Points:
        """What is known, the oldest first."""
        last = int(now // self._step)
        count = len(self._slots)
        return [
            (slot * self._step, self._values[slot % count])
            for slot in range(max(0, last - count + 1), last + 1)
            if self._slots[slot % count] == slot
        ]


class RateHistory:
    def __init__(self) -> None:
        self._series: dict[Key, dict[str, TimeRing]] = {}
        self._last: dict[Key, float] = {}
        """Of many more than there are rings: long lists are sorted by it."""

    def put(self, key: Key, now: float, value: float) -> None:
        rings = self._series.pop(key, None)
        if rings is None:
            if len(self._series) >= MOST_SERIES:
                del self._series[next(iter(self._series))]
            rings = {name: TimeRing(*span) for name, span in SPANS.items()}
        self._series[key] = rings  # at the end: what was not seen for longest is forgotten first
        for ring in rings.values():
            ring.put(now, value)
        self._last.pop(key, None)
        self._last[key] = value
        if len(self._last) > MOST_LAST:
            del self._last[next(iter(self._last))]

    def points(self, key: Key, span: str, now: float) -> Points:
        rings = self._series.get(key)
        return [] if rings is None else rings[span].points(now)

    def last(self, key: Key) -> float:
        """The newest value; 0 if there is none."""
        return self._last.get(key, 0.0)

    def __len__(self) -> int:
        return len(self._series)


class Sampler:
    """Fills the history of a console, while it is served."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._round = 0

    async def run(self) -> None:
        while True:
            try:
                await self.sample(time.time())
            except VernierMQError as error:
                logger.debug("history has a gap: %s", error)
            await asyncio.sleep(STEP_SECONDS)

    async def sample(self, now: float) -> None:
        """Ask about the brokers, and about the groups and topics whose turn it is.

        Raises:
            VernierMQError: nobody answers.
        """
        ask, history = self._console.inquiry(), self._console.history
        ask.keeps = False  # who looks at a page gets what is there now
        brokers = await broker_figures(ask)
        history.put(("in", ""), now, sum(row["in_per_second"] for row in brokers))
        history.put(("out", ""), now, sum(row["out_per_second"] for row in brokers))
        groups = [name for name, row in (await group_list(ask)).items() if not row["system"]]
        topics = [row for row in (await topic_list(ask)).values() if row["kind"] == "normal"]
        for name in self._turn(groups):
            queues, _ = await group_queues(ask, name)
            history.put(("lag", name), now, sum(row["lag"] for row in queues))
        for topic in self._turn(topics):
            _, rate = await topic_queues(ask, topic["name"], topic["brokers"])
            history.put(("topic", topic["name"]), now, rate)
        self._round += 1

    def _turn(self, items: list[Any]) -> list[Any]:
        """Those whose turn it is, of a list that may be longer than one round."""
        begin = self._round * AT_A_TIME % len(items) if len(items) > AT_A_TIME else 0
        return [*items, *items][begin : begin + min(AT_A_TIME, len(items))]
