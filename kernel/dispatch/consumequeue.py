"""A consume queue: where in the commit log each message of one topic and queue lies (RocketMQ: ``ConsumeQueue``).

``entries.py`` has the format, and reads and writes it. Here is what happens to a queue as a whole: its ends are
found when a store is opened, what lies behind a torn record is cut off, and what retention took is let go.

A file has its full length from the start, so nothing says where its entries end: the first one whose size is
zero does, and is found by bisection.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from shutil import rmtree

from verniermq.kernel.commitlog.mapped import file_starts
from verniermq.kernel.dispatch.entries import BLANK_ENTRY, BLANK_RECORD_SIZE, ENTRY, ENTRY_SIZE, QueueEntries

__all__ = ["BLANK_ENTRY", "BLANK_RECORD_SIZE", "ENTRY", "ENTRY_SIZE", "ConsumeQueue"]

_PAGE = 4096 // ENTRY_SIZE * ENTRY_SIZE


class ConsumeQueue(QueueEntries):
    """The queue ``queue_id`` of ``topic``, from its first file to its last."""

    __slots__ = ()

    # --- opening, cutting, expiring --------------------------------------------------------

    def load(self, log_minimum: int = 0) -> int:
        """Find first and last entry in the files, reading a few pages; return the number of files in use."""
        starts = file_starts(self.directory)
        if len(starts) == 1:
            return self._load_short(starts[0], log_minimum)
        while len(starts) > 1 and not self._used(starts[-1]):
            starts.pop()  # a file that was made and never written to
        if not starts:
            return 0
        self.first_file = starts[0]
        self.min_offset = starts[0] // ENTRY_SIZE
        self.minimum_known = False
        self._end_at((starts[-1] + self._used(starts[-1])) // ENTRY_SIZE)
        return len(starts)

    def _load_short(self, start: int, log_minimum: int) -> int:
        """The same for a queue of one file, as nearly all are: one page tells all there is to know."""
        descriptor = os.open(self._path(start), os.O_RDONLY)
        try:
            page = os.pread(descriptor, _PAGE, 0)
        finally:
            os.close(descriptor)
        used = _used_in(page, None)
        if used >= len(page):
            used = self._used(start)
        if start + used == 0:
            return 0
        self.first_file = start
        self.min_offset = start // ENTRY_SIZE
        end = (start + used) // ENTRY_SIZE
        begins_blank = page.startswith(BLANK_ENTRY) or not used
        self.minimum_known = not begins_blank and ENTRY.unpack_from(page)[0] >= log_minimum
        if ENTRY_SIZE <= used <= len(page) and page[used - ENTRY_SIZE : used] != BLANK_ENTRY:
            offset, size, _ = ENTRY.unpack_from(page, used - ENTRY_SIZE)
            self.tail_start = self.max_offset = self.next_offset = end
            self.physical_end = offset + size
        else:
            self._end_at(end)
        return 1

    def _used(self, start: int, before: int | None = None) -> int:
        """How many bytes of a file hold entries, of records that begin before ``before`` if given."""
        handle = self._files.get(self._path(start))
        assert handle is not None

        # Nearly all queues end in the first page of their file; the others are bisected by pages.
        low, high = 0, -(-self._files.file_size // _PAGE)
        page = os.pread(handle.descriptor, _PAGE, 0)
        if (used := _used_in(page, before)) < _PAGE:
            return used
        while high - low > 1:
            middle = (low + high) // 2
            if _used_in(os.pread(handle.descriptor, ENTRY_SIZE, middle * _PAGE), before):
                low = middle
            else:
                high = middle
        return low * _PAGE + _used_in(os.pread(handle.descriptor, _PAGE, low * _PAGE), before)

    def _end_at(self, end: int) -> None:
        self.tail = bytearray()
        self.tail_start = self.max_offset = self.next_offset = end
        self.physical_end = -1
        if end > self.min_offset and (last := self.read_any(end - 1)):
            offset, size, _ = last
            self.physical_end = -1 if size == BLANK_RECORD_SIZE and offset == 0 else offset + size

    def cut(self, commit_log_end: int) -> None:
        """Drop the entries of records that begin at ``commit_log_end`` or later. The tail must be empty."""
        starts = file_starts(self.directory)
        while starts:
            used = self._used(starts[-1], commit_log_end)
            if used or len(starts) == 1:
                break
            self._remove_file(starts.pop())
        if not starts:
            return
        handle = self._files.get(self._path(starts[-1]))
        assert handle is not None
        # Zeroed to the end, so that what was cut off cannot be taken for entries later.
        position = used
        while any(chunk := os.pread(handle.descriptor, 1 << 16, position)):
            os.pwrite(handle.descriptor, bytes(len(chunk)), position)
            position += len(chunk)
        self.min_offset = min(self.min_offset, (starts[-1] + used) // ENTRY_SIZE)
        self.minimum_known = False
        self._end_at((starts[-1] + used) // ENTRY_SIZE)

    def raise_minimum(self, log_minimum: int) -> None:
        """Set ``min_offset`` to the first entry whose record is still in the log."""
        low, high = max(self.min_offset, (self.first_file or 0) // ENTRY_SIZE), self.max_offset
        middle = low  # usually nothing changed, and one look tells
        while low < high:
            known = self.next_known(middle, high)
            entry = self.read_any(known) if known < high else None
            if entry is None or entry[0] >= log_minimum:
                high = middle
            else:
                low = known + 1
            middle = (low + high) // 2
        self.min_offset = self.next_known(low, self.max_offset)
        self.minimum_known = True

    def delete_files_below(self, log_minimum: int) -> int:
        """Remove files whose last record is gone from the log, never the last file; return how many."""
        removed = 0
        starts = file_starts(self.directory)
        for start, following in pairwise(starts):
            last = self.read_any(following // ENTRY_SIZE - 1)
            if last is None or last[0] >= log_minimum or following > self.tail_start * ENTRY_SIZE:
                break
            self._remove_file(start)
            self.first_file = following
            removed += 1
        self.raise_minimum(log_minimum)
        return removed

    def delete(self) -> None:
        """Remove all files. The queue is of no use afterwards."""
        with self._files.deleting:
            self.gone = True
            for start in file_starts(self.directory):
                self._files.forget(self._path(start))
            rmtree(self.directory, ignore_errors=True)

    def _remove_file(self, start: int) -> None:
        with self._files.deleting:
            self._files.forget(self._path(start))
            Path(self._path(start)).unlink(missing_ok=True)


def _used_in(page: bytes, before: int | None) -> int:
    """How many bytes at the beginning of a page hold entries, of records that begin before ``before`` if given."""
    used = 0
    for offset, size, _ in ENTRY.iter_unpack(page[: len(page) // ENTRY_SIZE * ENTRY_SIZE]):
        if offset < 0 or size <= 0 or (before is not None and offset >= before):
            break
        used += ENTRY_SIZE
    return used
