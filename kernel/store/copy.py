"""A log that is a copy of another broker's: raw bytes go in, records are found in them as they become whole.

::

    |rec|rec|rec|re      <- end: the next bytes go here
                ^ parsed: whole records end here, and go to the queues as they are numbered

A master sends its log in pieces of any size, so a record may be there in part. An orderly stop cuts such a part off,
and after a crash recovery does, as with any torn record. Whoever appends raw bytes sees to it that nobody else does.
"""

from __future__ import annotations

from collections.abc import Callable

from verniermq.kernel.commitlog.integrity import whole_record_at
from verniermq.kernel.commitlog.log import CommitLog
from verniermq.kernel.commitlog.record import BLANK_SIZE, MAGIC_BLANK, SIZE_AND_MAGIC
from verniermq.kernel.dispatch.dispatcher import Dispatcher
from verniermq.kernel.errors import CorruptRecord, NotACopy
from verniermq.kernel.store.recovery import event_of


class Copy:
    """The end of one log, while it follows another."""

    def __init__(self, log: CommitLog, dispatcher: Dispatcher, on_first: Callable[[], None]) -> None:
        self.parsed = 0
        """Where the last whole record ended after the last raw bytes."""
        self._copied = 0
        """Where the log ended after the last raw bytes."""
        self._log = log
        self._dispatcher = dispatcher
        self._on_first = on_first

    def append(self, offset: int, data: bytes | memoryview) -> None:
        """
        Raises:
            NotACopy: the bytes do not continue the log, or are no records.
            StoreNotWritable: nothing can be stored now.
        """
        log = self._log
        if log.end != self._copied:
            self.parsed = log.end
        if offset != log.end:
            self._begin(offset)
        try:
            log.append_raw(data)
        except ValueError as error:
            raise NotACopy(
                f"{error}; the master's segment_size (mappedFileSizeCommitLog) is not {log.segment_size}: give both "
                "brokers the same"
            ) from error
        self._copied = log.end
        self._find_records()

    def _begin(self, offset: int) -> None:
        """A log without a byte may begin where its master's log begins: at a file's beginning."""
        log = self._log
        if log.end != log.min_offset:
            raise NotACopy(f"the log ends at {log.end}, and the master sends what follows {offset}")
        if offset % log.segment_size:
            raise NotACopy(
                f"the master's log begins at {offset}, where no file of {log.segment_size} bytes begins; give both "
                "brokers the same segment_size (mappedFileSizeCommitLog)"
            )
        log.restart_at(offset)
        self.parsed = self._copied = offset

    def _find_records(self) -> None:
        log, size = self._log, self._log.segment_size
        events = []
        wrong: CorruptRecord | None = None
        while True:
            base = self.parsed - self.parsed % size
            file = log.segment_of(self.parsed)
            there = min(log.end, base + size)
            if file is None or there - self.parsed < BLANK_SIZE:
                break
            position = self.parsed - base
            length, magic = SIZE_AND_MAGIC.unpack_from(file.map, position)
            if magic == MAGIC_BLANK and length == size - position:
                if there < base + size:
                    break
                self.parsed = base + size
                continue
            if length > there - self.parsed and length <= size - position:
                break
            try:
                found = whole_record_at(file.map, position, self.parsed)
            except CorruptRecord as error:
                wrong = error
                break
            assert found is not None, "a blank was looked for above"
            events.append(event_of(file.map, found, self._dispatcher))
            self.parsed += found.size
        if events:
            self._dispatcher.received = self.parsed
            pending = self._dispatcher.pending
            if not pending:
                self._on_first()
            pending.extend(events)
        if wrong is not None:
            self.cut()
            raise NotACopy(f"the master's bytes at {self.parsed} are no record: {wrong.why}") from wrong

    @property
    def end(self) -> int:
        """Where the last whole record ends."""
        return self.parsed if self._log.end == self._copied else self._log.end

    def begin_at(self, end: int) -> None:
        """The log ends here, with a whole record."""
        self.parsed = self._copied = end

    def cut(self) -> None:
        """Drop the part of a record at the end."""
        if self._log.end == self._copied and self.parsed < self._copied:
            self._log.cut(self.parsed)
            self._copied = self.parsed
