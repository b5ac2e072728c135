"""Announcements on the path of a message, for plugins that hear them with ``async def``.

Nobody on that path can wait for a plugin. A plain function is called on the spot; a coroutine function gets
a queue of its own and a task that feeds it batch after batch, in order. One that falls behind by more than
the queue holds has failed, is told so in the log, and misses that batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream

from verniermq.kernel.errors import VernierMQError
from verniermq.kernel.hookcall import HookCall

BATCHES_WAITING: Final = 1024


class FellBehind(VernierMQError):
    def __init__(self, plugin: str, hook: str) -> None:
        super().__init__(f"plugin {plugin!r} is {BATCHES_WAITING} batches behind in {hook}; it misses one")


class Feed:
    """Calls all implementations of one batched announcement."""

    def __init__(self, calls: list[HookCall], task_group: TaskGroup) -> None:
        self._calls = calls
        self._task_group = task_group
        self._queues: dict[HookCall, MemoryObjectSendStream[Sequence[Any]]] = {}

    def __call__(self, batch: Sequence[Any]) -> None:
        for call in tuple(self._calls):
            if inspect.iscoroutinefunction(inspect.unwrap(call.function)):
                self._queue(call, batch)
            else:
                call(batch)

    def _queue(self, call: HookCall, batch: Sequence[Any]) -> None:
        queue = self._queues.get(call)
        if queue is None:
            queue, receiving = anyio.create_memory_object_stream[Sequence[Any]](BATCHES_WAITING)
            self._queues[call] = queue
            self._task_group.start_soon(_feed, call, receiving)
        try:
            queue.send_nowait(batch)
        except anyio.WouldBlock:
            call.failed(FellBehind(call.plugin.name, call.hook))

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()


async def _feed(call: HookCall, batches: Any) -> None:
    async with batches:
        async for batch in batches:
            result = call(batch)
            if result is not None:
                await result
