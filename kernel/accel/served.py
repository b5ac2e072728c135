"""Plain sends that were served together, until those who stand before the handlers hear of them.

To time and to tell each chunk of sends costs a tenth of what serving it costs. So the first chunk of a round is timed,
and what a send took in it counts for all of the round, which ends after ``ROUND_SECONDS`` or when somebody asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from verniermq.kernel.codes import RequestCode
from verniermq.kernel.remoting import ServedTogether

logger = logging.getLogger(__name__)

ROUND_SECONDS: Final = 0.02
COUNTED: Final = tuple(
    (int(code), oneway)
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    for oneway in (False, True)
)
"""What the compiled module counts, in this order."""


class ServedSends:
    """What the compiled way served and nobody heard of yet."""

    def __init__(self) -> None:
        self._told: Mapping[int, Sequence[ServedTogether]] = {}
        self.chunks: list[Sequence[int]] | None = None
        """How many of each of ``COUNTED`` each chunk had; None while nobody listens. The lane adds to it."""
        self._send_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def tell_these(self, told: Mapping[int, Sequence[ServedTogether]]) -> None:
        """From now on, by code; what was served before is told to those before."""
        self.tell()
        self._told = told
        self.chunks = [] if told else None

    def begin(self, counts: Sequence[int], elapsed_ns: int) -> None:
        """Begin a round with a chunk that was timed."""
        self._send_ns = elapsed_ns // sum(counts)
        self._timer = asyncio.get_running_loop().call_later(ROUND_SECONDS, self.tell)

    def tell(self) -> None:
        """End the round."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.chunks:
            return
        chunks, self.chunks = self.chunks, []
        for (code, oneway), count in zip(COUNTED, map(sum, zip(*chunks, strict=True)), strict=True):
            for told in self._told.get(code, ()) if count else ():
                try:
                    told(code, oneway, count, self._send_ns * count)
                except Exception:
                    logger.exception("whoever counts sends failed told=%r", told)  # they are stored all the same
