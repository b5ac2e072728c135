"""Clients say that they are alive, ask who else is in their group, and go (RocketMQ: ``ClientManageProcessor``)."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final

import orjson
from anyio.lowlevel import checkpoint

from verniermq.kernel.codes import PRODUCT, PRODUCT_FIELD, RequestCode, ResponseCode
from verniermq.kernel.errors import GroupNotFound, RequestRefused
from verniermq.kernel.handlers.table import HandlerTable
from verniermq.kernel.loop import in_steps
from verniermq.kernel.message import Subscription
from verniermq.kernel.remoting import Command, Connection
from verniermq.kernel.requests import CheckClientConfig, GetConsumerList, Heartbeat, UnregisterClient, objects
from verniermq.kernel.tables.clients import LiveSubscription

if TYPE_CHECKING:
    from verniermq.kernel.handlers.parts import BrokerParts

REGISTERED_PER_STEP: Final = 32
"""Groups and subscriptions of a heartbeat that are taken in before others have a turn."""

MODES: Final = {
    "consume_type": "consumeType",
    "message_model": "messageModel",
    "consume_from": "consumeFromWhere",
}


class HeartbeatHandlers:
    def __init__(self, broker: BrokerParts) -> None:
        self._broker = broker

    def register(self, table: HandlerTable) -> None:
        table.serve(RequestCode.HEART_BEAT, Heartbeat, self.heartbeat)
        table.serve(RequestCode.UNREGISTER_CLIENT, UnregisterClient, self.unregister)
        table.serve(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerList, self.consumer_list)
        table.serve(RequestCode.CHECK_CLIENT_CONFIG, CheckClientConfig, self.check_client)

    def heartbeat(self, request: Command, connection: Connection) -> Command | Coroutine[Any, Any, Command]:
        work = self._register(Heartbeat.of(request), connection)
        for number, _ in enumerate(work, start=1):
            if number == REGISTERED_PER_STEP:
                return self._go_on(request, work)
        return request.reply(ext={PRODUCT_FIELD: PRODUCT})

    async def _go_on(self, request: Command, work: Iterator[None]) -> Command:
        """The rest of a heartbeat that has more than nearly all have."""
        await checkpoint()
        async for _ in in_steps(work, REGISTERED_PER_STEP):
            pass
        return request.reply(ext={PRODUCT_FIELD: PRODUCT})

    def _register(self, heartbeat: Heartbeat, connection: Connection) -> Iterator[None]:
        """Take in the groups of a heartbeat; there may be a pause wherever it yields."""
        clients = self._broker.clients
        for group in heartbeat.producer_groups:
            if connection.closed:
                return  # nobody would take it out again
            clients.register_producer(group, heartbeat.client_id, connection)
            yield
        for consumer in heartbeat.consumers:
            group = str(consumer.get("groupName", ""))
            subscriptions: list[LiveSubscription] | None = None
            if not heartbeat.without_subscriptions:
                subscriptions = []
                for wire in objects(consumer, "subscriptionDataSet"):
                    subscriptions.append(clients.compile(wire))
                    yield
            if connection.closed:
                return
            try:
                self._broker.groups.for_use(group, connection.peer_host)
            except GroupNotFound:
                continue  # the others of this heartbeat live; this one's pulls are told why they fail
            modes = {name: str(consumer[member]) for name, member in MODES.items() if member in consumer}
            clients.register_consumer(group, heartbeat.client_id, connection, subscriptions, **modes)
            yield

    def unregister(self, request: Command, connection: Connection) -> Command:
        leaving = UnregisterClient.of(request)
        self._broker.clients.unregister(
            connection, producer_group=leaving.producer_group, consumer_group=leaving.consumer_group
        )
        return request.reply()

    def consumer_list(self, request: Command, connection: Connection) -> Command:
        name = GetConsumerList.of(request).group
        group = self._broker.clients.consumers.get(name)
        if group is None:
            raise RequestRefused(f"group {name!r} has no live consumer")
        return request.reply(body=orjson.dumps({"consumerIdList": group.client_ids()}))

    def check_client(self, request: Command, connection: Connection) -> Command:
        """A consumer asks, before it starts, whether its expression would be understood."""
        wire = CheckClientConfig.of(request).subscription
        if wire is None:
            return request.reply(ResponseCode.SUCCESS)
        self._broker.compile_filter(
            Subscription(
                str(wire.get("topic", "")), str(wire.get("subString") or "*"), str(wire.get("expressionType") or "TAG")
            )
        )
        return request.reply()
