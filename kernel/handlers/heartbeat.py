"""Clients say that they are alive, ask who else is in their group, and go (RocketMQ: ``ClientManageProcessor``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from verniermq.kernel.codes import RequestCode, ResponseCode
from verniermq.kernel.errors import GroupNotFound, InvalidParameter, RequestRefused
from verniermq.kernel.message import Subscription
from verniermq.kernel.remoting import Command, Connection, Handler

if TYPE_CHECKING:
    from verniermq.kernel.broker import Broker

MODES: Final = {
    "consume_type": "consumeType",
    "message_model": "messageModel",
    "consume_from": "consumeFromWhere",
}


def json_body(request: Command) -> dict[str, Any]:
    """
    Raises:
        InvalidParameter: the body is no JSON object.
    """
    try:
        data = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        raise InvalidParameter(f"the body is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidParameter(f"the body is a JSON {type(data).__name__}, expected an object")
    return data


def objects(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A member that is a list of objects; missing and null count as empty."""
    members = data.get(name) or []
    if not isinstance(members, list) or not all(isinstance(member, dict) for member in members):
        raise InvalidParameter(f"{name} is {members!r}, expected a list of objects")
    return members


class HeartbeatHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client,
        }

    def heartbeat(self, request: Command, connection: Connection) -> Command:
        data = json_body(request)
        client_id = str(data.get("clientID") or "")
        if not client_id:
            raise InvalidParameter("the heartbeat has no clientID")
        clients = self._broker.clients
        for producer in objects(data, "producerDataSet"):
            clients.register_producer(str(producer.get("groupName", "")), client_id, connection)
        for consumer in objects(data, "consumerDataSet"):
            group = str(consumer.get("groupName", ""))
            try:
                self._broker.groups.for_use(group)
            except GroupNotFound:
                continue  # the others of this heartbeat live; this one's pulls are told why they fail
            subscriptions = None
            if not data.get("withoutSub"):
                subscriptions = [clients.compile(wire) for wire in objects(consumer, "subscriptionDataSet")]
            modes = {name: str(consumer[member]) for name, member in MODES.items() if member in consumer}
            clients.register_consumer(group, client_id, connection, subscriptions, **modes)
        return request.reply()

    def unregister(self, request: Command, connection: Connection) -> Command:
        self._broker.clients.unregister(
            connection,
            producer_group=request.text("producerGroup", None),
            consumer_group=request.text("consumerGroup", None),
        )
        return request.reply()

    def consumer_list(self, request: Command, connection: Connection) -> Command:
        name = request.text("consumerGroup")
        group = self._broker.clients.consumers.get(name)
        if group is None:
            raise RequestRefused(f"group {name!r} has no live consumer")
        return request.reply(body=orjson.dumps({"consumerIdList": group.client_ids()}))

    def check_client(self, request: Command, connection: Connection) -> Command:
        """A consumer asks, before it starts, whether its expression would be understood."""
        wire = json_body(request).get("subscriptionData")
        if not isinstance(wire, dict):
            return request.reply(ResponseCode.SUCCESS)
        self._broker.compile_filter(
            Subscription(
                str(wire.get("topic", "")), str(wire.get("subString") or "*"), str(wire.get("expressionType") or "TAG")
            )
        )
        return request.reply()
