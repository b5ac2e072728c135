"""Blocking producers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypeVar, Unpack

from verniermq.client import producer as async_producer
from verniermq.client import transaction as async_transaction
from verniermq.client.batch import DEFAULT_BATCH_BYTES
from verniermq.client.hooks import SendHook
from verniermq.client.message import ReceivedMessage
from verniermq.client.options import ProducerOptions
from verniermq.client.results import SendResult
from verniermq.client.selectors import QueueSelector
from verniermq.client.sync.base import SyncClient
from verniermq.client.transaction import Checker, LocalTransaction, TransactionState
from verniermq.kernel import Message, MessageQueue

P = TypeVar("P", bound=async_producer.Producer)


class _Producer(SyncClient[P]):
    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a message and wait until the broker has it; see :meth:`verniermq.client.Producer.send`."""
        client = self._running()
        return self._call(
            client.send, message, queue=queue, selector=selector, sharding_key=sharding_key, timeout=timeout
        )

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> None:
        """Send a message without waiting for anything."""
        client = self._running()
        self._call(client.send_oneway, message, queue=queue, selector=selector, sharding_key=sharding_key)

    def submit(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
        callback: Callable[[SendResult | None, BaseException | None], object] | None = None,
    ) -> Future[SendResult]:
        """Send without waiting for the answer; it waits only while too many are under way.

        ``callback`` is called in the loop's thread: it must be quick, and must not call the client.
        """
        client = self._running()
        answer: Future[SendResult] = Future()

        async def begin() -> None:
            future = await client.submit(
                message,
                queue=queue,
                selector=selector,
                sharding_key=sharding_key,
                timeout=timeout,
                callback=callback,
            )
            future.add_done_callback(lambda done: _pass_on(done, answer))

        self._call(begin)
        return answer

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send several messages of one topic in one request."""
        client = self._running()
        return self._call(
            client.send_batch, messages, queue=queue, selector=selector, sharding_key=sharding_key, timeout=timeout
        )

    def send_all(
        self, messages: Iterable[Message], *, batch_bytes: int = DEFAULT_BATCH_BYTES, timeout: float | None = None
    ) -> list[SendResult]:
        """Send a list of any length, cut into legal batches."""
        return self._call(self._running().send_all, messages, batch_bytes=batch_bytes, timeout=timeout)

    def request(
        self,
        message: Message,
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> ReceivedMessage:
        """Send a message and wait for a consumer's reply to it."""
        client = self._running()
        return self._call(
            client.request, message, timeout=timeout, queue=queue, selector=selector, sharding_key=sharding_key
        )

    def reply(self, request: ReceivedMessage, body: bytes, *, properties: dict[str, str] | None = None) -> SendResult:
        """Answer a message that a producer sent with :meth:`request`."""
        return self._call(self._running().reply, request, body, properties=properties)

    def recall(self, sent: SendResult | str) -> str:
        """Take a message with a delivery time back before that time, by the result of its send or its handle."""
        return self._call(self._running().recall, sent)

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues that messages to a topic may go to."""
        return self._call(self._running().queues, topic)

    def flush(self) -> None:
        """Wait until every message of :meth:`submit` has its answer."""
        self._call(self._running().flush)

    def before_send(self, hook: SendHook) -> SendHook:
        """Call a function before each send, in the loop's thread. A decorator."""
        return self._client.before_send(hook)

    def after_send(self, hook: SendHook) -> SendHook:
        """Call a function after each send, in the loop's thread. A decorator."""
        return self._client.after_send(hook)


class Producer(_Producer[async_producer.Producer]):
    """Sends messages; takes the arguments of :class:`verniermq.client.Producer`.

    ::

        with Producer("orders", namesrv="127.0.0.1:9876") as producer:
            producer.send(Message("topic", b"body"))
    """

    def __init__(self, group: str, **options: Unpack[ProducerOptions]) -> None:
        super().__init__(lambda: async_producer.Producer(group, **options))
        self.group = group


class Transaction:
    """One transaction, as a ``with`` block."""

    def __init__(self, producer: TransactionProducer, inner: async_transaction.Transaction) -> None:
        self._producer = producer
        self._inner = inner

    @property
    def id(self) -> str:
        return self._inner.id

    def commit(self) -> None:
        self._inner.commit()

    def rollback(self) -> None:
        self._inner.rollback()

    def unknown(self) -> None:
        self._inner.unknown()

    def __enter__(self) -> Self:
        self._producer._call(self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._producer._call(self._inner.__aexit__, kind, error, traceback)


class TransactionProducer(_Producer[async_transaction.TransactionProducer]):
    """Sends messages together with a local transaction; see :class:`verniermq.client.TransactionProducer`."""

    def __init__(self, group: str, *, checker: Checker | None = None, **options: Unpack[ProducerOptions]) -> None:
        self._checker = checker
        super().__init__(lambda: async_transaction.TransactionProducer(group, checker=self._checker, **options))
        self.group = group

    def on_check(self, checker: Checker) -> Checker:
        """Set the function that knows what became of a transaction; it runs in a worker thread. A decorator."""
        self._checker = checker
        return self._client.on_check(checker)

    def transaction(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> Transaction:
        """A block in which the local transaction runs: its end commits, an exception rolls back."""
        inner = self._running().transaction(message, queue=queue, selector=selector, sharding_key=sharding_key)
        return Transaction(self, inner)

    def send_in_transaction(
        self,
        message: Message,
        local: LocalTransaction,
        *arguments: object,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> tuple[SendResult, TransactionState]:
        """Store the message, run ``local(message, transaction_id, *arguments)`` in a thread, tell the outcome."""
        client = self._running()
        return self._call(
            client.send_in_transaction, message, local, *arguments,
            queue=queue, selector=selector, sharding_key=sharding_key,
        )  # fmt: skip


def _pass_on(done: asyncio.Future[SendResult], answer: Future[SendResult]) -> None:
    if done.cancelled():
        answer.cancel()
    elif (error := done.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(done.result())
