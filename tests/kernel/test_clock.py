"""The clock that a test moves by hand, and the machine's own."""

from __future__ import annotations

import time

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verniermq.kernel.clock import Clock, SystemClock
from verniermq.kernel.store.clockchanges import ClockChanges
from verniermq.testing.clock import ManualClock, MovableClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def tick(clock: Clock, seconds: float, seen: list[float]) -> None:
    while True:
        await clock.sleep(seconds)
        seen.append(clock.now())


async def test_a_task_that_repeats_every_second_ticks_ten_times_in_ten_seconds() -> None:
    clock, seen = ManualClock(start=1000.0), list[float]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick, clock, 1.0, seen)

        await clock.advance(10)

        assert seen == [1001.0 + n for n in range(10)]
        assert clock.now() == 1010.0
        tasks.cancel_scope.cancel()


async def test_tenths_of_a_second_add_up_exactly() -> None:
    clock, seen = ManualClock(start=1_700_000_000.0), list[float]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick, clock, 0.1, seen)

        for _ in range(10):
            await clock.advance(0.1)

        assert len(seen) == 10
        assert clock.now() == 1_700_000_001.0
        assert clock.now_ms() == 1_700_000_001_000
        tasks.cancel_scope.cancel()


async def test_deadlines_made_from_now_add_up_as_well() -> None:
    clock, seen = ManualClock(start=1_700_000_000.0), list[float]()

    async def every_tenth() -> None:
        while True:
            deadline = clock.now() + 0.1
            await clock.sleep_until(deadline)
            assert clock.now() >= deadline
            seen.append(deadline)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(every_tenth)

        await clock.advance(1)

        assert len(seen) == 10
        tasks.cancel_scope.cancel()


async def test_sleepers_wake_in_the_order_of_their_times_and_see_them() -> None:
    clock, seen = ManualClock(start=0.0), list[tuple[str, float]]()

    async def sleeper(name: str, moment: float) -> None:
        await clock.sleep_until(moment)
        seen.append((name, clock.now()))

    async with anyio.create_task_group() as tasks:
        for name, moment in (("late", 5.0), ("early", 1.0), ("first of two", 3.0), ("second of two", 3.0)):
            tasks.start_soon(sleeper, name, moment)

        await clock.advance(4)
        assert seen == [("early", 1.0), ("first of two", 3.0), ("second of two", 3.0)]

        await clock.advance(1)
        assert seen[3:] == [("late", 5.0)]


async def test_time_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(start=7.0)
    with anyio.move_on_after(0.01) as scope:
        await clock.sleep(1e-3)

    assert scope.cancelled_caught
    assert clock.now() == 7.0


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock(start=0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clock.sleep, 5)
        tasks.start_soon(clock.sleep, 2)
        await anyio.wait_all_tasks_blocked()
        assert clock.next_wake == 2.0
        tasks.cancel_scope.cancel()

    assert clock.next_wake is None
    await clock.advance(10)
    assert clock.now() == 10.0


async def test_what_a_woken_task_sets_off_is_done_before_time_goes_on() -> None:
    clock, seen = ManualClock(start=0.0), list[float]()
    send, receive = anyio.create_memory_object_stream[float](0)

    async def consume() -> None:
        async with receive:
            async for _ in receive:
                for _ in range(50):  # a task that needs many turns
                    await anyio.lowlevel.checkpoint()
                seen.append(clock.now())

    async def produce() -> None:
        async with send:
            for _ in range(3):
                await clock.sleep(1)
                await send.send(clock.now())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consume)
        tasks.start_soon(produce)

        await clock.advance(100)

    assert seen == [1.0, 2.0, 3.0]


async def test_a_jump_wakes_a_repeating_task_once() -> None:
    clock, seen = ManualClock(start=0.0), list[float]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick, clock, 1.0, seen)

        await clock.jump(72 * 3600)

        assert seen == [72 * 3600.0]
        tasks.cancel_scope.cancel()


async def test_only_one_task_moves_the_clock() -> None:
    clock, refusals = ManualClock(), list[str]()

    async def meddle() -> None:
        await clock.sleep(1)
        try:
            await clock.advance(1)
        except RuntimeError as error:
            refusals.append(str(error))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(meddle)
        await clock.advance(5)

    assert refusals == ["the clock is being moved already; only one task may do that"]


async def test_time_does_not_go_back() -> None:
    clock = ManualClock(start=100.0)
    with pytest.raises(ValueError, match="time does not go back"):
        await clock.advance(-1)
    with pytest.raises(ValueError, match="time does not go back"):
        await clock.jump(-1)
    assert clock.now() == 100.0


@given(
    start=st.floats(0, 4e9),
    moments=st.lists(st.floats(0, 1e4), max_size=8),
    steps=st.lists(st.floats(0, 1e4), min_size=1, max_size=8),
)
def test_nobody_wakes_too_early_or_is_left_asleep(start: float, moments: list[float], steps: list[float]) -> None:
    async def main() -> None:
        clock, woken = ManualClock(start=start), list[float]()

        async def sleeper(moment: float) -> None:
            await clock.sleep_until(moment)
            assert clock.now() >= moment
            woken.append(moment)

        async with anyio.create_task_group() as tasks:
            for moment in moments:
                tasks.start_soon(sleeper, start + moment)
            for step in steps:
                before = clock.now()
                await clock.advance(step)
                assert clock.now() >= before
                due = [start + moment for moment in moments if start + moment <= clock.now()]
                assert sorted(woken) == sorted(due)
            tasks.cancel_scope.cancel()

    anyio.run(main)


async def test_a_task_that_is_about_to_sleep_sleeps_before_a_movable_clock_moves() -> None:
    clock = MovableClock()
    changed, woken = anyio.Event(), anyio.Event()

    async def service() -> None:
        await changed.wait()
        seconds = 10.0  # worked out at the old time
        await anyio.lowlevel.checkpoint()
        await clock.sleep(seconds)
        woken.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service)
        await anyio.wait_all_tasks_blocked()
        changed.set()
        await clock.rest()
        clock.advance(11)
        with anyio.fail_after(30):
            await woken.wait()


async def test_the_system_clock_is_the_machines() -> None:
    clock: Clock = SystemClock()
    before = time.time()
    await clock.sleep_until(before + 0.01)
    await clock.sleep(-1)
    await clock.sleep_until(0)

    assert clock.now() >= before + 0.01
    assert clock.now_ms() >= int(before * 1000)


@pytest.mark.parametrize("changes", [[{"logOffset": 1}], [1], 7, [{"logOffset": "x", "seconds": 1}]])
def test_changes_of_the_clock_that_cannot_be_read_are_left_out(
    changes: object, caplog: pytest.LogCaptureFixture
) -> None:
    noted = ClockChanges(ManualClock(), lambda: 0)

    noted.load_json({"changes": changes})

    assert noted.since(0) == 0
    assert "clockChanges.json is left out" in caplog.text
