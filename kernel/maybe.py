"""Steps that mostly need no waiting: plain values where nothing waits, one coroutine where something does.

A coroutine for every message would cost more than the message itself. So what may have to wait returns its result, or
a coroutine for it, and these functions go on from either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from inspect import isawaitable
from typing import Any, TypeVar

T = TypeVar("T")


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
    waiting: Awaitable[object] | None, following: Callable[[], T | Coroutine[Any, Any, T]]
) -> T | Coroutine[Any, Any, T]:
    """Do what follows: now, or when ``waiting`` is over."""
    return following() if waiting is None else _after(waiting, following)


async def _after(waiting: Awaitable[object], following: Callable[[], T | Coroutine[Any, Any, T]]) -> T:
    await waiting
    result = following()
    return await result if isawaitable(result) else result


def watched(
    begin: Callable[[], T | Coroutine[Any, Any, T]], ended: Callable[[T | None, BaseException | None], None]
) -> T | Coroutine[Any, Any, T]:
    """Begin something and tell ``ended`` its result or what it raised: now, or when it is over."""
    try:
        result = begin()
    except Exception as error:
        ended(None, error)
        raise
    if isinstance(result, Coroutine):
        return _watched(result, ended)
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
