"""Whether the bytes at a place are a whole record, a blank, nothing, or what a crash left of one.

A record's body has a checksum; the rest does not. So a record counts as whole when its parts add up, when it
names its own place in the log, and when nothing in it looks like a sector that the disk never wrote.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from verniermq.kernel.commitlog.record import (
    BLANK_SIZE,
    MAGIC_BLANK,
    SIZE_AND_MAGIC,
    Buffer,
    RecordLayout,
    layout,
)
from verniermq.kernel.compiled import compiled
from verniermq.kernel.errors import CorruptRecord

RECORDS: Final = compiled(__package__, "_records")

SECTOR: Final = 512
_FOREIGN: Final = re.compile(rb"[^!-.0-~]")
"""What is in no topic's name: all but printable ASCII, and the slash, since queues lie in folders of that name."""

SMALLEST_SHARE: Final = 20
"""A message takes at least this much of the log, even in a batch that is one record; so many may lie before it."""


class NothingWritten(CorruptRecord):
    """Zeros where a record could be: the end of the log, if all went well."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset, "nothing was written here")


def whole_record_at(
    buffer: Buffer, position: int, commit_log_offset: int, limit: int | None = None
) -> RecordLayout | None:
    """The whole record at ``position``, checksum and all; ``None`` for a blank, which ends its segment.

    Raises:
        NothingWritten: the bytes are zero.
        CorruptRecord: there is something else; the error names ``commit_log_offset``, which the record must
            carry too, so that a record's copy inside some message's body is not taken for one.
    """
    end = len(buffer) if limit is None else limit
    if RECORDS is not None and (fields := RECORDS.whole_record(buffer, position, end, commit_log_offset)) is not None:
        return RecordLayout._make(fields)
    if end - position >= BLANK_SIZE:
        size, magic = SIZE_AND_MAGIC.unpack_from(buffer, position)
        if magic == MAGIC_BLANK and size == end - position:
            return None
        if not size and not magic:
            raise NothingWritten(commit_log_offset)
    try:
        found = layout(buffer, position, end)
    except CorruptRecord as error:
        raise CorruptRecord(commit_log_offset, error.why) from None
    if found.commit_log_offset != commit_log_offset:
        raise CorruptRecord(commit_log_offset, f"it says that it lies at {found.commit_log_offset}")
    if found.queue_id < 0 or not 0 <= found.queue_offset * SMALLEST_SHARE <= commit_log_offset:
        claim = f"it claims to be message {found.queue_offset} of queue {found.queue_id}"
        raise CorruptRecord(commit_log_offset, claim)
    if found.body_length:
        crc = zlib.crc32(buffer[found.body : found.body + found.body_length]) & 0x7FFFFFFF
        if crc != found.crc:
            raise CorruptRecord(commit_log_offset, f"its body's checksum is {crc:#010x} and not {found.crc:#010x}")
    if _has_lost_a_sector(buffer, found):
        raise CorruptRecord(commit_log_offset, "a part of its topic or properties is zero: it was not written whole")
    if _FOREIGN.search(buffer, found.topic, found.topic + found.topic_length):
        raise CorruptRecord(commit_log_offset, "its topic has bytes that no topic's name has")
    return found


def _has_lost_a_sector(buffer: Buffer, found: RecordLayout) -> bool:
    """Whether topic or properties, which no checksum covers, have zeros where a power cut leaves them.

    A disk writes sectors of 512 bytes, in any order; what it did not write is still zero. A topic has no
    zero byte, and a properties text does not end with one.
    """
    stop = found.start + found.size
    if found.properties_length and not buffer[stop - 1]:
        return True
    if 0 in buffer[found.topic : found.topic + found.topic_length]:
        return True
    sector = -(-found.topic // SECTOR) * SECTOR
    while sector < stop:
        if not any(buffer[sector : min(sector + SECTOR, stop)]) and found.properties_length:
            return True
        sector += SECTOR
    return False
