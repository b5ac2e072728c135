"""The requests of a consumer: pulls, offsets, messages handed back, queue locks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Self, final

from verniermq.kernel.codes import RequestCode
from verniermq.kernel.remoting.command import Command
from verniermq.kernel.requests.access import (
    EITHER,
    SUB,
    Access,
    Finder,
    group_access,
    topic_access,
)
from verniermq.kernel.requests.request import Request, boolean, integer, request, text
from verniermq.kernel.requests.send import SMALL

_new = object.__new__


@final
class PullMessage(Request):
    """PULL_MESSAGE and LITE_PULL_MESSAGE. Decoded by hand: a consumer that keeps up sends one for each message."""

    __slots__ = (
        "broker_name",
        "commit_offset",
        "expression",
        "expression_type",
        "group",
        "max_messages",
        "offset",
        "queue_id",
        "sub_version",
        "sys_flag",
        "topic",
        "wait_ms",
    )

    code = RequestCode.PULL_MESSAGE

    COMMIT_OFFSET: Final = 0x1
    SUSPEND: Final = 0x2
    SUBSCRIPTION_INCLUDED: Final = 0x4
    LITE: Final = 0x10

    def __init__(
        self,
        *,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        sys_flag: int = 0,
        commit_offset: int = 0,
        wait_ms: int = 0,
        expression: str | None = None,
        expression_type: str = "TAG",
        sub_version: int = 0,
        broker_name: str | None = None,
    ) -> None:
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.max_messages = max_messages
        self.sys_flag = sys_flag
        self.commit_offset = commit_offset
        self.wait_ms = wait_ms
        self.expression = expression
        self.expression_type = expression_type
        self.sub_version = sub_version
        self.broker_name = broker_name

    def __repr__(self) -> str:
        return f"PullMessage({self.ext()})"

    @classmethod
    def decode(cls, command: Command) -> Self:
        ext = command.ext
        decoded = _new(cls)
        try:
            decoded.group = ext["consumerGroup"]
            decoded.topic = ext["topic"]
            decoded.queue_id = SMALL[ext["queueId"]]
            decoded.sys_flag = SMALL[ext["sysFlag"]]
            decoded.max_messages = SMALL[ext["maxMsgNums"]]
        except KeyError:
            decoded.group, decoded.topic = command.text("consumerGroup"), command.text("topic")
            decoded.queue_id, decoded.sys_flag = command.integer("queueId"), command.integer("sysFlag")
            decoded.max_messages = command.integer("maxMsgNums")
        flags = decoded.sys_flag
        decoded.offset = command.integer("queueOffset")
        decoded.commit_offset = command.integer("commitOffset") if flags & cls.COMMIT_OFFSET else -1
        decoded.wait_ms = command.integer("suspendTimeoutMillis", 0)
        decoded.expression = ext.get("subscription")
        decoded.expression_type = ext.get("expressionType") or "TAG"
        decoded.sub_version = 0 if flags & cls.SUBSCRIPTION_INCLUDED else command.integer("subVersion", 0)
        decoded.broker_name = ext.get("bname")
        return decoded

    def ext(self) -> dict[str, str]:
        ext = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": str(self.queue_id),
            "queueOffset": str(self.offset),
            "maxMsgNums": str(self.max_messages),
            "sysFlag": str(self.sys_flag),
            "commitOffset": str(self.commit_offset),
            "suspendTimeoutMillis": str(self.wait_ms),
            "subVersion": str(self.sub_version),
            "expressionType": self.expression_type,
        }
        if self.broker_name is not None:
            ext["bname"] = self.broker_name
        if self.expression is not None:
            ext["subscription"] = self.expression
        return ext

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, SUB)
        yield group_access(self.group)


# --- offsets -------------------------------------------------------------------------------


@request
class QueryConsumerOffset(Request):
    """QUERY_CONSUMER_OFFSET: how far a group has consumed a queue."""

    code = RequestCode.QUERY_CONSUMER_OFFSET
    group: str = text("consumerGroup")
    topic: str = text("topic")
    queue_id: int = integer("queueId")
    zero_if_none: bool = boolean("setZeroIfNotFound", default=True)
    broker_name: str | None = text("bname", default=None)

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, SUB)
        yield group_access(self.group)


@request
class UpdateConsumerOffset(Request):
    """UPDATE_CONSUMER_OFFSET: a group has consumed a queue so far."""

    code = RequestCode.UPDATE_CONSUMER_OFFSET
    group: str = text("consumerGroup")
    topic: str = text("topic")
    queue_id: int = integer("queueId")
    offset: int = integer("commitOffset")
    broker_name: str | None = text("bname", default=None)

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, SUB)
        yield group_access(self.group)


@request
class _OfQueue(Request):
    """Where a queue begins or ends: a producer may ask as well as a consumer."""

    topic: str = text("topic")
    queue_id: int = integer("queueId")
    broker_name: str | None = text("bname", default=None)

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, EITHER)


@request
class GetMaxOffset(_OfQueue):
    """GET_MAX_OFFSET: the offset behind the last message of a queue."""

    code = RequestCode.GET_MAX_OFFSET


@request
class GetMinOffset(_OfQueue):
    """GET_MIN_OFFSET: the offset of the first message of a queue."""

    code = RequestCode.GET_MIN_OFFSET


@request
class GetEarliestStoreTime(_OfQueue):
    """GET_EARLIEST_MSG_STORETIME: when the first message of a queue was stored."""

    code = RequestCode.GET_EARLIEST_MSG_STORETIME


@request
class SearchOffset(_OfQueue):
    """SEARCH_OFFSET_BY_TIMESTAMP: the offset of a queue at a time."""

    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    timestamp: int = integer("timestamp")
    boundary: str = text("boundaryType", default="LOWER")
