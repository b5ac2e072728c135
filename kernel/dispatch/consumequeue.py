"""A consume queue: where in the commit log each message of one topic and queue lies (RocketMQ: ``ConsumeQueue``).

One entry of 20 bytes per message; the entry's number is the message's queue offset::

    offset  bytes  field
         0      8  commit-log offset of the record
         8      4  size of the record
        12      8  tags code: the hash of the tags, or what a plugin put there (a delivery time)

    00 00 00 00 00 00 10 00 | 00 00 00 9e | 00 00 00 00 00 27 a8 07     record at 4096, 158 bytes, tag "TagA"

Files hold 300,000 entries and are named after the byte where they begin. A queue that begins in the middle
of a file (its older messages are gone) has blank entries before: offset 0, size 0x7FFFFFFF, tags code 0. So has
one that lost messages in the middle; readers pass over them.

The newest entries are kept in memory, in ``tail``, until :meth:`write_out` puts them into the file, about once
a second and in a worker thread: the loop never waits for these files, however many there are. A crash loses
the tail and nothing else; recovery makes the entries again from the log. Who does what, where:

    loop:    append, read, release     worker: write_out (it copies the tail and changes nothing of the queue)

A file has its full length from the start, so nothing says where its entries end: the first one whose size is
zero does, and is found by bisection.
"""

from __future__ import annotations

import os
import struct
from itertools import pairwise
from pathlib import Path

from verniermq.kernel.commitlog.mapped import file_name, file_starts, write_all, zero_from
from verniermq.kernel.commitlog.record import topic_field
from verniermq.kernel.dispatch.event import DispatchEvent
from verniermq.kernel.dispatch.queuefiles import QueueFiles
from verniermq.kernel.dispatch.run import Run

ENTRY = struct.Struct(">qiq")
ENTRY_SIZE = ENTRY.size
BLANK_RECORD_SIZE = 0x7FFFFFFF
BLANK_ENTRY = ENTRY.pack(0, BLANK_RECORD_SIZE, 0)
_PAGE = 4096 // ENTRY_SIZE * ENTRY_SIZE


