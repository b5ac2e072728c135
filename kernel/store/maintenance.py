"""What a store does in the background: segments ahead of time, queues on disk, the checkpoint, memory let go.

The order is what makes the checkpoint true. First the log is synced, then the queues' entries are written and
synced, and only then does the checkpoint say how far both reach. All of it happens in worker threads; the loop
only hands out and takes back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import attrs

from verniermq.kernel.commitlog.checkpoint import Checkpoint
from verniermq.kernel.commitlog.flush import Flusher
from verniermq.kernel.commitlog.log import CommitLog
from verniermq.kernel.dispatch.consumequeue import ConsumeQueue
from verniermq.kernel.dispatch.dispatcher import Dispatcher

logger = logging.getLogger(__name__)

SYNC_QUEUES_SECONDS = 5.0
"""Consume queues are written every checkpoint interval, and synced this often: a crash replays what came since."""
SYNC_QUEUES_BYTES = 16 * 1024 * 1024
"""They are synced sooner when the log grew by so much: reading that takes a fifth of a second."""
MOST_SYNCING = 0.2
"""But no more of the time than this is spent with it, however many queues there are."""


class StoreMaintenance:
    """Keeps the files of one store up to date while :meth:`run` is running."""

    def __init__(
        self,
        checkpoint: Path,
        *,
        log: CommitLog,
        dispatcher: Dispatcher,
        flusher: Flusher,
        interval: float,
        on_trouble: Callable[[OSError | None, str], None],
    ) -> None:
        self.index_timestamp = 0
        """The end of the last full index file; the checkpoint keeps it."""
        self._path = checkpoint
        self._log = log
        self._dispatcher = dispatcher
        self._flusher = flusher
        self._interval = interval
        self._on_trouble = on_trouble
        self._saved = -1
        self._removals_begun = self._removals_ended = 0
        self._noting = threading.Lock()
        """Held while the checkpoint is written."""
        self._thread = anyio.CapacityLimiter(1)
        self._one_at_a_time = anyio.Lock()
        """Whoever says that the queues are durable must have written all of them, and not another for him."""
        self._wanted = anyio.Event()

    async def run(self) -> None:
        """Work until cancelled."""
        self._log.came_ahead = self._come_ahead
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._flusher.run)
                tasks.start_soon(self._keep_ahead)
                tasks.start_soon(self._keep_queues)
        finally:
            self._log.came_ahead = None

    def _come_ahead(self) -> None:
        self._wanted.set()

    async def _keep_ahead(self) -> None:
        """Have the log ready for what comes next. Its own thread: it must not wait for a slow disk."""
        thread = anyio.CapacityLimiter(1)
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            try:
                await anyio.to_thread.run_sync(self._log.get_ready, limiter=thread)
            except OSError as error:
                logger.warning("the log is not ready yet for what comes next: %s; it is tried again", error)

    async def _keep_queues(self) -> None:
        """Write the consume queues every interval; less often sync them too, and write the checkpoint."""
        since_sync = took = 0.0
        while True:
            await anyio.sleep(self._interval)
            since_sync += self._interval
            try:
                if not self._sync_is_due(since_sync, took):
                    async with self._one_at_a_time:
                        await self._write_queues()
                else:
                    since_sync, began = 0.0, time.monotonic()
                    await self.save_checkpoint()
                    took = time.monotonic() - began
                self._on_trouble(None, "consume queues")
                await anyio.to_thread.run_sync(self._log.let_go, limiter=self._thread)
            except OSError as error:
                logger.error("the disk refused the consume queues: %s; trying again in %g s", error, self._interval)
                self._on_trouble(error, "consume queues")

    def _sync_is_due(self, since: float, took: float) -> bool:
        """``since`` the last sync of the queues, which ``took`` so many seconds."""
        grown = self._dispatcher.dispatched - self._saved
        return since >= SYNC_QUEUES_SECONDS or (grown >= SYNC_QUEUES_BYTES and took <= since * MOST_SYNCING)

    async def _write_queues(self) -> None:
        queues = self._dispatcher.take_dirty()
        written: list[tuple[ConsumeQueue, int]] = []
        try:
            await anyio.to_thread.run_sync(self._dispatcher.write_out, queues, written, limiter=self._thread)
        finally:
            self._dispatcher.wrote(queues, written)

    async def save_checkpoint(self) -> None:
        """Make everything dispatched so far durable and note that.

        Raises:
            OSError: the disk refused.
        """
        async with self._one_at_a_time:
            durable, timestamp = self._dispatcher.dispatched, self._dispatcher.store_timestamp
            if durable == self._saved or self._flusher.failed:
                return
            removals, entries = self._settled_removals(), self._dispatcher.entries
            if self._flusher.flushed < durable and not await self._flusher.flush():
                return  # the log's own trouble is noted already
            await self._write_queues()
            await anyio.to_thread.run_sync(self._dispatcher.sync, limiter=self._thread)
            await anyio.to_thread.run_sync(self._note, durable, timestamp, entries, removals, limiter=self._thread)

    def note_stop(self) -> None:
        """Write the checkpoint of an orderly stop: everything is durable."""
        self._dispatcher.count_again()
        end = self._dispatcher.dispatched if self._dispatcher.pending else self._log.end
        self._note(end, self._dispatcher.store_timestamp, self._dispatcher.entries, self._settled_removals())

    def _note(self, durable: int, timestamp: int, entries: int, removals: int) -> None:
        with self._noting:
            is_known = removals == self._removals_begun
            Checkpoint(
                log_timestamp=timestamp,
                queue_timestamp=timestamp,
                index_timestamp=self.index_timestamp,
                confirmed=durable,
                log_durable=durable,
                queues_durable=durable,
                entries=entries if is_known else -1,
            ).save(self._path)
            self._saved = durable if is_known else -1

    # --- when queue files are removed ------------------------------------------------------

    def _settled_removals(self) -> int:
        """How many there have been; -1 while one is under way, and the number of entries is changing."""
        begun = self._removals_begun
        return begun if begun == self._removals_ended else -1

    def begin_removal(self) -> None:
        """Before queue files are removed: a start after a crash must not take them for lost. For a worker thread.

        Raises:
            OSError: the disk failed; nothing may be removed.
        """
        with self._noting:
            checkpoint = Checkpoint.load(self._path)
            if checkpoint.entries >= 0:
                attrs.evolve(checkpoint, entries=-1).save(self._path)
            self._removals_begun += 1

    def end_removal(self) -> None:
        """They are removed; the next checkpoint says again how many entries there are."""
        with self._noting:
            self._dispatcher.count_again()
            self._removals_ended += 1
            self._saved = -1
