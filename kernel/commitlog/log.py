"""The commit log: all messages of all topics, one after the other, in files of equal size (RocketMQ: ``CommitLog``).

::

    commitlog/00000000000000000000   |rec|rec|rec|…|rec|blank|
    commitlog/00000000001073741824   |rec|rec|…          <- end: the next record goes here
    commitlog/00000000002147483648   made ahead of time, all zero

An offset counts bytes from the log's beginning; the file that has it is found by division. Old files are
mapped when somebody reads them (``readmaps.py``). Nothing here knows what is durable or where the
log ends after a crash: see ``flush.py`` and ``recovery.py``.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from mmap import mmap
from pathlib import Path
from typing import NamedTuple

from verniermq.kernel.commitlog.mapped import (
    LARGEST_FOLIO,
    MappedFile,
    clear_from,
    file_name,
    file_starts,
    sync_data,
    sync_directory,
)
from verniermq.kernel.commitlog.readmaps import ReadMaps
from verniermq.kernel.commitlog.record import BLANK_SIZE, pack_blank
from verniermq.kernel.errors import MessageSizeExceeded, SegmentSizeMismatch, StoreNotWritable

logger = logging.getLogger(__name__)

RESERVE_STEP = 16 << 20
"""Disk room is asked for this many bytes ahead: seldom enough to cost nothing, little enough for a laptop."""

AHEAD = 4 << 20
"""So much behind the log's end is made ready for writing, a sixth of a second's messages at full speed."""

LARGE_PIECE = 64 << 10
"""So much is written by a call, which copies whole pages at once: a store into the map meets each page by itself, has
the system fill it with zeros first, and takes three times as long."""

SAY_SECONDS = 10.0
"""After a line about a log that cannot grow, the next one comes no sooner."""

KEPT_IN_MEMORY = 32 << 20
"""So much of the log's end stays mapped: what consumers read that keep up."""


class SegmentInfo(NamedTuple):
    """One file of the log, for those who expire or inspect them."""

    start: int
    path: Path
    size: int
    modified: float
    """Seconds since the epoch, as the file system says."""
    active: bool


