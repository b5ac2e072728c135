"""Sends that wait until enough brokers have their message, in the order of the log."""

from __future__ import annotations

import asyncio
from collections import deque

import attrs

from verniermq.kernel import Clock, Deadlines, ResponseCode


@attrs.define(eq=False)
class Waiting:
    """A send that waits until other brokers have the log up to ``end``."""

    end: int
    deadline: float
    answer: asyncio.Future[ResponseCode]

    @property
    def done(self) -> bool:
        return self.answer.done()


class Confirmations:
    def __init__(self, clock: Clock, timeout: float) -> None:
        self._clock = clock
        self._timeout = timeout
        self._waiting: deque[Waiting] = deque()
        self._deadlines = Deadlines(clock, give_up)

    async def run(self) -> None:
        """Tell those whose time is over, for ever."""
        await self._deadlines.run()

    def wait(self, end: int) -> asyncio.Future[ResponseCode]:
        """What to await for a message that ends there."""
        answer: asyncio.Future[ResponseCode] = asyncio.get_running_loop().create_future()
        waiting = Waiting(end, self._clock.monotonic() + self._timeout, answer)
        self._waiting.append(waiting)
        self._deadlines.add(waiting)
        return answer

    def advance(self, confirm: int, code: ResponseCode = ResponseCode.SUCCESS) -> None:
        """All that ends before ``confirm`` is where it has to be."""
        while self._waiting and (self._waiting[0].done or self._waiting[0].end <= confirm):
            waiting = self._waiting.popleft()
            if not waiting.done:
                waiting.answer.set_result(code)

    def give_up(self) -> None:
        """Nobody will confirm what waits: it may survive or not."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done:
                give_up(waiting)


def give_up(waiting: Waiting) -> None:
    if not waiting.done:
        waiting.answer.set_result(ResponseCode.FLUSH_SLAVE_TIMEOUT)
