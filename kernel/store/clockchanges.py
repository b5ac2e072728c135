"""When somebody set the machine's clock, and by how much: so that ages and delays stay what they were.

A record is stamped with the wall's time, and what the broker derives from the stamp (a delay, the age of a file) would
be wrong by an hour after the clock was set by one. Each change is noted with the place that the log had reached::

    log    ... 17:58  17:59  18:00 | 17:00  17:01 ...          somebody sets the clock back by an hour
                                   ^ (its offset, -3600)

What was stored before it is so much older, by the new time, than its stamp says. The changes are kept with the store
(``config/clockChanges.json``), with the difference of the two clocks and the machine's boot: after a restart on the
same boot a change while no broker ran is known too. After another boot it is not: that the machine was off for a week
looks like a clock that was set ahead by one. Such an outage is noted beside the changes. Delays believe the wall then;
who deletes by age does not count it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from verniermq.kernel.clock import Clock

logger = logging.getLogger(__name__)

LEAST_SECONDS: Final = 2.0
"""A leap second, or a correction by the network's time, is no change."""

LOOK_SECONDS: Final = 1.0

SEEN_SECONDS: Final = 3600.0
"""How often the table says that a broker runs, so that an outage is known to the hour."""

LEAST_OUTAGE: Final = 60.0
"""Shorter ones are not worth a note."""

MOST: Final = 1000
"""The oldest are forgotten first; nobody sets a clock so often."""


class Seen(NamedTuple):
    """What a broker sees of the clocks."""

    boot: str
    difference: float
    """Of the wall's time and the monotonic one."""
    wall: float


class ClockChanges:
    """``end`` says how far the log has come; ``on_change`` is called after each change."""

    def __init__(self, clock: Clock, end: Callable[[], int]) -> None:
        self._clock = clock
        self._end = end
        self._difference = clock.now() - clock.monotonic()
        self._changes: list[tuple[int, float]] = []
        self._outages: list[tuple[int, float]] = []
        self._seen: Seen | None = None
        """What the broker saw that wrote the table."""
        self.on_change: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Look every second."""
        written = self._clock.monotonic()
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            self.look()
            if self._clock.monotonic() - written >= SEEN_SECONDS:
                written = self._clock.monotonic()
                self.on_change()

    def begin(self, newest: float) -> None:
        """At a start: find out what happened to the clock since the last broker, or for how long there was none.

        Args:
            newest: when the newest message was stored, by the wall; 0 if there is none
        """
        seen, boot = self._seen, self._clock.boot()
        if seen is not None and boot and seen.boot == boot:
            self._difference = seen.difference
            self.look()
            return
        last = max(newest, 0.0 if seen is None else seen.wall)
        seconds = self._clock.now() - last
        if last and seconds >= LEAST_OUTAGE:
            self._outages.append((self._end(), seconds))
            del self._outages[:-MOST]
            logger.info("no broker ran on this store for %.0f s, if the machine's clock is right", seconds)
        self.on_change()

    def look(self, offset: int | None = None) -> None:
        """Note a change since the last look; what lies before ``offset``, or all that the log has, was there before."""
        difference = self._clock.now() - self._clock.monotonic()
        seconds = difference - self._difference
        if abs(seconds) < LEAST_SECONDS:
            return
        self._difference = difference
        self._changes.append((self._end() if offset is None else offset, seconds))
        del self._changes[:-MOST]
        logger.warning(
            "the machine's clock was set %s by %.0f s; delays and time-outs go on, times that producers name follow it",
            "ahead" if seconds > 0 else "back", abs(seconds),
        )  # fmt: skip
        self.on_change()

    def since(self, offset: int) -> float:
        """By how many seconds the clock was set ahead, in sum, since the record at ``offset`` was stamped."""
        return sum(seconds for end, seconds in self._changes if offset < end) if self._changes else 0.0

    def doubtful_since(self, offset: int) -> float:
        """The same at most: with the outages, for each of which the clock may have been set ahead by as much."""
        return self.since(offset) + sum(seconds for end, seconds in self._outages if offset < end)

    def set_back_at(self) -> list[int]:
        """The log offsets at which the stamps begin anew with earlier times."""
        return [offset for offset, seconds in self._changes if seconds < 0]

    # --- config/clockChanges.json ----------------------------------------------------------

    def as_json(self, start: int) -> dict[str, Any]:
        """Those that records concern which the log still has; it begins at ``start``."""
        self._changes = [change for change in self._changes if change[0] > start]
        self._outages = [outage for outage in self._outages if outage[0] > start]
        seen = Seen(self._clock.boot(), self._difference, self._clock.now())
        return {"changes": _rows(self._changes), "outages": _rows(self._outages), "seen": seen._asdict()}

    def load_json(self, data: Mapping[str, Any]) -> None:
        try:
            changes, outages = _pairs(data.get("changes", ())), _pairs(data.get("outages", ()))
            seen = data.get("seen")
            if seen is not None:
                self._seen = Seen(str(seen["boot"]), float(seen["difference"]), float(seen["wall"]))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            logger.error("clockChanges.json is left out, the stamps are believed: %s: %s", type(error).__name__, error)
            return
        self._changes += changes
        self._outages += outages


def _rows(changes: list[tuple[int, float]]) -> list[dict[str, float]]:
    return [{"logOffset": offset, "seconds": seconds} for offset, seconds in changes]


def _pairs(rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, float]]:
    return [(int(row["logOffset"]), float(row["seconds"])) for row in rows]
