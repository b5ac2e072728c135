"""In the broker: ranges of a queue in large chunks, where every queue ends, rows that are stored once, and figures.

Switched on by one line in ``broker.toml``::

    [plugins]
    enable = ["default", "spark"]

It needs nothing of Spark: the log and its consume queues are the export already, this serves them. Without it a Spark
job reads with ordinary pulls, which takes many times as long.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import anyio
import anyio.to_thread
import attrs
import orjson

from verniermq.contrib.arrow.requests import GetQueueRanges, ReadQueueRange, ReportStream, SendRows
from verniermq.contrib.spark.marks import Marks
from verniermq.contrib.spark.ranges import RangeRead
from verniermq.contrib.spark.sinkhandler import SinkHandler
from verniermq.contrib.spark.sinkrows import SinkRows
from verniermq.contrib.spark.streams import Streams
from verniermq.kernel import (
    MATCH_ALL,
    Command,
    Connection,
    Context,
    Declaration,
    DispatchEvent,
    Document,
    InvalidParameter,
    MessageFilter,
    NoPermission,
    Perm,
    Registry,
    RequestCode,
    ResponseCode,
    Size,
    Subscription,
    TopicConfig,
    gathered,
    hookimpl,
    in_steps,
    parts_of,
    setting,
)

logger = logging.getLogger(__name__)

MIB: Final = 1 << 20
TOPICS_PER_STEP: Final = 4
"""Topics whose queues are looked at before others have a turn."""
SMALLEST_CHUNK: Final = 1 << 16
ROWS_TABLE: Final = "sparkRows"
SAVE_EVERY: Final = 64 * MIB
"""Bytes of the log, at most, that a start looks through for rows of tasks."""


@attrs.frozen
class Config:
    """``[plugins.spark]``"""

    chunk_size: Size = setting(
        Size(4 * MIB),
        "The most bytes of records in one answer; a single larger message still goes.",
        at_least=SMALLEST_CHUNK,
        at_most=15 * MIB,
    )
    threads: int = setting(
        2, "How many reads run at a time; the others wait their turn, so that sends do not.", at_least=1, at_most=64
    )


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Serves whole ranges of a queue to Spark, stores its rows once, and keeps figures of every queue.",
        requests=(
            RequestCode.READ_QUEUE_RANGE,
            RequestCode.GET_QUEUE_RANGES,
            RequestCode.SEND_ROWS,
            RequestCode.REPORT_STREAM,
        ),
    )
    config: Config
    broker: Context
    marks: Marks = attrs.field(factory=Marks, init=False)
    rows: SinkRows = attrs.field(factory=SinkRows, init=False)
    streams: Streams = attrs.field(factory=Streams, init=False)
    sink: SinkHandler = attrs.field(init=False)
    _rows_table: Document = attrs.field(init=False)
    _rows_saved: int = attrs.field(default=0, init=False)
    """The place in the log up to which the table of rows on the disk goes."""
    served_records: int = attrs.field(default=0, init=False)
    served_bytes: int = attrs.field(default=0, init=False)
    _threads: anyio.CapacityLimiter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._threads = anyio.CapacityLimiter(self.config.threads)
        self.sink = SinkHandler(self.broker, self.rows)

    def setup(self, registry: Registry) -> None:
        registry.handler(RequestCode.SEND_ROWS, self.sink.send_rows, SendRows)
        registry.handler(RequestCode.REPORT_STREAM, self.report, ReportStream)
        self._rows_table = registry.table(ROWS_TABLE, load=self._load_rows, save=self._save_rows, interval=1.0)
        self.streams.offer(registry)
        registry.handler(RequestCode.READ_QUEUE_RANGE, self.read_range, ReadQueueRange)
        registry.handler(RequestCode.GET_QUEUE_RANGES, self.ranges, GetQueueRanges)

    @hookimpl
    @gathered
    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        self.marks.note(events)
        if self.rows.note(parts_of(events)) or self.rows.reached - self._rows_saved > SAVE_EVERY:
            self._rows_table.touch()

    # --- rows of Spark's tasks -------------------------------------------------------------

    def _load_rows(self, data: Mapping[str, Any]) -> None:
        self.rows.load_json(data)

    def _save_rows(self) -> Mapping[str, Any]:
        self.broker.catch_up()
        self._rows_saved = self.rows.reached
        return self.rows.as_json()

    @hookimpl
    def store_opened(self) -> None:
        store = self.broker.store
        if self.rows.reached > store.end:
            # The log lost its end, and rows with it. To send one twice is better than to drop one that is not there.
            logger.warning("what is known of Spark's rows is ahead of the log and forgotten: a task may repeat some")
            self.rows.forget()
        if self.rows.reached or store.end - store.start <= SAVE_EVERY:
            self.rows.read(store)
        self.rows.reached = store.end
        self._rows_table.touch()

    async def report(self, request: Command, connection: Connection) -> Command:
        self.streams.note(ReportStream.of(request), self.broker.clock.now())
        return request.reply()

    @hookimpl
    def topics_changed(self, changed: Sequence[TopicConfig], deleted: Sequence[str]) -> None:
        if deleted:
            self.broker.catch_up()  # what is still to be counted belongs to the old ones
            self.marks.forget(deleted)

    @hookimpl(optionalhook=True)
    def runtime_info(self) -> Mapping[str, str]:
        self.broker.catch_up()
        messages, size = self.marks.totals()
        return {
            "sparkQueues": str(len(self.marks)),
            "sparkDispatchedMessages": str(messages),
            "sparkDispatchedBytes": str(size),
            "sparkServedRecords": str(self.served_records),
            "sparkServedBytes": str(self.served_bytes),
            "sparkTasks": str(len(self.rows)),
            "sparkDroppedRows": str(self.sink.dropped),
        }

    # --- READ_QUEUE_RANGE ------------------------------------------------------------------

    async def read_range(self, request: Command, connection: Connection) -> Command:
        asked = ReadQueueRange.of(request)
        topic, queue_id, begin, end = asked.topic, asked.queue_id, asked.begin, asked.end
        largest = self.config.chunk_size
        max_bytes = min(max(largest if asked.max_bytes is None else asked.max_bytes, SMALLEST_CHUNK), largest)
        if end <= begin:
            raise InvalidParameter(f"endOffset {end} is not beyond beginOffset {begin}; it counts as exclusive")
        if not self.broker.topics.get(topic).perm & Perm.READ:
            raise NoPermission(f"topic {topic!r} may not be read")
        wanted = self._filter(asked)
        queue = self.broker.store.queue(topic, queue_id)
        if queue is None or not queue.min_offset <= begin < queue.max_offset:
            return self._moved(request, topic, queue_id)
        read = RangeRead.begin_at(
            self.broker.store, queue, begin, min(end, queue.max_offset), wanted, max_bytes, asked.heads
        )
        chunk = await anyio.to_thread.run_sync(read.finish, limiter=self._threads)
        if chunk is None:
            # Retention took the first record while the queue still listed it.
            queue.raise_minimum(self.broker.store.start)
            return self._moved(request, topic, queue_id)
        record_bytes = chunk.record_bytes
        self.served_records += len(chunk.entries) // 20
        self.served_bytes += record_bytes
        ext = {
            **self._bounds(topic, queue_id),
            "nextBeginOffset": str(chunk.next_offset),
            "recordBytes": str(record_bytes),
        }
        return request.reply(ResponseCode.SUCCESS, ext, [*chunk.records, chunk.entries])

    def _filter(self, asked: ReadQueueRange) -> MessageFilter:
        if not asked.expression:
            return MATCH_ALL
        return self.broker.compile_filter(Subscription(asked.topic, asked.expression, asked.expression_type or "TAG"))

    def _moved(self, request: Command, topic: str, queue_id: int) -> Command:
        bounds = self._bounds(topic, queue_id)
        begin = ReadQueueRange.of(request).begin
        remark = (
            f"offset {begin} of queue {queue_id} of topic {topic!r} is not there: "
            f"the queue has {bounds['minOffset']} to {bounds['maxOffset']}"
        )
        ext = {**bounds, "nextBeginOffset": bounds["minOffset"], "recordBytes": "0"}
        return request.reply(ResponseCode.PULL_OFFSET_MOVED, ext, remark=remark)

    def _bounds(self, topic: str, queue_id: int) -> dict[str, str]:
        store = self.broker.store
        return {
            "minOffset": str(store.min_offset(topic, queue_id)),
            "maxOffset": str(store.max_offset(topic, queue_id)),
        }

    # --- GET_QUEUE_RANGES ------------------------------------------------------------------

    async def ranges(self, request: Command, connection: Connection) -> Command:
        """Where queues begin and end: all, or of the topics in the body, a JSON list; with ``groups`` how far each is.

        Topics that do not exist are left out.
        """
        self.broker.catch_up()
        topics: Iterable[TopicConfig] = self.broker.topics
        asked = GetQueueRanges.of(request)
        if asked.topics is not None:
            names = dict.fromkeys(asked.topics)
            topics = [found for name in names if (found := self.broker.topics.find(name)) is not None]
        # Encoded one by one: all of them at once would hold up everybody else.
        encoded = {
            topic.name: orjson.Fragment(orjson.dumps(self._queues(topic)))
            async for topic in in_steps(topics, TOPICS_PER_STEP)
        }
        body: dict[str, Any] = {"topics": encoded}
        if asked.groups:
            body["groups"] = await self._groups()
        return request.reply(body=orjson.dumps(body))

    def _queues(self, topic: TopicConfig) -> dict[str, dict[str, int]]:
        store = self.broker.store
        return {
            str(queue_id): {
                "min": store.min_offset(topic.name, queue_id),
                "max": store.max_offset(topic.name, queue_id),
                **self.marks.get(topic.name, queue_id).as_json(),
            }
            for queue_id in range(topic.queues)
        }

    async def _groups(self) -> dict[str, dict[str, orjson.Fragment]]:
        """Group → topic → queue → the next offset that the group will consume."""
        groups: dict[str, dict[str, orjson.Fragment]] = {}
        async for topic, group, queues in in_steps(self.broker.offsets):
            encoded = orjson.dumps(queues, option=orjson.OPT_NON_STR_KEYS)
            groups.setdefault(group, {})[topic] = orjson.Fragment(encoded)
        return groups
