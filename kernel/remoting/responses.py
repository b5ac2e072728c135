"""Our own requests on a connection: their numbers, and who waits for which answer.

An answer carries the opaque of its request and may come in any order. Whoever asks either awaits a future or
gives a function to be called; a function is the cheaper of the two, for many requests under way at a time, since it
needs neither a task nor a timer of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeAlias, final

from verniermq.kernel.errors import ConnectionLost, RequestTimeout
from verniermq.kernel.remoting.command import Command, request_name

logger = logging.getLogger(__name__)

Answered: TypeAlias = Callable[[Command | None, Exception | None], None]
"""Hears how a request ended: with an answer, or with an error."""

EXPIRY_TICK: Final = 0.1
"""Seconds. Requests whose time ends within the same tick share a timer."""
LARGEST_OPAQUE: Final = 2**31 - 1


@final
class ResponseTable:
    """The requests that one connection has sent and that are not answered yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.peer = ""
        self._loop = loop
        self._last_opaque = 0
        self._futures: dict[int, asyncio.Future[Command]] = {}
        self._callbacks: dict[int, Answered] = {}
        self._due: dict[int, list[int]] = {}
        """Tick → the opaques that have to be answered by then."""

    def number(self, command: Command) -> int:
        """Give a request the next opaque. From 1: a client of Node takes 0 for "none"."""
        opaque = self._last_opaque + 1 if self._last_opaque < LARGEST_OPAQUE else 1
        self._last_opaque = command.opaque = opaque
        return opaque

    async def wait_for(self, opaque: int, code: int, timeout: float) -> Command:
        """The answer to the request ``opaque``, which was just written.

        Raises:
            RequestTimeout: there was none within ``timeout`` seconds.
            ConnectionLost: the peer is gone.
        """
        future: asyncio.Future[Command] = self._loop.create_future()
        self._futures[opaque] = future
        timer = self._loop.call_later(timeout, self._expire, future, code, timeout)
        try:
            return await future
        finally:
            timer.cancel()
            self._futures.pop(opaque, None)

    def call(self, opaque: int, code: int, timeout: float, answered: Answered) -> None:
        """Have ``answered`` called with the answer; a missing one is noticed up to a tick late."""
        self._callbacks[opaque] = answered
        tick = int((self._loop.time() + timeout) / EXPIRY_TICK) + 1
        due = self._due.get(tick)
        if due is None:
            due = self._due[tick] = []
            self._loop.call_at(tick * EXPIRY_TICK, self._expire_tick, tick, code, timeout)
        due.append(opaque)

    def take(self, response: Command) -> None:
        """Hand an answer to whoever waits for it."""
        opaque = response.opaque
        answered = self._callbacks.pop(opaque, None)
        if answered is not None:
            self._tell(answered, response, None)
            return
        future = self._futures.get(opaque)
        if future is None or future.done():
            logger.debug("answer that nobody waits for peer=%s opaque=%d", self.peer, opaque)
        else:
            future.set_result(response)

    def connection_lost(self) -> None:
        """Nobody is answered any more."""
        for future in self._futures.values():
            if not future.done():
                future.set_exception(ConnectionLost(self.peer))
        self._futures.clear()
        callbacks, self._callbacks = self._callbacks, {}
        self._due.clear()
        for answered in callbacks.values():
            self._tell(answered, None, ConnectionLost(self.peer))

    def _expire(self, future: asyncio.Future[Command], code: int, timeout: float) -> None:
        if not future.done():
            future.set_exception(RequestTimeout(self.peer, request_name(code), timeout))

    def _expire_tick(self, tick: int, code: int, timeout: float) -> None:
        for opaque in self._due.pop(tick, ()):
            answered = self._callbacks.pop(opaque, None)
            if answered is not None:
                self._tell(answered, None, RequestTimeout(self.peer, request_name(code), timeout))

    def _tell(self, answered: Answered, response: Command | None, error: Exception | None) -> None:
        try:
            answered(response, error)
        except Exception:
            logger.exception("callback failed after a request peer=%s", self.peer)
