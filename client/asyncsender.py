"""Many sends under way at a time, without a task for each (RocketMQ: ``sendDefaultImpl`` in its asynchronous mode).

A message whose route and connection are known is written at once, and its answer completes a future directly; whatever
is missing, or goes wrong, is left to a task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import attrs

from verniermq.client.background import Background
from verniermq.client.connection import ConnectionPool
from verniermq.client.encoder import MessageEncoder, Plain
from verniermq.client.errors import TooManyInFlight
from verniermq.client.results import SendResult
from verniermq.client.routes import Route, Routes
from verniermq.client.sender import NOT_MASTER, Sender
from verniermq.client.template import Template
from verniermq.kernel import (
    MessageQueue,
    RemotingError,
    RequestCode,
    RequestTimeout,
    UnexpectedAnswer,
    VernierMQError,
    request_name,
)

logger = logging.getLogger(__name__)

Callback: TypeAlias = Callable[[SendResult | None, BaseException | None], object]

LARGEST_BODY: Final = 256 * 1024
"""Bytes; copying a larger body into its frame would cost more than the quick way saves."""


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


class _Way:
    """How plain messages get to one queue."""

    __slots__ = ("address", "queue", "template")

    def __init__(self, queue: MessageQueue, address: str, template: Template) -> None:
        self.queue = queue
        self.address = address
        self.template = template


class _Ways:
    """The ways to the queues of one topic, as long as its route is the same."""

    __slots__ = ("_encoder", "known", "route")

    def __init__(self, route: Route, encoder: MessageEncoder) -> None:
        self.route = route
        self._encoder = encoder
        self.known: dict[tuple[str, int], _Way] = {}

    def find(self, queue: MessageQueue) -> _Way | None:
        """The way to a queue that nothing was sent to yet; ``None`` while its broker has no address."""
        address = self.route.master(queue.broker_name)
        if address is None:
            return None
        way = self.known[queue.broker_name, queue.queue_id] = _Way(queue, address, self._encoder.template(queue))
        return way


class _Submitted:
    """One message under way."""

    __slots__ = ("async_sender", "callback", "deadline", "future", "patience", "plain", "started", "way")

    request = request_name(RequestCode.SEND_MESSAGE_V2)

    def __init__(
        self, async_sender: AsyncSender, plain: Plain, way: _Way, future: asyncio.Future[SendResult],
        callback: Callback | None, patience: float,
    ) -> None:  # fmt: skip
        self.async_sender = async_sender
        self.plain = plain
        self.way = way
        self.future = future
        self.callback = callback
        self.patience = patience
        self.started = time.monotonic()
        self.deadline = self.started + patience

    def answered(self, header: dict[str, Any]) -> None:
        sender = self.async_sender.sender
        try:
            result = sender.answered(
                RequestCode.SEND_MESSAGE_V2, self.plain.message_id, self.way.queue, self.way.address,
                header.get("code", -1), header.get("extFields") or {}, header.get("remark") or "", self.started,
            )  # fmt: skip
        except UnexpectedAnswer as error:
            if error.code == NOT_MASTER:
                self.failed(error)  # it was not taken, and the broker may have another master
            else:
                self._end(None, error)
        except VernierMQError as error:
            self._end(None, error)
        else:
            self._end(result, None)

    def failed(self, error: RemotingError) -> None:
        async_sender = self.async_sender
        if isinstance(error, RequestTimeout):
            async_sender.pool.silent(self.way.address)
        left = self.deadline - time.monotonic()
        if (
            left > 0
            and async_sender.sender.async_retries > 0
            and async_sender.background.is_open
            and not self.future.done()
        ):
            async_sender.sender.failed(self.way.queue, self.started, error)
            async_sender.background.spawn(self._again, error, left)
        else:
            self._end(None, error)

    async def _again(self, error: RemotingError, left: float) -> None:
        outgoing = self.async_sender.encoder.whole(self.plain)
        try:
            result = await self.async_sender.sender.send_async_again(outgoing, self.way.queue, str(error), left)
        except asyncio.CancelledError:
            self.async_sender.bound.leave()
            self.future.cancel()
            raise
        except Exception as failure:
            self._end(None, failure)
        else:
            self._end(result, None)

    def _end(self, result: SendResult | None, error: Exception | None) -> None:
        self.async_sender.bound.leave()
        future = self.future
        if future.done():
            return
        if result is not None:
            future.set_result(result)
        elif error is not None:
            future.set_exception(error)
            if self.callback is not None:
                future.exception()  # it is told by the callback, so nobody has to look at the future
        if self.callback is not None:
            _tell(self.callback, result, error)


@attrs.define(eq=False)
class AsyncSender:
    """Sends whose answers come by futures; every one of them has a place in ``bound``, and leaves it at its end."""

    pool: ConnectionPool
    routes: Routes
    sender: Sender
    encoder: MessageEncoder
    background: Background
    bound: Bound
    loop: asyncio.AbstractEventLoop = attrs.field(factory=asyncio.get_running_loop)
    """Kept, since asking for it is a system call, which takes longer than making a future."""
    _ways: dict[str, _Ways] = attrs.field(factory=dict, init=False)

    def begin(
        self, plain: Plain, future: asyncio.Future[SendResult], callback: Callback | None, timeout: float | None
    ) -> bool:
        """Send without waiting for anything; say whether all that this needs was there."""
        topic = plain.topic
        route = self.routes.known(topic)
        if route is None or route.provisional or not route.writable or len(plain.body) > LARGEST_BODY:
            return False
        sender = self.sender
        queue = sender.strategy.choose(route.writable, None)
        ways = self._ways.get(topic)
        if ways is None or ways.route is not route:
            ways = self._ways[topic] = _Ways(route, self.encoder)
        way = ways.known.get((queue.broker_name, queue.queue_id)) or ways.find(queue)
        quick = self.pool.quick(way.address) if way is not None else None
        if way is None or quick is None or not quick.connection.is_writable or self.pool.signs:
            return False
        opaque = quick.next_opaque()
        frame = way.template.frame(plain.born_ms, plain.flag, plain.properties, opaque, plain.body)
        patience = sender.timeout if timeout is None else timeout
        quick.begin(opaque, frame, _Submitted(self, plain, way, future, callback, patience))
        return True

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
        _tell(callback, None if error else done.result(), error)


def _tell(callback: Callback, result: SendResult | None, error: BaseException | None) -> None:
    try:
        callback(result, error)
    except Exception:
        logger.exception("callback failed after a send")
