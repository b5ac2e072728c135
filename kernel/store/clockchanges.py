"""When somebody set the machine's clock, and by how much: so that ages and delays stay what they were.

A record is stamped with the wall's time, and what the broker derives from the stamp (a delay, the age of a file) would
be wrong by an hour after the clock was set by one. Each change is noted with the place that the log had reached::

    log    ... 17:58  17:59  18:00 | 17:00  17:01 ...          somebody sets the clock back by an hour
                                   ^ (its offset, -3600)

What was stored before it is so much older, by the new time, than its stamp says. The changes are kept with the store
(``config/clockChanges.json``); one that happens while no broker runs is not noticed, and the stamps are believed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from verniermq.kernel.clock import Clock

logger = logging.getLogger(__name__)

LEAST_SECONDS: Final = 2.0
"""A leap second, or a correction by the network's time, is no change."""

LOOK_SECONDS: Final = 1.0

MOST: Final = 1000
"""The oldest are forgotten first; nobody sets a clock so often."""


class ClockChanges:
    """``end`` says how far the log has come; ``on_change`` is called after each change."""

    def __init__(self, clock: Clock, end: Callable[[], int]) -> None:
        self._clock = clock
        self._end = end
        self._difference = clock.now() - clock.monotonic()
        self._changes: list[tuple[int, float]] = []
        self.on_change: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Look every second."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            self.look()

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

    def set_back_at(self) -> list[int]:
        """The log offsets at which the stamps begin anew with earlier times."""
        return [offset for offset, seconds in self._changes if seconds < 0]

    # --- config/clockChanges.json ----------------------------------------------------------

    def as_json(self, start: int) -> dict[str, Any]:
        """Those that records concern which the log still has; it begins at ``start``."""
        self._changes = [change for change in self._changes if change[0] > start]
        return {"changes": [{"logOffset": offset, "seconds": seconds} for offset, seconds in self._changes]}

    def load_json(self, data: Mapping[str, Any]) -> None:
        try:
            changes = [(int(change["logOffset"]), float(change["seconds"])) for change in data.get("changes", ())]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            logger.error("clockChanges.json is left out, the stamps are believed: %s: %s", type(error).__name__, error)
            return
        self._changes += changes
