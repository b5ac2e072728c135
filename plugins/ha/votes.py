"""Which sends wait for slaves, and what slaves have said (RocketMQ: ``GroupTransferService``).

A slave of RocketMQ's protocol says nothing of itself, so it is known by the machine that it comes from. All slaves of
one machine have one vote: nobody gets two by connecting twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable

import attrs

from verniermq.kernel import Clock, Deadlines, ResponseCode


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
        """As they were appended, so by their end."""
        self._deadlines = Deadlines(clock, give_up)

    async def run(self) -> None:
        """Tell those whose time is over, for ever."""
        await self._deadlines.run()

    def wait(self, end: int) -> asyncio.Future[ResponseCode] | None:
        """What to await before a message may be acknowledged; ``None`` when enough have it."""
        if self.confirmed >= end:
            return None
        answer: asyncio.Future[ResponseCode] = asyncio.get_running_loop().create_future()
        if len(self.machines) < self._needed:
            answer.set_result(ResponseCode.SLAVE_NOT_AVAILABLE)
            return answer
        waiting = Waiting(end, self._clock.monotonic() + self._timeout, answer)
        self._waiting.append(waiting)
        self._deadlines.add(waiting)
        return answer

    @property
    def machines(self) -> set[str]:
        return {machine for machine, _ in self._acks.values()}

    @property
    def confirmed(self) -> int:
        """Up to where enough machines have the log."""
        if not self._needed:
            return 1 << 63
        best: dict[str, int] = {}
        for machine, end in self._acks.values():
            best[machine] = max(best.get(machine, 0), end)
        ends = sorted(best.values(), reverse=True)
        return ends[self._needed - 1] if len(ends) >= self._needed else 0

    def acknowledge(self, connection: Hashable, machine: str, end: int) -> None:
        """A slave has the log up to ``end``; whoever calls this has checked that it can."""
        self._acks[connection] = (machine, end)
        confirmed = self.confirmed
        while self._waiting and (self._waiting[0].done or self._waiting[0].end <= confirmed):
            waiting = self._waiting.popleft()
            if not waiting.done:
                waiting.answer.set_result(ResponseCode.SUCCESS)

    def forget(self, connection: Hashable) -> None:
        """A slave is gone. Those who wait go on waiting: it may come back in time."""
        self._acks.pop(connection, None)


def give_up(waiting: Waiting) -> None:
    if not waiting.done:
        waiting.answer.set_result(ResponseCode.FLUSH_SLAVE_TIMEOUT)
