"""The timer log: one record for each timed message, in the order in which they came (RocketMQ: ``TimerLog``).

A record has 52 bytes, big-endian::

    offset  bytes  field
         0      4  52
         4      8  where in this log the previous record of the same slot lies, -1 for none
        12      4  magic: 1, with 2 if the slot is only a stop on the way, with 4 if it takes a message back
        16      8  the second in which it was written, in ms
        24      4  the slot's second minus that, in ms
        28      8  commit-log offset of the message in rmq_sys_wheel_timer
        36      4  its size
        40      4  hash of the real topic
        44      8  ours: when in the slot it is due, 1 to 1000 ms after its begin; RocketMQ leaves 0

    00 00 00 34  ff ff ff ff ff ff ff ff  00 00 00 01  00 00 01 8b cf e5 68 00  00 00 71 48
    00 00 00 00 00 00 10 00  00 00 00 d2  00 00 0a 5d  00 00 00 00 00 00 00 fa

Files are 100 MiB, sparse, and named after the position where they begin. Where no record fits any more, 16 bytes
say so: the bytes left (4), zero (8), CB D4 31 94.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from verniermq.kernel import file_name, file_starts, sync_data, sync_directory, write_all

RECORD: Final = struct.Struct(">iqiqiqiiq")
RECORD_SIZE: Final = RECORD.size
BLANK: Final = struct.Struct(">iqI")
BLANK_MAGIC: Final = 0xCBD43194
BLANK_SIZE: Final = BLANK.size

DEFAULT: Final = 1
ROLL: Final = 2
DELETE: Final = 4
KNOWN_BITS: Final = 0xF
_CHUNK: Final = 4096 * RECORD_SIZE


class TimerEntry(NamedTuple):
    """One record."""

    previous: int
    magic: int
    write_ms: int
    delay_ms: int
    log_offset: int
    size: int
    topic_hash: int
    within: int
    """When in the slot it is due; 0 if an Apache broker wrote it."""

    @property
    def slot(self) -> int:
        return (self.write_ms + self.delay_ms) // 1000

    def pack(self) -> bytes:
        return RECORD.pack(RECORD_SIZE, *self)


class TimerLog:
    """All methods may block for the page cache, not for the disk; :meth:`sync` does."""

    def __init__(self, directory: Path, file_size: int, known_size: int = 0) -> None:
        """Open what is there. Files that exist decide the size: they may be another broker's.

        Two neighbours tell it by their names. One alone tells it by its length, unless it is known from elsewhere:
        it may have been cut off.

        Raises:
            OSError: the directory cannot be read or made.
        """
        self.directory = directory
        self._descriptors: dict[int, int] = {}
        self._starts = file_starts(directory)
        sizes = [following - start for start, following in pairwise(self._starts)] or [known_size]
        if not sizes[0] and self._starts:
            sizes = [(directory / file_name(self._starts[0])).stat().st_size]
        self.file_size = min(sizes) if min(sizes) > BLANK_SIZE + RECORD_SIZE else file_size
        self._room = (self.file_size - BLANK_SIZE) // RECORD_SIZE * RECORD_SIZE
        """Bytes of each file that hold records."""
        self._unsynced: set[int] = set()
        self.end = self._starts[-1] if self._starts else 0
        """Where the next record goes; :meth:`scan` finds it."""

    def fill_up(self) -> None:
        """Give files their length again that were cut off; there are no records in what is added."""
        for start in self._starts:
            if os.stat(self.directory / file_name(start)).st_size < self.file_size:
                os.truncate(self.directory / file_name(start), self.file_size)

    @property
    def start(self) -> int:
        return self._starts[0] if self._starts else 0

    @property
    def limit(self) -> int:
        """Behind the last record that the files could hold."""
        return self._starts[-1] + self._room if self._starts else 0

    # --- reading ---------------------------------------------------------------------------

    def read(self, position: int) -> TimerEntry | None:
        """The record there; ``None`` if there is none."""
        file = position - position % self.file_size
        if file not in self._starts or position < 0:
            return None
        return _parse(os.pread(self._descriptor(file), RECORD_SIZE, position - file))

    def scan(self, position: int) -> Iterator[tuple[int, TimerEntry]]:
        """Every whole record from there on; ``end`` is behind the last one afterwards."""
        self.end = max(position, self.start)
        files = [start for start in self._starts if start + self.file_size > position]
        for number, file in enumerate(files):
            if file != files[0] + number * self.file_size:
                return  # one is missing
            at = max(position - file, 0)
            while at < self._room:
                chunk = os.pread(self._descriptor(file), min(_CHUNK, self._room - at), at)
                for within in range(0, len(chunk) - RECORD_SIZE + 1, RECORD_SIZE):
                    entry = _parse(chunk[within : within + RECORD_SIZE])
                    if entry is None or entry.previous >= file + at + within:
                        return
                    self.end = file + at + within + RECORD_SIZE
                    yield file + at + within, entry
                if not chunk:
                    return
                at += len(chunk)

    def last(self) -> int | None:
        """The position of the newest record."""
        if self.end == self.start:
            return None
        file = self.end - self.end % self.file_size
        position = self.end - RECORD_SIZE
        return position if position >= file else file - self.file_size + self._room - RECORD_SIZE

    # --- writing ---------------------------------------------------------------------------

    def append(self, entry: TimerEntry) -> int:
        """Put a record at the end and return its position.

        Raises:
            OSError: the disk refused; nothing changed.
        """
        file = self.end - self.end % self.file_size
        position = self.end
        if position - file >= self._room:
            if file in self._starts:
                blank = BLANK.pack(file + self.file_size - position, 0, BLANK_MAGIC)
                write_all(self._descriptor(file), blank, position - file)
            file += self.file_size
            position = file
        if file not in self._starts:
            self._create(file)
        try:
            write_all(self._descriptor(file), entry.pack(), position - file)
        except OSError:
            with suppress(OSError):  # without its size, what was written of it is no record after a crash either
                write_all(self._descriptor(file), bytes(4), position - file)
            raise
        self._unsynced.add(file)
        self.end = position + RECORD_SIZE
        return position

    def cut(self, end: int) -> None:
        """Forget everything from ``end`` on."""
        self.end = end
        for start in [start for start in self._starts if start >= end]:
            self._remove(start)
        file = end - end % self.file_size
        if file in self._starts:
            # Zeros, by making the file short and long again: what was cut off must not be taken for records later.
            os.ftruncate(self._descriptor(file), end - file)
            os.ftruncate(self._descriptor(file), self.file_size)
            self._unsynced.add(file)

    def sync(self) -> None:
        """Make everything durable that was appended before the call. For a worker thread.

        Raises:
            OSError: the disk failed.
        """
        files = list(self._unsynced)
        self._unsynced.difference_update(files)
        try:
            for file in files:
                sync_data(self._descriptor(file))
        except OSError:
            self._unsynced.update(files)
            raise

    def drop_first_file(self) -> None:
        self._remove(self._starts[0])

    @property
    def last_of_first_file(self) -> TimerEntry | None:
        """The newest record of the oldest file, unless that is the one we write to."""
        return self.read(self._starts[0] + self._room - RECORD_SIZE) if len(self._starts) > 1 else None

    def __del__(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    # --- files -----------------------------------------------------------------------------

    def _descriptor(self, start: int) -> int:
        descriptor = self._descriptors.get(start)
        if descriptor is None:
            descriptor = self._descriptors[start] = os.open(self.directory / file_name(start), os.O_RDWR)
        return descriptor

    def _create(self, start: int) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.directory / file_name(start), os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(descriptor, self.file_size)
        self._descriptors[start] = descriptor
        self._starts.append(start)
        sync_directory(self.directory)

    def _remove(self, start: int) -> None:
        self._starts.remove(start)
        self._unsynced.discard(start)
        descriptor = self._descriptors.pop(start, None)
        if descriptor is not None:
            os.close(descriptor)
        (self.directory / file_name(start)).unlink(missing_ok=True)


def _parse(data: bytes) -> TimerEntry | None:
    if len(data) < RECORD_SIZE:
        return None
    size, *fields = RECORD.unpack(data)
    entry = TimerEntry(*fields)
    is_whole = size == RECORD_SIZE and entry.magic | KNOWN_BITS == KNOWN_BITS and entry.magic
    return entry if is_whole and entry.log_offset >= 0 and entry.size > 0 else None
