"""When bytes become durable (RocketMQ: ``GroupCommitService``, ``FlushRealTimeService``).

Synchronous: an append is answered when its bytes are on the disk. All who wait share one sync: while one is
running, newcomers gather for the next::

    append a b     c d e           f
    sync      |--a b--||--c d e-------||--f--|
    answered          a b             c d e  f

Asynchronous: an append is answered at once, and the disk follows: every ``interval`` when at least ``pages``
pages wait, and every ten seconds in any case. The sync itself always runs in a worker thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
import anyio.to_thread

from verniermq.kernel.commitlog.log import CommitLog

logger = logging.getLogger(__name__)

PAGE = 4096
THOROUGH_SECONDS = 10.0


class Flusher:
    """Syncs one log. ``run`` must be running for anybody to be answered."""

    def __init__(
        self,
        log: CommitLog,
        *,
        synchronous: bool,
        interval: float,
        pages: int,
        timeout: float,
        on_flushed: Callable[[], None],
        on_trouble: Callable[[OSError | None], None],
    ) -> None:
        self.flushed = 0
        """Everything in the log before this offset is on the disk."""
        self.synchronous = synchronous
        self._log = log
        self._interval = interval
        self._pages = pages
        self._timeout = timeout
        self._on_flushed = on_flushed
        self._on_trouble = on_trouble
        self._group: anyio.Event | None = None
        """Set when the sync that its waiters gathered for is over."""
        self._wanted: anyio.Event | None = None
        self._thread = anyio.CapacityLimiter(1)

    async def durable(self, end: int) -> bool:
        """Wait until the log is on the disk up to ``end``; ``False`` if that took too long or failed."""
        if not self.synchronous or end <= self.flushed:
            return True
        with anyio.move_on_after(self._timeout):
            while end > self.flushed:
                if self._group is None:
                    self._group = anyio.Event()
                self.poke()
                await self._group.wait()
        return end <= self.flushed

    def poke(self) -> None:
        """Ask for a sync soon."""
        if self._wanted is not None:
            self._wanted.set()

    async def run(self) -> None:
        """Sync whenever it is time, until cancelled."""
        idle = 0.0
        while True:
            self._wanted = anyio.Event()
            if self.synchronous and self._group is not None:
                self._wanted.set()  # somebody came before we did, or the disk failed them
            with anyio.move_on_after(self._interval):
                await (self._wanted.wait() if self.synchronous else anyio.sleep_forever())
            idle += self._interval
            waiting = self._log.end - self.flushed
            if not waiting and self._group is None:
                continue
            if self.synchronous or waiting >= self._pages * PAGE or idle >= THOROUGH_SECONDS:
                idle = 0.0
                if not await self.flush():
                    await anyio.sleep(self._interval)

    async def flush(self) -> bool:
        """Sync once, in a worker thread, and wake whoever waited for it."""
        group, self._group = self._group, None
        try:
            end = await anyio.to_thread.run_sync(self._log.sync, limiter=self._thread)
        except OSError as error:
            logger.error("the disk refused to sync the commit log: %s; writes are refused until it works", error)
            self._on_trouble(error)
            if group is not None:
                group.set()  # they gather again for the next try, until their time runs out
            return False
        self.flushed = max(self.flushed, end)
        self._on_trouble(None)
        self._on_flushed()
        if group is not None:
            group.set()
        return True
