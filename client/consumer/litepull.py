"""A consumer that is asked for messages (RocketMQ: ``DefaultLitePullConsumer``): ``poll`` instead of a handler."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable

import anyio

from verniermq.client.consumer.litepulling import LitePullBase
from verniermq.client.consumer.subscription import ALL, Selector, TopicSubscription
from verniermq.client.errors import ClientError
from verniermq.client.message import ReceivedMessage
from verniermq.client.names import with_namespace
from verniermq.kernel import MessageQueue, check_topic_name


class LitePullConsumer(LitePullBase):
    """Reads in the background, and hands out when asked.

    Either :meth:`subscribe` to topics, whose queues are shared with the other members of the group, or :meth:`assign`
    queues, which are then this consumer's whoever else reads them. What :meth:`poll` handed out counts as consumed at
    the next poll; there are no retries.

    ::

        async with LitePullConsumer("reports") as consumer:
            consumer.subscribe("orders")
            for message in await consumer.poll(timeout=5):
                ...
            await consumer.commit()

    :param auto_commit: save the offsets of what was handed out every 5 seconds, and at the end
    :param poll_batch: how many messages a poll hands out at most
    """

    # --- which queues ----------------------------------------------------------------------

    def subscribe(self, topic: str, selector: Selector = ALL) -> None:
        """Share a topic with the other members of the group.

        Raises:
            ClientError: this consumer has assigned queues.
        """
        if self._assigned:
            raise ClientError("this consumer has assigned queues; use either assign or subscribe")
        wire = with_namespace(self.options.namespace, topic)
        check_topic_name(wire)
        self._subscriptions[wire] = TopicSubscription.make(wire, selector)
        if self._state == "runs":
            self._background.spawn(self._join)

    async def assign(self, queues: Iterable[MessageQueue], selector: Selector = ALL) -> None:
        """Read these queues and no others.

        Raises:
            ClientError: this consumer subscribes to topics.
        """
        self._ensure_running()
        if self._subscriptions:
            raise ClientError("this consumer subscribes to topics; use either assign or subscribe")
        self._assigned = set(queues)
        topics = {queue.topic for queue in self._assigned}
        self._assigned_selectors = {topic: TopicSubscription.make(topic, selector) for topic in topics}
        for topic in topics | {queue.topic for queue in self._assignment.held}:
            await self._assignment.apply(topic, {queue for queue in self._assigned if queue.topic == topic})

    @property
    def assignment(self) -> set[MessageQueue]:
        """The queues that this consumer reads now."""
        return set(self._assignment.held)

    # --- messages --------------------------------------------------------------------------

    async def poll(self, timeout: float = 5.0, max_messages: int | None = None) -> list[ReceivedMessage]:
        """The next messages, waiting for the first one up to ``timeout`` seconds; none if the time is over.

        What the poll before handed out is consumed now.
        """
        self._ensure_running()
        self._settle()
        deadline = time.monotonic() + timeout
        while not (ready := self._take(max_messages or self._poll_batch)):
            self._arrived.clear()
            left = deadline - time.monotonic()
            if left <= 0:
                break
            with anyio.move_on_after(left):
                await self._arrived.wait()
        self._handed_out = ready
        return ready

    def _take(self, count: int) -> list[ReceivedMessage]:
        taken: list[ReceivedMessage] = []
        kept: list[ReceivedMessage] = []
        while self._ready and len(taken) < count:
            message = self._ready.popleft()
            held = self._assignment.held.get(message.queue)
            if held is None or held.pending.get(message.queue_offset) is not message:
                continue  # given up, or left behind by a seek
            (kept if message.queue in self._paused else taken).append(message)
        self._ready.extendleft(reversed(kept))
        return taken

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        while self._state == "runs":
            for message in await self.poll():
                yield message

    # --- places ----------------------------------------------------------------------------

    async def commit(self) -> None:
        """Save how far this consumer is: all that was handed out is consumed."""
        self._ensure_running()
        self._settle()
        await self._offsets.save(wait=True)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset of a queue; what was read ahead of it is forgotten.

        Raises:
            ClientError: the queue is not this consumer's, or has no such offset.
        """
        self._ensure_running()
        held = self._assignment.held.get(queue)
        if held is None:
            raise ClientError(f"queue {queue} is not this consumer's; assign it, or wait for the rebalance")
        low, high = await self.min_offset(queue), await self.max_offset(queue)
        if not low <= offset <= high:
            raise ClientError(f"queue {queue} has no offset {offset}; it has {low} to {high}")
        self._handed_out = [message for message in self._handed_out if message.queue != queue]
        await self._assignment.restart(held, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self.max_offset(queue))

    def pause(self, *queues: MessageQueue) -> None:
        """Hand out nothing of these queues until :meth:`resume`; of all queues if none is named."""
        self._paused |= set(queues) or set(self._assignment.held)

    def resume(self, *queues: MessageQueue) -> None:
        self._paused -= set(queues) or set(self._paused)
        self._arrived.set()
