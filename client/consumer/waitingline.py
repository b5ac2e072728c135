"""Batches that a hook finds too much for now: they stay in hand, hold no worker, and cost no attempt.

Every 50 ms the oldest ones of each queue are offered again, as many as there are workers; each one that gets through
is followed by the next at once. So a limit is used to the full, and a long line costs no more than a short one.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Iterable
from typing import Final

import attrs

from verniermq.client.consumer.processqueue import ProcessQueue
from verniermq.client.message import ReceivedMessage

INTERVAL: Final = 0.05


@attrs.define(eq=False)
class WaitingLine:
    offer: Callable[[ProcessQueue, list[ReceivedMessage]], None]
    """Has the hooks asked about a batch once more."""
    at_a_time: int
    lines: dict[ProcessQueue, list[list[ReceivedMessage]]] = attrs.field(factory=dict, init=False)
    """By queue; empty while nothing waits, which the caller asks for every message."""
    _timer: asyncio.TimerHandle | None = attrs.field(default=None, init=False)

    def add(self, held: ProcessQueue, batches: Iterable[list[ReceivedMessage]]) -> None:
        """Put batches in their places: a queue's messages wait in the order of their offsets."""
        line = self.lines.setdefault(held, [])
        for batch in batches:
            insort(line, batch, key=lambda waiting: waiting[0].queue_offset)
        self._wind_up()

    def passed(self, held: ProcessQueue) -> None:
        """A batch of the queue got through, so the next one may."""
        if held in self.lines:
            self._offer(held, 1)

    def clear(self) -> None:
        self.lines.clear()

    def _wind_up(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._next_turn)

    def _next_turn(self) -> None:
        self._timer = None
        for held in list(self.lines):
            self._offer(held, self.at_a_time)
        if self.lines:
            self._wind_up()

    def _offer(self, held: ProcessQueue, count: int) -> None:
        line = self.lines[held]
        first, line[:count] = line[:count], []
        if not line:
            del self.lines[held]
        for batch in first:
            self.offer(held, batch)
