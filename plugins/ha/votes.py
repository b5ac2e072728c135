"""Which sends wait for slaves, and what slaves have said (RocketMQ: ``GroupTransferService``).

A slave of RocketMQ's protocol says nothing of itself, so it is known by the machine that it comes from. All slaves of
one machine have one vote: nobody gets two by connecting twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable

import anyio
import attrs

from verniermq.kernel import SAME_MOMENT, Clock, ResponseCode


@attrs.define(eq=False)
class Waiting:
    """A send that waits until slaves have the log up to ``end``."""

    end: int
    deadline: float
    answer: asyncio.Future[ResponseCode]

    @property
    def done(self) -> bool:
        return self.answer.done()


class Votes:
    """``needed`` machines beside our own must have a message."""

    def __init__(self, clock: Clock, needed: int, timeout: float) -> None:
        self._clock = clock
        self._needed = needed
        self._timeout = timeout
        self._acks: dict[Hashable, tuple[str, int]] = {}
        """Connection → its machine, and where its log ends."""
        self._waiting: deque[Waiting] = deque()
        """As they were appended, so by their end, and by their deadline."""
        self._first = anyio.Event()
        """Set when somebody waits."""
        self.machines: frozenset[str] = frozenset()
        """That slaves are connected from."""
        self.confirmed = 0 if needed else 1 << 63
        """Up to where enough machines have the log."""

    async def run(self) -> None:
        """Tell those whose time is over, for ever."""
        while True:
            if not self._waiting:
                self._first = anyio.Event()
                await self._first.wait()
            elif (left := self._waiting[0].deadline - self._clock.monotonic()) > SAME_MOMENT:
                await self._clock.sleep(left)
            else:
                give_up(self._waiting.popleft())

    def wait(self, end: int) -> asyncio.Future[ResponseCode] | None:
        """What to await before a message may be acknowledged; ``None`` when enough have it."""
        if self.confirmed >= end:
            return None
        answer: asyncio.Future[ResponseCode] = asyncio.get_running_loop().create_future()
        if len(self.machines) < self._needed:
            answer.set_result(ResponseCode.SLAVE_NOT_AVAILABLE)
            return answer
        if not self._waiting:
            self._first.set()
        self._waiting.append(Waiting(end, self._clock.monotonic() + self._timeout, answer))
        return answer

    def acknowledge(self, connection: Hashable, machine: str, end: int) -> None:
        """A slave has the log up to ``end``; whoever calls this has checked that it can."""
        self._acks[connection] = (machine, end)
        self._count()
        waiting, confirmed = self._waiting, self.confirmed
        while waiting and (waiting[0].end <= confirmed or waiting[0].done):
            found = waiting.popleft()
            if not found.done:
                found.answer.set_result(ResponseCode.SUCCESS)

    def forget(self, connection: Hashable) -> None:
        """A slave is gone. Those who wait go on waiting: it may come back in time."""
        self._acks.pop(connection, None)
        self._count()

    def _count(self) -> None:
        best: dict[str, int] = {}
        for machine, end in self._acks.values():
            best[machine] = max(best.get(machine, 0), end)
        if len(best) != len(self.machines):
            self.machines = frozenset(best)
        if self._needed:
            ends = sorted(best.values(), reverse=True)
            self.confirmed = ends[self._needed - 1] if len(ends) >= self._needed else 0


def give_up(waiting: Waiting) -> None:
    if not waiting.done:
        waiting.answer.set_result(ResponseCode.FLUSH_SLAVE_TIMEOUT)
