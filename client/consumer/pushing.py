"""A push consumer without its faces: how it joins its group, consumes, and leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ClassVar, Final, Self, Unpack

import anyio

from verniermq.client.base import Client
from verniermq.client.consumer.asked import BrokerRequests
from verniermq.client.consumer.assignment import Assignment
from verniermq.client.consumer.checks import check_group, check_sql
from verniermq.client.consumer.concurrent import ConcurrentService
from verniermq.client.consumer.iteration import Iteration
from verniermq.client.consumer.membership import heartbeat_data, leave
from verniermq.client.consumer.offsets import Offsets
from verniermq.client.consumer.orderly import RENEW_SECONDS, Locks, OrderlyService
from verniermq.client.consumer.parts import put_together
from verniermq.client.consumer.processqueue import ProcessQueue
from verniermq.client.consumer.pulling import Puller
from verniermq.client.consumer.rebalance import Rebalancer
from verniermq.client.consumer.settings import PushOptions, divided
from verniermq.client.consumer.subscription import ALL, TopicSubscription
from verniermq.client.errors import ClientError, GroupConflict
from verniermq.client.hooks import ConsumeHooks
from verniermq.client.names import with_namespace, without_namespace
from verniermq.kernel import RETRY_PREFIX, BadName, Handler, Property, RemotingError, check_group_name

logger = logging.getLogger(__name__)

OFFSETS_EVERY: Final = 5.0


class PushBase(Client):
    """What runs behind a :class:`~verniermq.client.PushConsumer`."""

    default_plugins: ClassVar[tuple[str, ...]] = ("allocate",)

    def __init__(self, group: str, **options: Unpack[PushOptions]) -> None:
        self.settings, connection = divided(options)
        super().__init__(**connection)
        check_group_name(group)
        if group == "DEFAULT_CONSUMER":
            raise BadName("group", group, "is reserved; choose one that says what this program does")
        self.group = group
        self._wire_group = with_namespace(self.options.namespace, group)
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._handler: tuple[Callable[[Any], Any], bool] | None = None
        self._hooks = ConsumeHooks()
        self._iteration: Iteration | None = None
        self._joined = False
        self._paused = False
        self._service: ConcurrentService | OrderlyService
        self._offsets: Offsets
        self._assignment: Assignment
        self._rebalancer: Rebalancer
        self._puller: Puller
        self._locks: Locks | None = None

    @property
    def orderly(self) -> bool:
        return self.settings.orderly

    @property
    def broadcasting(self) -> bool:
        return self.settings.broadcasting

    # --- joining and leaving ---------------------------------------------------------------

    async def start(self) -> Self:
        """Join the group and begin.

        Raises:
            ClientError: there is nothing to consume.
            GroupConflict: other members of the group subscribe to something else.
            UnexpectedAnswer: a broker does not understand an SQL expression.
            NameServerUnreachable, NoBroker, BrokerUnreachable: there is nobody to talk to.
        """
        if self._state == "runs":
            return self
        if not self._subscriptions:
            raise ClientError(f"consumer {self.group!r} subscribes to nothing; call subscribe(topic) first")
        self._joined = False
        if self._handler is None:
            self._iteration = Iteration()
        if not self.broadcasting:
            retry = RETRY_PREFIX + self._wire_group
            self._subscriptions.setdefault(retry, TopicSubscription.make(retry))
        await super().start()
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def _started(self) -> None:
        self._hooks.add_plugins(self.host)
        put_together(self)
        if not self.broadcasting:
            self._rebalancer.check_strategy()
        await self._meet_brokers()
        for subscription in self._subscriptions.values():
            if subscription.is_sql:
                await check_sql(self._api, self._routes, self.client_id, self._wire_group, subscription)
        await self._check_group()
        self._joined = True
        await self._heartbeat()
        if isinstance(self._service, ConcurrentService):
            for _ in range(self.settings.concurrency):
                self._background.spawn(self._service.work)
            self._background.every(max(self.settings.stuck_after / 4, 1.0), self._release_stuck)
        if self._locks is not None:
            self._background.every(RENEW_SECONDS, self._renew_locks)
        self._background.every(OFFSETS_EVERY, self._offsets.save)
        await self._rebalancer.round()
        self._background.spawn(self._rebalancer.run)
        self._routes.changed.append(lambda topic: self._rebalancer.wake())

    def _message_retried(self) -> None:
        if not self._assignment.of_topic(RETRY_PREFIX + self._wire_group):
            self._rebalancer.wake()

    def _begin_queue(self, held: ProcessQueue) -> None:
        self._background.spawn(self._puller.run, held)
        if isinstance(self._service, OrderlyService):
            self._background.spawn(self._service.run, held)

    def _subscription(self, topic: str) -> TopicSubscription:
        known = self._subscriptions.get(topic)
        return known if known is not None else TopicSubscription.make(topic, ALL, 0)

    def _deliver(self, held: ProcessQueue, messages: Any) -> None:
        namespace = self.options.namespace
        if held.queue.topic.startswith(RETRY_PREFIX):
            for message in messages:
                message.topic = message.properties.get(Property.RETRY_TOPIC, message.topic)
        if namespace:
            for message in messages:
                message.topic = without_namespace(namespace, message.topic)
        self._service.deliver(held, messages)

    async def _meet_brokers(self) -> None:
        """Connect to the brokers of all topics, so that each knows this member before anything is shared out."""
        for topic in list(self._subscriptions):
            try:
                await self._routes.get(topic)
            except ClientError as error:
                logger.debug("no route yet topic=%s reason=%s", topic, error)
        for address in self._heartbeat_addresses():
            try:
                await self._pool.open(address)
            except RemotingError as error:
                logger.warning("broker not reached address=%s reason=%s", address, error)

    async def _check_group(self) -> None:
        try:
            await check_group(self._api, self._routes, self._wire_group, self.broadcasting, self._subscriptions)
        except GroupConflict as error:
            if self.settings.on_conflict == "raise":
                raise
            logger.warning("%s", error)

    async def _release_stuck(self) -> None:
        if isinstance(self._service, ConcurrentService):
            await self._service.release_stuck(list(self._assignment.held.values()))

    async def _renew_locks(self) -> None:
        if self._locks is not None:
            await self._locks.renew(list(self._assignment.held.values()))

    async def _resubscribe(self) -> None:
        await self._meet_brokers()
        await self._heartbeat()
        self._rebalancer.wake()

    async def _stopping(self) -> None:
        """Finish what handlers have in hand, or leave it to the others; save how far we are; leave the group."""
        for held in self._assignment.held.values():
            held.close()
        with anyio.move_on_after(self.settings.stop_timeout) as scope:
            if self._iteration is not None:
                self._iteration.close()
            await self._service.stop()
        if scope.cancelled_caught:
            logger.warning("handlers still run, their messages come again group=%s", self.group)
        with anyio.move_on_after(5.0):
            for queue in list(self._assignment.held):
                self._assignment.held[queue].drop()
            await self._assignment.release_all()
            await self._offsets.save(wait=True)
            await leave(self._pool, self._api, self.options.namesrv, self.client_id, self._wire_group)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._iteration is not None:
            self._iteration.settle(consumed=kind is None)
        await self.close()

    # --- what brokers hear and ask ---------------------------------------------------------

    def _instance_name(self) -> str:
        # A broadcasting consumer finds its offsets again by its name, so the name must not change.
        return self.options.instance or ("DEFAULT" if self.broadcasting else "")

    def _heartbeat_addresses(self) -> set[str]:
        return self._routes.addresses() | (set(self._pool.connected()) - frozenset(self.options.namesrv))

    def _heartbeat_data(self) -> dict[str, Any] | None:
        if not self._joined:
            return None
        return heartbeat_data(
            self._wire_group, self._subscriptions, self.settings.start, is_asked=False, broadcasting=self.broadcasting
        )

    def _handlers(self) -> Mapping[int, Handler]:
        return BrokerRequests(self).handlers()
