"""The requests that create, change, show and delete topics: an operator's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import orjson

from verniermq.kernel import RequestCode
from verniermq.kernel.requests import (
    CREATE,
    DELETE,
    GET,
    LIST,
    Access,
    Finder,
    Request,
    boolean,
    cluster_access,
    in_body,
    integer,
    json_object,
    objects,
    request,
    text,
    topic_access,
)

MESSAGE_TYPE: Final = "message.type"
"""The attribute that tells clients what a topic is for."""


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
    TOTAL: ClassVar = "totalTopicNum"
    """The field of an answer that says how many there are."""
    first: int | None = integer("topicSeq", default=None)
    """From this topic on, where a broker answers in pages."""
    count: int | None = integer("maxTopicNum", default=None)

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield cluster_access(LIST)


@request
class GetSystemTopicList(Request):
    code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield cluster_access(LIST)
