"""Clocks that a test moves by hand: "after 72 hours" takes no time, and does not depend on how busy the machine is.

::

    clock = ManualClock()
    ...                         # a task that does something every second: await clock.sleep(1)
    await clock.advance(10)     # it has done it ten times

Time is counted in whole microseconds inside, since sums of floats drift: ten times 0.1 s is exactly one second here.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import time
from itertools import count
from typing import Final

import anyio
import anyio.lowlevel
import attrs

from verniermq.kernel import SystemClock

MICRO: Final = 1_000_000
_boots = count()

LONGEST_STEP: Final = 5.0
"""Somebody may set the machine's clock during a sleep: it is looked at at least this often, in seconds."""


class MovableClock(SystemClock):
    """The machine's clock, and whatever a test put on top of it: time runs, and can be moved ahead.

    For a broker that is not alone: clients in other processes live in real time and cannot be stopped.
    """

    MOST_TURNS: Final = 100
    """How many turns of the event loop tasks get to come to rest; with clients at work they never all do."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._moved = anyio.Event()

    def now(self) -> float:
        return time.time() + self._ahead

    def now_ms(self) -> int:
        return int(self.now() * 1000)

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead

    async def rest(self) -> None:
        """Let tasks that have worked out how long to sleep get to their sleep, before ``advance``.

        One that lies down right after it would sleep for as long again.
        """
        await _rest(self.MOST_TURNS)

    def advance(self, seconds: float) -> None:
        """Be later at once; sleepers that are due wake."""
        if seconds < 0:
            raise ValueError(f"time does not go back: advance({seconds})")
        self._ahead += seconds
        self._moved.set()
        self._moved = anyio.Event()

    async def sleep(self, seconds: float) -> None:
        end = self.monotonic() + seconds
        await anyio.lowlevel.checkpoint()
        while (left := end - self.monotonic()) > 0:
            with anyio.move_on_after(left):
                await self._moved.wait()

    async def sleep_until(self, moment: float) -> None:
        await anyio.lowlevel.checkpoint()
        while (left := moment - self.now()) > 0:
            with anyio.move_on_after(min(left, LONGEST_STEP)):
                await self._moved.wait()


@attrs.define(eq=False)
class _Sleeper:
    due: int
    """By ``monotonic``, in microseconds."""
    moment: float | None
    """By ``now``, if that is what it waits for."""
    woken: anyio.Event = attrs.field(factory=anyio.Event)


class ManualClock:
    """A clock that stands still until ``advance``, ``jump`` or ``set_by``. For one event loop; threads may read it."""

    MOST_TURNS: Final = 10_000
    """How many turns of the event loop woken tasks get to come to rest; one that never rests must not hang a test."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._micros = _micros(start)
        # What now() shows: the microseconds, or the float that a sleeper asked for if that rounds to the same.
        self._shown = max(self._micros / MICRO, start)
        self._passed = 0
        self._boot = f"manual-{next(_boots)}-{os.getpid()}"
        self._sleepers: list[tuple[int, int, _Sleeper]] = []
        self._order = count()
        self._moving = False

    def now(self) -> float:
        return self._shown

    def now_ms(self) -> int:
        return self._micros // 1000

    def monotonic(self) -> float:
        return self._passed / MICRO

    def boot(self) -> str:
        return self._boot

    def reboot(self, seconds: float) -> None:
        """Be later by so much, as a machine that was off: ``monotonic`` begins anew. Nobody may wait for it now."""
        self._micros += _micros(seconds)
        self._shown = self._micros / MICRO
        self._passed = 0
        self._boot = f"manual-{next(_boots)}-{os.getpid()}"

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            await self._wait(_Sleeper(self._passed + max(_micros(seconds), 1), None))
        else:
            await anyio.lowlevel.checkpoint()

    async def sleep_until(self, moment: float) -> None:
        if moment > self._shown:
            await self._wait(_Sleeper(self._when(moment), moment))
        else:
            await anyio.lowlevel.checkpoint()

    async def advance(self, seconds: float) -> None:
        """Let time pass, sleeper by sleeper: each wakes at its own time, and time waits until all are at rest again.

        A task is at rest when it waits for something: this clock, an event, a thread, a socket. What comes back from
        a thread or a socket later is not waited for.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: advance({seconds})")
        await self._move(_micros(seconds), stepwise=True)

    async def jump(self, seconds: float) -> None:
        """Let time pass at once, as for a machine that was suspended: who is due wakes once, and sees the new time.

        After 72 hours, a task that runs every second has then run once, not 259,200 times.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: jump({seconds})")
        await self._move(_micros(seconds), stepwise=False)

    async def set_by(self, seconds: float) -> None:
        """Set the clock ahead, or back: ``now`` changes at once, and no time passes.

        Whoever sleeps until a time wakes if it has come; whoever sleeps for a while sleeps on.
        """
        await _rest(self.MOST_TURNS)
        self._micros += _micros(seconds)
        self._shown = self._micros / MICRO
        for _, _, sleeper in self._sleepers:
            if sleeper.moment is not None:
                sleeper.due = self._when(sleeper.moment)
        self._sleepers = [(sleeper.due, order, sleeper) for _, order, sleeper in self._sleepers]
        heapq.heapify(self._sleepers)
        await self._move(0, stepwise=True)

    @property
    def next_wake(self) -> float | None:
        """When the first sleeper wants to wake; ``None`` if nobody sleeps."""
        if not self._sleepers:
            return None
        first = self._sleepers[0][2]
        return (self._micros + first.due - self._passed) / MICRO if first.moment is None else first.moment

    def _when(self, moment: float) -> int:
        """A time of the wall by ``monotonic``, in microseconds, as the clock is set now."""
        return self._passed + _micros(moment) - self._micros

    async def _wait(self, sleeper: _Sleeper) -> None:
        if sleeper.due <= self._passed:
            # Later than now by less than a microsecond: it is that time now.
            self._shown = max(self._shown, sleeper.moment or 0)
            await anyio.lowlevel.checkpoint()
            return
        heapq.heappush(self._sleepers, (sleeper.due, next(self._order), sleeper))
        try:
            await sleeper.woken.wait()
        except BaseException:
            # Cancelled. If it was woken in the same moment, it has left the heap already.
            self._sleepers = [entry for entry in self._sleepers if entry[2] is not sleeper]
            heapq.heapify(self._sleepers)
            raise

    async def _move(self, micros: int, stepwise: bool) -> None:
        if self._moving:
            raise RuntimeError("the clock is being moved already; only one task may do that")
        self._moving = True
        try:
            await _rest(self.MOST_TURNS)  # a task that was only just started gets to its first sleep
            target = self._passed + micros
            if not stepwise:
                self._pass(target)
            while self._sleepers and self._sleepers[0][0] <= target:
                due, _, sleeper = heapq.heappop(self._sleepers)
                self._pass(due, sleeper.moment)
                sleeper.woken.set()
                # Those that are due at one moment wake together, in the order in which they lay down.
                if stepwise and not (self._sleepers and self._sleepers[0][0] == due):
                    await _rest(self.MOST_TURNS)
            self._pass(target)
            await _rest(self.MOST_TURNS)
        finally:
            self._moving = False

    def _pass(self, passed: int, shown: float | None = None) -> None:
        if passed > self._passed:
            self._micros += passed - self._passed
            self._passed = passed
        self._shown = max(self._shown, self._micros / MICRO)
        if shown is not None and _micros(shown) == self._micros:
            self._shown = max(self._shown, shown)


async def _rest(most_turns: int) -> None:
    """Give the other tasks turns until each of them waits for something."""
    current = asyncio.current_task()
    for _ in range(most_turns):
        await anyio.lowlevel.checkpoint()
        if all(task is current or _waits(task) for task in asyncio.all_tasks()):
            return


def _waits(task: asyncio.Task[object]) -> bool:
    # What anyio.wait_all_tasks_blocked looks at too; that one sleeps a tenth of a second between its looks.
    waiter = getattr(task, "_fut_waiter", None)
    return waiter is not None and not waiter.done()


def _micros(seconds: float) -> int:
    whole = int(seconds)
    return whole * MICRO + round((seconds - whole) * MICRO)
