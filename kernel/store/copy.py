"""A log that is a copy of another broker's: raw bytes go in, records are found in them as they become whole.

::

    |rec|rec|rec|re      <- end: the next bytes go here
                ^ parsed: whole records end here, and go to the queues as they are numbered

A master sends its log in pieces of any size, so a record may be there in part. An orderly stop cuts such a part off,
and after a crash recovery does, as with any torn record. Whoever appends raw bytes sees to it that nobody else does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from verniermq.kernel.commitlog import integrity
from verniermq.kernel.commitlog.integrity import whole_record_at
from verniermq.kernel.commitlog.log import CommitLog
from verniermq.kernel.commitlog.record import BLANK_SIZE, MAGIC_BLANK, SIZE_AND_MAGIC, Buffer
from verniermq.kernel.dispatch.dispatcher import Dispatcher
from verniermq.kernel.dispatch.run import Part, Run
from verniermq.kernel.errors import CorruptRecord, NotACopy
from verniermq.kernel.message import parse_properties, tags_code
from verniermq.kernel.names import Property, is_system_topic
from verniermq.kernel.store.recovery import event_of

KEPT: Final = 4096
"""Texts of properties whose tags code is remembered; most have fewer than 512 bytes."""

MARKS: Final = frozenset(value for name, value in vars(Property).items() if name.isupper()) - {
    Property.TAGS, Property.WAIT, Property.REGION, Property.TRACE_SWITCH, Property.CLUSTER, Property.SHARDING_KEY,
    Property.INSTANCE_ID,
}  # fmt: skip
"""A message with one of these is an event of its own, and in no run, at its master as well: listeners rely on it."""


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
        self._codes: dict[bytes, int | None] = {}

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
        self._find_records(offset, data)

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

    def _find_records(self, offset: int, data: bytes | memoryview) -> None:
        """Those that ``data`` completed, which lies at ``offset``, at the end of the log."""
        log, size = self._log, self._log.segment_size
        parts: list[Part] = []
        wrong: CorruptRecord | None = None
        while True:
            file_end = self.parsed - self.parsed % size + size
            there = min(log.end, file_end)
            if there - self.parsed < BLANK_SIZE:
                break
            buffer: Buffer
            if self.parsed >= offset:
                buffer, base = data, offset  # to meet pages in the map, which were just written, costs more
                if integrity.RECORDS is not None and (runs := self._find_plain(offset, data)):
                    parts += runs
                    continue
            elif (file := log.segment_of(self.parsed)) is not None:
                buffer, base = file.map, file.start
            else:
                break
            position = self.parsed - base
            length, magic = SIZE_AND_MAGIC.unpack_from(buffer, position)
            if magic == MAGIC_BLANK and length == file_end - self.parsed:
                if there < file_end:
                    break
                self.parsed = file_end
                continue
            if length > there - self.parsed and length <= file_end - self.parsed:
                break
            try:
                found = whole_record_at(buffer, position, self.parsed)
                if found is None:
                    raise CorruptRecord(self.parsed, "a blank that does not reach the end of its file")
            except CorruptRecord as error:
                wrong = error
                break
            parts.append(event_of(buffer, found, self._dispatcher))
            self.parsed += found.size
        if parts:
            self._dispatcher.received = self.parsed
            pending = self._dispatcher.pending
            if not pending:
                self._on_first()
            pending.extend(parts)
        if wrong is not None:
            self.cut()
            raise NotACopy(f"the master's bytes at {self.parsed} are no record: {wrong.why}") from wrong

    def _find_plain(self, offset: int, data: bytes | memoryview) -> list[Part]:
        """Those that what is compiled finds there, in columns, up to one that it leaves to us."""
        assert integrity.RECORDS is not None
        columns, position = integrity.RECORDS.columns(
            data, self.parsed - offset, len(data), self.parsed, self._plain_topic, self._tags_code
        )
        self.parsed = offset + position
        return [
            Run(
                column.topic, column.queue_id, column.queue_offset, column.offsets, column.sizes, column.codes,
                column.uniques, column.keys, column.texts, column.rests, head_size=column.head_size,
                store_timestamp=column.store_timestamp, store_host=column.store_host, sys_flag=column.sys_flag,
                born_timestamps=column.born_timestamps, reconsume_times=column.reconsume_times,
            )
            for column in columns
        ]  # fmt: skip

    def _plain_topic(self, name: bytes) -> str | None:
        """A topic of users, whose tags codes are hashes of tags."""
        topic = name.decode()
        is_plain = (
            not is_system_topic(topic) and not topic.startswith("%") and topic not in self._dispatcher.tags_coders
        )
        return topic if is_plain else None

    def _tags_code(self, text: bytes) -> int | None:
        """By properties without keys, of which hardly two differ; ``None`` if one means something to plugins."""
        if text not in self._codes:
            if len(self._codes) >= KEPT:
                self._codes.clear()
            properties = parse_properties(text.decode())
            is_plain = MARKS.isdisjoint(properties)
            self._codes[text] = tags_code(properties.get(Property.TAGS)) if is_plain else None
        return self._codes[text]

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
