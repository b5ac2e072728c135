"""Trying to send: which queue, how often, and what an answer means (RocketMQ: ``DefaultMQProducerImpl``).

One timeout covers all tries. A try that cannot reach its broker, or gets an answer that another broker might not give,
is followed by one that avoids that broker; an answer that would be the same everywhere is raised at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

import attrs

from verniermq.client.connection import ConnectionPool
from verniermq.client.encoder import EncodedMessage
from verniermq.client.errors import BadAnswer, ClientError, NotWritable, SendFailed
from verniermq.client.results import SendResult, SendStatus
from verniermq.client.routes import Route, Routes
from verniermq.client.selectors import RoundRobinSelector
from verniermq.kernel import (
    ConnectionLost,
    FaultStrategy,
    MessageQueue,
    PeerUnreachable,
    RemotingError,
    RequestCode,
    RequestTimeout,
    ResponseCode,
    UnexpectedAnswer,
)

RETRY_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY, ResponseCode.NO_PERMISSION, ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT, ResponseCode.GO_AWAY,
    }
)  # fmt: skip
"""Answers that another broker, or the same one a moment later, might not give."""

_STATUSES: Final = {int(status): status for status in SendStatus}
LOOK_SECONDS: Final = 1.0
SEND_OK: Final = SendStatus.SEND_OK


@attrs.define(eq=False)
class Sender:
    """Sends prepared messages, by the settings of one producer."""

    pool: ConnectionPool
    routes: Routes
    strategy: FaultStrategy
    name_servers: str
    timeout: float = 3.0
    timeout_per_try: float | None = None
    retries: int = 2
    async_retries: int = 2
    retry_another_broker: bool = False
    default_queues: int = 4
    _learns: bool = attrs.field(init=False)
    """Whether the strategy makes anything of how long a send took."""

    @_learns.default
    def _whether_it_learns(self) -> bool:
        return not isinstance(self.strategy, RoundRobinSelector)

    # --- where to --------------------------------------------------------------------------

    async def route(self, topic: str) -> Route:
        """
        Raises:
            NoRoute, NotWritable, NameServerUnreachable: it cannot be sent to this topic now.
        """
        route = await self.routes.for_sending(topic, self.default_queues)
        if not route.writable:
            raise NotWritable(topic, self.name_servers)
        return route

    def address(self, route: Route, queue: MessageQueue) -> str:
        """
        Raises:
            PeerUnreachable: the broker has no master now.
        """
        address = route.master(queue.broker_name) or self.routes.broker_address(queue.broker_name)
        if address is None:
            raise PeerUnreachable(queue.broker_name, "the name server knows no address of this broker")
        return address

    async def _look_again(self, topic: str, error: RemotingError, deadline: float) -> None:
        """A broker that is not where it was may be elsewhere: ask before the next try, if there is time."""
        left = deadline - time.monotonic()
        if left <= 0 or not isinstance(error, PeerUnreachable | ConnectionLost):
            return
        try:
            async with asyncio.timeout(min(left, LOOK_SECONDS)):
                await self.routes.fetch(topic)
        except (ClientError, RemotingError, TimeoutError):
            pass  # the old route is the best guess

    # --- trying ----------------------------------------------------------------------------

    async def send(self, outgoing: EncodedMessage, timeout: float | None = None) -> SendResult:
        """Send to any queue, and again to another broker's if need be.

        Raises:
            SendFailed: no try was answered well.
            UnexpectedAnswer: an answer that no other broker would give either.
            NoRoute, NotWritable, NameServerUnreachable: there is nowhere to send to.
        """
        timeout = self.timeout if timeout is None else timeout
        started = time.monotonic()
        deadline = started + timeout
        tries: list[str] = []
        last: RemotingError | None = None
        stored: SendResult | None = None
        avoid: str | None = None
        stored_at: set[str] = set()
        for number in range(self.retries + 1):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            route = await self.route(outgoing.topic)
            queues = route.writable
            if stored_at:
                # Brokers that have it already would only store it once more.
                queues = tuple(queue for queue in queues if queue.broker_name not in stored_at)
                if not queues:
                    break
            queue = self.strategy.choose(queues, avoid)
            avoid = queue.broker_name
            if self.timeout_per_try is not None and number < self.retries:
                left = min(left, self.timeout_per_try)
            try:
                if number < self.retries:
                    self._ensure_worth_trying(route, queue)
                stored = await self.one_try(outgoing, route, queue, left)
                if stored.status is SEND_OK or not self.retry_another_broker:
                    return stored
                stored_at.add(avoid)
                tries.append(f"{avoid} answered {stored.status.name}")
            except UnexpectedAnswer as error:
                if error.code not in RETRY_CODES:
                    raise
                last = error
                tries.append(str(error))
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    self.routes.forget(outgoing.topic)
            except RemotingError as error:
                last = error
                tries.append(str(error))
                await self._look_again(outgoing.topic, error, deadline)
        if stored is not None:
            return stored
        raise SendFailed(outgoing.topic, tries, time.monotonic() - started) from last

    def _ensure_worth_trying(self, route: Route, queue: MessageQueue) -> None:
        """
        Raises:
            PeerUnreachable: the broker refused a moment ago, and the topic has others: why wait for this one?
        """
        address = route.master(queue.broker_name)
        if address is not None and self.pool.is_resting(address) and _has_others(route, queue):
            error = PeerUnreachable(address, "it could not be reached a moment ago")
            self.failed(queue, time.monotonic(), error)
            raise error

    async def send_to(self, outgoing: EncodedMessage, queue: MessageQueue, timeout: float | None = None) -> SendResult:
        """Send to this queue, once: whoever chose it would not want the message in another.

        Raises:
            SendFailed: it was not answered.
            UnexpectedAnswer: the broker refused it.
        """
        timeout = self.timeout if timeout is None else timeout
        started = time.monotonic()
        route = await self.route(outgoing.topic)
        left = max(timeout - (time.monotonic() - started), 0.001)
        try:
            return await self.one_try(outgoing, route, queue, left)
        except UnexpectedAnswer:
            raise
        except RemotingError as error:
            raise SendFailed(outgoing.topic, [str(error)], time.monotonic() - started) from error

    async def send_async(
        self, outgoing: EncodedMessage, queue: MessageQueue | None, timeout: float | None = None
    ) -> SendResult:
        """The rules of asynchronous sends: only a lost connection or a missing answer is tried again, and with the
        same queue, so on the same broker.

        Raises:
            SendFailed, UnexpectedAnswer, NoRoute, NotWritable, NameServerUnreachable: as :meth:`send`.
        """
        return await self._send_async(outgoing, queue, [], timeout)

    async def send_async_again(
        self, outgoing: EncodedMessage, queue: MessageQueue, why: str, timeout: float
    ) -> SendResult:
        """The rest of the tries, after a first one to this queue that failed."""
        return await self._send_async(outgoing, queue, [why], timeout)

    async def _send_async(
        self,
        outgoing: EncodedMessage,
        chosen: MessageQueue | None,
        tries: list[str],
        timeout: float | None,
    ) -> SendResult:
        timeout = self.timeout if timeout is None else timeout
        started = time.monotonic()
        for _ in range(self.async_retries + 1 - len(tries)):
            left = started + timeout - time.monotonic()
            if left <= 0:
                break
            route = await self.route(outgoing.topic)
            if chosen is None:
                chosen = self.strategy.choose(route.writable, None)
            try:
                return await self.one_try(outgoing, route, chosen, left)
            except UnexpectedAnswer:
                raise
            except RemotingError as error:
                tries.append(str(error))
                await self._look_again(outgoing.topic, error, started + timeout)
        raise SendFailed(outgoing.topic, tries, time.monotonic() - started)

    async def one_try(self, outgoing: EncodedMessage, route: Route, queue: MessageQueue, timeout: float) -> SendResult:
        """
        Raises:
            UnexpectedAnswer: the broker refused it.
            RemotingError: there was no answer.
        """
        started = time.monotonic()
        try:
            address = self.address(route, queue)
            answer = await self.pool.request(address, outgoing.command(queue), timeout)
        except RemotingError as error:
            self.failed(queue, started, error)
            raise
        return self.answered(
            outgoing.code, outgoing.message_id, queue, address, answer.code, answer.ext, answer.remark, started
        )

    def failed(self, queue: MessageQueue, started: float, error: Exception) -> None:
        late = isinstance(error, RequestTimeout)
        self.strategy.record(queue.broker_name, (time.monotonic() - started) * 1000, failed=True, reachable=late)

    def answered(
        self, request: int, message_id: str, queue: MessageQueue, address: str, code: int, ext: Mapping[str, str],
        remark: str, started: float,
    ) -> SendResult:  # fmt: skip
        """
        Raises:
            UnexpectedAnswer: it means that the message was refused.
            BadAnswer: it lacks what every good answer has.
        """
        status = _STATUSES.get(code)
        if self._learns:
            latency = (time.monotonic() - started) * 1000
            self.strategy.record(queue.broker_name, latency, failed=status is None)
        if status is None:
            error = UnexpectedAnswer(address, RequestCode(request).name, code, remark)
            error.retriable = code in RETRY_CODES
            raise error
        try:
            return _result(status, message_id, queue, ext)
        except (KeyError, TypeError, ValueError) as error:
            raise BadAnswer(address, RequestCode(request).name, f"{type(error).__name__} {error}") from None

    # --- one way ---------------------------------------------------------------------------

    async def oneway(self, outgoing: EncodedMessage, queue: MessageQueue | None, timeout: float | None = None) -> None:
        """Send without an answer: what becomes of it is not known.

        Raises:
            RemotingError: there is no connection to send it on.
        """
        route = await self.route(outgoing.topic)
        queue = queue or self.strategy.choose(route.writable, None)
        address = self.address(route, queue)
        connection = self.pool.live(address) or await self.pool.open(address, timeout or self.timeout)
        if not connection.is_writable:
            await connection.drain()
        command = outgoing.command(queue, oneway=True)
        await self.pool.oneway(address, command, timeout or self.timeout)


def _has_others(route: Route, queue: MessageQueue) -> bool:
    return any(other.broker_name != queue.broker_name for other in route.writable)


def _result(status: SendStatus, message_id: str, queue: MessageQueue, ext: Mapping[str, str]) -> SendResult:
    queue_id = int(ext["queueId"])
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    get = ext.get
    return SendResult(
        status, message_id, ext["msgId"], queue, int(ext["queueOffset"]), get("transactionId", ""),
        get("recallHandle", ""), get("MSG_REGION", "DefaultRegion"), get("TRACE_ON") != "false",
    )  # fmt: skip
