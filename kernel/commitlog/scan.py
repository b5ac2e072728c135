"""Reading the log record by record: what recovery, the consume queues' rebuild and ``store check`` share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from mmap import mmap

from verniermq.kernel.commitlog.integrity import NothingWritten, whole_record_at
from verniermq.kernel.commitlog.log import CommitLog
from verniermq.kernel.commitlog.mapped import written_end
from verniermq.kernel.commitlog.record import MAGIC_FAMILY, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC, Buffer, RecordLayout
from verniermq.kernel.errors import CorruptRecord, StoreError

# Not mmap.find: before Python 3.11.4 it reads the byte behind the map when it searches to the end, and dies of it.
_MAGIC = re.compile(b"|".join(re.escape(magic.to_bytes(4, "big")) for magic in (MAGIC_V1, MAGIC_V2)))


class NewerFormat(StoreError):
    """A later version wrote records that this one does not understand."""

    def __init__(self, offset: int, magic: int) -> None:
        super().__init__(
            f"the record at commit-log offset {offset} has the magic {magic:#010x}, which this version does not know; "
            "open the store with the version that wrote it"
        )
        self.offset = offset


class Scan:
    """Iterates over whole records from ``start``; afterwards ``end`` and ``why`` say where and why it stopped."""

    def __init__(self, log: CommitLog, start: int) -> None:
        self.end = start
        self.why: CorruptRecord = NothingWritten(start)
        self._log = log

    def __iter__(self) -> Iterator[tuple[mmap, RecordLayout]]:
        size = self._log.segment_size
        offset = self.end
        while True:
            base = offset - offset % size
            file = self._log.file_at(base)
            if file is None:
                self.why = NothingWritten(offset)
                return
            buffer = file.map
            while True:
                try:
                    found = whole_record_at(buffer, offset - base, offset)
                except CorruptRecord as error:
                    self.why = error
                    return
                if found is None:
                    offset = base + size
                    break
                self.end = offset = offset + found.size
                yield buffer, found


def bytes_from(log: CommitLog, offset: int) -> int:
    """How much is written from ``offset`` on, without reading it: zeros at the very end do not count."""
    for start in reversed(log.load()):
        file = log.file_at(start)
        end = written_end(file.path) if file is not None else 0
        if end or start <= offset:
            return max(start + end - offset, 0)
    return 0


def topic_of(buffer: Buffer, found: RecordLayout) -> str:
    return str(buffer[found.topic : found.topic + found.topic_length], "utf-8", "replace")


def newer_magic(log: CommitLog, offset: int) -> int | None:
    """The magic at ``offset`` if it looks like that of a record of a version after ours."""
    base = offset - offset % log.segment_size
    file = log.file_at(base)
    if file is None or offset - base + SIZE_AND_MAGIC.size > log.segment_size:
        return None
    _, magic = SIZE_AND_MAGIC.unpack_from(file.map, offset - base)
    # A last byte of zero is a magic that was torn.
    is_newer = magic & 0xFFFFFF00 == MAGIC_FAMILY and magic not in (MAGIC_V1, MAGIC_V2, MAGIC_FAMILY)
    return magic if is_newer else None


def whole_records_after(log: CommitLog, offset: int) -> Iterator[tuple[mmap, RecordLayout]]:
    """Look for whole records behind bytes that are none, by their magic; holes in the files are skipped."""
    size = log.segment_size
    for base in log.load():
        if base + size <= offset or (file := log.file_at(base)) is None:
            continue
        position = max(offset + 1 - base, 0)
        with open(file.path, "rb") as plain:
            while position < size:
                try:
                    start = os.lseek(plain.fileno(), position, os.SEEK_DATA)
                    stop = os.lseek(plain.fileno(), start, os.SEEK_HOLE)
                except OSError:
                    break  # only a hole is left
                position = max(position, start)
                while position < stop:
                    hit = _MAGIC.search(file.map, position + 4, stop)
                    if hit is None:
                        break
                    position = hit.start() - 4
                    try:
                        found = whole_record_at(file.map, position, base + position)
                    except CorruptRecord:
                        position += 1
                        continue
                    if found is None:
                        break
                    yield file.map, found
                    position += found.size
                position = max(position, stop)
