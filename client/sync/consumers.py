"""Blocking consumers. Handlers are plain functions and run in worker threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Unpack

from verniermq.client.consumer import litepull, pull, push, simple
from verniermq.client.consumer.litepull import LitePullOptions
from verniermq.client.consumer.outcome import BatchHandler, MessageHandler
from verniermq.client.consumer.pull import TOOLS_GROUP
from verniermq.client.consumer.settings import PushOptions
from verniermq.client.consumer.simple import SimpleOptions
from verniermq.client.consumer.subscription import ALL, Selector
from verniermq.client.message import ReceivedMessage
from verniermq.client.options import ConnectionOptions
from verniermq.client.results import PullResult
from verniermq.client.sync.base import SyncClient
from verniermq.kernel import MessageQueue


class PushConsumer(SyncClient[push.PushConsumer]):
    """Hands messages to a function, or to a ``for``; takes the arguments of :class:`verniermq.client.PushConsumer`.

    ::

        consumer = PushConsumer("billing")
        consumer.subscribe("orders")

        @consumer.on_message
        def bill(message): ...

        with consumer:
            threading.Event().wait()
    """

    restarts_after_fork = False

    def __init__(self, group: str, **options: Unpack[PushOptions]) -> None:
        super().__init__(lambda: push.PushConsumer(group, **options))
        self.group = group

    def subscribe(self, topic: str, selector: Selector = ALL) -> None:
        """Want the messages of a topic."""
        if self._pid:
            self._plainly(self._running().subscribe, topic, selector)
        else:
            self._client.subscribe(topic, selector)

    def unsubscribe(self, topic: str) -> None:
        if self._pid:
            self._plainly(self._running().unsubscribe, topic)
        else:
            self._client.unsubscribe(topic)

    def on_message(self, handler: MessageHandler) -> MessageHandler:
        """Have a function called with each message. A decorator."""
        return self._client.on_message(handler)

    def on_batch(self, handler: BatchHandler) -> BatchHandler:
        """Have a function called with lists of messages. A decorator."""
        return self._client.on_batch(handler)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """The messages, one after the other; each is consumed when the next one is asked for."""
        iterator = aiter(self._running())
        while True:
            try:
                yield self._call(iterator.__anext__)
            except StopAsyncIteration:
                return

    def later(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """In a ``for``: this message was not consumed; offer it again."""
        self._plainly(self._running().later, message, delay_level)

    def pause(self) -> None:
        self._plainly(self._running().pause)

    def resume(self) -> None:
        self._plainly(self._running().resume)

    @property
    def assignment(self) -> set[MessageQueue]:
        """The queues that are this member's now."""
        return self._running().assignment

    def lag(self) -> dict[MessageQueue, int]:
        """How many messages of each queue are not consumed yet."""
        return self._call(self._running().lag)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._call(self._client.__aexit__, kind, error, traceback)
        self.close()


