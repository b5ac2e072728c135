"""Records that are not what was written: found where somebody reads them, logged with their place, counted.

A disk, a cable or a person may change a byte of the log after it was written. Nobody can say then what the message
was, so whoever meets such a record leaves it out and goes on; an operator finds the place in the log file::

    damaged record file=store/commitlog/00000000000000000000 byte=4711 log_offset=4711 reason=its body's checksum is …
"""

from __future__ import annotations

import logging
from typing import Final
from zlib import crc32

from verniermq.kernel.commitlog.coldreads import FRESH
from verniermq.kernel.commitlog.integrity import whole_record_at
from verniermq.kernel.commitlog.log import CommitLog
from verniermq.kernel.commitlog.mapped import file_name
from verniermq.kernel.commitlog.record import HOST_MASK, MAGIC_V1, MAGIC_V2, SMALLEST, START_OF_RECORD
from verniermq.kernel.errors import CorruptRecord

logger = logging.getLogger(__name__)

MOST_KNOWN: Final = 10_000
"""So many places are remembered and logged; a log with more of them is beyond reading one by one."""


class Damage:
    """What was found damaged in one log since the start."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.trusted_from = 0
        """Records from here on were written since the start; nobody has had them in hand but us."""
        self.found = 0
        """How many damaged records somebody met."""
        self._known: dict[int, str] = {}

    @property
    def old_before(self) -> int:
        """Records before this offset were on the disk, and count as in need of a look."""
        return max(self.trusted_from, self._log.end - FRESH)

    def looks_whole(self, record: bytes, offset: int) -> bool:
        """Whether a record that some index says lies at ``offset`` has a right body, and parts that add up.

        Quicker than :meth:`is_whole`, for records that go to somebody else by the thousand.
        """
        if len(record) >= SMALLEST:
            size, magic, crc, place, flags = START_OF_RECORD.unpack_from(record)
            if magic == MAGIC_V1 and size == len(record) and place == offset and not flags & HOST_MASK:
                topic_at = 88 + int.from_bytes(record[84:88], "big")
                properties_at = topic_at + 3 + record[topic_at] if topic_at < size else size + 1
                if (
                    properties_at + int.from_bytes(record[properties_at - 2 : properties_at], "big") == size
                    and crc32(record[88:topic_at]) & 0x7FFFFFFF == crc
                ):
                    return True
        return self.is_whole(record, offset)

    def is_whole(self, record: bytes, offset: int) -> bool:
        """The same, as strictly as a start looks at the log. What is not whole is noted."""
        try:
            found = whole_record_at(record, 0, offset)
            if found is not None and found.size == len(record):
                return True
            why = f"it should have {len(record)} bytes and has {'none' if found is None else found.size}"
        except CorruptRecord as error:
            why = error.why
        self.note(offset, why)
        return False

    def note(self, offset: int, why: str) -> None:
        """Count and log a damaged record, once."""
        if offset in self._known:
            return
        self.found += 1
        if len(self._known) >= MOST_KNOWN:
            return
        self._known[offset] = why
        start = offset - offset % self._log.segment_size
        logger.error(
            "damaged record file=%s byte=%d log_offset=%d reason=%s; its message is left out. To look at all of the "
            "log, stop the broker and run: verniermq store check",
            self._log.directory / file_name(start), offset - start, offset, why,
        )  # fmt: skip

    def why(self, offset: int) -> str | None:
        """What is wrong with the record there, if it was noted."""
        return self._known.get(offset)


def size_of_record(start: bytes, offset: int) -> int:
    """How long the record says it is whose first bytes these are; 0 if none begins at ``offset``."""
    size, magic, _, place, _ = START_OF_RECORD.unpack_from(start)
    return int(size) if magic in (MAGIC_V1, MAGIC_V2) and place == offset and size >= SMALLEST else 0
