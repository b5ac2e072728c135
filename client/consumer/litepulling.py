"""A polled consumer without its faces: how it joins its group, reads ahead, and leaves."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Unpack

import anyio

from verniermq.client.consumer.assignment import Assignment
from verniermq.client.consumer.membership import heartbeat_data, leave
from verniermq.client.consumer.offsets import BrokerOffsets
from verniermq.client.consumer.places import Places
from verniermq.client.consumer.processqueue import Limits, ProcessQueue
from verniermq.client.consumer.pulling import Puller
from verniermq.client.consumer.rebalance import INTERVAL, Rebalancer
from verniermq.client.consumer.start import StartFrom, wire_name
from verniermq.client.consumer.subscription import ALL, TopicSubscription
from verniermq.client.errors import ClientError
from verniermq.client.message import ReceivedMessage
from verniermq.client.names import with_namespace, without_namespace
from verniermq.client.options import ConnectionOptions
from verniermq.kernel import Command, Connection, Handler, MessageQueue, RequestCode, check_group_name

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


class LitePullBase(Places):
    """What runs behind a :class:`~verniermq.client.LitePullConsumer`; see there for what the arguments mean."""

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
        **connection: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(**connection)
        check_group_name(group)
        self.group = group
        self._wire_group = with_namespace(self.options.namespace, group)
        self._start_from: StartFrom = start
        wire_name(start)  # raises for one that makes no sense
        self._auto_commit = auto_commit
        self._commit_interval = max(commit_interval, 1.0)
        self._pull_batch = pull_batch
        self._poll_batch = poll_batch
        self._limits = limits or Limits()
        self._allocate = allocate
        self._rebalance_interval = rebalance_interval
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
        self._rebalancer.check_strategy()
        self._puller = Puller(
            self._api, self._routes, self._offsets, self._wire_group, self._pull_batch, self._subscription,
            self._deliver, self._assignment.restart, _always, commits=False, lite=True, hold_ms=HOLD_MS,
        )  # fmt: skip
        if self._auto_commit:
            self._background.every(self._commit_interval, self._offsets.save)
        self._routes.changed.append(lambda topic: self._rebalancer.wake())
        if self._subscriptions:
            await self._join()

    async def _join(self) -> None:
        for topic in list(self._subscriptions):
            try:
                route = await self._routes.get(topic)
            except ClientError:
                continue  # the rebalance goes on looking for it
            for name in route.brokers:
                address = route.address(name)
                if address is not None:
                    await self._heartbeat_to(address)
        await self._rebalancer.round()
        if self._rebalancer.rounds == 1:
            self._background.spawn(self._rebalancer.run)
        else:
            self._rebalancer.wake()

    def _begin_queue(self, held: ProcessQueue) -> None:
        self._background.spawn(self._puller.run, held)

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
