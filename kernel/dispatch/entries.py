"""The entries of one consume queue: the newest in memory, the others in its files.

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
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from verniermq.kernel.commitlog.mapped import file_name
from verniermq.kernel.commitlog.record import topic_field
from verniermq.kernel.dispatch.queuefiles import QueueFiles

ENTRY = struct.Struct(">qiq")
ENTRY_SIZE = ENTRY.size
BLANK_RECORD_SIZE = 0x7FFFFFFF
BLANK_ENTRY = ENTRY.pack(0, BLANK_RECORD_SIZE, 0)


class QueueEntries:
    """The entries of the queue ``queue_id`` of ``topic``, and what an append to it needs to know."""

    __slots__ = (
        "_files",
        "_root",
        "first_file",
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
        self.first_file: int | None = None
        """The byte where the first file begins; ``None`` while there is no file."""
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

    @property
    def file_count(self) -> int:
        """How many files it has, once everything is written out."""
        if self.first_file is None:
            return 0
        return max(1, -(-(self.max_offset * ENTRY_SIZE - self.first_file) // self._files.file_size))

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

    def append(self, commit_log_offset: int, size: int, tags_code: int) -> None:
        """Add the entry of the message that is next."""
        self.tail += ENTRY.pack(commit_log_offset, size, tags_code)
        self.max_offset += 1
        self.physical_end = commit_log_offset + size

    def begin_at(self, offset: int) -> None:
        """Make an empty queue begin at ``offset``, with blank entries before it in its file."""
        before = offset % (self._files.file_size // ENTRY_SIZE)
        self.tail = bytearray(BLANK_ENTRY * before)
        self.tail_start = offset - before
        self.min_offset = self.max_offset = self.next_offset = offset

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
                if self.first_file is None:
                    self.first_file = at + done - position
            os.pwrite(handle.descriptor, chunk, position)
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
            os.pwrite(handle.descriptor, packed, position)
        self.physical_end = commit_log_offset + size
        return True

    def fill_up_to(self, offset: int) -> None:
        """Put blank entries where records are lost, so that the next one gets its own number."""
        self.tail += BLANK_ENTRY * (offset - self.max_offset)
        self.max_offset = self.next_offset = offset

    def _path(self, start: int) -> str:
        return f"{self.directory}/{file_name(start)}"
