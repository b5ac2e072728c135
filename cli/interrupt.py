"""Ctrl-C ends the work of a command between two steps of its event loop, also if it comes twice.

asyncio lets a second signal raise ``KeyboardInterrupt`` wherever the program is. What the loop had in hand then is
lost, and its end waits for ever for a task that nothing wakes any more. ``timeout -s INT`` sends two signals at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import attrs

T = TypeVar("T")

EXIT_CODE: Final = 130
"""What shells say of a command that SIGINT ended."""
PATIENCE: Final = 1.0
"""Seconds after which one more signal means that saying goodbye takes too long; one that comes earlier is the same."""


@attrs.define
class Interrupt:
    """The signals that come while some work is done."""

    came_at: float | None = None
    """When the first came, by ``time.monotonic``."""

    async def watch(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do some work; SIGINT cancels it."""
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        if task is None or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            return await work()
        try:
            loop.add_signal_handler(signal.SIGINT, self._came, task)
        except (NotImplementedError, RuntimeError):  # Windows; or this is not the main thread, where signals go
            return await work()
        try:
            return await work()
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            if self.came_at is not None:
                signal.signal(signal.SIGINT, self._came_again)  # until the process has ended

    def _came(self, task: asyncio.Task[Any]) -> None:
        if self.came_at is None:
            self.came_at = time.monotonic()
            task.cancel()
        else:
            self._came_again()

    def _came_again(self, *_: object) -> None:
        if self.came_at is not None and time.monotonic() - self.came_at > PATIENCE:
            os.write(2, b"SIGINT again: stopping at once\n")
            os._exit(EXIT_CODE)
