"""Who is connected and what they subscribe to; questions passed on to a consumer (``mqadmin consumerConnection``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson

from verniermq.kernel import (
    Command,
    Connection,
    Context,
    Handler,
    Member,
    RemotingError,
    RequestCode,
    RequestRefused,
    ResponseCode,
    in_steps,
    parse_offset_message_id,
)
from verniermq.plugins.admin.requests import (
    ConsumeDirectly,
    GetProducerConnections,
    QuerySubscription,
    QueryTopics,
)
from verniermq.protocol.figures import GetConsumerConnections, GetRunningInfo, QueryGroups

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
    def __init__(self, broker: Context) -> None:
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
        name = GetConsumerConnections.of(request).group
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
        name = GetProducerConnections.of(request).group
        members = self._broker.clients.producers.get(name)
        if not members:
            raise RequestRefused(f"producer group {name!r} has nobody online")
        return request.reply(body=orjson.dumps({"connectionSet": _connections(members.values())}))

    async def all_producers(self, request: Command, connection: Connection) -> Command:
        groups = list(self._broker.clients.producers.items())
        data: dict[str, list[dict[str, Any]]] = {group: [] for group, _ in groups}
        since = self._broker.clock.now() - self._broker.clock.monotonic()
        async for group, member in in_steps((group, member) for group, of in groups for member in list(of.values())):
            data[group].append(
                {
                    "clientId": member.client_id,
                    "language": member.language,
                    "lastUpdateTimestamp": int((since + member.last_heartbeat) * 1000),
                    "remoteIP": member.connection.peer_address,
                    "version": member.version,
                }
            )
        return request.reply(body=orjson.dumps({"data": data}))

    def groups_of_topic(self, request: Command, connection: Connection) -> Command:
        topic = QueryGroups.of(request).topic
        live = [name for name, group in self._broker.clients.consumers.items() if topic in group.subscriptions]
        groups = sorted({*live, *self._broker.offsets.groups_of(topic)})
        return request.reply(body=orjson.dumps({"groupList": groups}))

    def topics_of_group(self, request: Command, connection: Connection) -> Command:
        name = QueryTopics.of(request).group
        group = self._broker.clients.consumers.get(name)
        live = list(group.subscriptions) if group is not None else []
        topics = sorted({*live, *self._broker.offsets.topics_of(name)})
        return request.reply(body=orjson.dumps({"topicList": topics}))

    def subscription(self, request: Command, connection: Connection) -> Command:
        asked = QuerySubscription.of(request)
        group, topic = asked.group, asked.topic
        live = self._broker.clients.subscription(group, topic)
        body: dict[str, Any] = {"group": group, "topic": topic}
        if live is not None:
            body["subscriptionData"] = dict(live.wire)
        return request.reply(body=orjson.dumps(body))

    # --- passed on to a consumer -----------------------------------------------------------

    async def relay(self, request: Command, connection: Connection) -> Command:
        """Ask one consumer about its insides and hand back what it says, untouched."""
        return await self._ask(request, GetRunningInfo.of(request), dict(request.ext), request.body)

    async def consume_directly(self, request: Command, connection: Connection) -> Command:
        """Have one consumer handle one message, as if it had pulled it."""
        asked = ConsumeDirectly.of(request)
        try:
            _, offset = parse_offset_message_id(asked.message_id)
        except ValueError as error:
            raise RequestRefused(str(error)) from error
        message = self._broker.store.message_at(offset)
        record = self._broker.store.read(offset, message.size) if message is not None else None
        if record is None:
            raise RequestRefused(self._broker.store.why_no_message(offset))
        ext = {**request.ext, "brokerName": self._broker.name}
        return await self._ask(request, asked, ext, record)

    async def _ask(self, request: Command, asked: GetRunningInfo, ext: dict[str, str], body: bytes) -> Command:
        group, client_id = asked.group, asked.client_id
        member = self._broker.clients.consumer(group, client_id)
        if member is None:
            raise RequestRefused(f"consumer {client_id!r} of group {group!r} is not online")
        try:
            answer = await member.connection.request(Command.request(request.code, ext, body), RELAY_TIMEOUT)
        except RemotingError as error:
            raise RequestRefused(str(error), ResponseCode.CONSUME_MSG_TIMEOUT) from error
        return request.reply(answer.code, answer.ext, answer.body, answer.remark)
