"""What a store can be asked: its queues, its records, and where a message of a given time lies."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

from verniermq.kernel.commitlog.coldreads import ColdReads
from verniermq.kernel.commitlog.log import CommitLog
from verniermq.kernel.commitlog.record import decode
from verniermq.kernel.commitlog.whole import whole_record_at
from verniermq.kernel.dispatch.bytime import offset_by_time
from verniermq.kernel.dispatch.consumequeue import ConsumeQueue
from verniermq.kernel.dispatch.dispatcher import Dispatcher
from verniermq.kernel.errors import CorruptRecord
from verniermq.kernel.message import StoredMessage


class StoreReader:
    """The half of a store that changes nothing."""

    def __init__(self, log: CommitLog, dispatcher: Dispatcher) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._queues = dispatcher.queues
        self._cold_reads = ColdReads(log)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The consume queue, or ``None`` when it never had a message."""
        queue = self._queues.get((topic, queue_id))
        return None if queue is None or queue.is_empty else queue

    def queues(self) -> Iterable[ConsumeQueue]:
        """Every queue that had a message."""
        return self._dispatcher

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.max_offset

    @property
    def start(self) -> int:
        """The commit-log offset of the oldest record."""
        return self._log.min_offset

    @property
    def end(self) -> int:
        """The commit-log offset where the next record goes."""
        return self._log.end

    def read(self, commit_log_offset: int, size: int) -> bytes | None:
        """The raw bytes of a record, or ``None`` when they are not in the log (any more)."""
        return self._log.read(commit_log_offset, size)

    def read_many(self, places: Iterable[tuple[int, int]], limit: int) -> list[bytes]:
        """The raw bytes of records at (commit-log offset, size), at most ``limit`` bytes, but the first in any case.

        It ends before the first that is not in the log (any more). Unlike the rest, safe in a worker thread: what
        was not read for long has to come from the disk.
        """
        return self._log.read_many(places, limit)

    @property
    def fresh_from(self) -> int:
        """Records from this commit-log offset on were written lately, and count as in memory."""
        return self._cold_reads.fresh_from

    def fetching(self, places: Iterable[tuple[int, int]]) -> Coroutine[Any, Any, None] | None:
        """Something to await before records at (commit-log offset, size) are read; ``None`` when they are in memory.

        Reading without it is right too, but then everybody waits for the disk.
        """
        missing = self._cold_reads.missing(places)
        return self._cold_reads.fetch(missing) if missing else None

    def message_at(self, commit_log_offset: int) -> StoredMessage | None:
        """The message whose record begins there; ``None`` when none does."""
        if commit_log_offset < 0:
            return None
        length = self._log.read(commit_log_offset, 4)
        if length is None:
            return None
        record = self._log.read(commit_log_offset, int.from_bytes(length, "big"))
        try:
            if record is None or whole_record_at(record, 0, commit_log_offset) is None:
                return None
            return decode(record)
        except CorruptRecord:
            return None

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> int:
        """The queue offset of the first message stored at or after a time; with ``upper``, of the last at or before it.

        One past the last message when all are older; the first one when ``upper`` finds none.
        """
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else offset_by_time(queue, self._log, timestamp_ms, upper)
