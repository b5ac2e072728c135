"""``df.write.format("verniermq")`` and ``df.writeStream``: rows become messages.

Columns: ``body`` (binary or string), and if they are there ``topic`` (else the option), ``tags``, ``keys``,
``properties`` (a map), ``queueId`` and ``flag``. Rows of one topic go out in batches, as many as fit into one request.

Spark repeats a task that failed halfway. Each message carries its place in the query::

    SPARK_ROW = <query>/<batch>/<partition>/<row>

in its properties, and its unique key is made from that. A broker with the plugin ``spark`` knows which rows it has, and
drops those that come again; so a request goes to the same queue each time, which its task and its number in it decide.
From a broker without it a message may come twice: ``dropDuplicates(["uniqueKey"])`` is for whoever must not see it so.
``<query>`` is the stream's id, or the option ``writeId``, or random.
"""

from __future__ import annotations

import hashlib
import random
import struct
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from verniermq.contrib.arrow.cluster import NEW_QUEUES, Cluster, expect
from verniermq.contrib.arrow.errors import BadOption
from verniermq.contrib.arrow.requests import SendRows
from verniermq.contrib.spark.errors import SparkError
from verniermq.contrib.spark.sinkrows import ROW_PROPERTY, format_rows
from verniermq.contrib.spark.writeoptions import WriteOptions
from verniermq.kernel import (
    AUTO_CREATE_TOPIC,
    MessageQueue,
    Property,
    RequestCode,
    ResponseCode,
    format_properties,
)
from verniermq.kernel.requests import SendMessage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

MOST_MESSAGES: Final = 1000
"""In one request: what a broker takes is limited too."""

TYPES: Final = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string",),
    "properties": ("map<string,string>",),
    "queueId": ("int", "bigint"),
    "flag": ("int", "bigint"),
}
ALONE: Final = (Property.DELAY, Property.TIMER_DELIVER_MS, Property.TIMER_DELAY_SEC, Property.TIMER_DELAY_MS)
"""A message with one of these may not be part of a batch."""

BATCH_HEAD: Final = struct.Struct(">iiiii")


@attrs.frozen
class Sent(WriterCommitMessage):
    """What a task tells the driver."""

    messages: int


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """
    Raises:
        BadOption: a column is missing, unknown, or of a type that is no part of a message.
    """
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in found.items():
        if name not in TYPES:
            raise BadOption("columns", name, f"columns of {', '.join(TYPES)}; drop or rename it with select")
        if kind not in TYPES[name]:
            raise BadOption("columns", f"{name} {kind}", " or ".join(TYPES[name]))
    if "body" not in found:
        raise BadOption("columns", ", ".join(found), "a column 'body', binary or string")
    if "topic" not in found and not options.topic:
        raise BadOption("topic", "", "the name of a topic, or a column 'topic'")


