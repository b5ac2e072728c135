"""The consumer groups of a broker (RocketMQ: ``SubscriptionGroupManager``): their settings, not their members.

Kept in ``config/subscriptionGroup.json`` in RocketMQ's form. Members that are not ours to interpret (retry
policies, attributes) are kept as they came, so that nothing is lost between us and an Apache broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import orjson

from verniermq.kernel.config import GroupSettings
from verniermq.kernel.errors import GroupNotFound, InvalidParameter, LimitReached
from verniermq.kernel.tables.jsonfile import encoded
from verniermq.kernel.tables.topics import MAX_QUEUES, check_group_name
from verniermq.kernel.tables.version import DataVersion

logger = logging.getLogger(__name__)

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


MOST_BYTES: Final = 65536
"""What one group's members may take as JSON: the table is kept in memory, and written as a whole."""

_INT: Final = range(-(2**31), 2**31)
_LONG: Final = range(-(2**63), 2**63)
_TIMES: Final = range(2**63)

NUMBERS: Final[Mapping[str, range]] = {
    "brokerId": _LONG,
    "consumeTimeoutMinute": _INT,
    "groupSysFlag": _INT,
    "retryMaxTimes": _INT,
    "retryQueueNums": range(MAX_QUEUES + 1),
    "whichBrokerWhenConsumeSlowly": _LONG,
}
"""What a member may be, so that an Apache broker can read it back and the retry topic can be made."""

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
    def broker_id(self) -> int:
        """Which of a master and its slaves the group reads from."""
        return int(self._get("brokerId"))

    @property
    def slow_broker_id(self) -> int:
        """Which one when it is far behind."""
        return int(self._get("whichBrokerWhenConsumeSlowly"))

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

    @property
    def attributes(self) -> Mapping[str, str]:
        attributes: Mapping[str, str] = self._get("attributes")
        return attributes

    def with_attributes(self, attributes: Mapping[str, str]) -> GroupConfig:
        return (
            self
            if attributes == self.attributes
            else GroupConfig(self.name, {**self.members, "attributes": attributes})
        )

    def as_json(self) -> dict[str, Any]:
        return {**DEFAULT_MEMBERS, **self.members, "groupName": self.name}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GroupConfig:
        """
        Raises:
            InvalidParameter: there is no name, or a member is not what it should be, or too large to be kept.
        """
        name = data.get("groupName")
        if not isinstance(name, str):
            raise InvalidParameter(f"a group configuration has no groupName: {dict(data)!r:.200}")
        members = {key: value for key, value in data.items() if key != "groupName" and value is not None}
        for member, value in members.items():
            expected = _expected(member, value)
            if expected:
                raise InvalidParameter(f"group {name!r:.140}: {member:.80} is {value!r:.80}, expected {expected}")
        try:
            size = len(orjson.dumps(members))
        except TypeError as error:
            raise InvalidParameter(f"group {name!r:.140}: its members cannot be kept: {error}") from error
        if size > MOST_BYTES:
            raise InvalidParameter(f"group {name!r:.140}: its members have {size} bytes; at most {MOST_BYTES} are kept")
        return cls(name, members)


def _expected(member: str, value: object) -> str | None:
    """What a member should have been; ``None`` if it is that, or not ours to interpret."""
    default = DEFAULT_MEMBERS.get(member)
    if member in NUMBERS:
        allowed = NUMBERS[member]
        is_fine = type(value) is int and value in allowed
        return None if is_fine else f"a whole number from {allowed[0]} to {allowed[-1]}"
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if member == "attributes":
        is_fine = isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
        return None if is_fine else "an object of texts"
    if member == "groupRetryPolicy":
        return None if isinstance(value, dict) and _is_policy(value) else "a type and times in milliseconds"
    return None


def _is_policy(policy: Mapping[str, Any]) -> bool:
    """Every number in a retry policy is a time or a factor: whole, not negative, of 64 bits."""
    custom, exponential = policy.get("customizedRetryPolicy"), policy.get("exponentialRetryPolicy")
    if not isinstance(policy.get("type", ""), str):
        return False
    if not isinstance(custom or {}, dict) or not isinstance(exponential or {}, dict):
        return False
    times = (custom or {}).get("next") or []
    if not isinstance(times, list):
        return False
    numbers = [*times, *[(exponential or {}).get(name, 0) for name in ("initial", "max", "multiplier")]]
    return all(type(number) is int and number in _TIMES for number in numbers)


