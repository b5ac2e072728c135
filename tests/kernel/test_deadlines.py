"""Requests whose time is over, in time that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.work import WorkPerTurn
from verniermq.kernel import Deadlines
from verniermq.kernel.deadlines import EXPIRED_PER_STEP, FEW, SHORTEST_SLEEP
from verniermq.testing import ManualClock

pytestmark = pytest.mark.anyio


@attrs.define(eq=False)
class Request:
    deadline: float
    done: bool = False


@attrs.define
class Told:
    """Requests that were told, with the time at which they were."""

    clock: ManualClock
    start: float = attrs.Factory(lambda self: self.clock.monotonic(), takes_self=True)
    requests: list[Request] = attrs.Factory(list)
    seconds: list[float] = attrs.Factory(list)

    def expire(self, request: Request) -> None:
        request.done = True
        self.requests.append(request)
        self.seconds.append(round(self.clock.monotonic() - self.start, 3))

    def request(self, seconds: float) -> Request:
        return Request(self.start + seconds)


@asynccontextmanager
async def running(clock: ManualClock, told: Told) -> AsyncIterator[Deadlines[Request]]:
    deadlines = Deadlines(clock, told.expire)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(deadlines.run)
        await clock.advance(0)
        yield deadlines
        tasks.cancel_scope.cancel()


async def test_each_is_told_at_its_time_whatever_the_order_in_which_they_came() -> None:
    clock = ManualClock()
    told = Told(clock)
    late, early, middle = told.request(20), told.request(5), told.request(10)
    async with running(clock, told) as deadlines:
        for request in (late, early, middle):
            deadlines.add(request)
        await clock.advance(4.9)
        assert told.requests == []
        await clock.advance(20)

    assert told.requests == [early, middle, late]
    assert told.seconds == [5, 10, 20]


async def test_one_that_comes_later_and_is_due_earlier_is_not_kept_waiting() -> None:
    clock = ManualClock()
    told = Told(clock)
    async with running(clock, told) as deadlines:
        deadlines.add(told.request(100))
        await clock.advance(1)
        deadlines.add(told.request(3))
        await clock.advance(10)

    assert told.seconds == [3]


async def test_what_is_done_is_never_told() -> None:
    clock = ManualClock()
    told = Told(clock)
    answered, waiting = told.request(5), told.request(6)
    async with running(clock, told) as deadlines:
        deadlines.add(answered)
        deadlines.add(waiting)
        answered.done = True
        await clock.advance(10)
        assert len(deadlines) == 0

    assert told.requests == [waiting]


async def test_with_equal_deadlines_the_first_to_come_is_the_first_to_be_told() -> None:
    clock = ManualClock()
    told = Told(clock)
    requests = [told.request(5) for _ in range(20)]
    async with running(clock, told) as deadlines:
        for request in requests:
            deadlines.add(request)
        await clock.advance(5)

    assert told.requests == requests


async def test_deadlines_close_together_share_a_wake_up() -> None:
    clock = ManualClock()
    told = Told(clock)
    async with running(clock, told) as deadlines:
        for number in range(5):
            deadlines.add(told.request(number / 1000))
        await clock.advance(1)

    # The first is over already; the others wait out the shortest sleep together.
    assert told.seconds == [0, *[SHORTEST_SLEEP] * 4]


async def test_whoever_is_told_may_wait_again() -> None:
    clock = ManualClock()
    told = Told(clock)

    def expire(request: Request) -> None:
        told.expire(request)
        if len(told.requests) < 3:
            deadlines.add(Request(request.deadline + 5))

    deadlines = Deadlines(clock, expire)
    deadlines.add(told.request(5))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(deadlines.run)
        await clock.advance(60)
        tasks.cancel_scope.cancel()

    assert told.seconds == [5, 10, 15]


def test_answered_requests_do_not_pile_up_and_none_that_waits_is_lost() -> None:
    clock = ManualClock()
    told = Told(clock)
    deadlines = Deadlines(clock, told.expire)
    waiting = [told.request(30) for _ in range(10)]
    for request in waiting:
        deadlines.add(request)

    for _ in range(10 * FEW):
        answered = told.request(20)
        deadlines.add(answered)
        answered.done = True

    assert len(deadlines) <= 2 * len(waiting) + FEW + 2


async def test_those_that_wait_are_told_after_a_sweep_too() -> None:
    clock = ManualClock()
    told = Told(clock)
    waiting = [told.request(30 - number) for number in range(10)]
    async with running(clock, told) as deadlines:
        for request in waiting:
            deadlines.add(request)
        for _ in range(3 * FEW):
            answered = told.request(20)
            deadlines.add(answered)
            answered.done = True
        await clock.advance(60)
        assert len(deadlines) == 0

    assert told.requests == waiting[::-1]


@given(st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=50))
def test_everybody_is_told_once_in_order_unless_done(arrivals: list[tuple[int, bool]]) -> None:
    clock = ManualClock()
    told = Told(clock)
    requests = [(told.request(tenths / 10), is_answered) for tenths, is_answered in arrivals]

    async def scenario() -> None:
        async with running(clock, told) as deadlines:
            for request, is_answered in requests:
                deadlines.add(request)
                request.done = is_answered
            await clock.advance(31)

    anyio.run(scenario)

    assert told.requests == sorted(
        (request for request, is_answered in requests if not is_answered), key=lambda request: request.deadline
    )


async def test_when_many_are_due_at_once_others_have_a_turn_between(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    told = Told(clock)
    work = WorkPerTurn().watch(monkeypatch, Told, "expire")
    async with running(clock, told) as deadlines:
        for _ in range(200):
            deadlines.add(told.request(5))
        await clock.advance(5)
        while len(told.requests) < 200:
            await anyio.lowlevel.checkpoint()

    assert work.most <= EXPIRED_PER_STEP
