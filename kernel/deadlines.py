"""Until when requests wait: each is told once when its time is over, unless it was done before.

    deadlines = Deadlines(clock, give_up)
    deadlines.add(request)            # request.deadline says until when
    request.done = True               # answered meanwhile: it is passed over
    await deadlines.run()             # in a task of its own: calls give_up(request) when its time is over

They lie in a heap, so waiting costs nothing, however many wait. One that is done stays in it until its time comes,
since to look for it costs more than to keep it; when the heap has doubled, all that are done are swept out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

import anyio
import anyio.lowlevel

from verniermq.kernel.clock import SAME_MOMENT, Clock

SHORTEST_SLEEP: Final = 0.05
"""Deadlines need no more precision than this, and one wake-up then serves many."""

FEW: Final = 1024
"""With so few in the heap, nobody minds that some are done."""

EXPIRED_PER_STEP: Final = 32
"""To be told, a request is answered; after so many, others have a turn."""


class Expiring(Protocol):
    """What can wait."""

    @property
    def deadline(self) -> float:
        """In seconds of the clock's ``monotonic``. It must not change while the request waits."""
        ...

    @property
    def done(self) -> bool:
        """Whether it no longer waits; once true, it stays so."""
        ...


ExpiringT = TypeVar("ExpiringT", bound=Expiring)


class Deadlines(Generic[ExpiringT]):
    """``expire`` is called with a request whose time is over, in the order of their deadlines, then as they came."""

    def __init__(self, clock: Clock, expire: Callable[[ExpiringT], None]) -> None:
        self._clock = clock
        self._expire = expire
        self._heap: list[tuple[float, int, ExpiringT]] = []
        self._sequence = count()
        self._sweep_above = FEW
        self._earlier = anyio.Event()

    def __len__(self) -> int:
        """How many are kept: those that wait, and those that are done and have not been swept out yet."""
        return len(self._heap)

    def add(self, request: ExpiringT) -> None:
        if len(self._heap) > self._sweep_above:
            # A busy consumer would pile up seconds of answered requests.
            self._heap = [entry for entry in self._heap if not entry[2].done]
            heapq.heapify(self._heap)
            self._sweep_above = 2 * len(self._heap) + FEW
        heapq.heappush(self._heap, (request.deadline, next(self._sequence), request))
        if self._heap[0][2] is request:
            self._earlier.set()

    async def run(self) -> None:
        """Tell those whose time is over, for ever."""
        while True:
            told = 0
            while self._heap and (self._heap[0][2].done or self._heap[0][0] <= self._clock.monotonic() + SAME_MOMENT):
                request = heapq.heappop(self._heap)[2]
                if not request.done:
                    self._expire(request)
                    told += 1
                    if told % EXPIRED_PER_STEP == 0:
                        await anyio.lowlevel.checkpoint()
            self._earlier = anyio.Event()
            if not self._heap:
                await self._earlier.wait()
                continue
            wait = max(SHORTEST_SLEEP, self._heap[0][0] - self._clock.monotonic())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._sleep_then_cancel, wait, tasks.cancel_scope)
                await self._earlier.wait()
                tasks.cancel_scope.cancel()

    async def _sleep_then_cancel(self, seconds: float, scope: anyio.CancelScope) -> None:
        await self._clock.sleep(seconds)
        scope.cancel()