class BatchSink(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self.options = options
        self.query = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        return send_all(self.options, f"{self.query}/0/{partition}", iterator)


class StreamSink(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        if context is None:
            raise SparkError("a stream's task has no context; this Spark is too old")
        query = context.getLocalProperty("sql.streaming.queryId") or self.options.write_id
        batch = context.getLocalProperty("streaming.sql.batchId")
        return send_all(self.options, f"{query}/{batch}/{context.partitionId()}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Everything was sent when the tasks ended."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was sent cannot be taken back; the repeat will carry the same row ids."""


def send_all(options: WriteOptions, place: str, batches: Iterator[pa.RecordBatch]) -> Sent:
    """Send every row; runs in a task."""
    sender = RowSender(options, place)
    try:
        for batch in batches:
            sender.add(batch)
        sender.flush()
        return Sent(sender.sent)
    finally:
        sender.close()


class RowSender:
    """Gathers messages per topic and queue, and sends each gathering as one request."""

    def __init__(self, options: WriteOptions, place: str) -> None:
        self.options = options
        self.sent = 0
        self._place = place
        self._row = 0
        self._requests = 0
        self._first_queue = int.from_bytes(_digest(place)[:4], "big")
        self._cluster = Cluster(options.name_servers, options.retry_seconds)
        self._queues: dict[str, list[MessageQueue]] = {}
        self._turn = random.randrange(1 << 16)
        self._waiting: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        """Topic and queue → rows, each with its message."""
        self._without_rows: set[str] = set()
        """Brokers that do not know which rows they have."""
        self._bytes: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        self._cluster.close()

    def add(self, batch: pa.RecordBatch) -> None:
        columns: dict[str, list[Any]] = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        nothing = [None] * batch.num_rows
        rows = zip(
            columns["body"], columns.get("topic", nothing), columns.get("tags", nothing), columns.get("keys", nothing),
            columns.get("properties", nothing), columns.get("queueId", nothing), columns.get("flag", nothing),
            strict=True,
        )  # fmt: skip
        for body, topic, tags, keys, more, queue_id, flag in rows:
            properties = dict(more) if more else {}
            if tags:
                properties[Property.TAGS] = tags
            if keys:
                properties[Property.KEYS] = keys
            row = self._row
            place = f"{self._place}/{row}"
            self._row += 1
            properties[ROW_PROPERTY] = place
            properties[Property.UNIQUE_KEY] = _digest(place).hex().upper()
            where = topic or self.options.topic
            if not where:
                raise BadOption("topic", "", f"a topic for row {row}: its column 'topic' is empty")
            data = b"" if body is None else body.encode() if isinstance(body, str) else bytes(body)
            queue = -1 if queue_id is None else int(queue_id)
            if any(name in properties for name in ALONE):
                self._send_alone(where, queue, row, data, properties, flag or 0)
            else:
                self._gather((where, queue), row, batch_item(data, properties, flag or 0))

    def _gather(self, key: tuple[str, int], row: int, item: bytes) -> None:
        waiting = self._waiting.setdefault(key, [])
        if waiting and self._bytes[key] + len(item) > self.options.batch_bytes:
            self._send(key)
            waiting = self._waiting.setdefault(key, [])
        waiting.append((row, item))
        self._bytes[key] = self._bytes.get(key, 0) + len(item)
        if len(waiting) >= MOST_MESSAGES:
            self._send(key)

    def flush(self) -> None:
        for key in list(self._waiting):
            self._send(key)

    def _send(self, key: tuple[str, int]) -> None:
        waiting = self._waiting.pop(key)
        self._bytes.pop(key)
        rows, items = [row for row, _ in waiting], [item for _, item in waiting]
        self._request(RequestCode.SEND_BATCH_MESSAGE, key, rows, b"".join(items), batch=True)
        self.sent += len(items)

    def _send_alone(
        self, topic: str, queue: int, row: int, body: bytes, properties: Mapping[str, str], flag: int
    ) -> None:
        text = format_properties(properties)
        self._request(RequestCode.SEND_MESSAGE_V2, (topic, queue), [row], body, properties=text, flag=flag)
        self.sent += 1

    def _request(self, code: RequestCode, key: tuple[str, int], rows: Sequence[int], body: bytes, **more: Any) -> None:
        topic, queue_id = key
        number = self._requests
        self._requests += 1

        def attempt() -> None:
            queue = self._queue(topic, queue_id, number)
            address = self._cluster.address(queue)
            if address in self._without_rows:
                queue = self._next_queue(topic, queue_id)
                address = self._cluster.address(queue)
            request = SendMessage(
                group=self.options.producer_group, topic=topic, queue_id=queue.queue_id, broker_name=queue.broker_name,
                born_timestamp=int(time.time() * 1000), default_topic=AUTO_CREATE_TOPIC, default_queues=NEW_QUEUES,
                **more,
            )  # fmt: skip
            if address not in self._without_rows:
                answer = self._cluster.ask(address, SendRows.of_send(request, body, self._place, format_rows(rows)))
                if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    expect(answer, RequestCode.SEND_ROWS, address)
                    return
                self._without_rows.add(address)
            command = request.command(code)
            command.body = body
            expect(self._cluster.ask(address, command), code, address)

        self._cluster.patiently(f"send to topic {topic!r}", attempt)

    def _queue(self, topic: str, queue_id: int, request: int) -> MessageQueue:
        """The queue of that number, or the one that a request of the task gets: the same whenever the task runs."""
        queues = self._queues_of(topic)
        if queue_id < 0:
            return queues[(self._first_queue + request) % len(queues)]
        for queue in queues:
            if queue.queue_id == queue_id:
                return queue
        raise BadOption("queueId", queue_id, f"one of the {len(queues)} queues of topic {topic!r}")

    def _next_queue(self, topic: str, queue_id: int) -> MessageQueue:
        """The queue of that number, or the next in turn: of brokers that may store a row twice, any will do."""
        if queue_id >= 0:
            return self._queue(topic, queue_id, 0)
        queues = self._queues_of(topic)
        self._turn += 1
        return queues[self._turn % len(queues)]

    def _queues_of(self, topic: str) -> list[MessageQueue]:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = sorted(self._cluster.queues_to_send_to(topic))
        if not queues:
            raise SparkError(f"no queue of topic {topic!r} may be written to")
        return queues


def _digest(place: str) -> bytes:
    return hashlib.blake2b(place.encode(), digest_size=16).digest()


def batch_item(body: bytes, properties: Mapping[str, str], flag: int) -> bytes:
    """One message of a batch: ``size, 0, 0, flag, body length, body, properties length, properties``."""
    text = format_properties(properties).encode()
    size = BATCH_HEAD.size + len(body) + 2 + len(text)
    return BATCH_HEAD.pack(size, 0, 0, flag, len(body)) + body + len(text).to_bytes(2, "big") + text