class ConsumeQueue:
    """The queue ``queue_id`` of ``topic``, from its first file to its last."""

    __slots__ = (
        "_files",
        "_root",
        "first_entry",
        "gone",
        "magic",
        "max_offset",
        "min_offset",
        "minimum_known",
        "next_offset",
        "physical_end",
        "queue_id",
        "tail",
        "tail_start",
        "topic",
        "topic_field",
    )

    def __init__(self, topic: str, queue_id: int, root: Path, files: QueueFiles) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.magic, self.topic_field = topic_field(topic)
        self.min_offset = 0
        self.max_offset = 0
        """One more than the newest entry's number."""
        self.next_offset = 0
        """What the next message appended gets; ahead of ``max_offset`` by those not dispatched yet."""
        self.physical_end = -1
        """Where in the log the record of the newest entry ends."""
        self.tail = bytearray()
        self.tail_start = 0
        """The number of the tail's first entry; those before it are in the files."""
        self.first_entry = 0
        """The number of the entry that the first file begins with."""
        self.gone = False
        self.minimum_known = True
        """Whether ``min_offset`` is sure to be the first entry whose record is in the log."""
        self._files = files
        self._root = root

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic}:{self.queue_id} {self.min_offset}..{self.max_offset}>"

    @property
    def directory(self) -> str:
        return f"{self._root}/{self.topic}/{self.queue_id}"

    @property
    def is_empty(self) -> bool:
        """It never had a message."""
        return self.max_offset == 0

    # --- reading ---------------------------------------------------------------------------

    def read(self, offset: int, count: int) -> bytes:
        """Up to ``count`` entries from ``offset`` on, at most to the end of one file; nothing outside min and max."""
        return self._read(offset, count) if offset >= self.min_offset else b""

    def _read(self, offset: int, count: int) -> bytes:
        with self._files.copying:  # for readers in other threads: tail and tail_start must fit together
            if offset >= self.tail_start:
                start = (offset - self.tail_start) * ENTRY_SIZE
                return bytes(self.tail[start : start + count * ENTRY_SIZE])
            until_tail = self.tail_start - offset
            tail = self.tail[: (count - until_tail) * ENTRY_SIZE] if count > until_tail else b""
        size = self._files.file_size
        position = offset * ENTRY_SIZE % size
        in_file = min(count, until_tail, (size - position) // ENTRY_SIZE)
        handle = self._files.get(self._path(offset * ENTRY_SIZE - position))
        if handle is None:
            return b""
        data = os.pread(handle.descriptor, in_file * ENTRY_SIZE, position)
        return data + tail if in_file == until_tail else data

    def entries(self, offset: int, count: int) -> list[tuple[int, int, int]]:
        """The same, as (commit-log offset, size, tags code)."""
        return list(ENTRY.iter_unpack(self.read(offset, count)))

    def read_any(self, offset: int) -> tuple[int, int, int] | None:
        """The entry at ``offset`` even if it lies below the minimum; ``None`` if no file has it."""
        data = self._read(offset, 1)
        return ENTRY.unpack(data) if len(data) == ENTRY_SIZE else None

    def next_known(self, offset: int, stop: int) -> int:
        """The first entry from ``offset`` on that is no blank; ``stop`` when there is none before it."""
        count = 1  # nearly always the first one is it
        while offset < stop:
            data = self._read(offset, count)
            blanks = 0
            while data.startswith(BLANK_ENTRY, blanks):
                blanks += ENTRY_SIZE
            if blanks < len(data):
                return min(offset + blanks // ENTRY_SIZE, stop)
            offset += max(len(data) // ENTRY_SIZE, 1)
            count = 4096
        return stop

    # --- writing ---------------------------------------------------------------------------

    def append(self, event: DispatchEvent) -> None:
        """Add the entry of the message that is next."""
        offset, size = event.commit_log_offset, event.size
        self.tail += ENTRY.pack(offset, size, event.tags_code)
        self.max_offset += 1
        self.physical_end = offset + size

    def extend(self, run: Run) -> None:
        """Add the entries of messages that are next."""
        self.tail += run.queue_entries()
        self.max_offset += len(run)
        self.physical_end = run.end

    def begin_at(self, offset: int) -> None:
        """Make an empty queue begin at ``offset``, with blank entries before it in its file."""
        before = offset % (self._files.file_size // ENTRY_SIZE)
        self.tail = bytearray(BLANK_ENTRY * before)
        self.tail_start = self.first_entry = offset - before
        self.min_offset = self.max_offset = offset
        self.next_offset = max(self.next_offset, offset)

    def write_out(self) -> tuple[int, list[str]]:
        """Put the tail into the files; return the offset behind it, and the files written. For a worker thread.

        Raises:
            OSError: the disk refused; the tail is still in memory.
        """
        with self._files.copying:
            data = bytes(self.tail)
            at = self.tail_start * ENTRY_SIZE
        size = self._files.file_size
        written = []
        done = 0
        while done < len(data):
            position = (at + done) % size
            path = self._path(at + done - position)
            chunk = data[done : done + size - position]
            with self._files.deleting:
                if self.gone:
                    return 0, []
                handle = self._files.create(path)
            write_all(handle.descriptor, chunk, position)
            written.append(path)
            done += len(chunk)
        return (at + len(data)) // ENTRY_SIZE, written

    def release(self, offset: int) -> None:
        """Forget the tail's entries before ``offset``: :meth:`write_out` has put them into the files."""
        with self._files.copying:
            if offset > self.tail_start:
                del self.tail[: (offset - self.tail_start) * ENTRY_SIZE]
                self.tail_start = offset

    def fill_blank(self, offset: int, commit_log_offset: int, size: int, tags_code: int) -> bool:
        """Give a record its entry where a blank stands; ``False`` if the entry is another's. Only at recovery."""
        entry = self.read_any(offset)
        if entry is None or entry[:2] != (0, BLANK_RECORD_SIZE):
            return False
        packed = ENTRY.pack(commit_log_offset, size, tags_code)
        if offset >= self.tail_start:
            start = (offset - self.tail_start) * ENTRY_SIZE
            self.tail[start : start + ENTRY_SIZE] = packed
        else:
            position = offset * ENTRY_SIZE % self._files.file_size
            handle = self._files.create(self._path(offset * ENTRY_SIZE - position))
            write_all(handle.descriptor, packed, position)
        self.physical_end = commit_log_offset + size
        return True

    def fill_up_to(self, offset: int) -> None:
        """Put blank entries where records are lost, so that the next one gets its own number."""
        self.tail += BLANK_ENTRY * (offset - self.max_offset)
        self.max_offset = offset
        self.next_offset = max(self.next_offset, offset)

    # --- opening, cutting, expiring --------------------------------------------------------

    def load(self, log_minimum: int = 0) -> int:
        """Find first and last entry in the files, reading a few pages; return how many between them have no file."""
        starts = file_starts(self.directory)
        if len(starts) == 1:
            self._load_short(starts[0], log_minimum)
            return 0
        while len(starts) > 1 and not self._used(starts[-1]):
            starts.pop()  # a file that was made and never written to
        if not starts:
            return 0
        self.first_entry = self.min_offset = starts[0] // ENTRY_SIZE
        self.minimum_known = False
        self._end_at((starts[-1] + self._used(starts[-1])) // ENTRY_SIZE)
        return sum(self._lacking(start, following) for start, following in pairwise(starts)) // ENTRY_SIZE

    def _lacking(self, start: int, following: int) -> int:
        """How many bytes up to the ``following`` file are in no file, since one is short or missing."""
        return max(following - start - os.stat(self._path(start)).st_size, 0)

    def _load_short(self, start: int, log_minimum: int) -> None:
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
            return
        self.first_entry = self.min_offset = start // ENTRY_SIZE
        end = (start + used) // ENTRY_SIZE
        begins_blank = page.startswith(BLANK_ENTRY) or not used
        self.minimum_known = not begins_blank and ENTRY.unpack_from(page)[0] >= log_minimum
        if ENTRY_SIZE <= used <= len(page) and page[used - ENTRY_SIZE : used] != BLANK_ENTRY:
            offset, size, _ = ENTRY.unpack_from(page, used - ENTRY_SIZE)
            self.tail_start = self.max_offset = self.next_offset = end
            self.physical_end = offset + size
        else:
            self._end_at(end)

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

    def end_before(self, commit_log_end: int) -> int:
        """One more than the number of the last entry whose record begins before ``commit_log_end``."""
        if self.physical_end <= commit_log_end:
            return self.max_offset
        end = self.first_entry * ENTRY_SIZE
        for start in reversed(file_starts(self.directory)):
            if used := self._used(start, commit_log_end):
                return (start + used) // ENTRY_SIZE
            end = start
        return end // ENTRY_SIZE

    def cut(self, commit_log_end: int) -> list[str]:
        """Drop the entries of records that begin at ``commit_log_end`` or later, and whatever a power cut left behind
        the last one; return the files that changed. The tail must be empty."""
        end = self.end_before(commit_log_end)
        changed = []
        for start in file_starts(self.directory):
            if start >= end * ENTRY_SIZE and start > self.first_entry * ENTRY_SIZE:
                self._remove_file(start)
            elif start + self._files.file_size > end * ENTRY_SIZE:
                handle = self._files.get(self._path(start))
                assert handle is not None
                # Zeroed to the end, so that what was cut off cannot be taken for entries later.
                if zero_from(handle.descriptor, end * ENTRY_SIZE - start):
                    changed.append(self._path(start))
        if end < self.max_offset:
            self.min_offset = min(self.min_offset, end)
            self.minimum_known = False
            self._end_at(end)
        self.next_offset = end
        return changed

    def raise_minimum(self, log_minimum: int) -> None:
        """Set ``min_offset`` to the first entry whose record is still in the log."""
        low, high = max(self.min_offset, self.first_entry), self.max_offset
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
            self.first_entry = following // ENTRY_SIZE
            removed += 1
        self.raise_minimum(log_minimum)
        return removed

    def delete(self) -> None:
        """Remove all files. The queue is of no use afterwards."""
        from shutil import rmtree  # half a megabyte that an idle broker does without

        with self._files.deleting:
            self.gone = True
            for start in file_starts(self.directory):
                self._files.forget(self._path(start))
            rmtree(self.directory, ignore_errors=True)

    def _remove_file(self, start: int) -> None:
        with self._files.deleting:
            self._files.forget(self._path(start))
            Path(self._path(start)).unlink(missing_ok=True)

    def _path(self, start: int) -> str:
        return f"{self.directory}/{file_name(start)}"


def _used_in(page: bytes, before: int | None) -> int:
    """How many bytes at the beginning of a page hold entries, of records that begin before ``before`` if given."""
    used = 0
    for offset, size, _ in ENTRY.iter_unpack(page[: len(page) // ENTRY_SIZE * ENTRY_SIZE]):
        if offset < 0 or size <= 0 or (before is not None and offset >= before):
            break
        used += ENTRY_SIZE
    return used
