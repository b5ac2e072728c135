"""The two requests of the plugin ``spark``: a range of a queue, and where queues begin and end."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import orjson

from verniermq.kernel import InvalidParameter, RequestCode, parse_json
from verniermq.kernel.requests import (
    LIST,
    SUB,
    Access,
    Finder,
    Request,
    boolean,
    check_json_size,
    cluster_access,
    in_body,
    integer,
    request,
    text,
    topic_access,
)

ENTRY: Final = struct.Struct(">qiq")
"""Behind the records of a range, and in a consume queue's files: commit-log offset, size, tags code."""


@request
class ReadQueueRange(Request):
    code = RequestCode.READ_QUEUE_RANGE
    topic: str = text("topic")
    queue_id: int = integer("queueId")
    begin: int = integer("beginOffset")
    end: int = integer("endOffset")
    max_bytes: int | None = integer("maxBytes", default=None)
    expression: str | None = text("subscription", default=None)
    expression_type: str | None = text("expressionType", default=None)

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, SUB)


@request
class GetQueueRanges(Request):
    code = RequestCode.GET_QUEUE_RANGES
    groups: bool = boolean("groups", default=False)
    """Whether the answer shall say how far each group is."""
    topics: list[str] | None = in_body(default=None)
    """Of these topics; of all if ``None``."""

    def take_body(self, body: bytes) -> None:
        self.topics = None
        if not body:
            return
        check_json_size(body)
        try:
            names = parse_json(body)
        except ValueError as error:
            raise InvalidParameter(f"the body is no JSON that can be used: {error}") from None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidParameter("the body is no list of topic names")
        self.topics = names

    def body(self) -> bytes:
        return b"" if self.topics is None else orjson.dumps(self.topics)

    def touches(self, finder: Finder) -> Iterator[Access]:
        if self.topics is None or self.groups:
            yield cluster_access(LIST)
        for topic in self.topics or ():
            yield topic_access(topic, SUB)
