"""Who is connected and what they subscribe to; questions passed on to a consumer (``mqadmin consumerConnection``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson

from verniermq.kernel import (
    Broker,
    Command,
    Connection,
    Handler,
    Member,
    RemotingError,
    RequestCode,
    RequestRefused,
    ResponseCode,
    parse_offset_message_id,
)

RELAY_TIMEOUT: Final = 10.0


def _connections(members: Iterable[Member]) -> list[dict[str, Any]]:
    return [
        {
            "clientAddr": member.connection.peer_address,
            "clientId": member.client_id,
            "language": member.language,
            "version": member.version,
        }
        for member in members
    ]


class ConnectionRequests:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.relay,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    def consumers(self, request: Command, connection: Connection) -> Command:
        name = request.text("consumerGroup")
        group = self._broker.clients.consumers.get(name)
        if group is None:
            raise RequestRefused(f"group {name!r} has no consumer online", ResponseCode.CONSUMER_NOT_ONLINE)
        body = {
            "connectionSet": _connections(group.members.values()),
            "consumeFromWhere": group.consume_from,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {topic: dict(live.wire) for topic, live in group.subscriptions.items()},
        }
        return request.reply(body=orjson.dumps(body))

    def producers(self, request: Command, connection: Connection) -> Command:
        name = request.text("producerGroup")
        members = self._broker.clients.producers.get(name)
        if not members:
            raise RequestRefused(f"producer group {name!r} has nobody online")
        return request.reply(body=orjson.dumps({"connectionSet": _connections(members.values())}))

    def all_producers(self, request: Command, connection: Connection) -> Command:
        data = {
            group: [
                {
                    "clientId": member.client_id,
                    "language": member.language,
                    "lastUpdateTimestamp": int(member.last_heartbeat * 1000),
                    "remoteIP": member.connection.peer_address,
                    "version": member.version,
                }
                for member in members.values()
            ]
            for group, members in self._broker.clients.producers.items()
        }
        return request.reply(body=orjson.dumps({"data": data}))

    def groups_of_topic(self, request: Command, connection: Connection) -> Command:
        topic = request.text("topic")
        live = [name for name, group in self._broker.clients.consumers.items() if topic in group.subscriptions]
        groups = sorted({*live, *self._broker.offsets.groups_of(topic)})
        return request.reply(body=orjson.dumps({"groupList": groups}))

    def topics_of_group(self, request: Command, connection: Connection) -> Command:
        name = request.text("group")
        group = self._broker.clients.consumers.get(name)
        live = list(group.subscriptions) if group is not None else []
        topics = sorted({*live, *self._broker.offsets.topics_of(name)})
        return request.reply(body=orjson.dumps({"topicList": topics}))

    def subscription(self, request: Command, connection: Connection) -> Command:
        group, topic = request.text("group"), request.text("topic", "")
        live = self._broker.clients.subscription(group, topic)
        body: dict[str, Any] = {"group": group, "topic": topic}
        if live is not None:
            body["subscriptionData"] = dict(live.wire)
        return request.reply(body=orjson.dumps(body))

    # --- passed on to a consumer -----------------------------------------------------------

    async def relay(self, request: Command, connection: Connection) -> Command:
        """Ask one consumer about its insides and hand back what it says, untouched."""
        return await self._ask(request, dict(request.ext), request.body)

    async def consume_directly(self, request: Command, connection: Connection) -> Command:
        """Have one consumer handle one message, as if it had pulled it."""
        message_id = request.text("msgId")
        try:
            _, offset = parse_offset_message_id(message_id)
        except ValueError as error:
            raise RequestRefused(str(error)) from error
        message = self._broker.store.message_at(offset)
        record = self._broker.store.read(offset, message.size) if message is not None else None
        if record is None:
            raise RequestRefused(f"there is no message {message_id} in this store")
        ext = {**request.ext, "brokerName": self._broker.name}
        return await self._ask(request, ext, record)

    async def _ask(self, request: Command, ext: dict[str, str], body: bytes) -> Command:
        group, client_id = request.text("consumerGroup"), request.text("clientId", "")
        member = self._broker.clients.consumer(group, client_id)
        if member is None:
            raise RequestRefused(f"consumer {client_id!r} of group {group!r} is not online")
        try:
            answer = await member.connection.request(Command.request(request.code, ext, body), RELAY_TIMEOUT)
        except RemotingError as error:
            raise RequestRefused(str(error), ResponseCode.CONSUME_MSG_TIMEOUT) from error
        return request.reply(answer.code, answer.ext, answer.body, answer.remark)
