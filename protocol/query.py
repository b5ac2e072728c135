"""The requests that look for stored messages: by key, by place."""

from __future__ import annotations

from collections.abc import Iterator

from verniermq.kernel import RequestCode
from verniermq.kernel.requests import (
    GET,
    SUB,
    Access,
    Finder,
    Request,
    boolean,
    cluster_access,
    integer,
    request,
    text,
    topic_access,
)


@request
class QueryMessage(Request):
    code = RequestCode.QUERY_MESSAGE
    topic: str = text("topic")
    key: str = text("key")
    max_messages: int = integer("maxNum")
    begin_ms: int = integer("beginTimestamp")
    end_ms: int = integer("endTimestamp")
    unique: bool | None = boolean("_UNIQUE_KEY_QUERY", default=None)
    """The key is a client message id."""

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, SUB)


@request
class ViewMessage(Request):
    code = RequestCode.VIEW_MESSAGE_BY_ID
    offset: int = integer("offset")
    topic: str | None = text("topic", default=None)
    """Not to be trusted: the message knows its own."""

    def touches(self, finder: Finder) -> Iterator[Access]:
        message = finder.message_at(self.offset)
        yield cluster_access(GET) if message is None else topic_access(message.topic, SUB)
