"""The event loop of a broker: uvloop's where it is installed; and long work in steps, with a turn of it between them.

The broker has one loop: whatever a request does without a pause, every other peer waits for. Work whose size a peer
chooses, or that grows with what peers have stored, is done so many items at a time::

    async for topic in in_steps(topics):
        rows.append(self._row(topic))

What was true before a pause need not be true after it: a topic may be deleted, a connection may be closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from importlib.util import find_spec
from typing import Any, Final, TypeVar

from anyio.lowlevel import checkpoint

ITEMS_PER_STEP: Final = 256
"""A few milliseconds for items that take some microseconds each; more expensive items take smaller steps."""

ItemT = TypeVar("ItemT")


def backend_options() -> dict[str, Any]:
    """Options for ``anyio.run``: the loop that a broker runs on."""
    return {"use_uvloop": find_spec("uvloop") is not None}


async def in_steps(items: Iterable[ItemT], size: int = ITEMS_PER_STEP) -> AsyncIterator[ItemT]:
    """The items one by one; after each ``size`` of them everything else that waits has a turn."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % size == 0:
            await checkpoint()


class Steps:
    """The same where nobody can wait: work is a generator that yields after each item.

    ``begin`` does ``size`` items at once, so that a little work is done when it returns; what is left follows turn by
    turn, in the order in which it was begun. With ``at_once=False`` all of it waits for the next turn.
    """

    def __init__(self, size: int, *, at_once: bool = True) -> None:
        self._size = size
        self._at_once = at_once
        self._work: deque[Iterator[None]] = deque()
        self._is_due = False

    def begin(self, work: Iterator[None]) -> None:
        self._work.append(work)
        if self._is_due:
            return
        if self._at_once:
            self._step()
        else:
            self._step_soon()

    def _step_soon(self) -> None:
        self._is_due = True
        asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._is_due = True  # for work that begins other work
        left = self._size
        try:
            while self._work and left:
                for _ in self._work[0]:
                    left -= 1
                    if not left:
                        break
                else:
                    self._work.popleft()
        finally:
            self._is_due = False
            if self._work:
                self._step_soon()
