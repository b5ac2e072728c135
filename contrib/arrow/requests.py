"""The requests of the plugin ``spark``: a range of a queue, where queues end, rows of a task, how a stream is doing."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import orjson

from verniermq.kernel import Command, InvalidParameter, RequestCode, parse_json
from verniermq.kernel.requests import (
    LIST,
    PUB,
    SUB,
    Access,
    Finder,
    Request,
    SendMessage,
    boolean,
    check_json_size,
    cluster_access,
    group_access,
    in_body,
    integer,
    request,
    text,
    topic_access,
)

ENTRY: Final = struct.Struct(">qiq")
"""Behind the records of a range, and in a consume queue's files: commit-log offset, size, tags code."""

HEAD_BYTES: Final = 112
"""Of a record, where only heads are asked for: those with two IPv6 hosts are as long. A shorter record is whole."""


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
    heads: bool = boolean("heads", default=False)
    """Whether the first ``HEAD_BYTES`` of each record will do: all but its topic, properties and body."""

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


@request
class SendRows(Request):
    """A send, or a batch of sends, of which the broker drops the rows that it has already.

    Beside these fields it has those of SEND_MESSAGE_V2, and the same body.
    """

    code = RequestCode.SEND_ROWS
    topic: str = text("b")
    is_batch: bool = boolean("m", default=False)
    task: str = text("task")
    """``<query>/<batch>/<partition>``"""
    rows: str = text("rows")
    """Which rows of the task these messages are, in their order: ``0-999,1003``."""

    @classmethod
    def of_send(cls, send: SendMessage, body: bytes, task: str, rows: str) -> Command:
        """The command for a send, or for a batch of them, with the rows that its messages are."""
        own = cls(topic=send.topic, task=task, rows=rows)
        return Command.request(cls.code, {**own.ext(), **send.ext()}, body)

    def send(self, command: Command, body: bytes) -> Command:
        """The ordinary send, or the batch, that the command is otherwise; with this body."""
        code = RequestCode.SEND_BATCH_MESSAGE if self.is_batch else RequestCode.SEND_MESSAGE_V2
        ext = SendMessage.decode(Command(code, ext=command.ext)).ext()
        return Command(code, command.opaque, command.flag, ext, body=body, binary=command.binary)

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield topic_access(self.topic, PUB)


@request
class ReportStream(Request):
    """What an export or a stream did in its newest batch, for metrics and the console."""

    code = RequestCode.REPORT_STREAM
    group: str = text("group")
    batch: int = integer("batch")
    rows: int = integer("rows")
    milliseconds: int = integer("milliseconds")
    behind: int = integer("behind")
    """Messages that were there and that it did not reach."""

    def touches(self, finder: Finder) -> Iterator[Access]:
        yield group_access(self.group)