class LitePullConsumer(SyncClient[litepull.LitePullConsumer]):
    """Polls; takes the arguments of :class:`verniermq.client.LitePullConsumer`."""

    restarts_after_fork = False

    def __init__(self, group: str, **options: Unpack[LitePullOptions]) -> None:
        super().__init__(lambda: litepull.LitePullConsumer(group, **options))
        self.group = group

    def subscribe(self, topic: str, selector: Selector = ALL) -> None:
        if self._pid:
            self._plainly(self._running().subscribe, topic, selector)
        else:
            self._client.subscribe(topic, selector)

    def assign(self, queues: Iterable[MessageQueue], selector: Selector = ALL) -> None:
        self._call(self._running().assign, queues, selector)

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        return self._call(self._running().queues, topic)

    @property
    def assignment(self) -> set[MessageQueue]:
        return self._running().assignment

    def poll(self, timeout: float = 5.0, max_messages: int | None = None) -> list[ReceivedMessage]:
        """The next messages, waiting for the first one up to ``timeout`` seconds."""
        return self._call(self._running().poll, timeout, max_messages)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while True:
            yield from self.poll()

    def commit(self) -> None:
        self._call(self._running().commit)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self._call(self._running().seek, queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        self._call(self._running().seek_to_begin, queue)

    def seek_to_end(self, queue: MessageQueue) -> None:
        self._call(self._running().seek_to_end, queue)

    def offset_at(self, queue: MessageQueue, when: datetime | int) -> int:
        return self._call(self._running().offset_at, queue, when)

    def committed(self, queue: MessageQueue) -> int | None:
        return self._call(self._running().committed, queue)

    def pause(self, *queues: MessageQueue) -> None:
        self._plainly(self._running().pause, *queues)

    def resume(self, *queues: MessageQueue) -> None:
        self._plainly(self._running().resume, *queues)


class SimpleConsumer(SyncClient[simple.SimpleConsumer]):
    """Receives and acknowledges; takes the arguments of :class:`verniermq.client.SimpleConsumer`.

    ::

        with SimpleConsumer("billing") as consumer:
            consumer.subscribe("orders")
            for message in consumer.receive(16):
                ...
                consumer.ack(message)          # from any thread
    """

    restarts_after_fork = False

    def __init__(self, group: str, **options: Unpack[SimpleOptions]) -> None:
        super().__init__(lambda: simple.SimpleConsumer(group, **options))
        self.group = group

    def subscribe(self, topic: str, selector: Selector = ALL) -> None:
        if self._pid:
            self._plainly(self._running().subscribe, topic, selector)
        else:
            self._client.subscribe(topic, selector)

    def unsubscribe(self, topic: str) -> None:
        if self._pid:
            self._plainly(self._running().unsubscribe, topic)
        else:
            self._client.unsubscribe(topic)

    def receive(
        self, max_messages: int = 1, *, wait: float | None = None, invisible: float | None = None
    ) -> list[ReceivedMessage]:
        """Up to ``max_messages`` messages, waiting for the first one; none if the time is over."""
        return self._call(self._running().receive, max_messages, wait=wait, invisible=invisible)

    def wait_for_messages(self, seconds: float) -> None:
        """Return when there may be something to receive, or the time is over."""
        self._call(self._running().wait_for_messages, seconds)

    def ack(self, message: ReceivedMessage) -> None:
        """The message is done with."""
        self._call(self._running().ack, message)

    def change_invisible(self, message: ReceivedMessage, seconds: float) -> None:
        """Have the message come again in so many seconds from now, unless it is acknowledged before."""
        self._call(self._running().change_invisible, message, seconds)

    def dead_letter(self, message: ReceivedMessage, reason: str = "") -> bool:
        """Put the message to the group's dead letters now."""
        return self._call(self._running().dead_letter, message, reason)


class PullConsumer(SyncClient[pull.PullConsumer]):
    """Reads queues by hand; see :class:`verniermq.client.PullConsumer`."""

    def __init__(self, group: str = TOOLS_GROUP, **connection: Unpack[ConnectionOptions]) -> None:
        super().__init__(lambda: pull.PullConsumer(group, **connection))
        self.group = group

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        return self._call(self._running().queues, topic)

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        selector: Selector = ALL,
        wait: float = 0.0,
    ) -> PullResult:
        client = self._running()
        return self._call(client.pull, queue, offset, max_messages=max_messages, selector=selector, wait=wait)

    def min_offset(self, queue: MessageQueue) -> int:
        return self._call(self._running().min_offset, queue)

    def max_offset(self, queue: MessageQueue) -> int:
        return self._call(self._running().max_offset, queue)

    def offset_at(self, queue: MessageQueue, when: datetime | int) -> int:
        return self._call(self._running().offset_at, queue, when)

    def committed(self, queue: MessageQueue) -> int | None:
        return self._call(self._running().committed, queue)

    def commit(self, queue: MessageQueue, offset: int) -> None:
        self._call(self._running().commit, queue, offset)
