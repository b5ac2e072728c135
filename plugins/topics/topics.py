"""Topics created, changed, looked at and deleted (RocketMQ: part of ``AdminBrokerProcessor``)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

import anyio
import attrs
import orjson

from verniermq.kernel import (
    Command,
    Connection,
    Context,
    InvalidParameter,
    Registry,
    RequestCode,
    TopicConfig,
    check_topic_name,
    hookspec,
    in_steps,
)
from verniermq.plugins.topics.attributes import changed_attributes, check_attributes, parse_changes
from verniermq.protocol.topics import (
    DeleteTopic,
    GetAllTopicConfig,
    GetSystemTopicList,
    GetTopicConfig,
    UpdateTopic,
    UpdateTopicList,
)

CHANGES_PER_STEP: Final = 32
"""Topics of a list that are changed before others have a turn: plugins hear of each."""


@hookspec("announcement", may_wait=True)
def topics_told() -> Awaitable[None] | None:
    """An operator created or changed topics; the answer waits until others have heard of it, for a limited time.

    Whoever creates a topic and starts a consumer at once finds all of its brokers. Used by ``namesrv``.
    """


class TopicHandlers:
    def __init__(self, broker: Context) -> None:
        self._broker = broker
        self._changing = anyio.Lock()
        """A long list is changed in steps: what another change adds meanwhile would be lost."""

    def register(self, registry: Registry) -> None:
        registry.handler(RequestCode.UPDATE_AND_CREATE_TOPIC, self.update_topic, UpdateTopic)
        registry.handler(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, self.update_topics, UpdateTopicList)
        registry.handler(RequestCode.DELETE_TOPIC_IN_BROKER, self.delete_topic, DeleteTopic)
        registry.handler(RequestCode.GET_ALL_TOPIC_CONFIG, self.all_topics, GetAllTopicConfig)
        registry.handler(RequestCode.GET_TOPIC_CONFIG, self.topic, GetTopicConfig)
        registry.handler(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system_topics, GetSystemTopicList)

    async def update_topic(self, request: Command, connection: Connection) -> Command:
        update = UpdateTopic.of(request)
        topic = TopicConfig(
            name=update.topic,
            read_queues=update.read_queues,
            write_queues=update.write_queues,
            perm=update.perm,
            filter_type=update.filter_type,
            sys_flag=update.sys_flag,
            order=update.order,
            attributes=parse_changes(update.attributes),
        )
        await self._put_topics([topic])
        return request.reply()

    async def update_topics(self, request: Command, connection: Connection) -> Command:
        members = UpdateTopicList.of(request).topics
        await self._put_topics([TopicConfig.from_json(member) async for member in in_steps(members)])
        return request.reply()

    async def _put_topics(self, changes: list[TopicConfig]) -> None:
        async with self._changing:
            topics = [self._changed(topic) async for topic in in_steps(changes)]
            async for topic in in_steps(topics, CHANGES_PER_STEP):
                self._broker.topics.put(topic)
        await self._broker.topics_saved()
        await self._broker.hooks.announce_and_wait(topics_told)

    def _changed(self, topic: TopicConfig) -> TopicConfig:
        """The topic that there shall be: with the attributes that it has and those that are changed."""
        if self._broker.topics.is_system(topic.name):
            raise InvalidParameter(f"topic {topic.name!r} is the broker's own; it cannot be changed")
        known = self._broker.topics.find(topic.name)
        current = known.attributes if known is not None else {}
        changed = attrs.evolve(topic, attributes=changed_attributes(current, topic.attributes))
        changed.check()
        check_attributes(self._broker.hooks, "topic", topic.name, current, changed.attributes)
        return changed

    async def delete_topic(self, request: Command, connection: Connection) -> Command:
        name = DeleteTopic.of(request).topic
        if not name or self._broker.topics.is_system(name):
            raise InvalidParameter(f"topic {name!r} is the broker's own; it cannot be deleted")
        check_topic_name(name)
        await self._broker.delete_topic(name)
        return request.reply()

    def all_topics(self, request: Command, connection: Connection) -> Command:
        topics = self._broker.topics
        version = topics.version.as_json()
        body = {
            **topics.as_json(),
            "mappingDataVersion": {**version, "counter": 0, "timestamp": 0},
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
        # Java asks for pages, and goes on until it has so many: here all are on the first.
        return request.reply(ext={"totalTopicNum": str(len(body["topicConfigTable"]))}, body=orjson.dumps(body))

    def topic(self, request: Command, connection: Connection) -> Command:
        return request.reply(body=orjson.dumps(self._broker.topics.get(GetTopicConfig.of(request).topic).as_json()))

    async def system_topics(self, request: Command, connection: Connection) -> Command:
        topics = self._broker.topics
        names = [topic.name async for topic in in_steps(topics, 4096) if topics.is_system(topic.name)]
        return request.reply(body=orjson.dumps({"topicList": names}))
