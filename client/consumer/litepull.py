"""A consumer that is asked for messages (RocketMQ: ``DefaultLitePullConsumer``): ``poll`` instead of a handler."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Unpack

import anyio

from verniermq.client.consumer.assignment import Assignment
from verniermq.client.consumer.membership import heartbeat_data, leave
from verniermq.client.consumer.offsets import BrokerOffsets
from verniermq.client.consumer.processqueue import Limits, ProcessQueue
from verniermq.client.consumer.puller import OnDamage, Puller
from verniermq.client.consumer.queues import QueueInspector
from verniermq.client.consumer.rebalance import INTERVAL, Rebalancer
from verniermq.client.consumer.start import StartFrom, wire_name
from verniermq.client.consumer.subscription import ALL, Selector, TopicSubscription
from verniermq.client.errors import ClientError
from verniermq.client.message import ReceivedMessage
from verniermq.client.names import with_namespace, without_namespace
from verniermq.client.options import ConnectionOptions, check_numbers, check_seconds
from verniermq.kernel import Command, Connection, Handler, MessageQueue, RequestCode, check_group_name, check_topic_name

AUTO_COMMIT_EVERY: Final = 5.0
HOLD_MS: Final = 20_000


class LitePullOptions(ConnectionOptions, total=False):
    """The keyword arguments of a :class:`LitePullConsumer`, for classes that pass them on."""

    start: StartFrom
    auto_commit: bool
    commit_interval: float
    pull_batch: int
    poll_batch: int
    limits: Limits | None
    allocate: str
    rebalance_interval: float
    on_damage: OnDamage


class LitePullConsumer(QueueInspector):
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

    Args:
        auto_commit: save the offsets of what was handed out every 5 seconds, and at the end
        poll_batch: how many messages a poll hands out at most
        on_damage: ``"skip"`` a message that lies damaged in the broker's log, which is logged, or ``"wait"`` at it
    """

    default_plugins: ClassVar[tuple[str, ...]] = ("allocate",)

    def __init__(
        self,
        group: str,
        *,
        start: StartFrom = "last",
        auto_commit: bool = True,
        commit_interval: float = AUTO_COMMIT_EVERY,
        pull_batch: int = 10,
        poll_batch: int = 10,
        limits: Limits | None = None,
        allocate: str = "AVG",
        rebalance_interval: float = INTERVAL,
        on_damage: OnDamage = "skip",
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(**connection)
        check_group_name(group)
        self.group = group
        self._wire_group = with_namespace(self.options.namespace, group)
        check_numbers(1, pull_batch=pull_batch, poll_batch=poll_batch)
        self._start_from: StartFrom = start
        wire_name(start)  # raises for one that makes no sense
        self._auto_commit = auto_commit
        self._commit_interval = max(commit_interval, 1.0)
        self._pull_batch = pull_batch
        self._poll_batch = poll_batch
        self._limits = limits or Limits()
        self._allocate = allocate
        self._rebalance_interval = rebalance_interval
        self._on_damage = on_damage
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._assigned: set[MessageQueue] = set()
        self._assigned_selectors: dict[str, TopicSubscription] = {}
        self._ready: deque[ReceivedMessage] = deque()
        self._arrived = asyncio.Event()
        self._handed_out: list[ReceivedMessage] = []
        self._paused: set[MessageQueue] = set()
        self._offsets: BrokerOffsets
        self._assignment: Assignment
        self._rebalancer: Rebalancer
        self._puller: Puller

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
        self._ensure_started()
        return set(self._assignment.held)

    # --- messages --------------------------------------------------------------------------

    async def poll(self, timeout: float = 5.0, max_messages: int | None = None) -> list[ReceivedMessage]:
        """The next messages, waiting for the first one up to ``timeout`` seconds; none if the time is over.

        What the poll before handed out is consumed now.
        """
        self._ensure_running()
        if timeout:
            check_seconds(timeout=timeout)
        if not self._subscriptions and not self._assigned:
            raise ClientError(f"consumer {self.group!r} reads nothing; call subscribe(topic) or assign(queues) first")
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
        self._ensure_started()
        self._paused |= set(queues) or set(self._assignment.held)

    def resume(self, *queues: MessageQueue) -> None:
        self._paused -= set(queues) or set(self._paused)
        self._arrived.set()

    # --- joining and leaving ---------------------------------------------------------------

    async def _started(self) -> None:
        self._offsets = BrokerOffsets(self._api, self._routes, self._wire_group)
        self._assignment = Assignment(
            self._api, self._routes, self._offsets, self._start_from, self._limits, self._begin_queue
        )
        self._rebalancer = Rebalancer(
            self._api, self._routes, self.host, self._wire_group, self.client_id, self._allocate, False,
            lambda: list(self._subscriptions), self._assignment.apply, self._heartbeat_to, self._rebalance_interval,
        )  # fmt: skip
        self._puller = Puller(
            self._api, self._routes, self._offsets, self._wire_group, self._pull_batch, self._subscription,
            self._deliver, self._assignment.restart, _always, commits=False, lite=True, hold_ms=HOLD_MS,
            on_damage=self._on_damage,
        )  # fmt: skip
        if self._auto_commit:
            self._background.every(self._commit_interval, self._offsets.save)
        self._routes.changed.append(lambda topic: self._rebalancer.wake())
        if self._subscriptions:
            await self._join()

    async def _join(self) -> None:
        for topic in list(self._subscriptions):
            try:
                await self._routes.get(topic)
            except ClientError:
                continue  # the rebalance goes on looking for it
        self._rebalancer.check_strategy()
        for address in self._routes.addresses():
            await self._heartbeat_to(address)
        await self._rebalancer.round()
        if self._rebalancer.rounds == 1:
            self._background.keep(self._rebalancer.run)
        else:
            self._rebalancer.wake()

    def _begin_queue(self, held: ProcessQueue) -> None:
        self._background.keep(self._puller.run, held)

    def _subscription(self, topic: str) -> TopicSubscription:
        known = self._subscriptions.get(topic) or self._assigned_selectors.get(topic)
        return known if known is not None else TopicSubscription.make(topic, ALL, 0)

    def _deliver(self, held: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        held.add(messages)
        if self.options.namespace:
            for message in messages:
                message.topic = without_namespace(self.options.namespace, message.topic)
        self._ready.extend(messages)
        self._arrived.set()

    def _settle(self) -> None:
        """Count what was handed out as consumed."""
        by_queue: dict[MessageQueue, list[ReceivedMessage]] = {}
        for message in self._handed_out:
            by_queue.setdefault(message.queue, []).append(message)
        for queue, messages in by_queue.items():
            held = self._assignment.held.get(queue)
            if held is not None and (offset := held.remove(messages)) is not None:
                self._offsets.update(queue, offset)
        self._handed_out = []

    async def _stopping(self) -> None:
        with anyio.move_on_after(5.0):
            if self._auto_commit:
                self._settle()
            else:
                for queue in self._assignment.held:
                    self._offsets.forget(queue)
            await self._assignment.release_all()
            if self._subscriptions:
                await leave(self._pool, self._api, self.options.namesrv, self.client_id, self._wire_group)

    def _heartbeat_addresses(self) -> set[str]:
        return self._routes.addresses() | (set(self._pool.connected()) - frozenset(self.options.namesrv))

    def _heartbeat_data(self) -> dict[str, Any] | None:
        if not self._subscriptions:
            return None
        return heartbeat_data(self._wire_group, self._subscriptions, self._start_from, is_asked=True)

    def _handlers(self) -> Mapping[int, Handler]:
        def members_changed(request: Command, connection: Connection) -> Command:
            if hasattr(self, "_rebalancer"):
                self._rebalancer.wake()
            return request.reply()

        return {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: members_changed}


_always: Callable[[ProcessQueue], bool] = lambda held: True  # noqa: E731
