"""Steps that mostly need no waiting: their order, and what an exception ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import anyio
import pytest

from verniermq.kernel.maybe import Withheld, in_turn, then, watched

Step = Callable[[list[str]], Awaitable[None] | None]


def plain(name: str) -> Step:
    def step(done: list[str]) -> None:
        done.append(name)

    return step


def slow(name: str) -> Step:
    async def step(done: list[str]) -> None:
        done.append(f"{name} begins")
        await anyio.lowlevel.checkpoint()
        done.append(f"{name} ends")

    return step


def failing(name: str) -> Step:
    def step(done: list[str]) -> None:
        raise ValueError(name)

    return step


def failing_later(name: str) -> Step:
    async def step(done: list[str]) -> None:
        await anyio.lowlevel.checkpoint()
        raise ValueError(name)

    return step


def steps(done: list[str], *taken: Step) -> Iterator[Awaitable[None] | None]:
    return (step(done) for step in taken)


# --- in_turn --------------------------------------------------------------------------------


def test_steps_that_need_no_waiting_are_over_at_once() -> None:
    done: list[str] = []

    assert in_turn(steps(done, plain("a"), plain("b"))) is None
    assert in_turn(steps(done)) is None
    assert done == ["a", "b"]


async def test_no_step_begins_before_the_one_before_it_has_ended() -> None:
    done: list[str] = []

    waiting = in_turn(steps(done, plain("a"), slow("b"), plain("c"), slow("d"), plain("e")))

    assert waiting is not None
    assert done == ["a"], "what comes behind a step that waits has not begun"
    await waiting
    assert done == ["a", "b begins", "b ends", "c", "d begins", "d ends", "e"]


def test_what_a_step_raises_at_once_ends_the_rest() -> None:
    done: list[str] = []

    with pytest.raises(ValueError, match="b"):
        in_turn(steps(done, plain("a"), failing("b"), plain("c")))
    assert done == ["a"]


@pytest.mark.parametrize("bad", [failing, failing_later])
async def test_what_a_step_raises_behind_a_wait_ends_the_rest(bad: Callable[[str], Step]) -> None:
    done: list[str] = []
    waiting = in_turn(steps(done, slow("a"), bad("b"), plain("c")))

    assert waiting is not None
    with pytest.raises(ValueError, match="b"):
        await waiting
    assert done == ["a begins", "a ends"]


# --- then -----------------------------------------------------------------------------------


def test_without_a_wait_what_follows_is_done_now() -> None:
    assert then(None, lambda: 4711) == 4711
    with pytest.raises(ValueError, match="stumbled"):
        then(None, lambda: int("stumbled"))


async def _later(value: int) -> int:
    await anyio.lowlevel.checkpoint()
    return value


async def test_without_a_wait_what_follows_may_need_one_itself() -> None:
    result = then(None, lambda: _later(1))

    assert isinstance(result, Coroutine)
    assert await result == 1


@pytest.mark.parametrize("following", [lambda: 2, lambda: _later(2)], ids=["plain", "async"])
async def test_with_a_wait_what_follows_begins_behind_it(following: Callable[[], Any]) -> None:
    done: list[str] = []

    def begin() -> Any:
        done.append("follows")
        return following()

    result = then(slow("a")(done), begin)

    assert done == []
    assert isinstance(result, Coroutine)
    assert await result == 2
    assert done == ["a begins", "a ends", "follows"]


async def test_behind_a_wait_that_raises_nothing_follows() -> None:
    done: list[str] = []
    result = then(failing_later("a")(done), lambda: done.append("follows"))

    assert isinstance(result, Coroutine)
    with pytest.raises(ValueError, match="a"):
        await result
    assert done == []


# --- watched --------------------------------------------------------------------------------


async def _fail_later() -> int:
    await anyio.lowlevel.checkpoint()
    raise ValueError("later")


async def test_whoever_watches_hears_of_the_end_once_now_or_later() -> None:
    heard: list[tuple[int | None, str]] = []

    def ended(result: int | None, error: BaseException | None) -> None:
        heard.append((result, str(error)))

    assert watched(lambda: 1, ended) == 1
    assert heard == [(1, "None")]
    work = watched(lambda: _later(2), ended)
    assert len(heard) == 1, "it is not over yet"
    assert isinstance(work, Coroutine)
    assert await work == 2
    with pytest.raises(ValueError, match="now"):
        watched(lambda: int("now"), ended)
    failing = watched(_fail_later, ended)
    assert isinstance(failing, Coroutine)
    with pytest.raises(ValueError, match="later"):
        await failing
    assert heard[1:] == [(2, "None"), (None, "invalid literal for int() with base 10: 'now'"), (None, "later")]


async def test_what_is_held_is_watched_and_awaited_until_it_ends() -> None:
    task = asyncio.get_running_loop().create_task(_later(0))
    heard: list[tuple[int | None, str]] = []
    awaited: list[int] = []

    def ended(result: int | None, error: BaseException | None) -> None:
        heard.append((result, str(error)))

    async def wait(held: Withheld[int]) -> None:
        awaited.append(await then(_later_none(), lambda: held))

    held = Withheld(1, task)
    assert watched(lambda: held, ended) is held
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, held)
        await anyio.wait_all_tasks_blocked()
        assert (heard, awaited) == ([], [])
        held.end(2)
    assert (heard, awaited) == ([(2, "None")], [2])

    failing = Withheld(1, task)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_expect, failing)
        await anyio.wait_all_tasks_blocked()
        failing.end(None, ValueError("later"))
    await task


async def _later_none() -> None:
    await anyio.lowlevel.checkpoint()


async def _expect(held: Withheld[int]) -> None:
    with pytest.raises(ValueError, match="later"):
        await held
