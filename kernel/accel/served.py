"""Plain sends that were served together, until those who stand before the handlers hear of them.

To time and to tell each chunk of sends costs a tenth of what serving it costs. So the first chunk of a round is timed,
and what a send took in it counts for all of the round, which ends after ``ROUND_SECONDS`` or when somebody asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from verniermq.kernel.codes import RequestCode
from verniermq.kernel.remoting import ServedTogether

logger = logging.getLogger(__name__)

ROUND_SECONDS: Final = 0.05
COUNTED: Final = tuple(
    (int(code), oneway)
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    for oneway in (False, True)
)
"""What the compiled module counts, in this order."""


class ServedSends:
    """What the compiled way served and nobody heard of yet."""

    def __init__(self, totals: Callable[[], Sequence[int]]) -> None:
        """``totals`` says how many of each of ``COUNTED`` were served since the beginning."""
        self.is_awaited = False
        """Whether the next chunk begins a round: somebody listens, and no round is on."""
        self._totals = totals
        self._before = totals()
        """What those who listen heard of."""
        self._told: Mapping[int, Sequence[ServedTogether]] = {}
        self._send_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def tell_these(self, told: Mapping[int, Sequence[ServedTogether]]) -> None:
        """From now on, by code; what was served before is told to those before."""
        self.tell()
        self._told = told
        self._before = self._totals()
        self.is_awaited = bool(told)

    def begin(self, elapsed_ns: int) -> None:
        """Begin a round with a chunk that was timed."""
        self._send_ns = elapsed_ns // (sum(self._totals()) - sum(self._before))
        self._timer = asyncio.get_running_loop().call_later(ROUND_SECONDS, self.tell)
        self.is_awaited = False

    def tell(self) -> None:
        """End the round."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        self.is_awaited = True
        before, self._before = self._before, self._totals()
        for (code, oneway), old, new in zip(COUNTED, before, self._before, strict=True):
            for told in self._told.get(code, ()) if new > old else ():
                try:
                    told(code, oneway, new - old, self._send_ns * (new - old))
                except Exception:
                    logger.exception("whoever counts sends failed told=%r", told)  # they are stored all the same
