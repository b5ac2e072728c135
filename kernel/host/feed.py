"""Announcements on the path of a message: now, gathered, or by a queue.

Nobody on that path can wait for a plugin. A plain function is called on the spot, or, if it is marked as
``gathered``, every 50 ms with all that came meanwhile. A coroutine function gets a queue of its own and a task
that feeds it batch after batch, in order. One that falls behind by more than the queue holds has failed, is told so
in the log, and misses that batch.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from verniermq.kernel.dispatch.run import count_parts, dispatched, parts_of
from verniermq.kernel.errors import VernierMQError
from verniermq.kernel.host.hookcall import HookCall
from verniermq.kernel.host.service import Tasks

BATCHES_WAITING: Final = 1024
GATHER_SECONDS: Final = 0.05
MOST_GATHERED: Final = 2048
"""Handed over in the next turn when there are more: one call must not hold the loop for long."""


class FellBehind(VernierMQError):
    def __init__(self, plugin: str, hook: str) -> None:
        super().__init__(f"plugin {plugin!r} is {BATCHES_WAITING} batches behind in {hook}; it misses one")


Item = Sequence[Any] | Awaitable[Any]
"""A batch to call the plugin with, or what a plain function returned to be awaited."""


class Feed:
    """Calls all implementations of one batched announcement."""

    def __init__(self, calls: list[HookCall], tasks: Tasks) -> None:
        self._calls = calls
        self._tasks = tasks
        self._queues: dict[HookCall, MemoryObjectSendStream[Item]] = {}
        self._waiting = 0
        self._idle = anyio.Event()
        self._gathered: list[Any] = []
        """Runs of messages are kept as such."""
        self._size = 0
        """How many messages that are."""
        self._has_runs = False
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, batch: Sequence[Any]) -> None:
        gather = False
        for call in tuple(self._calls):
            if call.is_gathered:
                gather = True
            else:
                self._tell(call, batch)
        if not gather:
            return
        parts = parts_of(batch)
        self._has_runs |= parts is not batch
        self._gathered.extend(parts)
        self._size += len(batch)
        if self._timer is None:
            self._wait(GATHER_SECONDS if self._size <= MOST_GATHERED else 0)
        elif self._size > MOST_GATHERED:
            self._timer.cancel()
            self._wait(0)

    def _wait(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._hand_over_some)

    def _hand_over_some(self) -> None:
        """A part of it in each turn of the loop. The more there is, the larger the part: it must not pile up."""
        count = max(MOST_GATHERED, self._size // 4)
        if self._has_runs:
            count = count_parts(self._gathered, count)
        batch, self._gathered = self._as_events(self._gathered[:count]), self._gathered[count:]
        self._size -= len(batch)
        self._timer = None
        if self._gathered:
            self._wait(0)
        else:
            self._has_runs = False
        self._tell_gathered(batch)

    def hand_over(self) -> None:
        """Let those who are in no hurry hear what was gathered for them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._gathered, self._size = self._as_events(self._gathered), [], 0
        self._has_runs = False
        self._tell_gathered(batch)

    def _as_events(self, parts: list[Any]) -> Sequence[Any]:
        return dispatched(parts) if self._has_runs else parts

    def _tell_gathered(self, batch: Sequence[Any]) -> None:
        for call in tuple(self._calls) if batch else ():
            if call.is_gathered:
                self._tell(call, batch)

    def _tell(self, call: HookCall, batch: Sequence[Any]) -> None:
        if call.is_async:
            self._queue(call, batch)
            return
        result = call(batch)
        if result is not None and inspect.isawaitable(result):
            self._queue(call, result)

    def _queue(self, call: HookCall, item: Item) -> None:
        queue = self._queues.get(call)
        if queue is None:
            queue, receiving = anyio.create_memory_object_stream[Item](BATCHES_WAITING)
            self._queues[call] = queue
            self._tasks.start_soon(self._feed, call, receiving)
        try:
            queue.send_nowait(item)
            self._waiting += 1
        except anyio.WouldBlock:
            _drop(item)
            call.failed(FellBehind(call.plugin.name, call.hook))

    async def _feed(self, call: HookCall, items: MemoryObjectReceiveStream[Item]) -> None:
        with items:
            async for item in items:
                if call.plugin.state == "active":
                    result = item if inspect.isawaitable(item) else call(item)
                    if inspect.isawaitable(result):
                        await result
                else:
                    _drop(item)
                self._waiting -= 1
                if not self._waiting:
                    self._idle.set()
                    self._idle = anyio.Event()

    async def drain(self) -> None:
        """Wait until every plugin has heard what was announced so far."""
        self.hand_over()
        while self._waiting:
            await self._idle.wait()

    def close(self) -> None:
        self.hand_over()
        for queue in self._queues.values():
            queue.close()


def _drop(item: Item) -> None:
    if isinstance(item, Coroutine):
        item.close()
