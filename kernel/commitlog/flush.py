"""When bytes become durable (RocketMQ: ``GroupCommitService``, ``FlushRealTimeService``).

Synchronous: an append is answered when its bytes are on the disk. All who wait share one sync: while one is
running, newcomers gather for the next::

    append a b     c d e           f
    sync      |--a b--||--c d e-------||--f--|
    answered          a b             c d e  f

Asynchronous: an append is answered at once, and the disk follows: every ``interval`` when at least ``pages``
pages wait, and every ten seconds in any case; at once if somebody insists. The sync itself always runs in a worker
thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf

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
        self.failed = False
        """See :meth:`fail`."""
        self._log = log
        self._interval = interval
        self._pages = pages
        self._timeout = timeout
        self._on_flushed = on_flushed
        self._on_trouble = on_trouble
        self._waiting: list[tuple[int, float, asyncio.Future[bool]]] = []
        """Who waits: up to where the log is to be durable, until when, and what to tell."""
        self._timer: asyncio.TimerHandle | None = None
        self._wanted: anyio.Event | None = None
        self.thread = anyio.CapacityLimiter(1)
        """Whoever has it can be sure that no sync is under way."""

    async def durable(self, end: int, *, force: bool = False) -> bool:
        """Wait until the log is on the disk up to ``end``; ``False`` if that took too long or failed.

        Asynchronous flush waits for nothing, unless ``force`` has it sync at once.
        """
        if end <= self.flushed or not (self.synchronous or force):
            return True
        if self.failed:
            return False
        loop = asyncio.get_running_loop()
        told: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((end, loop.time() + self._timeout, told))
        if self._timer is None:
            self._timer = loop.call_later(self._timeout, self._give_up)
        self.poke()
        return await told

    def _give_up(self) -> None:
        """Tell those whose time is over. One timer serves all, since all wait equally long."""
        loop = asyncio.get_running_loop()
        self._tell(loop.time())
        self._timer = loop.call_at(self._waiting[0][1], self._give_up) if self._waiting else None

    def _tell(self, now: float = 0.0) -> None:
        """Tell those whose bytes are durable, or whose time is over."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            end, deadline, told = waiter
            if end > self.flushed and deadline > now:
                self._waiting.append(waiter)
            elif not told.done():
                told.set_result(end <= self.flushed)

    def fail(self) -> None:
        """The disk failed: nothing becomes durable any more, and nobody need wait for it.

        What the system could not write it may drop from its memory, so a later sync that works proves nothing.
        """
        self.failed = True
        self._tell(inf)

    def poke(self) -> None:
        """Ask for a sync soon."""
        if self._wanted is not None:
            self._wanted.set()

    async def run(self) -> None:
        """Sync whenever it is time, until cancelled."""
        idle = 0.0
        while True:
            self._wanted = anyio.Event()
            if self._waiting:
                self._wanted.set()  # somebody came before we did, or the disk failed them
            with anyio.move_on_after(self._interval):
                await self._wanted.wait()
            idle += self._interval
            waiting = self._log.end - self.flushed
            if not waiting or self.failed:
                continue
            wanted = self.synchronous or self._waiting
            if wanted or waiting >= self._pages * PAGE or idle >= THOROUGH_SECONDS:
                idle = 0.0
                if not await self.flush():
                    await anyio.sleep(self._interval)

    async def flush(self) -> bool:
        """Sync once, in a worker thread, and tell whoever waited for it."""
        try:
            end = await anyio.to_thread.run_sync(self._log.sync, limiter=self.thread)
        except OSError as error:
            logger.error("the disk refused to sync the commit log: %s; writes are refused", error)
            self._on_trouble(error)
            return False
        if self.failed:
            return False  # another sync failed while this one waited for its turn
        self.flushed = max(self.flushed, end)
        self._on_trouble(None)
        self._on_flushed()
        self._tell()
        return True
