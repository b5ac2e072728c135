"""The consumer that most programs want: messages come to a handler (RocketMQ: ``DefaultMQPushConsumer``)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio

from verniermq.client.consumer.outcome import BatchHandler, MessageHandler
from verniermq.client.consumer.pushing import PushBase
from verniermq.client.consumer.subscription import ALL, Selector, TopicSubscription
from verniermq.client.errors import ClientError
from verniermq.client.hooks import ConsumeHook
from verniermq.client.message import ReceivedMessage
from verniermq.client.names import with_namespace
from verniermq.kernel import RETRY_PREFIX, MessageQueue, check_topic_name


class PushConsumer(PushBase):
    """Hands messages to a function, or to an ``async for``.

    ::

        consumer = PushConsumer("billing", namesrv="127.0.0.1:9876")
        consumer.subscribe("orders", "paid || refunded")

        @consumer.on_message
        async def bill(message):                     # a plain function runs in a worker thread
            ...

        async with consumer:
            await consumer.run()                     # until cancelled

    A handler that returns has consumed its message; one that raises gets it again later, up to
    ``max_reconsume_times``. Members of a group share the queues of their topics.

    :param group: whoever shares the work has the same name
    :param options: those of :class:`~verniermq.client.consumer.settings.PushSettings`, and those of every client
    """

    # --- what is wanted, and who gets it ---------------------------------------------------

    def subscribe(self, topic: str, selector: Selector = ALL) -> None:
        """Want the messages of a topic: all, some tags (``"a || b"``), or an :class:`Sql` condition.

        While the consumer runs, the change reaches the brokers with the next heartbeat, which is sent at once.
        """
        wire = with_namespace(self.options.namespace, topic)
        check_topic_name(wire)
        self._subscriptions[wire] = TopicSubscription.make(wire, selector)
        if self._state == "runs":
            self._background.spawn(self._resubscribe)

    def unsubscribe(self, topic: str) -> None:
        wire = with_namespace(self.options.namespace, topic)
        self._subscriptions.pop(wire, None)
        if self._state == "runs":
            self._background.spawn(self._assignment.apply, wire, set())
            self._background.spawn(self._heartbeat)

    def on_message(self, handler: MessageHandler) -> MessageHandler:
        """Have a function called with each message. A decorator; an async function, or a plain one."""
        self._set_handler(handler, takes_batch=False)
        return handler

    def on_batch(self, handler: BatchHandler) -> BatchHandler:
        """Have a function called with lists of up to ``batch_size`` messages of one queue. A decorator."""
        self._set_handler(handler, takes_batch=True)
        return handler

    def _set_handler(self, handler: Callable[[Any], Any], *, takes_batch: bool) -> None:
        if self._handler is not None or self._iteration is not None:
            raise ClientError("this consumer has a handler already; make another consumer for another one")
        if self._state == "runs":
            raise ClientError("this consumer runs already; set its handler before it is started")
        self._handler = (handler, takes_batch)

    def before_consume(self, hook: ConsumeHook) -> ConsumeHook:
        """Call a function before messages are handed out; it may wait, or refuse by raising. A decorator."""
        self._hooks.before.append(hook)
        return hook

    def after_consume(self, hook: ConsumeHook) -> ConsumeHook:
        """Call a function after messages were handed out, whatever came of it. A decorator."""
        self._hooks.after.append(hook)
        return hook

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """The messages, one after the other.

        A message is consumed when the next one is asked for, or when the ``async with`` around the loop ends without an
        error. Call :meth:`later` to have one offered again.
        """
        if self._iteration is None:
            raise ClientError("this consumer has a handler; use either that or 'async for', not both")
        async for message in self._iteration:
            yield message

    def later(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """In an ``async for``: this message was not consumed; offer it again."""
        if self._iteration is not None:
            self._iteration.later(message, delay_level)

    async def run(self) -> None:
        """Wait until cancelled, while messages are consumed."""
        self._ensure_running()
        await anyio.sleep_forever()

    # --- steering --------------------------------------------------------------------------

    def pause(self) -> None:
        """Pull nothing more until :meth:`resume`; what is in hand is still consumed."""
        self._paused = True
        if self._state == "runs":
            self._puller.running.clear()

    def resume(self) -> None:
        self._paused = False
        if self._state == "runs":
            self._puller.running.set()
            self._rebalancer.wake()

    @property
    def assignment(self) -> set[MessageQueue]:
        """The queues that are this member's now, without those of the retry topic."""
        return {queue for queue in self._assignment.held if not queue.topic.startswith(RETRY_PREFIX)}

    async def lag(self) -> dict[MessageQueue, int]:
        """How many messages there are in each queue of this member that are not consumed yet."""
        self._ensure_running()
        behind: dict[MessageQueue, int] = {}
        for queue, held in list(self._assignment.held.items()):
            address = (await self._routes.get(queue.topic)).address(queue.broker_name)
            if address is not None:
                places = (self._offsets.known(queue), held.commit_offset, held.next_offset)
                place = next(place for place in places if place is not None)
                behind[queue] = max(0, await self._api.max_offset(address, queue) - place)
        return behind
