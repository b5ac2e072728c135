"""Sending messages (RocketMQ: ``DefaultMQProducer``)."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Unpack

import anyio
import attrs

from verniermq.client import hookspecs
from verniermq.client.asyncsender import AsyncSender, Bound, Callback, call_back
from verniermq.client.base import Client
from verniermq.client.batch import DEFAULT_BATCH_BYTES, encode_batch, split
from verniermq.client.compression import Compression, check_compression
from verniermq.client.encoder import EncodedMessage, MessageEncoder, check_message
from verniermq.client.errors import BadMessage, ClientError
from verniermq.client.hooks import SendHook, SendHooks
from verniermq.client.java import shown
from verniermq.client.message import ReceivedMessage
from verniermq.client.names import with_namespace
from verniermq.client.options import ConnectionOptions, check_numbers, check_seconds
from verniermq.client.recall import read_handle
from verniermq.client.replies import Replies
from verniermq.client.results import SendResult
from verniermq.client.selectors import QueueSelector, RoundRobinSelector, ask_selector, queue_by_key
from verniermq.client.sender import Sender
from verniermq.kernel import (
    BadName,
    FaultStrategy,
    Handler,
    Message,
    MessageQueue,
    Property,
    RemotingError,
    RequestCode,
    Sending,
    check_group_name,
    nearest,
)

ROUND_ROBIN: Final = "round_robin"


class Producer(Client):
    """Sends messages to brokers.

    ::

        async with Producer("orders", namesrv="127.0.0.1:9876") as producer:
            result = await producer.send(Message("topic", b"body", tags="paid", keys=["T1"]))

    Args:
        group: producers that do the same thing share a name; it matters for transactions
        send_timeout: seconds for one send with all its retries
        timeout_per_try: seconds after which a try gives way to the next one; ``None`` means all that is left
        retries: how often :meth:`send` tries again, on another broker if there is one
        async_retries: the same for :meth:`submit`, which stays at its broker
        retry_another_broker_when_not_store_ok: try another broker also when one stored the message, but could
            not flush or copy it in time
        compress_over: bodies of so many bytes and more are compressed; 0 means never
        max_message_size: bytes of a body; larger ones are refused before they are sent
        default_queues: queues of a topic that the first message creates
        max_in_flight: how many messages of :meth:`submit` may wait for their answers
        fault: how brokers that fail are avoided: ``round_robin``, or a strategy of the ``fault`` plugin such as
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
        check_numbers(1, max_in_flight=max_in_flight, max_message_size=max_message_size, default_queues=default_queues)
        check_numbers(0, retries=retries, async_retries=async_retries, compress_over=compress_over)
        check_seconds(send_timeout=send_timeout, timeout_per_try=timeout_per_try)
        self.group = group
        self.send_timeout = send_timeout
        self._timeout_per_try = timeout_per_try
        self._retries = retries
        self._async_retries = async_retries
        self._retry_another_broker = retry_another_broker_when_not_store_ok
        self._default_queues = default_queues
        self._max_message_size = max_message_size
        self._fault = fault
        self._encoder = MessageEncoder(
            group,
            namespace=self.options.namespace,
            compress_over=compress_over,
            compression=compression,
            max_message_size=max_message_size,
            default_queues=default_queues,
        )
        self._hooks = SendHooks()
        self._replies = Replies()
        self._bound = Bound(max_in_flight)
        self._known_callback: object = None
        """The code of the last callback: most programs have one, and looking at it once is enough."""
        self._sender: Sender
        self._async_sender: AsyncSender

    async def flush(self) -> None:
        """Wait until every message of :meth:`submit` has its answer."""
        await self._bound.flush()

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
        if timeout is not None:
            check_seconds(timeout=timeout)
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
        callback: Callback | None = None,
    ) -> asyncio.Future[SendResult]:
        """Send without waiting for the answer: many messages are under way at a time, at most ``max_in_flight``.

        Waits only while that bound is reached. The result, or the error, comes by the future; and by ``callback``,
        called as ``callback(result, error)``.

        Raises:
            TooManyInFlight: the bound stayed full for the whole timeout.
            ClientError: ``callback`` cannot be called so.
            MessageTooLarge, BadMessage, BadName: the message cannot be sent as it is.
        """
        self._ensure_running()
        if callback is not None and (code := getattr(callback, "__code__", callback)) is not self._known_callback:
            _check_callback(callback)
            self._known_callback = code
        if timeout is not None:
            check_seconds(timeout=timeout)
        bound = self._bound
        if bound.count >= bound.limit:
            await bound.enter(self.send_timeout if timeout is None else timeout)
        else:
            bound.count += 1
        future: asyncio.Future[SendResult] = self._async_sender.loop.create_future()
        try:
            if self._hooks or queue is not None or selector is not None or sharding_key is not None:
                work = self._send(message, "async", queue, selector, sharding_key, timeout)
            else:
                plain = self._encoder.plain(message)
                if plain is not None and self._async_sender.begin(plain, future, callback, timeout):
                    return future
                outgoing = self._encoder.prepare(message) if plain is None else self._encoder.whole(plain)
                work = self._sender.send_async(outgoing, None, timeout)
        except BaseException:
            bound.leave()
            raise
        if callback is not None:
            future.add_done_callback(lambda done: call_back(done, callback))
        self._background.spawn(self._async_sender.complete, future, work)
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
        check_seconds(timeout=timeout)
        batch = _listed(messages)
        if self._hooks:
            return await self._send_batch_with_hooks(batch, queue, selector, sharding_key, timeout)
        return await self._send_batch(batch, queue, selector, sharding_key, timeout)

    async def send_all(
        self, messages: Iterable[Message], *, batch_bytes: int = DEFAULT_BATCH_BYTES, timeout: float | None = None
    ) -> list[SendResult]:
        """Send a list of any length, cut into legal batches; one result per batch.

        A message that is larger than ``batch_bytes`` goes alone, and so does one that may not be in a batch.

        Raises:
            MessageTooLarge, BadMessage: one of them cannot be sent at all, so none is; ``index`` names it.
            SendFailed, UnexpectedAnswer, NoRoute: as :meth:`send`; earlier batches are sent then.
        """
        self._ensure_running()
        given = _listed(messages)
        for index, message in enumerate(given):
            self._encoder.check_parts(message, index)
        batches = list(split(given, min(batch_bytes, self._max_message_size)))
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
        check_seconds(timeout=timeout)
        started = time.monotonic()
        with self._replies.waiting(timeout) as waiting:
            asked = {**message.properties, **waiting.properties(self.client_id, timeout)}
            message = attrs.evolve(message, properties=asked)
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
        outgoing = self._encoder.prepare(message, code=RequestCode.SEND_REPLY_MESSAGE_V2)
        route = await self._routes.get(request.queue.topic)
        # The requester is connected to the broker that has its message; only that one can find it.
        queue = MessageQueue(outgoing.topic, request.queue.broker_name, 0)
        return await self._sender.one_try(outgoing, route, queue, self.send_timeout)

    async def recall(self, sent: SendResult | str) -> str:
        """Take a message with a delivery time back before that time, by the result of its send or its recall handle.

        Returns the id of the message (RocketMQ: ``recallMessage``).

        Raises:
            BadMessage: there is nothing to take it back by: only messages with a delivery time have a handle.
            UnexpectedAnswer: the broker refused, since it is too late or it does not do this.
            RemotingError: it did not answer.
        """
        self._ensure_running()
        text, handle = read_handle(sent)
        route = await self._routes.get(handle.topic)
        address = self._sender.address(route, MessageQueue(handle.topic, handle.broker, 0))
        return await self._api.recall(address, self._encoder.group, handle.topic, handle.broker, text)

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues that messages to a topic may go to.

        Raises:
            NoRoute: there is no such topic.
        """
        self._ensure_running()
        return (await self._sender.route(self._encoder.wire_topic(topic))).writable

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
            outgoing = self._encoder.prepare(message)
            return await self._send_prepared(outgoing, message, mode, queue, selector, sharding_key, timeout)
        sending = Sending(self.group, self.client_id, message, mode, queue=queue)
        started = time.monotonic()
        try:
            await self._hooks.run_before(sending)
            message = sending.message
            outgoing = self._encoder.prepare(message)
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
        outgoing: EncodedMessage,
        message: Message,
        mode: str,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        sharding_key: str | None,
        timeout: float | None,
    ) -> SendResult:
        chosen = await self._choose(outgoing.topic, message, queue, selector, sharding_key)
        if sharding_key is not None:
            outgoing.request.properties += f"{Property.SHARDING_KEY}\x01{sharding_key}\x02"
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
        if queue is None and selector is None and sharding_key is None:
            return None
        if (queue is not None) + (selector is not None) + (sharding_key is not None) > 1:
            raise ClientError("queue, selector and sharding_key each choose the queue; give one of them")
        if queue is not None:
            return _checked_queue(queue, topic, self.options.namespace)
        if sharding_key is not None and not isinstance(sharding_key, str):
            raise ClientError(f"sharding_key={shown(sharding_key)}, expected a text; write str({shown(sharding_key)})")
        route = await self._sender.route(topic)
        if selector is not None:
            return ask_selector(selector, route.writable, message)
        assert sharding_key is not None
        return queue_by_key(route.writable, sharding_key)

    async def _send_batch(
        self, batch: list[Message], queue: MessageQueue | None, selector: QueueSelector | None,
        sharding_key: str | None, timeout: float | None,
    ) -> SendResult:  # fmt: skip
        outgoing = encode_batch(self._encoder, batch)
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

    # --- life ------------------------------------------------------------------------------

    def _wanted_plugins(self) -> tuple[str, ...]:
        return () if self._fault == ROUND_ROBIN else ("fault",)

    def _handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._replies.arrived}

    def _heartbeat_data(self) -> dict[str, Any] | None:
        return {"producerDataSet": [{"groupName": self._encoder.group}]}

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
        self._async_sender = AsyncSender(
            self._pool, self._routes, self._sender, self._encoder, self._background, self._bound
        )

    def _strategy(self) -> FaultStrategy:
        if self._fault == ROUND_ROBIN:
            return RoundRobinSelector()
        strategy = self.host.ask(hookspecs.fault_strategy, self._fault)
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
                await self._api.unregister(address, self.client_id, producer_group=self._encoder.group)
            except RemotingError:
                pass  # closing the connection tells the broker the same


def _listed(messages: Iterable[Message]) -> list[Message]:
    """
    Raises:
        BadMessage: it is one message and not several.
    """
    if isinstance(messages, Message | ReceivedMessage):
        raise BadMessage("one message, where a list of them is expected; send(message) sends one")
    given = list(messages)
    for message in given:
        if message.__class__ is not Message:
            check_message(message)
    return given


def _checked_queue(queue: MessageQueue, topic: str, namespace: str) -> MessageQueue:
    """
    Raises:
        ClientError: it is no queue, or one of another topic.
    """
    if not isinstance(queue, MessageQueue):
        raise ClientError(f"queue={shown(queue)}, expected a MessageQueue: one of those that queues(topic) lists")
    if topic not in (queue.topic, with_namespace(namespace, queue.topic)):
        raise ClientError(f"queue={queue} is of topic {queue.topic!r}, and the message goes to {topic!r}")
    return queue


def _check_callback(callback: Callback) -> None:
    """
    Raises:
        ClientError: it cannot be called with a result and an error.
    """
    try:
        inspect.signature(callback, follow_wrapped=False).bind(None, None)
    except TypeError as error:
        raise ClientError(
            f"callback={shown(callback)} cannot be called as callback(result, error) ({error}); one of the two is None"
        ) from None
    except ValueError:
        pass  # a builtin that does not tell its arguments
