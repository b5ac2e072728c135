"""The consumer groups of a broker (RocketMQ: ``SubscriptionGroupManager``): their settings, not their members.

Kept in ``config/subscriptionGroup.json`` in RocketMQ's form. Members that are not ours to interpret (retry
policies, attributes) are kept as they came, so that nothing is lost between us and an Apache broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from verniermq.kernel.errors import GroupNotFound, InvalidParameter
from verniermq.kernel.topics import check_group_name
from verniermq.kernel.versions import DataVersion

DEFAULT_MEMBERS: Final[dict[str, Any]] = {
    "attributes": {},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryMaxTimes": 16,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}


TOOL_GROUPS: Final = frozenset({"TOOLS_CONSUMER", "MONITOR_CONSUMER"})
"""Groups of tools that look at messages (RocketMQ: ``MixAll.TOOLS_CONSUMER_GROUP``): always there, and never kept."""


@attrs.frozen
class GroupConfig:
    """One group. ``members`` holds everything RocketMQ keeps for it; the properties name what we use."""

    name: str
    members: Mapping[str, Any] = attrs.field(factory=dict, hash=False)

    def _get(self, member: str) -> Any:
        return self.members.get(member, DEFAULT_MEMBERS[member])

    @property
    def may_consume(self) -> bool:
        return bool(self._get("consumeEnable"))

    @property
    def may_broadcast(self) -> bool:
        return bool(self._get("consumeBroadcastEnable"))

    @property
    def notifies_members(self) -> bool:
        return bool(self._get("notifyConsumerIdsChangedEnable"))

    @property
    def retry_queues(self) -> int:
        return int(self._get("retryQueueNums"))

    @property
    def retry_max_times(self) -> int:
        return int(self._get("retryMaxTimes"))

    @property
    def retry_policy(self) -> Mapping[str, Any]:
        policy: Mapping[str, Any] = self._get("groupRetryPolicy") or {}
        return policy

    def as_json(self) -> dict[str, Any]:
        return {**DEFAULT_MEMBERS, **self.members, "groupName": self.name}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GroupConfig:
        """
        Raises:
            InvalidParameter: there is no name, or a number is none.
        """
        name = data.get("groupName")
        if not isinstance(name, str):
            raise InvalidParameter(f"a group configuration has no groupName: {dict(data)!r}")
        for member in ("retryMaxTimes", "retryQueueNums", "brokerId"):
            if not isinstance(data.get(member, 0), int):
                raise InvalidParameter(f"group {name!r}: {member} is {data[member]!r}, expected a whole number")
        if not isinstance(data.get("groupRetryPolicy") or {}, Mapping):
            why = f"group {name!r}: groupRetryPolicy is {data['groupRetryPolicy']!r}, expected an object"
            raise InvalidParameter(why)
        return cls(name, {key: value for key, value in data.items() if key != "groupName" and value is not None})


class GroupTable:
    """All groups of one broker; ``on_change`` is called after each change."""

    def __init__(self, *, auto_create: bool, on_change: Callable[[], None], now_ms: Callable[[], int]) -> None:
        self._groups: dict[str, GroupConfig] = {}
        self._auto_create = auto_create
        self._on_change = on_change
        self.version = DataVersion(now_ms)
        self.forbidden: dict[str, dict[str, int]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def names(self) -> list[str]:
        return list(self._groups)

    def find(self, name: str) -> GroupConfig | None:
        return self._groups.get(name)

    def for_use(self, name: str) -> GroupConfig:
        """The group that a consumer names, created with the defaults if that is allowed.

        Raises:
            GroupNotFound: it does not exist and may not be created.
            BadName: it may not be called so.
        """
        group = self._groups.get(name)
        if group is not None:
            return group
        if name in TOOL_GROUPS:
            return GroupConfig(name)
        check_group_name(name)
        if not self._auto_create:
            raise GroupNotFound(name)
        group = GroupConfig(name)
        self.put(group)
        return group

    def put(self, group: GroupConfig) -> None:
        check_group_name(group.name)
        if self._groups.get(group.name) != group:
            self._groups[group.name] = group
            self.version.next()
            self._on_change()

    def delete(self, name: str) -> bool:
        if self._groups.pop(name, None) is None:
            return False
        self.forbidden.pop(name, None)
        self.version.next()
        self._on_change()
        return True

    # --- config/subscriptionGroup.json -----------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version.as_json(),
            "forbiddenTable": self.forbidden,
            "subscriptionGroupTable": {group.name: group.as_json() for group in self._groups.values()},
        }

    def load_json(self, data: Mapping[str, Any]) -> None:
        self.version.load(data.get("dataVersion"))
        self.forbidden = dict(data.get("forbiddenTable") or {})
        for name, members in data.get("subscriptionGroupTable", {}).items():
            self._groups[name] = GroupConfig.from_json({"groupName": name, **members})
