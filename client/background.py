"""Tasks that live as long as a client, whoever started it and whoever closes it.

A task group has to be left by the task that entered it; a client may be started by one task and closed by
another (a web framework's start-up and shut-down hooks). So a task of our own holds the group open.

Tasks may be cancelled by somebody who is not us: a program that cancels a handler which it started has our worker in
hand, and one that ends its event loop cancels all tasks there are. The first must not stop a client, the second must.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 1.0
"""How long work that has to go on waits after it failed."""


def take_back_cancel() -> None:
    """Let the current task go on as if nobody had cancelled it."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


class Background:
    """A task group in a task of its own. What leaves a task in it is logged, and ends that task only."""

    def __init__(self, name: str) -> None:
        self.lost: Callable[[], Awaitable[None]] | None = None
        """Awaited if everything has ended and nobody called :meth:`close`."""
        self._name = name
        self._holder: asyncio.Task[None] | None = None
        self._group: TaskGroup | None = None
        self._closing = False

    async def start(self) -> None:
        ready = asyncio.Event()
        self._closing = False
        self._holder = asyncio.create_task(self._hold(ready), name=f"{self._name} background")
        await ready.wait()

    async def _hold(self, ready: asyncio.Event) -> None:
        try:
            async with anyio.create_task_group() as self._group:
                ready.set()
                await anyio.sleep_forever()
        finally:
            if not self._closing and self.lost is not None:
                take_back_cancel()
                await self.lost()

    @property
    def is_open(self) -> bool:
        """Whether work may still be given to it. ``False`` too when the event loop ends, which cancels every task."""
        if self._group is None or self._holder is None or self._group.cancel_scope.cancel_called:
            return False
        return not self._holder.cancelling() and not self._holder.done()

    def spawn(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Run ``work(*arguments)`` beside everything else; nothing happens once the client is closing."""
        if self._group is not None and self.is_open:
            self._group.start_soon(self._guarded, work, arguments)

    def keep(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Run what has to go on until it returns: whatever else ends it is logged, and it begins again."""

        async def again() -> None:
            pause: float | None = 0.0
            while pause is not None:
                pause = await self._guarded(work, arguments, pause)

        self.spawn(again)

    async def _guarded(
        self, work: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...], pause: float = 0.0
    ) -> float | None:
        """How long to wait before it is begun again; ``None`` if it returned."""
        name = getattr(work, "__qualname__", work)
        try:
            if pause:
                await anyio.sleep(pause)
            await work(*arguments)
            return None
        except asyncio.CancelledError:
            if not self.is_open:
                raise
            take_back_cancel()
            logger.warning("background work was cancelled by somebody else client=%s work=%s", self._name, name)
            return 0.0
        except Exception:
            logger.exception("background work failed client=%s work=%s", self._name, name)
            return AGAIN_SECONDS

    def every(self, seconds: float, work: Callable[[], Awaitable[Any]]) -> None:
        """Do ``work`` again and again, ``seconds`` apart, whatever becomes of one round."""

        async def rounds() -> None:
            while True:
                await anyio.sleep(seconds)
                await self._guarded(work, ())

        self.keep(rounds)

    async def close(self) -> None:
        """Cancel everything and wait until it has ended."""
        self._closing = True
        if self._group is None or self._holder is None:
            return
        self._group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._holder])
        self._group = self._holder = None
