"""Sending messages (RocketMQ: ``DefaultMQProducer``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Unpack

import anyio
import attrs

from verniermq.client.base import Client
from verniermq.client.batch import DEFAULT_BATCH_BYTES, encode_batch, split
from verniermq.client.compression import Compression, check_compression
from verniermq.client.errors import ClientError, TooManyInFlight
from verniermq.client.hooks import SendHook, SendHooks
from verniermq.client.message import ReceivedMessage
from verniermq.client.options import ConnectionOptions
from verniermq.client.outgoing import Outgoing, Preparer
from verniermq.client.requests import Replies
from verniermq.client.results import SendResult
from verniermq.client.selectors import QueueSelector, RoundRobin, queue_by_key
from verniermq.client.sending import Sender
from verniermq.kernel import (
    BadName,
    Command,
    FaultStrategy,
    Handler,
    Message,
    MessageQueue,
    Property,
    RemotingError,
    RequestCode,
    Sending,
    UnexpectedAnswer,
    check_group_name,
    nearest,
)

ROUND_ROBIN = "round_robin"


class ProducerOptions(ConnectionOptions, total=False):
    """The keyword arguments of a :class:`Producer`, for classes that pass them on."""

    send_timeout: float
    timeout_per_try: float | None
    retries: int
    async_retries: int
    retry_another_broker_when_not_store_ok: bool
    compress_over: int
    compression: Compression
    max_message_size: int
    default_queues: int
    max_in_flight: int
    fault: str


class Producer(Client):
    """Sends messages to brokers.

    ::

        async with Producer("orders", namesrv="127.0.0.1:9876") as producer:
            result = await producer.send(Message("topic", b"body", tags="paid", keys=["T1"]))

    :param group: producers that do the same thing share a name; it matters for transactions
    :param send_timeout: seconds for one send with all its retries
    :param timeout_per_try: seconds after which a try gives way to the next one; ``None`` means all that is left
    :param retries: how often :meth:`send` tries again, on another broker if there is one
    :param async_retries: the same for :meth:`submit`
    :param retry_another_broker_when_not_store_ok: try another broker also when one stored the message, but could
        not flush or copy it in time
    :param compress_over: bodies of so many bytes and more are compressed; 0 means never
    :param max_message_size: bytes of a body; larger ones are refused before they are sent
    :param default_queues: queues of a topic that the first message creates
    :param max_in_flight: how many messages of :meth:`submit` may wait for their answers
    :param fault: how brokers that fail are avoided: ``round_robin``, or a strategy of the ``fault`` plugin such as
        ``latency``
    """

    def __init__(
        self,
        group: str,
        *,
        send_timeout: float = 3.0,
        timeout_per_try: float | None = None,
        retries: int = 2,
        async_retries: int = 2,
        retry_another_broker_when_not_store_ok: bool = False,
        compress_over: int = 4096,
        compression: Compression = "zlib",
        max_message_size: int = 4 * 1024 * 1024,
        default_queues: int = 4,
        max_in_flight: int = 1024,
        fault: str = ROUND_ROBIN,
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(**connection)
        check_group_name(group)
        if group == "DEFAULT_PRODUCER":
            raise BadName("group", group, "is reserved; choose one that says what this program sends")
        check_compression(compression)
        if max_in_flight < 1:
            raise ClientError(f"max_in_flight={max_in_flight}, expected at least 1")
        self.group = group
        self.send_timeout = send_timeout
        self._timeout_per_try = timeout_per_try
        self._retries = retries
        self._async_retries = async_retries
        self._retry_another_broker = retry_another_broker_when_not_store_ok
        self._default_queues = default_queues
        self._max_message_size = max_message_size
        self._max_in_flight = max_in_flight
        self._wake_at = max_in_flight * 3 // 4
        self._fault = fault
        self._preparer = Preparer(
            group,
            namespace=self.options.namespace,
            compress_over=compress_over,
            compression=compression,
            max_message_size=max_message_size,
            default_queues=default_queues,
        )
        self._hooks = SendHooks()
        self._replies = Replies()
        self._sender: Sender
        self._in_flight = 0
        self._places: list[asyncio.Future[None]] = []
        self._idle = asyncio.Event()

    # --- sending ---------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a message and wait until the broker has it.

        With ``queue``, ``selector`` or ``sharding_key`` the message goes to the queue they choose and nowhere else, so
        such a send is not retried; messages of one sharding key arrive in the order they were sent.

        Raises:
            SendFailed: no try was answered well within the timeout.
            UnexpectedAnswer: the broker refused the message.
            NoRoute: there is no such topic, and sending does not create it.
            MessageTooLarge, BadMessage, BadName: the message cannot be sent as it is.
        """
        self._ensure_running()
        return await self._send(message, "sync", queue, selector, sharding_key, timeout)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> None:
        """Send a message without waiting for anything: no answer, no retry, and it may be lost.

        Raises:
            RemotingError: there is no connection to send it on.
            NoRoute, MessageTooLarge, BadMessage, BadName: as :meth:`send`.
        """
        self._ensure_running()
        await self._send(message, "oneway", queue, selector, sharding_key, None)

    async def submit(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
        callback: Callable[[SendResult | None, BaseException | None], object] | None = None,
    ) -> asyncio.Future[SendResult]:
        """Send without waiting for the answer: many messages are under way at a time, at most ``max_in_flight``.

        Waits only while that bound is reached. The result, or the error, comes by the future; and by ``callback``,
        called as ``callback(result, error)``.

        Raises:
            TooManyInFlight: the bound stayed full for the whole timeout.
            MessageTooLarge, BadMessage, BadName: the message cannot be sent as it is.
        """
        self._ensure_running()
        if self._in_flight >= self._max_in_flight:
            await self._wait_for_place(self.send_timeout if timeout is None else timeout)
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        if callback is not None:
            future.add_done_callback(lambda done: _call_back(done, callback))
        outgoing = None
        self._in_flight += 1
        try:
            if queue is None and selector is None and sharding_key is None and not self._hooks:
                outgoing = self._preparer.prepare(message)
                if self._begin(outgoing, future, timeout):
                    return future
        except BaseException:
            self._leave()
            raise
        self._background.spawn(
            self._submit_slowly, future, outgoing, message, queue, selector, sharding_key, timeout
        )
        return future

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send several messages of one topic in one request; they end up one after the other in one queue.

        Raises:
            BadBatch: they may not travel together.
            SendFailed, UnexpectedAnswer, NoRoute: as :meth:`send`.
        """
        self._ensure_running()
        batch = list(messages)
        if self._hooks:
            return await self._send_batch_with_hooks(batch, queue, selector, sharding_key, timeout)
        return await self._send_batch(batch, queue, selector, sharding_key, timeout)

    async def _send_batch(
        self, batch: list[Message], queue: MessageQueue | None, selector: QueueSelector | None,
        sharding_key: str | None, timeout: float | None,
    ) -> SendResult:  # fmt: skip
        outgoing = encode_batch(self._preparer, batch)
        chosen = await self._choose(outgoing.topic, batch[0], queue, selector, sharding_key)
        if chosen is None:
            return await self._sender.send(outgoing, timeout)
        return await self._sender.send_to(outgoing, chosen, timeout)

    async def _send_batch_with_hooks(
        self, batch: list[Message], queue: MessageQueue | None, selector: QueueSelector | None,
        sharding_key: str | None, timeout: float | None,
    ) -> SendResult:  # fmt: skip
        """Each message of the batch for itself; if one is refused, all of them are."""
        sendings = [Sending(self.group, self.client_id, message, "sync", queue=queue) for message in batch]
        started = time.monotonic()
        try:
            for sending in sendings:
                await self._hooks.run_before(sending)
            messages = [sending.message for sending in sendings]
            result = await self._send_batch(messages, queue, selector, sharding_key, timeout)
            ids = zip(result.message_id.split(","), result.offset_message_id.split(","), strict=True)
            for position, (sending, (message_id, place)) in enumerate(zip(sendings, ids, strict=True)):
                sending.message_id, sending.queue = message_id, result.queue
                sending.broker = self._routes.broker_address(result.queue.broker_name) or ""
                sending.result = attrs.evolve(
                    result, message_id=message_id, offset_message_id=place, queue_offset=result.queue_offset + position
                )
            return result
        except BaseException as error:
            for sending in sendings:
                sending.error = error
            raise
        finally:
            for sending in sendings:
                sending.latency_ms = (time.monotonic() - started) * 1000
                await self._hooks.run_after(sending)

    async def send_all(
        self, messages: Iterable[Message], *, batch_bytes: int = DEFAULT_BATCH_BYTES, timeout: float | None = None
    ) -> list[SendResult]:
        """Send a list of any length, cut into legal batches; one result per batch.

        Raises:
            MessageTooLarge: a message alone is larger than a batch may be; ``index`` names it.
            SendFailed, UnexpectedAnswer, NoRoute: as :meth:`send`; earlier batches are sent then.
        """
        self._ensure_running()
        batches = list(split(messages, min(batch_bytes, self._max_message_size)))
        results = []
        for batch in batches:
            if len(batch) == 1:
                results.append(await self.send(batch[0], timeout=timeout))
            else:
                results.append(await self.send_batch(batch, timeout=timeout))
        return results

    async def request(
        self,
        message: Message,
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> ReceivedMessage:
        """Send a message and wait for a consumer's reply to it; see :meth:`reply`.

        Raises:
            NoReply: none came in time.
            SendFailed, UnexpectedAnswer, NoRoute: the message could not be sent.
        """
        self._ensure_running()
        started = time.monotonic()
        with self._replies.waiting(timeout) as waiting:
            message.properties.update(waiting.properties(self.client_id, timeout))
            await self._send(message, "sync", queue, selector, sharding_key, timeout)
            return await waiting.reply(message.topic, timeout - (time.monotonic() - started))

    async def reply(
        self, request: ReceivedMessage, body: bytes, *, properties: dict[str, str] | None = None
    ) -> SendResult:
        """Answer a message that a producer sent with :meth:`request`.

        Raises:
            BadMessage: it was not sent so.
            SendFailed, UnexpectedAnswer: the broker could not hand the reply over.
        """
        self._ensure_running()
        message = self._replies.reply_to(request, body, properties or {})
        outgoing = self._preparer.prepare(message, code=RequestCode.SEND_REPLY_MESSAGE_V2)
        route = await self._routes.get(request.queue.topic)
        # The requester is connected to the broker that has its message; only that one can find it.
        queue = MessageQueue(outgoing.topic, request.queue.broker_name, 0)
        return await self._sender.one_try(outgoing, route, queue, self.send_timeout)

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues that messages to a topic may go to.

        Raises:
            NoRoute: there is no such topic.
        """
        self._ensure_running()
        return (await self._sender.route(self._preparer.wire_topic(topic))).writable

    # --- hooks -----------------------------------------------------------------------------

    def before_send(self, hook: SendHook) -> SendHook:
        """Call a function before each send; it may change the message, or refuse it by raising. A decorator."""
        self._hooks.before.append(hook)
        return hook

    def after_send(self, hook: SendHook) -> SendHook:
        """Call a function after each send, whether it went well or not. A decorator."""
        self._hooks.after.append(hook)
        return hook

    # --- how -------------------------------------------------------------------------------

    async def _send(
        self,
        message: Message,
        mode: Literal["sync", "async", "oneway"],
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        sharding_key: str | None,
        timeout: float | None,
    ) -> SendResult:
        if not self._hooks:
            outgoing = self._preparer.prepare(message)
            return await self._send_prepared(outgoing, message, mode, queue, selector, sharding_key, timeout)
        sending = Sending(self.group, self.client_id, message, mode, queue=queue)
        started = time.monotonic()
        try:
            await self._hooks.run_before(sending)
            message = sending.message
            outgoing = self._preparer.prepare(message)
            sending.message_id = outgoing.message_id
            result = await self._send_prepared(outgoing, message, mode, queue, selector, sharding_key, timeout)
            if mode != "oneway":
                sending.result, sending.queue = result, result.queue
                sending.broker = self._routes.broker_address(result.queue.broker_name) or ""
            return result
        except BaseException as error:
            sending.error = error
            raise
        finally:
            sending.latency_ms = (time.monotonic() - started) * 1000
            await self._hooks.run_after(sending)

    async def _send_prepared(
        self,
        outgoing: Outgoing,
        message: Message,
        mode: str,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        sharding_key: str | None,
        timeout: float | None,
    ) -> SendResult:
        chosen = await self._choose(outgoing.topic, message, queue, selector, sharding_key)
        if sharding_key is not None:
            outgoing.ext["i"] += f"{Property.SHARDING_KEY}\x01{sharding_key}\x02"
        if mode == "oneway":
            await self._sender.oneway(outgoing, chosen)
            return None  # type: ignore[return-value]  # nobody looks: send_oneway returns nothing
        if mode == "async":
            return await self._sender.send_async(outgoing, chosen, timeout)
        if chosen is not None:
            return await self._sender.send_to(outgoing, chosen, timeout)
        return await self._sender.send(outgoing, timeout)

    async def _choose(
        self, topic: str, message: Message, queue: MessageQueue | None, selector: QueueSelector | None,
        sharding_key: str | None,
    ) -> MessageQueue | None:  # fmt: skip
        if queue is not None:
            return queue
        if selector is None and sharding_key is None:
            return None
        route = await self._sender.route(topic)
        if selector is not None:
            return selector(route.writable, message)
        assert sharding_key is not None
        return queue_by_key(route.writable, sharding_key)

    # --- many at a time --------------------------------------------------------------------

    def _begin(self, outgoing: Outgoing, future: asyncio.Future[SendResult], timeout: float | None) -> bool:
        """Send without waiting for anything; say whether all that this needs was there."""
        route = self._routes.known(outgoing.topic)
        if route is None or route.provisional or not route.writable:
            return False
        sender = self._sender
        queue = sender.strategy.choose(route.writable, None)
        address = route.master(queue.broker_name)
        connection = self._pool.live(address) if address is not None else None
        if address is None or connection is None or not connection.is_writable:
            return False
        command = outgoing.command(queue)
        self._pool.sign(command)
        started = time.monotonic()
        limit = self.send_timeout if timeout is None else timeout

        def answered(answer: Command | None, error: Exception | None) -> None:
            self._leave()
            if future.done():
                return
            try:
                if answer is not None:
                    future.set_result(sender.answered(outgoing, route, queue, address, answer, started))
                    return
            except RemotingError as refused:
                error = refused
            assert error is not None
            left = limit - (time.monotonic() - started)
            lost = isinstance(error, RemotingError) and not isinstance(error, UnexpectedAnswer)
            if lost and left > 0 and self._async_retries > 0 and self._state == "runs":
                sender.failed(queue, started, error)
                self._in_flight += 1
                self._background.spawn(self._submit_again, future, outgoing, queue, error, left)
            else:
                future.set_exception(error)

        connection.begin(command, limit, answered)
        return True

    async def _submit_again(
        self, future: asyncio.Future[SendResult], outgoing: Outgoing, queue: MessageQueue, error: Exception,
        timeout: float,
    ) -> None:  # fmt: skip
        try:
            result = await self._sender.send_async_again(outgoing, queue, str(error), timeout)
        except BaseException as failure:
            _fail(future, failure)
        else:
            if not future.done():
                future.set_result(result)
        finally:
            self._leave()

    async def _submit_slowly(
        self, future: asyncio.Future[SendResult], outgoing: Outgoing | None, message: Message,
        queue: MessageQueue | None, selector: QueueSelector | None, sharding_key: str | None, timeout: float | None,
    ) -> None:  # fmt: skip
        try:
            if outgoing is not None:
                result = await self._send_prepared(outgoing, message, "async", queue, selector, sharding_key, timeout)
            else:
                result = await self._send(message, "async", queue, selector, sharding_key, timeout)
        except BaseException as error:
            _fail(future, error)
        else:
            if not future.done():
                future.set_result(result)
        finally:
            self._leave()

    async def _wait_for_place(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self._in_flight >= self._max_in_flight:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._places.append(place)
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                    await place
            except TimeoutError:
                raise TooManyInFlight(self._max_in_flight, timeout) from None

    def _leave(self) -> None:
        self._in_flight -= 1
        # Whoever waits is woken when there is room for many: waking somebody costs more than sending.
        if self._places and self._in_flight <= self._wake_at:
            for place in self._places:
                if not place.done():
                    place.set_result(None)
            self._places.clear()
        if not self._in_flight:
            self._idle.set()

    async def flush(self) -> None:
        """Wait until every message of :meth:`submit` has its answer."""
        while self._in_flight:
            self._idle.clear()
            await self._idle.wait()

    # --- life ------------------------------------------------------------------------------

    def _wanted_plugins(self) -> tuple[str, ...]:
        return () if self._fault == ROUND_ROBIN else ("fault",)

    def _handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._replies.arrived}

    def _heartbeat_data(self) -> dict[str, Any] | None:
        return {"producerDataSet": [{"groupName": self._preparer.group}]}

    async def _started(self) -> None:
        self._hooks.add_plugins(self.host)
        self._sender = Sender(
            self._pool,
            self._routes,
            self._strategy(),
            self._name_servers.text,
            self.send_timeout,
            self._timeout_per_try,
            self._retries,
            self._async_retries,
            self._retry_another_broker,
            self._default_queues,
        )

    def _strategy(self) -> FaultStrategy:
        if self._fault == ROUND_ROBIN:
            return RoundRobin()
        strategy: FaultStrategy | None = self.host.ask("fault_strategy", self._fault)
        if strategy is None:
            known = [ROUND_ROBIN, "latency", "timeout", "flag", "fewest_failures"]
            raise ClientError(
                f"fault={self._fault!r}: no plugin of this producer knows that strategy; {nearest(self._fault, known)}"
            )
        return strategy

    async def _stopping(self) -> None:
        with anyio.move_on_after(self.send_timeout):
            await self.flush()
        for address in self._pool.connected():
            if address in self.options.namesrv:
                continue
            try:
                await self._api.unregister(address, self.client_id, producer_group=self._preparer.group)
            except RemotingError:
                pass  # closing the connection tells the broker the same


def _call_back(
    done: asyncio.Future[SendResult], callback: Callable[[SendResult | None, BaseException | None], object]
) -> None:
    if not done.cancelled():
        error = done.exception()
        callback(None if error else done.result(), error)


def _fail(future: asyncio.Future[SendResult], error: BaseException) -> None:
    if not future.done():
        if isinstance(error, asyncio.CancelledError):
            future.cancel()
        else:
            future.set_exception(error)
    if not isinstance(error, Exception):
        raise error
