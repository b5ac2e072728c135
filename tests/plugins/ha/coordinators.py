"""What every coordinator must do.

Run on an etcd in memory here, and in ``tests/interop`` on real ones: etcd, ZooKeeper, Apache's controller.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from verniermq.plugins.ha.coordinator import Coordinator, Live
from verniermq.plugins.ha.election import State

PATIENCE = 60
KEEP_SECONDS = 0.3

Make = Callable[[int], Coordinator]
"""Connects a replica to the same broker name each time, of which nothing is known yet."""


def state(term: int, *numbers: int, life: str = "life") -> State:
    return State(term, numbers[0], frozenset((number, life and f"{life}{number}") for number in numbers))


def live(number: int, end: int = 100) -> Live:
    return Live(f"life{number}", f"127.0.0.1:{number}", f"127.0.0.1:{number + 10}", 2, end, 90, 0)


async def check_coordinator(make: Make, life: str = "life", alive: Callable[[int], Live] = live) -> None:
    """
    Args:
        life: what incarnations are called; empty where the coordinator knows numbers alone
        alive: what a replica says of itself
    """
    one, two = make(1), make(2)
    empty = await one.read()
    assert (empty.state, empty.revision, dict(empty.live)) == (None, 0, {})
    async with anyio.create_task_group() as first, anyio.create_task_group() as second:
        await _keep(first, one, 1, alive(1))
        await _keep(second, two, 2, alive(2))
        await _until_alive(two, 1, 2)

        # Of two that begin, one does.
        revision = await one.change(state(1, 1, life=life), 0)
        assert revision
        assert await two.change(state(1, 2, life=life), 0) == 0
        found = await two.read()
        assert (found.state, found.revision) == (state(1, 1, life=life), revision)

        # Only who knows the newest state changes it.
        later = await one.change(state(1, 1, 2, life=life), revision)
        assert later > revision
        assert await one.change(state(1, 1, life=life), revision) == 0
        assert (await one.read()).state == state(1, 1, 2, life=life)

        # One that leaves is alive no longer, and known still; another takes its place, once.
        first.cancel_scope.cancel()
        await one.leave()
        assert not await one.keep_alive()
        await _until_alive(two, 2)
        assert set((await two.read()).members) == {1, 2}
        with anyio.fail_after(PATIENCE):
            while (found := await two.read()).state != state(2, 2, life=life):
                await two.change(state(2, 2, life=life), found.revision)
        assert await one.change(state(1, 1, life=life), later) == 0
        second.cancel_scope.cancel()

    # Who is not heard of is gone, and may come back.
    await _until_alive(one)
    assert not await two.keep_alive()
    async with anyio.create_task_group() as second:
        await _keep(second, two, 2, alive(2))
        await _until_alive(one, 2)
        second.cancel_scope.cancel()
    for coordinator in (one, two):
        await coordinator.leave()


async def check_watches(make: Make) -> None:
    """Of etcd and ZooKeeper: whoever waits hears of every change, and all that a replica says of itself is kept."""
    one, two = make(1), make(2)
    await _is_told(two, lambda: one.announce(1, live(1)))
    snapshot = await two.read()
    assert (snapshot.live, snapshot.members) == ({1: live(1)}, {1: live(1)})
    await one.announce(1, live(1, end=200))
    assert (await two.read()).live == {1: live(1, end=200)}
    await _is_told(two, lambda: two.change(state(1, 2), 0))
    await _is_told(two, one.leave)
    await two.leave()


async def _keep(tasks: TaskGroup, coordinator: Coordinator, number: int, said: Live) -> None:
    """Announce a replica, and keep it alive."""
    await coordinator.announce(number, said)
    assert await coordinator.keep_alive()

    async def keep() -> None:
        while True:
            if not await coordinator.keep_alive():
                await coordinator.announce(number, said)
            await anyio.sleep(KEEP_SECONDS)

    tasks.start_soon(keep)


async def _until_alive(watching: Coordinator, *numbers: int) -> None:
    with anyio.fail_after(PATIENCE):
        while set((await watching.read()).live) != set(numbers):
            with anyio.move_on_after(1):
                await watching.changed()


async def _is_told(waiting: Coordinator, act: Callable[[], object]) -> None:
    """Whoever waits for a change hears of it."""
    await waiting.read()
    async with anyio.create_task_group() as tasks:
        told = anyio.Event()

        async def wait() -> None:
            await waiting.changed()
            told.set()

        tasks.start_soon(wait)
        await act()  # type: ignore[misc]
        with anyio.fail_after(PATIENCE):
            await told.wait()
