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
NOT_MASTER: Final = ResponseCode.SERVICE_NOT_AVAILABLE
"""What a slave answers, among them one that was the master a moment ago: it has not taken the message."""

LOOK_SECONDS: Final = 1.0
LOOK_EVERY: Final = 0.2
"""How often the name server is asked whether a broker that cannot be reached is elsewhere, while a send waits."""
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
            raise NotWritable(topic, self.name_servers, route.without_master)
        return route

    async def _route(self, topic: str, deadline: float) -> Route:
        """The same; while brokers have no master, as between two of them, it waits for one as long as it may.

        Raises:
            NoRoute, NotWritable, NameServerUnreachable: it cannot be sent to this topic now.
        """
        while True:
            try:
                return await self.route(topic)
            except NotWritable as error:
                if not error.without_master or deadline - time.monotonic() < LOOK_EVERY:
                    raise
                await asyncio.sleep(LOOK_EVERY)
                await self._fetch(topic, deadline)

    def address(self, route: Route, queue: MessageQueue) -> str:
        """
        Raises:
            PeerUnreachable: the broker has no master now.
        """
        address = route.master(queue.broker_name) or self.routes.master_address(queue.broker_name)
        if address is None:
            raise PeerUnreachable(queue.broker_name, "the name server knows no master of this broker")
        return address

    async def _reachable(self, route: Route, queue: MessageQueue, deadline: float) -> str:
        """Where to send to. While a broker has no master, or its master refuses connections, the name server is asked
        again and again: a slave may be the master already.

        Raises:
            PeerUnreachable: the broker has no master now.
        """
        name = queue.broker_name
        while True:
            master = route.master(name)
            has_slaves = master is None and bool(route.brokers.get(name))
            if not has_slaves and (master is None or not self.pool.is_resting(master)):
                return self.address(route, queue)
            if deadline - time.monotonic() <= LOOK_EVERY:
                return self.address(route, queue)
            await self._fetch(route.topic, deadline)
            route = self.routes.known(route.topic) or route
            if route.master(name) in (None, master):
                await asyncio.sleep(LOOK_EVERY if master is None else min(LOOK_EVERY, self.pool.rest(master)))

    async def _look_again(self, topic: str, error: RemotingError, deadline: float) -> None:
        """A broker that is not where it was may be elsewhere: ask before the next try, if there is time."""
        is_refusal = isinstance(error, UnexpectedAnswer) and error.code == NOT_MASTER
        if is_refusal or isinstance(error, PeerUnreachable | ConnectionLost):
            await self._fetch(topic, deadline)

    async def _fetch(self, topic: str, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
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
            route = await self._route(outgoing.topic, deadline)
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
                await self._look_again(outgoing.topic, error, deadline)
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
        """Send to this queue, once: whoever chose it would not want the message in another. A broker that is no master
        any more has not taken it, so its new master is asked.

        Raises:
            SendFailed: it was not answered.
            UnexpectedAnswer: the broker refused it.
        """
        timeout = self.timeout if timeout is None else timeout
        started = time.monotonic()
        deadline = started + timeout
        while True:
            route = await self._route(outgoing.topic, deadline)
            try:
                return await self.one_try(outgoing, route, queue, max(deadline - time.monotonic(), 0.001))
            except UnexpectedAnswer as error:
                if not await self._is_elsewhere(route, queue, error, deadline):
                    raise
            except RemotingError as error:
                raise SendFailed(outgoing.topic, [str(error)], time.monotonic() - started) from error

    async def _is_elsewhere(self, route: Route, queue: MessageQueue, error: UnexpectedAnswer, deadline: float) -> bool:
        """Whether whoever refused a message is no master any more, and its broker has another one."""
        if error.code != NOT_MASTER:
            return False
        await self._fetch(route.topic, deadline)
        known = self.routes.known(route.topic)
        return known is not None and known.master(queue.broker_name) not in (None, error.address)

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
            route = await self._route(outgoing.topic, started + timeout)
            if chosen is None:
                chosen = self.strategy.choose(route.writable, None)
            try:
                return await self.one_try(outgoing, route, chosen, left)
            except UnexpectedAnswer as error:
                if not await self._is_elsewhere(route, chosen, error, started + timeout):
                    raise
                tries.append(str(error))
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
            address = await self._reachable(route, queue, started + timeout)
            left = max(started + timeout - time.monotonic(), 0.001)
            answer = await self.pool.request(address, outgoing.command(queue), left)
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
