"""The requests for what a broker knows of a topic or a group: offsets, progress, who consumes."""

from __future__ import annotations

from collections.abc import Iterator

from verniermq.kernel import RequestCode
from verniermq.kernel.requests import GET, Access, Finder, Request, group_access, request, text, topic_access


@request
class GetTopicStats(Request):
    code = RequestCode.GET_TOPIC_STATS_INFO
    topic: str = text("topic")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, GET)


@request
class GetConsumeStats(Request):
    code = RequestCode.GET_CONSUME_STATS
    group: str = text("consumerGroup")
    topic: str = text("topic", default="")
    topics: str = text("topicList", default="")
    """With ``;`` between them."""

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group, GET)


@request
class QueryGroups(GetTopicStats):
    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO


@request
class GetConsumerConnections(Request):
    """A consumer may ask it of its own group: clients check with it whether the members agree."""

    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    group: str = text("consumerGroup")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group)


@request
class GetRunningInfo(Request):
    """Passed on to a consumer, with all fields that it has."""

    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    group: str = text("consumerGroup")
    client_id: str = text("clientId", default="")

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group, GET)
