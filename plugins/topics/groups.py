"""Consumer groups created, changed, looked at and deleted (RocketMQ: part of ``AdminBrokerProcessor``)."""

from __future__ import annotations

from typing import Final

import anyio
import orjson

from verniermq.kernel import (
    Command,
    Connection,
    Context,
    GroupConfig,
    GroupNotFound,
    Registry,
    RequestCode,
    check_group_name,
    in_steps,
)
from verniermq.plugins.topics.attributes import changed_attributes, check_attributes
from verniermq.protocol.groups import DeleteGroup, GetAllGroupConfig, GetGroupConfig, UpdateGroup, UpdateGroupList

CHANGES_PER_STEP: Final = 32
"""Groups of a list that are changed before others have a turn."""


class GroupHandlers:
    def __init__(self, broker: Context) -> None:
        self._broker = broker
        self._changing = anyio.Lock()
        """As with topics: a long list is changed in steps."""

    def register(self, registry: Registry) -> None:
        registry.handler(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.update_group, UpdateGroup)
        registry.handler(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, self.update_groups, UpdateGroupList)
        registry.handler(RequestCode.DELETE_SUBSCRIPTIONGROUP, self.delete_group, DeleteGroup)
        registry.handler(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.all_groups, GetAllGroupConfig)
        registry.handler(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, self.group, GetGroupConfig)

    async def update_group(self, request: Command, connection: Connection) -> Command:
        await self._put_groups([GroupConfig.from_json(UpdateGroup.of(request).config)])
        return request.reply()

    async def update_groups(self, request: Command, connection: Connection) -> Command:
        members = UpdateGroupList.of(request).groups
        await self._put_groups([GroupConfig.from_json(member) async for member in in_steps(members)])
        return request.reply()

    async def _put_groups(self, changes: list[GroupConfig]) -> None:
        async with self._changing:
            groups = [self._changed(group) async for group in in_steps(changes)]
            async for group in in_steps(groups, CHANGES_PER_STEP):
                self._broker.groups.put(group)
        await self._broker.groups_saved()

    def _changed(self, group: GroupConfig) -> GroupConfig:
        check_group_name(group.name)
        known = self._broker.groups.find(group.name)
        current = known.attributes if known is not None else {}
        changed = group.with_attributes(changed_attributes(current, group.attributes))
        check_attributes(self._broker.hooks, "group", group.name, current, changed.attributes)
        return changed

    async def delete_group(self, request: Command, connection: Connection) -> Command:
        deletion = DeleteGroup.of(request)
        name = deletion.group
        self._broker.groups.delete(name)
        if deletion.clean_offset:
            self._broker.offsets.forget(group=name)
        await self._broker.groups_saved()
        return request.reply()

    def all_groups(self, request: Command, connection: Connection) -> Command:
        table = self._broker.groups.as_json()
        # Java asks for pages, and goes on until it has so many: here all are on the first.
        total = {"totalGroupNum": str(len(table["subscriptionGroupTable"]))}
        return request.reply(ext=total, body=orjson.dumps(table))

    def group(self, request: Command, connection: Connection) -> Command:
        name = GetGroupConfig.of(request).group
        found = self._broker.groups.find(name)
        if found is None:
            raise GroupNotFound(name)
        return request.reply(body=orjson.dumps(found.as_json()))
