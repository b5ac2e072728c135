"""Topics and groups created, changed, looked at and deleted (RocketMQ: part of ``AdminBrokerProcessor``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from verniermq.kernel.codes import RequestCode
from verniermq.kernel.errors import GroupNotFound, InvalidParameter
from verniermq.kernel.groups import GroupConfig
from verniermq.kernel.handlers.heartbeat import json_body, objects
from verniermq.kernel.remoting import Command, Connection, Handler
from verniermq.kernel.topics import TopicConfig, check_group_name, check_topic_name

if TYPE_CHECKING:
    from verniermq.kernel.broker import Broker


class TopicHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update_topic,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.update_topics,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_TOPIC_CONFIG: self.topic,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update_group,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_groups,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.group,
        }

    # --- topics ----------------------------------------------------------------------------

    async def update_topic(self, request: Command, connection: Connection) -> Command:
        name = request.text("topic")
        existing = self._broker.topics.find(name)
        topic = TopicConfig(
            name=name,
            read_queues=request.integer("readQueueNums"),
            write_queues=request.integer("writeQueueNums"),
            perm=request.integer("perm"),
            filter_type=request.text("topicFilterType", "SINGLE_TAG"),
            sys_flag=request.integer("topicSysFlag", 0),
            order=request.boolean("order", False),
            attributes=_changed_attributes(
                dict(existing.attributes) if existing else {}, request.text("attributes", "")
            ),
        )
        await self._put_topics([topic])
        return request.reply()

    async def update_topics(self, request: Command, connection: Connection) -> Command:
        members = objects(json_body(request), "topicConfigList")
        await self._put_topics([TopicConfig.from_json(member) for member in members])
        return request.reply()

    async def _put_topics(self, topics: list[TopicConfig]) -> None:
        for topic in topics:
            topic.check()
            if self._broker.topics.is_system(topic.name):
                raise InvalidParameter(f"topic {topic.name!r} is the broker's own; it cannot be changed")
        for topic in topics:
            self._broker.topics.put(topic)
        await self._broker.topics_document.saved()

    async def delete_topic(self, request: Command, connection: Connection) -> Command:
        name = request.text("topic")
        if not name or self._broker.topics.is_system(name):
            raise InvalidParameter(f"topic {name!r} is the broker's own; it cannot be deleted")
        check_topic_name(name)
        await self._broker.delete_topic(name)
        return request.reply()

    def all_topics(self, request: Command, connection: Connection) -> Command:
        version = self._broker.topics.version.as_json()
        body = {
            **self._broker.topics.as_json(),
            "mappingDataVersion": {**version, "counter": 0, "timestamp": 0},
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
        return request.reply(body=orjson.dumps(body))

    def topic(self, request: Command, connection: Connection) -> Command:
        return request.reply(body=orjson.dumps(self._broker.topics.get(request.text("topic")).as_json()))

    def system_topics(self, request: Command, connection: Connection) -> Command:
        names = [topic.name for topic in self._broker.topics if self._broker.topics.is_system(topic.name)]
        return request.reply(body=orjson.dumps({"topicList": names}))

    # --- groups ----------------------------------------------------------------------------

    async def update_group(self, request: Command, connection: Connection) -> Command:
        await self._put_groups([GroupConfig.from_json(json_body(request))])
        return request.reply()

    async def update_groups(self, request: Command, connection: Connection) -> Command:
        members = objects(json_body(request), "groupConfigList")
        await self._put_groups([GroupConfig.from_json(member) for member in members])
        return request.reply()

    async def _put_groups(self, groups: list[GroupConfig]) -> None:
        for group in groups:
            check_group_name(group.name)
        for group in groups:
            self._broker.groups.put(group)
        await self._broker.groups_document.saved()

    async def delete_group(self, request: Command, connection: Connection) -> Command:
        name = request.text("groupName")
        self._broker.groups.delete(name)
        if request.boolean("cleanOffset", False):
            self._broker.offsets.forget(group=name)
        await self._broker.groups_document.saved()
        return request.reply()

    def all_groups(self, request: Command, connection: Connection) -> Command:
        return request.reply(body=orjson.dumps(self._broker.groups.as_json()))

    def group(self, request: Command, connection: Connection) -> Command:
        name = request.text("group")
        found = self._broker.groups.find(name)
        if found is None:
            raise GroupNotFound(name)
        return request.reply(body=orjson.dumps(found.as_json()))


def _changed_attributes(attributes: dict[str, str], change: str) -> dict[str, str]:
    """Apply ``+key=value,-key`` to a topic's attributes."""
    for part in filter(None, (part.strip() for part in change.split(","))):
        name, _, value = part[1:].partition("=")
        if part[0] == "+" and name and value:
            attributes[name] = value
        elif part[0] == "-" and name:
            attributes.pop(name, None)
        else:
            raise InvalidParameter(f"attributes {change!r}: expected a list of +name=value and -name, found {part!r}")
    return attributes
