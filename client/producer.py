"""Sending messages (RocketMQ: ``DefaultMQProducer``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

import attrs

from verniermq.client.batch import DEFAULT_BATCH_BYTES, split
from verniermq.client.message import ReceivedMessage
from verniermq.client.producing import ProducerBase
from verniermq.client.results import SendResult
from verniermq.client.selectors import QueueSelector
from verniermq.client.submitting import Callback, call_back
from verniermq.kernel import Message, MessageQueue, RequestCode


class Producer(ProducerBase):
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
        callback: Callback | None = None,
    ) -> asyncio.Future[SendResult]:
        """Send without waiting for the answer: many messages are under way at a time, at most ``max_in_flight``.

        Waits only while that bound is reached. The result, or the error, comes by the future; and by ``callback``,
        called as ``callback(result, error)``.

        Raises:
            TooManyInFlight: the bound stayed full for the whole timeout.
            MessageTooLarge, BadMessage, BadName: the message cannot be sent as it is.
        """
        self._ensure_running()
        bound = self._bound
        if bound.count >= bound.limit:
            await bound.enter(self.send_timeout if timeout is None else timeout)
        else:
            bound.count += 1
        future: asyncio.Future[SendResult] = self._submitter.loop.create_future()
        try:
            if self._hooks or queue is not None or selector is not None or sharding_key is not None:
                work = self._send(message, "async", queue, selector, sharding_key, timeout)
            else:
                plain = self._preparer.plain(message)
                if plain is not None and self._submitter.begin(plain, future, callback, timeout):
                    return future
                outgoing = self._preparer.prepare(message) if plain is None else self._preparer.whole(plain)
                work = self._sender.send_async(outgoing, None, timeout)
        except BaseException:
            bound.leave()
            raise
        if callback is not None:
            future.add_done_callback(lambda done: call_back(done, callback))
        self._background.spawn(self._submitter.complete, future, work)
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
