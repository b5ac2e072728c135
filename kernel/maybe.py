"""Steps that mostly need no waiting: plain values where nothing waits, one coroutine where something does.

A coroutine for every message would cost more than the message itself. So what may have to wait returns its result, or
a coroutine for it, and these functions go on from either. What waits for the same as many others is :class:`Withheld`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from inspect import isawaitable
from typing import Any, Generic, TypeVar, final

T = TypeVar("T")


@final
class Withheld(Generic[T]):
    """A result that is there already, and goes out when ``task`` is over, for which many others wait as well.

    It needs no coroutine and no task of its own; it can be awaited, by those who do not care.
    """

    __slots__ = ("_ended", "result", "task")

    def __init__(self, result: T, task: asyncio.Task[Any]) -> None:
        self.result = result
        self.task = task
        self._ended: list[Callable[[T | None, BaseException | None], None]] = []

    def then_tell(self, ended: Callable[[T | None, BaseException | None], None]) -> None:
        """Have this called with the result, or with what was raised instead."""
        self._ended.append(ended)

    def end(self, result: T | None, error: BaseException | None = None) -> None:
        """It is over, with this result, or with this error."""
        for ended in self._ended:
            ended(result, error)

    def __await__(self) -> Generator[Any, None, T]:
        told: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def tell(result: T | None, error: BaseException | None) -> None:
            if told.done():
                return
            if isinstance(error, Exception):
                told.set_exception(error)
            elif error is not None:
                told.cancel()
            else:
                told.set_result(result)  # type: ignore[arg-type]

        self.then_tell(tell)
        return told.__await__()


def in_turn(steps: Iterator[Awaitable[None] | None]) -> Coroutine[Any, Any, None] | None:
    """Take one step after the other; a coroutine for the rest when one of them has to wait.

    A step is taken when the iterator is asked for it, so none begins before the one before it has ended.
    """
    for waiting in steps:
        if waiting is not None:
            return _rest(waiting, steps)
    return None


async def _rest(waiting: Awaitable[None], steps: Iterator[Awaitable[None] | None]) -> None:
    await waiting
    for again in steps:
        if again is not None:
            await again


def then(
    waiting: Awaitable[object] | None, following: Callable[[], T | Withheld[Any] | Coroutine[Any, Any, T]]
) -> T | Withheld[Any] | Coroutine[Any, Any, T]:
    """Do what follows: now, or when ``waiting`` is over."""
    return following() if waiting is None else _after(waiting, following)


async def _after(waiting: Awaitable[object], following: Callable[[], T | Withheld[Any] | Coroutine[Any, Any, T]]) -> T:
    await waiting
    result = following()
    return await result if isawaitable(result) else result


def watched(
    begin: Callable[[], T | Withheld[Any] | Coroutine[Any, Any, T]],
    ended: Callable[[T | None, BaseException | None], None],
) -> T | Withheld[Any] | Coroutine[Any, Any, T]:
    """Begin something and tell ``ended`` its result or what it raised: now, or when it is over."""
    try:
        result = begin()
    except Exception as error:
        ended(None, error)
        raise
    if isinstance(result, Coroutine):
        return _watched(result, ended)
    if isinstance(result, Withheld):
        result.then_tell(ended)
        return result
    ended(result, None)
    return result


async def _watched(work: Coroutine[Any, Any, T], ended: Callable[[T | None, BaseException | None], None]) -> T:
    try:
        result = await work
    except BaseException as error:
        ended(None, error)
        raise
    ended(result, None)
    return result
