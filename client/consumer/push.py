"""The consumer that most programs want: messages come to a handler (RocketMQ: ``DefaultMQPushConsumer``)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, ClassVar, Final, Self, Unpack

import anyio
import attrs

from verniermq.client.base import Client
from verniermq.client.consumer.assembly import put_together
from verniermq.client.consumer.assignment import Assignment
from verniermq.client.consumer.brokerrequests import BrokerRequests
from verniermq.client.consumer.checks import check_group, check_sql
from verniermq.client.consumer.concurrent import ConcurrentService
from verniermq.client.consumer.iteration import Iteration
from verniermq.client.consumer.membership import heartbeat_data, leave
from verniermq.client.consumer.offsets import Offsets
from verniermq.client.consumer.orderly import RENEW_SECONDS, HeldLocks, OrderlyService
from verniermq.client.consumer.outcome import BatchHandler, MessageHandler, check_handler
from verniermq.client.consumer.popservice import PopService
from verniermq.client.consumer.processqueue import ProcessQueue
from verniermq.client.consumer.puller import Puller
from verniermq.client.consumer.rebalance import Rebalancer
from verniermq.client.consumer.settings import PushOptions, PushSettings, divided
from verniermq.client.consumer.subscription import ALL, Selector, TopicSubscription
from verniermq.client.errors import ClientError, GroupConflict
from verniermq.client.hooks import ConsumeHook, ConsumeHooks
from verniermq.client.message import ReceivedMessage
from verniermq.client.names import with_namespace, without_namespace
from verniermq.kernel import (
    RETRY_PREFIX,
    BadName,
    Handler,
    MessageQueue,
    Property,
    RemotingError,
    check_group_name,
    check_topic_name,
)

logger = logging.getLogger(__name__)

OFFSETS_EVERY: Final = 5.0


class PushConsumer(Client):
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
    ``max_reconsume_times``, whatever it raises: no handler stops its consumer. Only ``SystemExit`` and
    ``KeyboardInterrupt`` out of an async handler end the program, as everywhere in the main thread. Members of a group
    share the queues of their topics.

    Args:
        group: whoever shares the work has the same name
        options: those of :class:`~verniermq.client.consumer.settings.PushSettings`, and those of every client
    """

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
        self._service: ConcurrentService | OrderlyService | PopService
        self._offsets: Offsets
        self._assignment: Assignment
        self._rebalancer: Rebalancer
        self._puller: Puller
        self._locks: HeldLocks | None = None

    @classmethod
    def _own_options(cls) -> set[str]:
        return {field.name for field in attrs.fields(PushSettings) if field.init}

    @property
    def orderly(self) -> bool:
        return self.settings.orderly

    @property
    def broadcasting(self) -> bool:
        return self.settings.broadcasting

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
        check_handler(handler, takes_batch)
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
        self._ensure_not_stopped()

    def later(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """In an ``async for``: this message was not consumed; offer it again.

        Raises:
            ClientError: this consumer has a handler, which says so by what it returns or raises.
        """
        if self._iteration is None:
            raise ClientError("later is for 'async for'; in a handler, return Later(delay_level=…) or raise an error")
        self._iteration.later(message, delay_level)

    async def run(self) -> None:
        """Wait until cancelled or closed, while messages are consumed.

        Raises:
            NotRunning: somebody cancelled all tasks of this consumer, so it consumes no more.
            ClientError: there is no handler, so nothing would be consumed.
        """
        self._ensure_running()
        if self._handler is None:
            raise ClientError(
                "this consumer has no handler, so it consumes nothing; set one with on_message before it "
                "starts, or read the messages with 'async for'"
            )
        await self._over.wait()
        self._ensure_not_stopped()

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
        self._ensure_started()
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
        parts = put_together(self)
        self._offsets, self._assignment, self._locks = parts.offsets, parts.assignment, parts.locks
        self._rebalancer, self._puller, self._service = parts.rebalancer, parts.puller, parts.service
        await self._meet_brokers()
        if not self.broadcasting:
            self._rebalancer.check_strategy()
        for subscription in self._subscriptions.values():
            if subscription.is_sql:
                await check_sql(self._api, self._routes, self.client_id, self._wire_group, subscription)
        await self._check_group()
        self._joined = True
        await self._heartbeat()
        if isinstance(self._service, PopService):
            for _ in range(self.settings.concurrency):
                self._background.keep(self._service.work)
            self._background.every(self._service.renewal.interval, self._service.renewal.renew)
            self._background.keep(self._service.pop)
            return
        if isinstance(self._service, ConcurrentService):
            for _ in range(self.settings.concurrency):
                self._background.keep(self._service.work)
            self._background.every(max(self.settings.stuck_after / 4, 1.0), self._release_stuck)
        if self._locks is not None:
            self._background.every(RENEW_SECONDS, self._renew_locks)
        self._background.every(OFFSETS_EVERY, self._offsets.save)
        await self._rebalancer.round()
        self._background.keep(self._rebalancer.run)
        self._routes.changed.append(self._route_changed)

    def _route_changed(self, topic: str) -> None:
        self._rebalancer.wake()
        if self._locks is not None:
            self._background.spawn(self._locks.renew_moved, list(self._assignment.held.values()))

    def _message_retried(self) -> None:
        if not self._assignment.of_topic(RETRY_PREFIX + self._wire_group):
            self._rebalancer.wake()

    def _begin_queue(self, held: ProcessQueue) -> None:
        self._background.keep(self._puller.run, held)
        if isinstance(self._service, OrderlyService):
            self._background.keep(self._service.run, held)

    def _subscription(self, topic: str) -> TopicSubscription:
        known = self._subscriptions.get(topic)
        return known if known is not None else TopicSubscription.make(topic, ALL, 0)

    def _popped_subscriptions(self) -> list[TopicSubscription]:
        """What is popped: the broker looks into the group's retry topics by itself."""
        return [wanted for topic, wanted in self._subscriptions.items() if not topic.startswith(RETRY_PREFIX)]

    def _deliver(self, held: ProcessQueue, messages: Any) -> None:
        namespace = self.options.namespace
        if held.queue.topic.startswith(RETRY_PREFIX):
            for message in messages:
                message.topic = message.properties.get(Property.RETRY_TOPIC, message.topic)
        if namespace:
            for message in messages:
                message.topic = without_namespace(namespace, message.topic)
        assert not isinstance(self._service, PopService), "nothing is pulled while popping"
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
        await super().__aexit__(kind, error, traceback)

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
