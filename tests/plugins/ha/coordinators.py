"""What every coordinator must do; run on a server in memory, and on a real etcd in ``tests/interop``."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from tests.kernel.pulling import until
from verniermq.plugins.ha.coordinator import Coordinator, Live
from verniermq.plugins.ha.election import State

PATIENCE = 30


def state(term: int, *numbers: int) -> State:
    return State(term, numbers[0], frozenset((number, f"life{number}") for number in numbers))


async def check_coordinator(make: Callable[[], Coordinator]) -> None:
    """
    :param make: connects to the same broker name each time, of which nothing is known yet
    """
    one, two = make(), make()
    empty = await one.read()
    assert (empty.state, empty.revision, dict(empty.live)) == (None, 0, {})

    # Of two that begin, one does.
    revision = await one.change(state(1, 1, 2), 0)
    assert revision
    assert await two.change(state(1, 2), 0) == 0
    found = await two.read()
    assert (found.state, found.revision) == (state(1, 1, 2), revision)

    # Only who knows the newest state changes it.
    later = await two.change(state(2, 2), revision)
    assert later > revision
    assert await one.change(state(1, 1), revision) == 0
    assert (await one.read()).state == state(2, 2)

    # Who is alive, and who was.
    live = Live("life1", "127.0.0.1:1", "127.0.0.1:2", 2, 100, 90, 0)
    await _is_told(two, lambda: one.announce(1, live))
    assert await one.keep_alive()
    snapshot = await two.read()
    assert (snapshot.live, snapshot.members) == ({1: live}, {1: live})
    await _is_told(two, lambda: two.change(state(3, 2), later))
    await one.leave()
    assert not await one.keep_alive()
    snapshot = await two.read()
    assert (dict(snapshot.live), set(snapshot.members)) == ({}, {1})

    # A lease runs out.
    await two.announce(2, live)
    gone = [False]

    async def look() -> None:
        while 2 in (await one.read()).live:
            await one.changed()
        gone[0] = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        await until(lambda: gone[0])
        tasks.cancel_scope.cancel()
    assert not await two.keep_alive()
    await two.announce(2, live)
    assert await two.keep_alive()


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
