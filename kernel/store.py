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
from collections.abc import Callable, Sequence
from pathlib import Path

from verniermq.kernel.clock import Clock
from verniermq.kernel.commitlog.append import Appender
from verniermq.kernel.commitlog.checkpoint import Checkpoint
from verniermq.kernel.commitlog.flush import Flusher
from verniermq.kernel.commitlog.keeper import Keeper
from verniermq.kernel.commitlog.lock import AbortMark, StoreLock
from verniermq.kernel.commitlog.log import CommitLog, SegmentInfo
from verniermq.kernel.commitlog.recovery import Progress, Recovery
from verniermq.kernel.config.schema import StoreSettings
from verniermq.kernel.dispatch.dispatcher import Dispatcher, Listener, TagsCoder
from verniermq.kernel.dispatch.event import Appended, DispatchEvent
from verniermq.kernel.errors import StoreError
from verniermq.kernel.message import PendingMessage
from verniermq.kernel.storereader import StoreReader

__all__ = ["Appended", "DispatchEvent", "Listener", "Store", "StoreSettings", "TagsCoder"]

logger = logging.getLogger(__name__)


class Store(StoreReader):
    """One broker's messages. Made closed; :meth:`open` first, :meth:`close` last."""

    def __init__(self, settings: StoreSettings, *, clock: Clock, store_host: bytes) -> None:
        self.settings = settings
        self.path = Path(settings.path)
        self.redispatch_from: Callable[[], int | None] | None = None
        """Asked by :meth:`open`: from which commit-log offset on the listeners have to hear everything again."""
        self.was_clean = True
        """Whether the last broker stopped in order; :meth:`open` finds out."""
        self.before_close: list[Callable[[], None]] = []
        """Called by :meth:`close` when everything is dispatched: what others derive from the log becomes durable."""
        log = CommitLog(self.path / "commitlog", settings.segment_size)
        dispatcher = Dispatcher(
            self.path / "consumequeue",
            queue_entries=settings.queue_entries,
            open_files=settings.mapped_queue_files,
        )
        super().__init__(log, dispatcher)
        self.listeners: list[Listener] = dispatcher.listeners
        """Called with each batch of dispatched messages; by :meth:`open` too, with what recovery reads."""
        self.tags_coders: dict[str, TagsCoder] = dispatcher.tags_coders
        """By topic; other topics keep the hash of their tags."""
        self._appender = Appender(
            self._log,
            self._dispatcher,
            clock=clock,
            store_host=store_host,
            max_message_size=settings.max_message_size,
            on_first=self._dispatch_soon,
        )
        self._appender.refusal = "the store is not open"
        self.append: Callable[[PendingMessage], Appended] = self._appender.append
        """Put a message at the end of the log; it is dispatched at the end of the loop's turn. Raises
        ``MessageTooLarge``, ``PropertiesTooLarge``, ``MessageIllegal``: it cannot be stored; ``StoreNotWritable``:
        nothing can be stored now."""
        self._flusher = Flusher(
            self._log,
            synchronous=settings.flush == "sync",
            interval=settings.flush_interval,
            pages=settings.flush_pages,
            timeout=settings.flush_timeout,
            on_flushed=self.dispatch,
            on_trouble=self._note_trouble,
        )
        self._keeper = Keeper(
            self.path / "checkpoint",
            log=self._log,
            dispatcher=self._dispatcher,
            flusher=self._flusher,
            interval=settings.checkpoint_interval,
            on_trouble=self._note_trouble,
        )
        self._lock: StoreLock | None = None
        self._refusals: dict[str, str] = {}

    @property
    def store_host(self) -> bytes:
        """Packed; what records and offset message ids name as their place."""
        return self._appender.store_host

    @store_host.setter
    def store_host(self, packed: bytes) -> None:
        self._appender.store_host = packed

    @property
    def index_timestamp(self) -> int:
        """The end of the last full index file; the key index sets it, the checkpoint keeps it."""
        return self._keeper.index_timestamp

    @index_timestamp.setter
    def index_timestamp(self, timestamp: int) -> None:
        self._keeper.index_timestamp = timestamp

    # --- life ------------------------------------------------------------------------------

    def open(self, progress: Progress | None = None) -> None:
        """Lock the store, find out where it ends, bring the queues up to the log. May run in a worker thread.

        Raises:
            StoreLocked: another broker uses it.
            StoreError: the files cannot be used as they are.
            OSError: the directory cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = StoreLock(self.path)
        except OSError as error:
            raise StoreError(f"the store {self.path} cannot be opened: {error.strerror or error}") from error
        try:
            abort = AbortMark(self.path)
            checkpoint = Checkpoint.load(self.path / "checkpoint")
            self.index_timestamp = checkpoint.index_timestamp
            self._dispatcher.store_timestamp = min(checkpoint.log_timestamp, checkpoint.queue_timestamp)
            clean = self.was_clean = not abort.is_set
            abort.set()
            recovery = Recovery(
                log=self._log,
                dispatcher=self._dispatcher,
                checkpoint=checkpoint,
                clean=clean,
                redispatch_from=self.redispatch_from() if self.redispatch_from is not None else None,
                progress=progress,
                save=lambda changed: changed.save(self.path / "checkpoint"),
            )
            try:
                end = recovery.run()
            except StoreError:
                if clean and not recovery.changed:
                    abort.clear()
                raise
        except BaseException:
            self._let_go()
            raise
        self._dispatcher.dispatched = self._flusher.flushed = end
        self._appender.refusal = next(iter(self._refusals.values()), None)
        logger.info("store opened path=%s clean=%s end=%d queues=%d", self.path, clean, end, len(self._queues))

    def close(self) -> None:
        """Make everything durable, write the checkpoint, let go of the lock. Blocks; it is the last call."""
        if self._lock is None:
            return
        self._appender.refusal = "the store is closed"
        try:
            self.flush()
            for finish in self.before_close:
                finish()
            self._keeper.note_stop()
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
        if self._flusher.failed:
            raise OSError(errno.EIO, "the disk failed while it was synced before")
        self._flusher.flushed = self._log.sync()
        self.dispatch()
        self._dispatcher.flush()

    async def run(self) -> None:
        """Keep syncing, writing queues and checkpoints, and making segments ahead of time, until cancelled."""
        await self._keeper.run()

    # --- appending -------------------------------------------------------------------------

    def append_batch(self, messages: Sequence[PendingMessage]) -> Sequence[Appended]:
        """Put messages into the log one behind the other, in one segment; all of them or none.

        Raises:
            As :meth:`append`. The batch as a whole must fit into a segment.
        """
        return self._appender.append_batch(messages)

    def _dispatch_soon(self) -> None:
        """The first append of a turn: have the turn's messages dispatched at its end."""
        try:
            asyncio.get_running_loop().call_soon(self.dispatch)
        except RuntimeError:
            pass  # no loop runs here: whoever appends calls dispatch

    def dispatch(self) -> None:
        """Bring what was appended into the consume queues and to the listeners.

        With synchronous flush only what is durable: a consumer must not see what a power cut can take back.
        """
        if not self._flusher.synchronous:
            self._dispatcher.dispatch()
            return
        self._dispatcher.dispatch(self._flusher.flushed)
        if self._dispatcher.pending:
            self._flusher.poke()

    def refuse_writes(self, reason: str | None, source: str = "") -> None:
        """Raise ``StoreNotWritable`` with this reason from every append, until ``None`` clears it.

        Several parts may refuse at the same time; each clears what it set under its own ``source``.
        """
        if reason is None:
            self._refusals.pop(source, None)
        else:
            self._refusals[source] = reason
        if self._lock is not None:
            self._appender.refusal = next(iter(self._refusals.values()), None)

    # --- durability ------------------------------------------------------------------------

    @property
    def waits_for_disk(self) -> bool:
        """Whether an append is to be answered only when :meth:`durable` says so."""
        return self._flusher.synchronous

    async def durable(self, end_offset: int) -> bool:
        """Wait until the log is on the disk up to there; at once with asynchronous flush; ``False`` after the limit."""
        return await self._flusher.durable(end_offset)

    @property
    def durable_end(self) -> int:
        """Everything before this commit-log offset is on the disk."""
        return self._flusher.flushed

    def _note_trouble(self, error: OSError | None, part: str = "commit log") -> None:
        if error is not None and error.errno == errno.EIO:
            self._flusher.fail()
            self.refuse_writes(f"the disk failed while the {part} was synced; restart the broker", "EIO")
        elif error is not None:
            self.refuse_writes(f"the disk refused to keep the {part}: {error.strerror or error}", part)
        elif part in self._refusals:
            self.refuse_writes(None, part)

    async def save_checkpoint(self) -> None:
        """Make everything dispatched so far durable and note that: a crash need not read what came before.

        Raises:
            OSError: the disk refused.
        """
        await self._keeper.save_checkpoint()

    # --- what goes away --------------------------------------------------------------------

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's queues and remove their files; its records stay in the log until that expires."""
        self._dispatcher.delete_topic(topic)

    def segments(self) -> list[SegmentInfo]:
        """The files of the commit log, oldest first."""
        return self._log.segments()

    def delete_first_segment(self) -> Path | None:
        """Remove the oldest file of the log, never the active one; ``expire_queues`` belongs after it."""
        return self._log.delete_first_segment()

    def expire_queues(self) -> int:
        """Raise the queues' minimum offsets to what the log still has, and remove their files below it."""
        return sum(queue.delete_files_below(self._log.min_offset) for queue in self._dispatcher)
