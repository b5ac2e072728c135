"""Fetching old records from the disk without holding the loop.

What was written long ago may be on the disk only. Slicing a map there stops the whole process until the disk has
answered, writers included, and for records that lie apart the operating system reads megabytes around each. So
before a reader slices old records, he asks whether they are in memory (a read that may not wait, ``RWF_NOWAIT``,
tells), and what is not is read in a worker thread first::

    old records ──> in memory? ──yes──> slice
                        └──no──> worker thread reads them ──> slice

Where the system cannot tell, everything counts as in memory, as it does for what was appended a moment ago.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import anyio
import anyio.to_thread

from verniermq.kernel.commitlog.log import CommitLog

NEAR = 64 << 10
"""Records no further apart than this are asked about, and read, as one piece."""

FRESH = 64 << 20
"""So many bytes before the log's end count as in memory: they were written lately."""

THREADS = 4
"""Enough to keep a disk busy; with more, old reads would only push the syncs back."""

T = TypeVar("T")

Span = tuple[int, int]
"""Where in the log a piece begins and where it ends; it lies in one segment."""


class OnDisk(Exception):
    """A piece of the log would have to be read from the disk."""

    def __init__(self, place: int, spans: list[Span]) -> None:
        super().__init__(place)
        self.place = place
        self.spans = spans


class ColdReads:
    """Says what of a log is on the disk only, and fetches it."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._threads = anyio.CapacityLimiter(THREADS)
        self.longest = 0.0
        """Seconds that a fetch took at most."""

    @property
    def fresh_from(self) -> int:
        """Records from this offset on count as in memory."""
        return self._log.end - FRESH

    def missing(self, places: Iterable[tuple[int, int]]) -> list[Span]:
        """What has to be fetched before records at (offset, size) are read; nothing is waited for."""
        spans = self._spans(places, self.fresh_from)
        for number, span in enumerate(spans):
            if not self._in_memory(span):
                return spans[number:]  # the rest is not asked about: even asking has the disk begin to read
        return []

    async def repeated(self, read: Callable[[Callable[[int, int], None]], T]) -> T:
        """What ``read(ask)`` returns, which calls ``ask(offset, size)`` before it reads a piece of the log.

        It is called again when a piece that it needs was fetched from the disk: how far it got is not kept.
        """
        fetched: set[int] = set()

        def ask(place: int, size: int) -> None:
            if place not in fetched and (spans := self.missing([(place, size)])):
                raise OnDisk(place, spans)

        while True:
            try:
                return read(ask)
            except OnDisk as cold:
                fetched.add(cold.place)  # once: what the system dropped again at once is waited for
                await self.fetch(cold.spans)

    def bring(self, place: int, size: int) -> None:
        """Have a piece of the log in memory. For a worker thread, which waits for the disk and holds up nobody else.

        Raises:
            OSError: the disk failed.
        """
        if spans := self.missing([(place, size)]):
            self._fetch(spans)

    async def fetch(self, spans: list[Span]) -> None:
        """
        Raises:
            OSError: the disk failed.
        """
        begun = anyio.current_time()
        await anyio.to_thread.run_sync(self._fetch, spans, limiter=self._threads)
        self.longest = max(self.longest, anyio.current_time() - begun)

    def _spans(self, places: Iterable[tuple[int, int]], fresh: int) -> list[Span]:
        """Old places joined to pieces."""
        size = self._log.segment_size
        spans: list[Span] = []
        start = stop = segment_end = 0
        for offset, length in places:
            if offset >= fresh:
                continue
            if start <= offset <= stop + NEAR and offset + length <= segment_end:
                stop = max(stop, offset + length)
                continue
            following_segment = offset - offset % size + size
            if offset + length > following_segment:
                continue  # a blank entry, which names no record
            if stop:
                spans.append((start, stop))
            start, stop, segment_end = offset, offset + length, following_segment
        if stop:
            spans.append((start, stop))
        return spans

    def _in_memory(self, span: Span) -> bool:
        start, stop = span
        file = self._log.segment_of(start)
        return file is None or file.in_memory(start - file.start, stop - start)

    def _fetch(self, spans: list[Span]) -> None:
        found = [(file, start, stop) for start, stop in spans if (file := self._log.segment_of(start)) is not None]
        for file, start, stop in found:
            file.want(start - file.start, stop - start)  # all of them, so that the disk may choose the order
        for file, start, stop in found:
            file.fetch(start - file.start, stop - start)
