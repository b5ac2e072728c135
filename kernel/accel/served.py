"""Plain sends that were served together, until those who stand before the handlers hear of them.

To time and to tell each chunk of sends costs a tenth of what serving it costs. So one chunk of a round is timed, and
what a send took in it counts for all of the round, which ends after ``CHUNKS`` chunks or ``ROUND_SECONDS``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import Final

from verniermq.kernel.codes import RequestCode
from verniermq.kernel.remoting import ServedTogether

logger = logging.getLogger(__name__)

CHUNKS: Final = 16
ROUND_SECONDS: Final = 0.05
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
        self._chunks: list[Sequence[int]] = []
        self._send_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def tell_these(self, told: Mapping[int, Sequence[ServedTogether]]) -> None:
        """From now on, by code; what was served before is told to those before."""
        self.tell()
        self._told = told

    def begin(self) -> int:
        """When a chunk begins that is to be timed; 0 for one that is not."""
        return perf_counter_ns() if self._told and not self._chunks else 0

    def add(self, counts: Sequence[int], began: int) -> None:
        """A chunk was served: how many of each of ``COUNTED`` it had, and what ``begin`` said."""
        if began:
            self._send_ns = (perf_counter_ns() - began) // sum(counts)
            self._timer = asyncio.get_running_loop().call_later(ROUND_SECONDS, self.tell)
        elif not self._told:
            return
        self._chunks.append(counts)
        if len(self._chunks) >= CHUNKS:
            self.tell()

    def tell(self) -> None:
        """End the round."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        chunks, self._chunks = self._chunks, []
        for (code, oneway), count in zip(COUNTED, map(sum, zip(*chunks, strict=True)), strict=False):
            for told in self._told.get(code, ()) if count else ():
                try:
                    told(code, oneway, count, self._send_ns * count)
                except Exception:
                    logger.exception("whoever counts sends failed told=%r", told)  # they are stored all the same
