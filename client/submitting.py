"""Many sends under way at a time, without a task for each (RocketMQ: ``sendDefaultImpl`` in its asynchronous mode).

A message whose route and connection are known is written at once, and its answer completes a future directly; whatever
is missing, or goes wrong, is left to a task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import attrs

from verniermq.client.background import Background
from verniermq.client.connection import ConnectionPool
from verniermq.client.errors import TooManyInFlight
from verniermq.client.outgoing import Outgoing
from verniermq.client.results import SendResult
from verniermq.client.routes import Routes
from verniermq.client.sending import Sender
from verniermq.kernel import Command, MessageQueue, RemotingError, UnexpectedAnswer

Callback: TypeAlias = Callable[[SendResult | None, BaseException | None], object]


class Bound:
    """How many sends may wait for their answers."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self._wake_at = limit * 3 // 4
        self._places: list[asyncio.Future[None]] = []
        self._idle = asyncio.Event()

    async def enter(self, timeout: float) -> None:
        """Take a place, waiting for one.

        Raises:
            TooManyInFlight: there was none for the whole timeout.
        """
        deadline = time.monotonic() + timeout
        while self.count >= self.limit:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._places.append(place)
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                    await place
            except TimeoutError:
                raise TooManyInFlight(self.limit, timeout) from None
        self.count += 1

    def leave(self) -> None:
        self.count -= 1
        # Whoever waits is woken when there is room for many: waking somebody costs more than sending.
        if self._places and self.count <= self._wake_at:
            for place in self._places:
                if not place.done():
                    place.set_result(None)
            self._places.clear()
        if not self.count:
            self._idle.set()

    async def flush(self) -> None:
        """Wait until nobody is left."""
        while self.count:
            self._idle.clear()
            await self._idle.wait()


@attrs.define(eq=False)
class Submitter:
    """Sends whose answers come by futures; every one of them has a place in ``bound``, and leaves it at its end."""

    pool: ConnectionPool
    routes: Routes
    sender: Sender
    background: Background
    bound: Bound

    def begin(self, outgoing: Outgoing, future: asyncio.Future[SendResult], timeout: float | None) -> bool:
        """Send without waiting for anything; say whether all that this needs was there."""
        route = self.routes.known(outgoing.topic)
        if route is None or route.provisional or not route.writable:
            return False
        sender = self.sender
        queue = sender.strategy.choose(route.writable, None)
        address = route.master(queue.broker_name)
        connection = self.pool.live(address) if address is not None else None
        if address is None or connection is None or not connection.is_writable:
            return False
        command = outgoing.command(queue)
        if self.pool.signs:
            self.pool.sign(command)
        started = time.monotonic()
        limit = sender.timeout if timeout is None else timeout

        def answered(answer: Command | None, error: Exception | None) -> None:
            if future.done():
                self.bound.leave()
                return
            try:
                if answer is not None:
                    result = sender.answered(outgoing, route, queue, address, answer, started)
                    self.bound.leave()
                    future.set_result(result)
                    return
            except RemotingError as refused:
                error = refused
            assert error is not None
            left = limit - (time.monotonic() - started)
            lost = isinstance(error, RemotingError) and not isinstance(error, UnexpectedAnswer)
            if lost and left > 0 and sender.async_retries > 0 and self.background.is_open:
                sender.failed(queue, started, error)
                self.background.spawn(self._again, future, outgoing, queue, error, left)
            else:
                self.bound.leave()
                future.set_exception(error)

        connection.begin(command, limit, answered)
        return True

    async def _again(
        self, future: asyncio.Future[SendResult], outgoing: Outgoing, queue: MessageQueue, error: Exception,
        timeout: float,
    ) -> None:  # fmt: skip
        await self.complete(future, self.sender.send_async_again(outgoing, queue, str(error), timeout))

    async def complete(self, future: asyncio.Future[SendResult], work: Awaitable[SendResult]) -> None:
        """Let a future have what some work returns or raises."""
        try:
            result = await work
        except asyncio.CancelledError:
            future.cancel()
            raise
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)
        finally:
            self.bound.leave()


def call_back(done: asyncio.Future[SendResult], callback: Callback) -> None:
    """Tell a callback how a future ended."""
    if not done.cancelled():
        error = done.exception()
        callback(None if error else done.result(), error)