class CommitLog:
    """Append, read at an offset, roll to the next segment. ``open_at`` must come before the first append."""

    def __init__(self, directory: Path, segment_size: int) -> None:
        self.directory = directory
        self.segment_size = segment_size
        self.min_offset = 0
        self.end = 0
        """Where the next record goes."""
        self.buffer: mmap
        """The map of the active segment."""
        self.base = 0
        """The offset of the active segment's first byte."""
        self._tip: tuple[int, mmap | None] = (0, None)
        """Both of them, for readers in other threads: they must fit together."""
        self.room = 0
        """An append that would end beyond this must call :meth:`make_room` first. Never more than is reserved."""
        self._by_call = False
        """Whether appends are written by calls up to there, which can fail, and not stored into the map."""
        self._in_large_pieces = False
        """Whether what was appended last was, so that no pages need be fetched for the next."""
        self._stained = False
        """Whether an append that failed may have left something behind the end."""
        self._is_stuck = False
        """Whether it was said that the log cannot grow."""
        self._said_at = -math.inf
        self.came_ahead: Callable[[], None] | None = None
        """Called now and then when the log has grown: time to call :meth:`get_ready` in a thread."""
        self._ready = 0
        """Up to here the pages were fetched, or are being."""
        self._active: MappedFile | None = None
        self._unsynced: list[MappedFile] = []
        self._next: MappedFile | None = None
        self._making = threading.Lock()
        self._read_maps = ReadMaps(directory, segment_size)

    # --- opening and closing ---------------------------------------------------------------

    def load(self) -> list[int]:
        """Look at the files and say where each begins. An empty last file, the trace of a crash, is removed.

        Raises:
            SegmentSizeMismatch: a file has another length than ``segment_size``.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        starts = file_starts(self.directory)
        if starts and self._path(starts[-1]).stat().st_size == 0:
            self._path(starts.pop()).unlink()
        for start in starts:
            size = self._path(start).stat().st_size
            if size != self.segment_size:
                raise SegmentSizeMismatch(self._path(start), size, self.segment_size)
        self.min_offset = starts[0] if starts else 0
        return starts

    def open_at(self, end: int) -> None:
        """Begin appending at ``end``. What lies behind it is cut off: zeroed in its file, later files removed.

        Left there, a whole record behind the cut could be taken for a new one after the next crash.
        """
        base = end - end % self.segment_size
        for start in file_starts(self.directory):
            if start > base:
                self._path(start).unlink()
            elif start == base:
                clear_from(self._path(start), end - base)
        self._read_maps.clear()
        self._activate(MappedFile.create(self._path(base), self.segment_size), end)
        self.min_offset = min(self.min_offset, base)

    def restart_at(self, start: int) -> None:
        """Begin at a later file, as long as nothing was written."""
        self.close()
        for old in file_starts(self.directory):
            self._path(old).unlink()
        self.open_at(start)
        self.min_offset = start

    def close(self) -> None:
        """Let go of every file; appending is over."""
        with self._making:
            for file in (self._active, self._next):
                if file is not None:
                    file.close()
            self._active = self._next = None
            self._unsynced.clear()
            self._tip = (0, None)
        self._read_maps.clear()
        self.room = 0

    # --- appending -------------------------------------------------------------------------

    def make_room(self, size: int) -> int:
        """Return the offset for a record of ``size`` bytes that does not fit before ``room``.

        Raises:
            MessageSizeExceeded: it is larger than a segment.
            StoreNotWritable: the disk has no room; the next append asks again.
        """
        active = self._active
        if active is None:
            raise StoreNotWritable("the store is closed")
        if size + BLANK_SIZE > self.segment_size:
            raise MessageSizeExceeded(size, self.segment_size - BLANK_SIZE)
        try:
            position = self.end - self.base
            if self._stained:
                clear_from(active.path, position)  # no shorter record may end where a part of it looks like the next
                self._stained = False
            if position + size + BLANK_SIZE > self.segment_size:
                self._roll(position)
                active, position = self._active or active, 0
            if position + size + BLANK_SIZE > active.reserved:
                self._reserve(active, position + size + BLANK_SIZE)
            self._by_call = not active.stores_are_safe()
        except OSError as error:
            raise self._cannot_grow(error) from error
        # A disk that is nearly full is looked at before each append.
        ahead = 0 if self._by_call and active.in_place else AHEAD
        self.room = self.base + min(position + size + ahead, active.reserved, self.segment_size - BLANK_SIZE)
        if not self._by_call:
            self._grows()
        if self.came_ahead is not None:
            self.came_ahead()
        return self.end

    def _reserve(self, file: MappedFile, needed: int) -> None:
        if file.stores_are_safe():
            try:
                file.reserve(needed + RESERVE_STEP)
            except OSError:
                pass  # what is beyond somebody's quota may still have room for this one
            else:
                return
        file.reserve(needed)  # of a nearly full disk no more than that: the queues need some too

    def _cannot_grow(self, error: OSError) -> StoreNotWritable:
        cure = "free some disk space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "look after the disk"
        why = f"the commit log cannot grow in {self.directory}: {error.strerror or error}; {cure}"
        # On a disk that is nearly full a small message may pass between large ones that do not.
        if not self._is_stuck and time.monotonic() - self._said_at > SAY_SECONDS:
            self._is_stuck, self._said_at = True, time.monotonic()
            logger.error("no messages are taken any more: %s", why)
        return StoreNotWritable(why)

    def _grows(self) -> None:
        if self._is_stuck:
            self._is_stuck = False
            logger.warning("taking messages again: the commit log in %s can grow", self.directory)

    def write(self, records: bytes) -> None:
        """Put records at the end; :meth:`make_room` has seen to their room.

        The first one's size and magic go last: killed in between, we leave no record that only looks whole, and of
        several either all or none.

        Raises:
            StoreNotWritable: the disk has no room; the next append asks again.
        """
        start = self.end - self.base
        middle, stop = start + BLANK_SIZE, start + len(records)
        first, rest = records[:BLANK_SIZE], records[BLANK_SIZE:]
        if not self._by_call:
            self.buffer[middle:stop] = rest
            self.buffer[start:middle] = first
        else:
            try:
                self._write_by_call(rest, middle)
                self._write_by_call(first, start)
            except OSError as error:
                raise self._cannot_grow(error) from error
            self._grows()
        self.end = self.base + stop

    def _write_by_call(self, data: bytes | memoryview, position: int) -> None:
        assert self._active is not None, "make_room comes before"
        try:
            self._active.write(data, position)
        except OSError:
            self._stained = True
            self.room = self.end
            raise

    def append_raw(self, data: bytes | memoryview) -> None:
        """Put bytes of another broker's log at the end, which need not be whole records but end in this segment.

        Raises:
            ValueError: they do not end there.
            StoreNotWritable: the disk has no room; the next append asks again.
        """
        active = self._active
        if active is None:
            raise StoreNotWritable("the store is closed")
        position = self.end - self.base
        stop = position + len(data)
        if stop > self.segment_size:
            raise ValueError(f"{len(data)} bytes at {self.end} reach {stop - self.segment_size} bytes past their file")
        try:
            if self.base + stop > self.room:
                self._make_raw_room(active, position, stop)
            self._in_large_pieces = len(data) >= LARGE_PIECE
            if self._by_call or self._in_large_pieces:
                self._write_by_call(data, position)
            else:
                self.buffer[position:stop] = data
        except OSError as error:
            raise self._cannot_grow(error) from error
        self._grows()
        if stop == self.segment_size:
            following = self.prepare_next()
            self._activate(following, following.start)
        else:
            self.end = self.base + stop

    def _make_raw_room(self, active: MappedFile, position: int, stop: int) -> None:
        if self._stained:
            clear_from(active.path, position)
            self._stained = False
        if stop == self.segment_size:
            self._reserve(self.prepare_next(), BLANK_SIZE)
        if stop > active.reserved:
            self._reserve(active, stop)
        self._by_call = not active.stores_are_safe()
        ahead = 0 if self._by_call and active.in_place else AHEAD
        self.room = self.base + min(stop + ahead, active.reserved, self.segment_size - BLANK_SIZE)
        if self.came_ahead is not None:
            self.came_ahead()

    def cut(self, end: int) -> None:
        """Drop what was written to the active segment from ``end`` on.

        Raises:
            OSError: the disk refused.
        """
        if self._active is not None and self.base <= end < self.end:
            clear_from(self._active.path, end - self.base)
            self.end = self.room = end

    def cut_back(self, end: int) -> None:
        """The same from any place of the log on; later segments go. For a worker thread, while nobody appends or syncs.

        Raises:
            OSError: the disk refused.
        """
        if end >= self.base:
            self.cut(end)
            return
        with self._making:
            # Not closed: somebody may be reading. They go when nobody holds them.
            self._active = self._next = None
            self._unsynced = [file for file in self._unsynced if file.start + self.segment_size <= end]
        self.open_at(end)
        sync_directory(self.directory)

    def _roll(self, position: int) -> None:
        # The new file first: if the disk refuses it, the full one is as before, and the next append tries again.
        following = self.prepare_next()
        self._reserve(following, BLANK_SIZE)
        self._write_by_call(pack_blank(self.segment_size - position), position)
        self._activate(following, following.start)
        logger.debug("segment rolled offset=%d", following.start)

    def _activate(self, file: MappedFile, end: int) -> None:
        with self._making:
            self._active, self._next = file, None
            self._unsynced.append(file)
            self.base = file.start
        self.buffer = file.map
        self._tip = (file.start, file.map)
        self.end = end
        # Of the piece that the end lies in, a part may have no blocks yet: it is reserved as a whole.
        file.reserved = max(file.reserved, (end - file.start) // LARGEST_FOLIO * LARGEST_FOLIO)
        self.room = end

    def get_ready(self) -> None:
        """Have the pages in memory that are written next, and the next segment made when this one is half full.

        For a worker thread. A write that meets a page first waits until the system has filled it and many around it:
        on a virtual machine, a sixth of the loop's time when it takes in messages as fast as it can.

        Raises:
            OSError: the disk failed, or has no room for the next segment.
        """
        with self._making:
            active = self._active
        if active is not None:
            start = max(self.end, self._ready)
            self._ready = min(self.room + AHEAD, active.start + self.segment_size)
            if not self._in_large_pieces:
                active.fetch(start - active.start, self._ready - start)
            if (self.room - active.start) * 2 >= self.segment_size:
                self.prepare_next()

    def prepare_next(self) -> MappedFile:
        """Make the segment after the active one, if that has not happened yet. Safe in a worker thread."""
        with self._making:
            if self._next is None:
                self._next = MappedFile.create(self._path(self.base + self.segment_size), self.segment_size)
            return self._next

    # --- syncing ---------------------------------------------------------------------------

    def sync(self) -> int:
        """Make everything written before this call durable, and return where that ended. For a worker thread.

        Raises:
            OSError: the disk failed; what was not durable before may be lost.
        """
        end = self.end
        with self._making:
            files = list(self._unsynced)
        for file in files:
            file.sync()
        with self._making:
            for file in files:
                if file.start + self.segment_size <= end and file in self._unsynced:
                    self._unsynced.remove(file)  # it is full: nothing will be written to it again
        return end

    def sync_from(self, offset: int) -> None:
        """Make all files durable from the one that has ``offset`` on, whoever wrote them. Blocks.

        Raises:
            OSError: the disk failed.
        """
        for start in file_starts(self.directory):
            if start + self.segment_size > offset:
                descriptor = os.open(self._path(start), os.O_RDONLY)
                try:
                    sync_data(descriptor)
                finally:
                    os.close(descriptor)

    def let_go(self) -> None:
        """Keep the log's end in our memory and nothing else of it. For a worker thread, now and then."""
        with self._making:
            active, end = self._active, self.end
        if active is not None:
            active.let_go(0, end - active.start - KEPT_IN_MEMORY)
        self._read_maps.let_go()

    # --- reading ---------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes | None:
        """A copy of the bytes, or ``None`` when they are not in the log (any more)."""
        base, buffer = self._tip
        if offset >= base and buffer is not None:
            if offset + size > self.end or offset - base + size > self.segment_size:
                return None
            return buffer[offset - base : offset - base + size]
        if offset < self.min_offset:
            return None
        start = offset - offset % self.segment_size
        file = self.file_at(start)
        if file is None or offset - start + size > self.segment_size:
            return None
        return file.map[offset - start : offset - start + size]

    def read_block(self, offset: int, limit: int) -> bytes | None:
        """Up to ``limit`` bytes from ``offset`` on, none at the log's end, never past the end of a segment.

        ``None`` when they are not in the log (any more). Safe in a worker thread.
        """
        base, _ = self._tip
        if offset < self.min_offset or offset > self.end:
            return None
        start = offset - offset % self.segment_size
        stop = self.end if start == base else start + self.segment_size
        return self.read(offset, min(limit, stop - offset)) if stop > offset else b""

    def read_many(self, places: Iterable[tuple[int, int]], limit: int) -> list[bytes]:
        """Copies of the bytes at each (offset, size), as many as have ``limit`` bytes together, the first in any case.

        It ends before the first that is not in the log (any more). Safe in a worker thread.
        """
        copies: list[bytes] = []
        base = stop = 0
        buffer: mmap | None = None
        for offset, size in places:
            if not base <= offset <= stop - size or buffer is None:
                active, tip = self._tip
                if offset >= active and tip is not None:
                    base, buffer, stop = active, tip, min(self.end, active + self.segment_size)
                elif offset < self.min_offset:
                    break
                else:
                    base = offset - offset % self.segment_size
                    file = self.file_at(base)
                    if file is None:
                        break
                    buffer, stop = file.map, base + self.segment_size
                if offset + size > stop:
                    break
            limit -= size
            if limit < 0 and copies:
                break
            copies.append(buffer[offset - base : offset - base + size])
        return copies

    def file_at(self, start: int) -> MappedFile | None:
        """The segment that begins at ``start``, mapped for reading; ``None`` when there is no such file."""
        return self._read_maps.get(start)

    def segment_of(self, offset: int) -> MappedFile | None:
        """The segment that has ``offset``; ``None`` when it is gone."""
        active = self._active
        if active is not None and offset >= active.start:
            return active
        return self.file_at(offset - offset % self.segment_size) if offset >= self.min_offset else None

    # --- files -----------------------------------------------------------------------------

    def segments(self) -> list[SegmentInfo]:
        """The files that hold something, oldest first."""
        found = []
        for start in file_starts(self.directory):
            if self.min_offset <= start <= self.base:
                path = self._path(start)
                stat = path.stat()
                found.append(SegmentInfo(start, path, self.segment_size, stat.st_mtime, start == self.base))
        return found

    def delete_first_segment(self) -> Path | None:
        """Remove the oldest file unless it is the active one; ``min_offset`` moves first, so nobody reads it."""
        start = self.min_offset
        if start >= self.base:
            return None
        self.min_offset = start + self.segment_size
        self._read_maps.forget(start)
        path = self._path(start)
        path.unlink(missing_ok=True)
        sync_directory(self.directory)
        return path

    def _path(self, start: int) -> Path:
        return self.directory / file_name(start)
