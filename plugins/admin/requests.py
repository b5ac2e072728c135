"""The requests of ``mqadmin``: figures, progress, connections, resets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import orjson

from verniermq.kernel import RequestCode
from verniermq.kernel.requests import (
    GET,
    LIST,
    UPDATE,
    Access,
    Finder,
    Request,
    cluster_access,
    group_access,
    in_body,
    integer,
    json_object,
    request,
    text,
    topic_access,
)
from verniermq.protocol.figures import (
    GetConsumerConnections,
    GetConsumeStats,
    GetRunningInfo,
    GetTopicStats,
    QueryGroups,
)
from verniermq.protocol.offsets import ResetOffset


@request
class GetBrokerFigures(Request):
    """What the broker says of itself: the codes without a field of their own."""

    code = RequestCode.GET_BROKER_RUNTIME_INFO

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield cluster_access(GET)


@request
class ViewStats(GetBrokerFigures):
    code = RequestCode.VIEW_BROKER_STATS_DATA
    stats: str = text("statsName")
    key: str = text("statsKey")


@request
class GetPluginPage(GetBrokerFigures):
    code = RequestCode.GET_PLUGIN_PAGE
    path: str = text("path")
    query: Mapping[str, str] = in_body(default={})

    def take_body(self, body: bytes) -> None:
        found = json_object(body) if body else {}
        self.query = {str(name): str(value) for name, value in found.items()}

    def body(self) -> bytes:
        return orjson.dumps(dict(self.query))


@request
class _OfGroup(Request):
    group: str = text("group")
    topic: str = text("topic", default="")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group, GET)


@request
class QueryTimeSpan(_OfGroup):
    code = RequestCode.QUERY_CONSUME_TIME_SPAN


@request
class QueryTopics(_OfGroup):
    code = RequestCode.QUERY_TOPICS_BY_CONSUMER


@request
class QuerySubscription(_OfGroup):
    code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER


@request
class GetProducerConnections(Request):
    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    group: str = text("producerGroup")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group, GET)


@request
class ConsumeDirectly(GetRunningInfo):
    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    message_id: str = text("msgId")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group, UPDATE)


@request
class GetConsumerStatus(Request):
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    topic: str = text("topic")
    group: str = text("group")
    client_id: str = text("clientAddr", default="")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group, GET)


@request
class CloneOffsets(Request):
    code = RequestCode.CLONE_GROUP_OFFSET
    source: str = text("srcGroup")
    target: str = text("destGroup")
    topic: str = text("topic", default="")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.source, GET)
        yield group_access(self.target, UPDATE)


@request
class Changes(Request):
    """What changes the broker: its configuration."""

    code = RequestCode.UPDATE_BROKER_CONFIG

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield cluster_access(UPDATE)


@request
class Lists(Request):
    """What lists all groups or producers: the codes without a field of their own."""

    code = RequestCode.GET_ALL_CONSUMER_OFFSET

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield cluster_access(LIST)


@request
class QueryConsumeQueue(Request):
    code = RequestCode.QUERY_CONSUME_QUEUE
    topic: str = text("topic")
    queue_id: int = integer("queueId")
    index: int = integer("index")
    count: int = integer("count")
    group: str = text("consumerGroup", default="")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, GET)


CLASSES: Final[dict[int, type[Request]]] = {
    **{
        one.code: one
        for one in (
            ViewStats, GetTopicStats, GetConsumeStats, QueryTimeSpan, QueryTopics, QuerySubscription, QueryGroups,
            GetConsumerConnections, GetProducerConnections, GetRunningInfo, ConsumeDirectly, ResetOffset,
            GetConsumerStatus, CloneOffsets, QueryConsumeQueue, GetPluginPage,
        )
    },
    RequestCode.GET_BROKER_RUNTIME_INFO: GetBrokerFigures,
    RequestCode.GET_BROKER_CONFIG: GetBrokerFigures,
    RequestCode.GET_PLUGINS: GetBrokerFigures,
    RequestCode.GET_BROKER_HA_STATUS: GetBrokerFigures,
    RequestCode.UPDATE_BROKER_CONFIG: Changes,
    RequestCode.CLEAN_UNUSED_TOPIC: Changes,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: Changes,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: Changes,
    RequestCode.SET_COMMITLOG_READ_MODE: Changes,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: Changes,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: GetBrokerFigures,
    RequestCode.GET_BROKER_EPOCH_CACHE: GetBrokerFigures,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: Changes,
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: GetBrokerFigures,
    RequestCode.GET_BROKER_CONSUME_STATS: Lists,
    RequestCode.GET_ALL_CONSUMER_OFFSET: Lists,
    RequestCode.GET_ALL_PRODUCER_INFO: Lists,
}  # fmt: skip
"""Which class a code has; some without a field share one."""
