"""Tasks that live as long as a client, whoever started it and whoever closes it.

A task group has to be left by the task that entered it; a client may be started by one task and closed by
another (a web framework's start-up and shut-down hooks). So a task of our own holds the group open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.abc import TaskGroup

logger = logging.getLogger(__name__)


class Background:
    """A task group in a task of its own. An exception that leaves a task in it is logged, and ends that task only."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._holder: asyncio.Task[None] | None = None
        self._group: TaskGroup | None = None

    async def start(self) -> None:
        ready = asyncio.Event()
        self._holder = asyncio.create_task(self._hold(ready), name=f"{self._name} background")
        await ready.wait()

    async def _hold(self, ready: asyncio.Event) -> None:
        async with anyio.create_task_group() as self._group:
            ready.set()
            await anyio.sleep_forever()

    @property
    def is_open(self) -> bool:
        """Whether work may still be given to it."""
        return self._group is not None and not self._group.cancel_scope.cancel_called

    def spawn(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Run ``work(*arguments)`` beside everything else; nothing happens once the client is closing."""
        if self._group is not None and self.is_open:
            self._group.start_soon(self._guarded, work, arguments)

    async def _guarded(self, work: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> None:
        try:
            await work(*arguments)
        except Exception:
            name = getattr(work, "__qualname__", work)
            logger.exception("background work failed client=%s work=%s", self._name, name)

    def every(self, seconds: float, work: Callable[[], Awaitable[Any]]) -> None:
        """Do ``work`` again and again, ``seconds`` apart, whatever becomes of one round."""

        async def rounds() -> None:
            while True:
                await anyio.sleep(seconds)
                await self._guarded(work, ())

        self.spawn(rounds)

    async def close(self) -> None:
        """Cancel everything and wait until it has ended."""
        if self._group is None or self._holder is None:
            return
        self._group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._holder])
        self._group = self._holder = None
