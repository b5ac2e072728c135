"""Topics and groups created, changed, looked at and deleted (RocketMQ: part of ``AdminBrokerProcessor``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

import attrs
import orjson

from verniermq.kernel.codes import RequestCode
from verniermq.kernel.errors import GroupNotFound, InvalidParameter
from verniermq.kernel.handlers.table import HandlerTable
from verniermq.kernel.remoting import Command, Connection
from verniermq.kernel.requests import (
    DeleteGroup,
    DeleteTopic,
    GetAllGroupConfig,
    GetAllTopicConfig,
    GetGroupConfig,
    GetSystemTopicList,
    GetTopicConfig,
    UpdateGroup,
    UpdateGroupList,
    UpdateTopic,
    UpdateTopicList,
)
from verniermq.kernel.steps import in_steps
from verniermq.kernel.tables.attributes import changed_attributes, parse_changes
from verniermq.kernel.tables.groups import GroupConfig
from verniermq.kernel.tables.topics import TopicConfig, check_group_name, check_topic_name

if TYPE_CHECKING:
    from verniermq.kernel.broker import Broker

CHANGES_PER_STEP: Final = 32
"""Topics or groups of a list that are changed before others have a turn: plugins hear of each."""


class TopicHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def register(self, table: HandlerTable) -> None:
        table.serve(RequestCode.UPDATE_AND_CREATE_TOPIC, UpdateTopic, self.update_topic)
        table.serve(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, UpdateTopicList, self.update_topics)
        table.serve(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic, self.delete_topic)
        table.serve(RequestCode.GET_ALL_TOPIC_CONFIG, GetAllTopicConfig, self.all_topics)
        table.serve(RequestCode.GET_TOPIC_CONFIG, GetTopicConfig, self.topic)
        table.serve(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, GetSystemTopicList, self.system_topics)
        table.serve(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, UpdateGroup, self.update_group)
        table.serve(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, UpdateGroupList, self.update_groups)
        table.serve(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroup, self.delete_group)
        table.serve(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GetAllGroupConfig, self.all_groups)
        table.serve(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GetGroupConfig, self.group)

    # --- topics ----------------------------------------------------------------------------

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
        topics = []
        async for topic in in_steps(changes):
            if self._broker.topics.is_system(topic.name):
                raise InvalidParameter(f"topic {topic.name!r} is the broker's own; it cannot be changed")
            known = self._broker.topics.find(topic.name)
            current = known.attributes if known is not None else {}
            changed = attrs.evolve(topic, attributes=changed_attributes(current, topic.attributes))
            changed.check()
            self._check_attributes("topic", topic.name, current, changed.attributes)
            topics.append(changed)
        async for topic in in_steps(topics, CHANGES_PER_STEP):
            self._broker.topics.put(topic)
        await self._broker.topics_document.saved()

    async def delete_topic(self, request: Command, connection: Connection) -> Command:
        name = DeleteTopic.of(request).topic
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
        return request.reply(body=orjson.dumps(self._broker.topics.get(GetTopicConfig.of(request).topic).as_json()))

    async def system_topics(self, request: Command, connection: Connection) -> Command:
        topics = self._broker.topics
        names = [topic.name async for topic in in_steps(topics, 4096) if topics.is_system(topic.name)]
        return request.reply(body=orjson.dumps({"topicList": names}))

    def _check_attributes(
        self, kind: Literal["topic", "group"], name: str, current: Mapping[str, str], changed: Mapping[str, str]
    ) -> None:
        """What was there already stays, also if it has no effect: an Apache broker may have written it."""
        for attribute, value in changed.items():
            if current.get(attribute) != value:
                self._broker.host.check_attribute(kind, name, attribute, value)

    # --- groups ----------------------------------------------------------------------------

    async def update_group(self, request: Command, connection: Connection) -> Command:
        await self._put_groups([GroupConfig.from_json(UpdateGroup.of(request).config)])
        return request.reply()

    async def update_groups(self, request: Command, connection: Connection) -> Command:
        members = UpdateGroupList.of(request).groups
        await self._put_groups([GroupConfig.from_json(member) async for member in in_steps(members)])
        return request.reply()

    async def _put_groups(self, changes: list[GroupConfig]) -> None:
        groups = []
        async for group in in_steps(changes):
            check_group_name(group.name)
            known = self._broker.groups.find(group.name)
            current = known.attributes if known is not None else {}
            changed = group.with_attributes(changed_attributes(current, group.attributes))
            self._check_attributes("group", group.name, current, changed.attributes)
            groups.append(changed)
        async for group in in_steps(groups, CHANGES_PER_STEP):
            self._broker.groups.put(group)
        await self._broker.groups_document.saved()

    async def delete_group(self, request: Command, connection: Connection) -> Command:
        deletion = DeleteGroup.of(request)
        name = deletion.group
        self._broker.groups.delete(name)
        if deletion.clean_offset:
            self._broker.offsets.forget(group=name)
        await self._broker.groups_document.saved()
        return request.reply()

    def all_groups(self, request: Command, connection: Connection) -> Command:
        return request.reply(body=orjson.dumps(self._broker.groups.as_json()))

    def group(self, request: Command, connection: Connection) -> Command:
        name = GetGroupConfig.of(request).group
        found = self._broker.groups.find(name)
        if found is None:
            raise GroupNotFound(name)
        return request.reply(body=orjson.dumps(found.as_json()))
