"""The requests that create, change, show and delete topics and groups: an operator's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from verniermq.kernel.codes import RequestCode
from verniermq.kernel.requests.access import (
    CREATE,
    DELETE,
    EITHER,
    GET,
    LIST,
    Access,
    Finder,
    cluster_access,
    group_access,
    topic_access,
)
from verniermq.kernel.requests.body import json_object, objects
from verniermq.kernel.requests.request import Request, boolean, in_body, integer, request, text


@request
class UpdateTopic(Request):
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    topic: str = text("topic")
    default_topic: str = text("defaultTopic", default="TBW102")
    read_queues: int = integer("readQueueNums")
    write_queues: int = integer("writeQueueNums")
    perm: int = integer("perm")
    filter_type: str = text("topicFilterType", default="SINGLE_TAG")
    sys_flag: int = integer("topicSysFlag", default=0)
    order: bool = boolean("order", default=False)
    attributes: str = text("attributes", default="")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield Access("topic", self.topic, CREATE)


@request
class UpdateTopicList(Request):
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    topics: list[dict[str, Any]] = in_body()

    def take_body(self, body: bytes) -> None:
        self.topics = objects(json_object(body), "topicConfigList")

    def body(self) -> bytes:
        return orjson.dumps({"topicConfigList": self.topics})

    def touches(self, finder: Finder) -> Iterator[Access]:
        for topic in self.topics:
            yield Access("topic", str(topic.get("topicName") or ""), CREATE)


@request
class DeleteTopic(Request):
    code = RequestCode.DELETE_TOPIC_IN_BROKER
    topic: str = text("topic")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield Access("topic", self.topic, DELETE)


@request
class GetTopicConfig(Request):
    code = RequestCode.GET_TOPIC_CONFIG
    topic: str = text("topic")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, GET)


@request
class GetAllTopicConfig(Request):
    code = RequestCode.GET_ALL_TOPIC_CONFIG

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield cluster_access(LIST)


@request
class GetSystemTopicList(Request):
    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield cluster_access(LIST)


@request
class UpdateGroup(Request):
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    config: dict[str, Any] = in_body()

    def take_body(self, body: bytes) -> None:
        self.config = json_object(body)

    def body(self) -> bytes:
        return orjson.dumps(self.config)

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(str(self.config.get("groupName") or ""), CREATE)


@request
class UpdateGroupList(Request):
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    groups: list[dict[str, Any]] = in_body()

    def take_body(self, body: bytes) -> None:
        self.groups = objects(json_object(body), "groupConfigList")

    def body(self) -> bytes:
        return orjson.dumps({"groupConfigList": self.groups})

    def touches(self, finder: Finder) -> Iterator[Access]:
        for group in self.groups:
            yield group_access(str(group.get("groupName") or ""), CREATE)


@request
class DeleteGroup(Request):
    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
    group: str = text("groupName")
    clean_offset: bool = boolean("cleanOffset", default=False)

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group, DELETE)


@request
class GetGroupConfig(Request):
    code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    group: str = text("group")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group, GET)


@request
class GetAllGroupConfig(Request):
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield cluster_access(LIST)


@request
class GetRouteInfo(Request):
    """Asked of a name server."""

    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    topic: str = text("topic")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, EITHER | GET)
