"""The store: a commit log, its consume queues, and what makes them durable (RocketMQ: ``DefaultMessageStore``).

::

    append ──> commitlog/   one record, at the end of the log
      └─ event ─> dispatch, at the end of the loop's turn ──> consumequeue/<topic>/<queue>/ ──> listeners
    run    ──> syncs in worker threads: the log (flush.py), the consume queues, the checkpoint
    open   ──> lock, recovery, abort mark            close ──> everything durable, mark and lock gone

Everything but ``open``, ``close`` and what says so is called on the event loop and never waits for the disk.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import anyio.to_thread

from verniermq.kernel.clock import Clock
from verniermq.kernel.commitlog.checkpoint import Checkpoint
from verniermq.kernel.commitlog.coldreads import ColdReads
from verniermq.kernel.commitlog.damage import Damage, size_of_record
from verniermq.kernel.commitlog.flush import Flusher
from verniermq.kernel.commitlog.lock import AbortMark, StoreLock
from verniermq.kernel.commitlog.log import CommitLog, SegmentInfo
from verniermq.kernel.commitlog.mapped import SyncFailed
from verniermq.kernel.commitlog.record import START_OF_RECORD, decode
from verniermq.kernel.config.schema import StoreSettings
from verniermq.kernel.dispatch.bytime import offset_by_time, store_timestamp
from verniermq.kernel.dispatch.consumequeue import ENTRY, ConsumeQueue
from verniermq.kernel.dispatch.dispatcher import Dispatcher, Listener, TagsCoder
from verniermq.kernel.dispatch.event import Appended, DispatchEvent
from verniermq.kernel.dispatch.run import Run, events_of
from verniermq.kernel.errors import CannotOpenStore, CorruptRecord, StoreError
from verniermq.kernel.message import MessageFilter, PendingMessage, StoredMessage
from verniermq.kernel.remoting.descriptors import most_queue_files
from verniermq.kernel.store.appender import Appender
from verniermq.kernel.store.clockchanges import ClockChanges
from verniermq.kernel.store.copy import Copy
from verniermq.kernel.store.maintenance import StoreMaintenance
from verniermq.kernel.store.matches import Matches, read_adjacent, read_matches
from verniermq.kernel.store.recovery import Progress, Recovery
from verniermq.kernel.store.version import StoreVersion

__all__ = ["Appended", "DispatchEvent", "Listener", "Store", "StoreSettings", "TagsCoder"]

logger = logging.getLogger(__name__)

RECENT_BYTES: Final = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 0.4)
"""RocketMQ counts two fifths of the machine's memory behind the log's end as still in the page cache."""
QUEUES_PER_TURN = 50
"""So many queues are looked at before others get their turn."""

DISK_FAILED: Final = "EIO"
"""Who refuses appends after a failed sync."""

MOST_QUEUES_AT_STOP = 2000
"""So many queues are written at a stop; with more, the log is enough: a start makes again what they lack, in memory."""


class Store:
    """One broker's messages. Made closed; :meth:`open` first, :meth:`close` last."""

    def __init__(self, settings: StoreSettings, *, clock: Clock, store_host: bytes) -> None:
        self.settings = settings
        self.path = Path(settings.path)
        self.was_clean = True
        """Whether the last broker stopped in order; :meth:`open` finds out."""
        self.before_close: list[Callable[[], None]] = []
        """Called by :meth:`close` when everything is dispatched: what others derive from the log becomes durable."""
        log = CommitLog(self.path / "commitlog", settings.segment_size)
        dispatcher = Dispatcher(
            self.path / "consumequeue",
            queue_entries=settings.queue_entries,
            open_files=most_queue_files(settings.mapped_queue_files),
        )
        self._log = log
        self._dispatcher = dispatcher
        self._queues = dispatcher.queues
        self._cold_reads = ColdReads(log)
        self.damage = Damage(log)
        """The records that turned out not to be what was written."""
        self.clock_changes = ClockChanges(clock, lambda: log.end)
        """When somebody set the clock, by how much, and what was stored before."""
        dispatcher.on_earlier = self.clock_changes.look
        self.listeners: list[Listener] = dispatcher.listeners
        """Called with each batch of dispatched messages; by :meth:`open` too, with what recovery reads."""
        self.tags_coders: dict[str, TagsCoder] = dispatcher.tags_coders
        """By topic; other topics keep the hash of their tags."""
        self.appender = Appender(
            self._log,
            self._dispatcher,
            clock=clock,
            store_host=store_host,
            max_message_size=settings.max_message_size,
            on_first=self._dispatch_soon,
        )
        """What :meth:`append` and its like call; for the handler of sends, which most messages come through."""
        self.appender.refusal = "the store is not open"
        self._copy = Copy(self._log, self._dispatcher, self._dispatch_soon)
        self._flusher = Flusher(
            self._log,
            synchronous=settings.flush == "sync",
            interval=settings.flush_interval,
            pages=settings.flush_pages,
            timeout=settings.flush_timeout,
            on_flushed=self.dispatch,
            on_trouble=self._note_trouble,
        )
        self._maintenance = StoreMaintenance(
            self.path / "checkpoint",
            log=self._log,
            dispatcher=self._dispatcher,
            flusher=self._flusher,
            interval=settings.checkpoint_interval,
            on_trouble=self._note_trouble,
        )
        self._lock: StoreLock | None = None
        self._refusals: dict[str, str] = {}
        self._dispatch_limit: int | None = None
        self.on_held_back: Callable[[], None] | None = None
        """Called when messages are left that lie behind :attr:`dispatch_limit`: it is time to have them confirmed."""

    @property
    def store_host(self) -> bytes:
        """Packed; what records and offset message ids name as their place."""
        return self.appender.store_host

    @store_host.setter
    def store_host(self, packed: bytes) -> None:
        self.appender.store_host = packed

    @property
    def newest_timestamp(self) -> int:
        """When the newest message was stored that is in its queue, in ms; 0 if there never was one."""
        return self._dispatcher.store_timestamp

    @property
    def index_timestamp(self) -> int:
        """The end of the last full index file; the key index sets it, the checkpoint keeps it."""
        return self._maintenance.index_timestamp

    @index_timestamp.setter
    def index_timestamp(self, timestamp: int) -> None:
        self._maintenance.index_timestamp = timestamp

    # --- life ------------------------------------------------------------------------------

    def open(self, progress: Progress | None = None) -> None:
        """Lock the store, find out where it ends, bring the queues up to the log. May run in a worker thread.

        Raises:
            StoreLocked: another broker uses it.
            StoreError: the files cannot be used as they are, or the disk refused.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = StoreLock(self.path)
        except OSError as error:
            raise CannotOpenStore(self.path, error) from error
        abort = AbortMark(self.path)
        clean = self.was_clean = not abort.is_set
        recovery: Recovery | None = None
        try:
            version = StoreVersion.of(self.path)
            if version is not None:
                version.refuse_newer(self.path)
            checkpoint = Checkpoint.load(self.path / "checkpoint")
            self.index_timestamp = checkpoint.index_timestamp
            self._dispatcher.store_timestamp = min(checkpoint.log_timestamp, checkpoint.queue_timestamp)
            abort.set()
            recovery = Recovery(
                log=self._log,
                dispatcher=self._dispatcher,
                checkpoint=checkpoint,
                clean=clean,
                progress=progress,
                save=lambda changed: changed.save(self.path / "checkpoint"),
                limit=None if self._dispatch_limit is None else checkpoint.confirmed,
            )
            if version != StoreVersion():
                StoreVersion().save(self.path)  # before anything is written that an older version might misread
            end = recovery.run()
            if not clean:
                # What a killed process wrote may be in the system's memory only, and counts as durable from here on.
                self._log.sync_from(checkpoint.log_durable or 0)
        except BaseException as error:
            if clean and (recovery is None or not recovery.changed):
                with suppress(OSError):
                    abort.clear()
            self._let_go()
            if isinstance(error, OSError):
                raise CannotOpenStore(self.path, error) from error
            raise
        self._flusher.flushed = self.damage.trusted_from = end
        self._copy.begin_at(end)
        pending = self._dispatcher.pending
        self._dispatcher.dispatched = pending[0].commit_log_offset if pending else end
        if self._dispatch_limit is not None:
            # What fills a segment up behind the last confirmed record is not confirmed with it.
            confirmed = min(self._dispatcher.dispatched, max(checkpoint.confirmed, self.start))
            self._dispatch_limit = self._dispatcher.dispatched = confirmed
        self.appender.refusal = next(iter(self._refusals.values()), None)
        logger.info("store opened path=%s clean=%s end=%d queues=%d", self.path, clean, end, len(self._queues))

    def close(self) -> None:
        """Make everything durable, write the checkpoint, let go of the lock. Blocks; it is the last call."""
        if self._lock is None:
            return
        self.appender.refusal = "the store is closed"
        try:
            self._copy.cut()
            self.sync()
            left = self._dispatcher.unwritten
            if left <= MOST_QUEUES_AT_STOP:
                self._dispatcher.flush()
            for finish in self.before_close:
                finish()
            if left > MOST_QUEUES_AT_STOP:
                # To make their files would take longer than whoever stops a broker waits before killing it.
                logger.info("store closed; the next start reads the newest entries of %d queues from the log", left)
                return
            self._maintenance.note_stop()
            AbortMark(self.path).clear()
            logger.info("store closed path=%s end=%d", self.path, self._log.end)
        except OSError as error:
            logger.error("the store was not closed in order: %s; the next start recovers it path=%s", error, self.path)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._log.close()
        self._dispatcher.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def flush(self) -> None:
        """Make everything durable and dispatch it, here and now. Blocks; only while :meth:`run` is not running.

        Raises:
            OSError: the disk failed, now or earlier.
        """
        self.sync()
        self._dispatcher.flush()

    def sync(self) -> None:
        """Make the log durable and dispatch it. Blocks; only while :meth:`run` is not running.

        Raises:
            OSError: the disk failed, now or earlier.
        """
        if self._flusher.failed:
            raise OSError(errno.EIO, "the disk failed while it was synced before")
        self._flusher.flushed = self._log.sync()
        self.dispatch()

    async def run(self) -> None:
        """Keep syncing, writing queues and checkpoints, and making segments ahead of time, until cancelled."""
        await self._maintenance.run()

    # --- appending -------------------------------------------------------------------------

    def append(self, message: PendingMessage) -> Appended:
        """Put a message at the end of the log; it is dispatched at the end of the loop's turn.

        Raises:
            MessageSizeExceeded, PropertiesTooLarge, MessageIllegal: it cannot be stored.
            StoreNotWritable: nothing can be stored now.
        """
        return self.appender.append(message)

    def append_batch(self, messages: Sequence[PendingMessage]) -> Sequence[Appended]:
        """Put messages into the log one behind the other, in one segment; all of them or none.

        Raises:
            As :meth:`append`. The batch as a whole must fit into a segment.
        """
        return self.appender.append_batch(messages)

    def append_raw(self, commit_log_offset: int, data: bytes | memoryview) -> None:
        """Put bytes of a master's log at the end of this one, which is a copy of it; see :class:`Copy`.

        Raises:
            NotACopy: they do not continue the log, or are no records.
            StoreNotWritable: nothing can be stored now.
        """
        self._copy.append(commit_log_offset, data)

    @property
    def copied_end(self) -> int:
        """Where the last whole record ends: after :meth:`append_raw`, parts of another may follow."""
        return self._copy.end

    @property
    def takes_encoded(self) -> bool:
        """Whether records may be appended that are encoded already: nothing refuses writes, and no answer waits."""
        return self.appender.refusal is None and not self._flusher.synchronous

    @property
    def room(self) -> int:
        """Bytes that can be appended before the log has to be asked for more."""
        return self._log.room - self._log.end

    @property
    def queue_table(self) -> dict[tuple[str, int], ConsumeQueue]:
        """The queues in use, by topic and number."""
        return self._queues

    def append_encoded(self, records: bytes, runs: Sequence[Run]) -> None:
        """Put records at the log's end that were encoded for it and fit into :attr:`room`, all of them or none.

        Raises:
            StoreNotWritable: the disk has no room.
        """
        self.appender.append_encoded(records, runs)

    def _dispatch_soon(self) -> None:
        """The first append of a turn: have the turn's messages dispatched at its end."""
        try:
            asyncio.get_running_loop().call_soon(self.dispatch)
        except RuntimeError:
            pass  # no loop runs here: whoever appends calls dispatch

    def dispatch(self) -> None:
        """Bring what was appended into the consume queues and to the listeners.

        With synchronous flush only what is durable: a consumer must not see what a power cut can take back. And only
        up to :attr:`dispatch_limit`.
        """
        limit = self._dispatch_limit
        if self._flusher.synchronous:
            flushed = self._flusher.flushed
            self._dispatcher.dispatch(flushed if limit is None else min(limit, flushed))
            if self._dispatcher.pending and self._log.end > flushed:
                self._flusher.poke()
        else:
            self._dispatcher.dispatch(limit)
        if self._dispatch_limit is not None and self.on_held_back is not None and self._dispatcher.pending:
            self.on_held_back()

    @property
    def dispatch_limit(self) -> int | None:
        """What lies behind this commit-log offset is in no queue yet, since it may be cut off; ``None``: all may be.

        Set it before the store is opened, to any offset, and recovery dispatches no more than was dispatched before:
        it is then set to that. To raise it dispatches.
        """
        return self._dispatch_limit

    @dispatch_limit.setter
    def dispatch_limit(self, limit: int | None) -> None:
        self._dispatch_limit = limit
        if self._lock is not None and self._dispatcher.pending:
            self.dispatch()

    async def cut(self, end: int) -> None:
        """Drop the log from ``end`` on, where a record ends. Whoever calls it sees to it that nobody appends meanwhile.

        Raises:
            StoreError: messages behind it are in their queues, and somebody may have read them.
            OSError: the disk refused.
        """
        if end < self._dispatcher.dispatched:
            raise StoreError(
                f"the log cannot be cut off at {end}: messages up to {self._dispatcher.dispatched} are in their queues"
            )
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._log.cut_back, end, limiter=self._flusher.thread)
        self._flusher.flushed = min(self._flusher.flushed, end)
        self._copy.begin_at(end)
        self._dispatcher.forget_from(end)
        self._lower_limit()

    def _lower_limit(self) -> None:
        """What is written behind the log's end is another thing than what was there."""
        if self._dispatch_limit is not None:
            self._dispatch_limit = min(self._dispatch_limit, self._log.end)

    def take_over(self) -> None:
        """Go on with a log that was a copy: a part of a record at its end goes, and appends are numbered here.

        Raises:
            OSError: the disk refused.
        """
        self._copy.cut()
        self._lower_limit()
        self._dispatcher.number_pending()

    def refuse_writes(self, reason: str | None, source: str = "") -> None:
        """Raise ``StoreNotWritable`` with this reason from every append, until ``None`` clears it.

        Several parts may refuse at the same time; each clears what it set under its own ``source``.
        """
        if reason is None:
            self._refusals.pop(source, None)
        else:
            self._refusals[source] = reason
        if self._lock is not None:
            self.appender.refusal = next(iter(self._refusals.values()), None)

    @property
    def refusals(self) -> Mapping[str, str]:
        """Why appends are refused at present, by who refuses them; empty when they are taken."""
        return self._refusals

    @property
    def broken(self) -> str | None:
        """What the disk did after which nothing is trusted any more until a restart."""
        return self._refusals.get(DISK_FAILED)

    # --- reading ---------------------------------------------------------------------------

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

    def is_young(self, topic: str, queue_id: int) -> bool:
        """Whether a queue still has its first message, and that one recent: then a new group starts with it.

        RocketMQ's rule for pulls and pops alike (``checkInMemByConsumeOffset``): the message lies so near to the log's
        end that it counts as in the page cache.
        """
        queue = self.queue(topic, queue_id)
        if queue is None:
            return True
        if queue.min_offset > 0:
            return False
        entries = queue.entries(0, 1)
        return not entries or self.end - entries[0][0] <= RECENT_BYTES

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

    def read_block(self, commit_log_offset: int, limit: int) -> bytes | None:
        """Up to ``limit`` raw bytes of the log, not aligned to records, never past the end of a file; none at the end.

        ``None`` when they are not in the log (any more). Safe in a worker thread.
        """
        return self._log.read_block(commit_log_offset, limit)

    def read_many(self, places: Iterable[tuple[int, int]], limit: int) -> list[bytes]:
        """The raw bytes of records at (commit-log offset, size), at most ``limit`` bytes, but the first in any case.

        It ends before the first that is not in the log (any more). Unlike the rest, safe in a worker thread: what
        was not read for long has to come from the disk.
        """
        return self._log.read_many(places, limit)

    def matches(
        self,
        entries: bytes,
        wanted: MessageFilter,
        *,
        most: int,
        max_bytes: int,
        check_before: int = 0,
        strict: bool = False,
        skip_gone: bool = True,
    ) -> Matches:
        """The records of these entries of a queue, as :meth:`ConsumeQueue.read` gives them, that pass a filter.

        At most ``most`` records and ``max_bytes`` bytes, but the first in any case. Safe in a worker thread.

        Args:
            check_before: records before this commit-log offset are checked, and left out if they are damaged
            strict: they are checked as a start does, not only by size and checksum
            skip_gone: whether records that are not in the log any more are passed over, or end the read
        """
        return read_matches(
            self._log, self.damage, entries, wanted,
            most=most, max_bytes=max_bytes, check_before=check_before, strict=strict, skip_gone=skip_gone,
        )  # fmt: skip

    def adjacent(self, entries: bytes, *, most: int, max_bytes: int) -> tuple[list[bytes], int] | None:
        """The records of these entries, those that lie side by side in one piece, and how many records that are.

        As many as :meth:`matches` gives without a filter; ``None`` if one of them is gone. Safe in a worker thread.
        """
        return read_adjacent(self._log, entries, most=most, max_bytes=max_bytes)

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

    def fetching_entries(
        self, queue: ConsumeQueue, offset: int, look_at: int, wish: MessageFilter, most: int
    ) -> Coroutine[Any, Any, None] | None:
        """The same for the first ``most`` of ``look_at`` messages from a queue offset on that may pass a filter."""
        if not queue.min_offset <= offset < queue.tail_start:
            return None  # nearly always: what was appended a moment ago is in memory
        entries = queue.read(offset, min(look_at, queue.max_offset - offset))
        if int.from_bytes(entries[:8], "big") >= self.fresh_from:
            return None  # and so are those behind it
        codes = wish.tag_codes
        places = [(place, size) for place, size, code in ENTRY.iter_unpack(entries) if codes is None or code in codes]
        return self.fetching(places if wish.test is not None else places[:most])

    @property
    def longest_fetch(self) -> float:
        """How long a reader had to wait for the disk at most, in seconds; 0 while all was in memory."""
        return self._cold_reads.longest

    def message_at(self, commit_log_offset: int, size: int | None = None) -> StoredMessage | None:
        """The message whose record begins there; ``None`` when none does, or it is damaged.

        Give the ``size`` if an index says that there is a record: whatever else is there then is damage.
        """
        if size is None:
            start = self._log.read(commit_log_offset, START_OF_RECORD.size) if commit_log_offset >= 0 else None
            size = 0 if start is None else size_of_record(start, commit_log_offset)
        record = self._log.read(commit_log_offset, size) if size > 0 else None
        if record is None or not self.damage.is_whole(record, commit_log_offset):
            return None
        try:
            return decode(record)
        except CorruptRecord as error:
            self.damage.note(commit_log_offset, error.why)
            return None

    def why_no_message(self, commit_log_offset: int) -> str:
        """Why :meth:`message_at` found nothing, for the peer that wanted it."""
        why = self.damage.why(commit_log_offset)
        if why is not None:
            return f"the message at commit-log offset {commit_log_offset} is damaged: {why}"
        return (
            f"there is no message at commit-log offset {commit_log_offset}; the log has {self.start} to {self.end}, "
            "it may have expired"
        )

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> int:
        """The queue offset of the first message stored at or after a time; with ``upper``, of the last at or before it.

        One past the last message when all are older; the first one when ``upper`` finds none.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        return offset_by_time(queue, self._log, timestamp_ms, upper, self.clock_changes.set_back_at())

    async def find_by_time(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> int:
        """The same as :meth:`offset_by_time`; while the disk is read, others go on."""

        def search(ask: Callable[[int, int], None]) -> int:
            queue = self._queues.get((topic, queue_id))
            if queue is None:
                return 0
            return offset_by_time(queue, self._log, timestamp_ms, upper, self.clock_changes.set_back_at(), ask)

        return await self._cold_reads.repeated(search)

    async def find_message(self, commit_log_offset: int) -> StoredMessage | None:
        """The same as :meth:`message_at`; while the disk is read, others go on."""
        return await self._cold_reads.repeated(lambda ask: self._look_at(commit_log_offset, ask))

    def find_in_thread(self, commit_log_offset: int) -> StoredMessage | None:
        """The same in a worker thread: a map that is sliced there without this would hold up the loop as well."""
        return self._look_at(commit_log_offset, self._cold_reads.bring)

    def _look_at(self, commit_log_offset: int, ask: Callable[[int, int], None]) -> StoredMessage | None:
        if commit_log_offset < 0:
            return None
        ask(commit_log_offset, START_OF_RECORD.size)
        start = self._log.read(commit_log_offset, START_OF_RECORD.size)
        size = 0 if start is None else size_of_record(start, commit_log_offset)
        if size > START_OF_RECORD.size:
            # A place of its own: the first one is not asked about again.
            ask(commit_log_offset + START_OF_RECORD.size, size - START_OF_RECORD.size)
        return self.message_at(commit_log_offset)

    def stored_at(self, topic: str, queue_id: int, offset: int) -> int | None:
        """When the message at a queue offset was stored, in milliseconds; ``None`` if it is not there."""
        queue = self._queues.get((topic, queue_id))
        return None if queue is None else store_timestamp(queue, self._log, offset)

    # --- durability ------------------------------------------------------------------------

    @property
    def waits_for_disk(self) -> bool:
        """Whether an append is to be answered only when :meth:`durable` says so."""
        return self._flusher.synchronous

    async def durable(self, end_offset: int, *, force: bool = False) -> bool:
        """Wait until the log is on the disk up to there; ``False`` after the limit.

        With asynchronous flush at once, unless ``force`` has the log synced now.
        """
        return await self._flusher.durable(end_offset, force=force)

    @property
    def dispatched_end(self) -> int:
        """Up to where the log is in the consume queues."""
        return self._dispatcher.dispatched

    @property
    def undispatched(self) -> Sequence[DispatchEvent]:
        """What is in the log and not in the queues yet."""
        return events_of(self._dispatcher.pending)

    @property
    def durable_end(self) -> int:
        """Everything before this commit-log offset is on the disk."""
        return self._flusher.flushed

    def _note_trouble(self, error: OSError | None, part: str = "commit log") -> None:
        if error is not None and (isinstance(error, SyncFailed) or error.errno == errno.EIO):
            self._flusher.fail()
            why = error.strerror or str(error)
            self.refuse_writes(f"the disk failed while the {part} was synced: {why}; restart the broker", DISK_FAILED)
        elif error is not None:
            self.refuse_writes(f"the disk refused to keep the {part}: {error.strerror or error}", part)
        elif part in self._refusals:
            self.refuse_writes(None, part)

    async def save_checkpoint(self) -> None:
        """Make everything dispatched so far durable and note that: a crash need not read what came before.

        Raises:
            OSError: the disk refused.
        """
        await self._maintenance.save_checkpoint()

    # --- what goes away --------------------------------------------------------------------

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's queues and remove their files; its records stay in the log until that expires.

        For a worker thread.

        Raises:
            OSError: the disk failed; nothing was removed.
        """
        self._maintenance.begin_removal()
        try:
            self._dispatcher.delete_topic(topic)
        finally:
            self._maintenance.end_removal()

    def segments(self) -> list[SegmentInfo]:
        """The files of the commit log, oldest first."""
        return self._log.segments()

    def delete_first_segment(self) -> Path | None:
        """Remove the oldest file of the log, never the active one; ``expire_queues`` belongs after it."""
        return self._log.delete_first_segment()

    async def expire_queues(self) -> int:
        """Raise the queues' minimum offsets to what the log still has, and remove their files below it, a few queues
        at a time; return how many files.

        Raises:
            OSError: the disk failed.
        """
        start = self._log.min_offset
        removed = 0
        await anyio.to_thread.run_sync(self._maintenance.begin_removal)
        try:
            for number, queue in enumerate(self._dispatcher, 1):
                if not queue.gone:
                    removed += queue.delete_files_below(start)
                if number % QUEUES_PER_TURN == 0:
                    await anyio.lowlevel.checkpoint()
        finally:
            self._maintenance.end_removal()
        return removed