class GroupTable:
    """All groups of one broker; ``on_change`` is called after each change."""

    def __init__(self, settings: GroupSettings, *, on_change: Callable[[], None], now_ms: Callable[[], int]) -> None:
        self._groups: dict[str, GroupConfig] = {}
        self._encoded: dict[str, orjson.Fragment] = {}
        """The groups as they go into the file and over the wire."""
        self._settings = settings
        self._created_by: dict[str, int] = {}
        """Client address → how many groups it created by naming them."""
        self._on_change = on_change
        self.version = DataVersion(now_ms)
        self.forbidden: dict[str, dict[str, int]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def names(self) -> list[str]:
        return list(self._groups)

    @property
    def auto_create(self) -> bool:
        """Whether consumers create groups; may change at any time."""
        return self._settings.auto_create

    @auto_create.setter
    def auto_create(self, allowed: bool) -> None:
        self._settings = attrs.evolve(self._settings, auto_create=allowed)

    def find(self, name: str) -> GroupConfig | None:
        return self._groups.get(name)

    def for_use(self, name: str, peer: str = "") -> GroupConfig:
        """The group that a consumer names, created with the defaults if that is allowed.

        ``peer`` is the address of the client that names it.

        Raises:
            GroupNotFound: it does not exist and may not be created.
            BadName: it may not be called so.
            LimitReached: there are as many groups as may be created so.
        """
        group = self._groups.get(name)
        if group is not None:
            return group
        if name in TOOL_GROUPS:
            return GroupConfig(name)
        check_group_name(name)
        if not self._settings.auto_create:
            raise GroupNotFound(name)
        self._check_auto_create(peer)
        group = GroupConfig(name)
        self.put(group)
        self._created_by[peer] = self._created_by.get(peer, 0) + 1
        return group

    def _check_auto_create(self, peer: str) -> None:
        settings = self._settings
        if len(self._groups) >= settings.auto_create_limit:
            what = "consumers create no more groups, this broker has"
            raise LimitReached(what, settings.auto_create_limit, "auto_create_limit", "groups")
        if self._created_by.get(peer, 0) >= settings.auto_create_per_peer:
            what = f"consumers from {peer or 'here'} created groups:"
            raise LimitReached(what, settings.auto_create_per_peer, "auto_create_per_peer", "groups")

    def put(self, group: GroupConfig) -> None:
        """
        Raises:
            BadName: it may not be called so.
            LimitReached: there are as many groups as there may be.
        """
        check_group_name(group.name)
        if self._groups.get(group.name) != group:
            if group.name not in self._groups and len(self._groups) >= self._settings.max_groups:
                raise LimitReached("this broker has groups:", self._settings.max_groups, "max_groups", "groups")
            self._keep(group)
            self.version.next()
            self._on_change()

    def _keep(self, group: GroupConfig) -> None:
        self._encoded[group.name] = encoded(group.as_json())
        self._groups[group.name] = group

    def delete(self, name: str) -> bool:
        if self._groups.pop(name, None) is None:
            return False
        del self._encoded[name]
        self.forbidden.pop(name, None)
        self.version.next()
        self._on_change()
        return True

    # --- config/subscriptionGroup.json -----------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """What goes into the file; each group is encoded already."""
        return {
            "dataVersion": self.version.as_json(),
            "forbiddenTable": self.forbidden,
            "subscriptionGroupTable": self._encoded.copy(),
        }

    def load_json(self, data: Mapping[str, Any]) -> None:
        self.version.load(data.get("dataVersion"))
        self.forbidden = dict(data.get("forbiddenTable") or {})
        for name, members in data.get("subscriptionGroupTable", {}).items():
            try:
                self._keep(GroupConfig.from_json({"groupName": name, **members}))
            except (InvalidParameter, TypeError) as error:
                logger.error("a group of the table is left out: %s; create it again group=%r", error, name)
