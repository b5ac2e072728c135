"""How far groups are and how full topics are (``mqadmin consumerProgress``, ``topicStatus``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs
import orjson

from verniermq.kernel import (
    Command,
    Connection,
    Context,
    Handler,
    RequestCode,
    RequestRefused,
    in_steps,
    object_keyed_map,
)
from verniermq.plugins.admin.rates import GET_NUMS, PUT_NUMS, Rates
from verniermq.plugins.admin.requests import QueryTimeSpan
from verniermq.protocol.figures import GetConsumeStats, GetTopicStats

ROWS_PER_STEP: Final = 64
"""Queues that are looked at before others have a turn: a row may read a record or two from the log."""

Row = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A queue and what is said about it."""


@attrs.define
class Sums:
    """What is summed up while rows are made."""

    rate: float = 0.0
    difference: int = 0
    inflight: int = 0

    def take_rate(self) -> float:
        """The rate of one group; the next one's begins at nought."""
        rate, self.rate = self.rate, 0.0
        return rate


class ProgressRequests:
    def __init__(self, broker: Context, rates: Rates) -> None:
        self._broker = broker
        self._rates = rates

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
        }

    async def topic_stats(self, request: Command, connection: Connection) -> Command:
        self._broker.catch_up()
        topic = self._broker.topics.get(GetTopicStats.of(request).topic)
        table = await self._table(self._topic_row(topic.name, queue_id) for queue_id in range(topic.queues))
        rate = self._rates.per_second(PUT_NUMS, topic.name)
        return request.reply(body=b'{"offsetTable":%s,"topicPutTps":%.2f}' % (table, rate))

    def _topic_row(self, topic: str, queue_id: int) -> Row:
        low, high = self._bounds(topic, queue_id)
        last = self._store_time(topic, queue_id, high - 1) if high > low else 0
        return self._key(topic, queue_id), {"lastUpdateTimestamp": last, "maxOffset": high, "minOffset": low}

    async def _table(self, rows: Iterable[Row]) -> bytes:
        """A map by queues, its rows worked out in steps.

        Raises:
            RequestRefused: no frame can hold it.
        """
        parts, size = [], 0
        async for row in in_steps(rows, ROWS_PER_STEP):
            part = object_keyed_map([row])[1:-1]
            size += len(part)
            self._check_size(size)
            parts.append(part)
        return b"{%s}" % b",".join(parts)

    def _check_size(self, size: int) -> None:
        limit = self._broker.configuration.remoting.max_frame_size
        if size > limit:
            raise RequestRefused(
                f"the answer has more than {limit} bytes; ask about one group or topic at a time, "
                "or raise max_frame_size in [remoting]"
            )

    async def consume_stats(self, request: Command, connection: Connection) -> Command:
        asked = GetConsumeStats.of(request)
        group = asked.group
        topics = [name for name in asked.topics.split(";") if name]
        if not topics:
            topic = asked.topic
            topics = [topic] if topic else self._topics_of(group)
        return request.reply(body=await self._consume_stats(group, dict.fromkeys(topics), Sums()))

    def _topics_of(self, group: str) -> list[str]:
        """All topics that the group has offsets for; those it no longer subscribes are left out while it is online."""
        topics = self._broker.offsets.topics_of(group)
        live = self._broker.clients.consumers.get(group)
        return topics if live is None else [topic for topic in topics if topic in live.subscriptions]

    async def _consume_stats(self, group: str, topics: Iterable[str], sums: Sums) -> bytes:
        table = await self._table(self._group_rows(group, topics, sums))
        return b'{"consumeTps":%.2f,"offsetTable":%s}' % (sums.take_rate(), table)

    def _group_rows(self, group: str, topics: Iterable[str], sums: Sums) -> Iterator[Row]:
        for name in topics:
            topic = self._broker.topics.find(name)
            if topic is None:
                continue
            sums.rate += self._rates.per_second(GET_NUMS, f"{name}@{group}")
            for queue_id in range(topic.read_queues):
                row = self._offsets(group, name, queue_id)
                sums.difference += row["brokerOffset"] - row["consumerOffset"]
                sums.inflight += row["pullOffset"] - row["consumerOffset"]
                yield self._key(name, queue_id), row

    def _offsets(self, group: str, topic: str, queue_id: int) -> dict[str, int]:
        _, high = self._bounds(topic, queue_id)
        committed = self._broker.offsets.committed(group, topic, queue_id) or 0
        return {
            "brokerOffset": high,
            "consumerOffset": committed,
            "lastTimestamp": self._store_time(topic, queue_id, committed - 1) if committed > 0 else 0,
            "pullOffset": self._broker.offsets.pulled(group, topic, queue_id),
        }

    async def all_consume_stats(self, request: Command, connection: Connection) -> Command:
        """Every group's progress; a part of it is not valid JSON, so the text is put together by hand."""
        parts, size, sums = [], 0, Sums()
        async for group in in_steps(self._broker.groups.names()):
            topics = self._topics_of(group)
            if not topics:
                continue
            part = b"{%s:[%s]}" % (orjson.dumps(group), await self._consume_stats(group, topics, sums))
            size += len(part)
            self._check_size(size)
            parts.append(part)
        body = b'{"brokerAddr":%s,"consumeStatsList":[%s],"totalDiff":%d,"totalInflightDiff":%d}' % (
            orjson.dumps(self._broker.address), b",".join(parts), sums.difference, sums.inflight,
        )  # fmt: skip
        return request.reply(body=body)

    async def time_span(self, request: Command, connection: Connection) -> Command:
        asked = QueryTimeSpan.of(request)
        topic, group = self._broker.topics.get(asked.topic), asked.group
        queues = in_steps(range(topic.write_queues), ROWS_PER_STEP)
        spans = [self._span(topic.name, queue_id, group) async for queue_id in queues]
        return request.reply(body=orjson.dumps({"consumeTimeSpanSet": spans}))

    def _span(self, topic: str, queue_id: int, group: str) -> dict[str, Any]:
        low, high = self._bounds(topic, queue_id)
        committed = self._broker.offsets.committed(group, topic, queue_id) or 0
        consumed = self._store_time(topic, queue_id, committed - 1) if committed > 0 else 0
        waiting = self._store_time(topic, queue_id, committed) if committed < high else 0
        return {
            "consumeTimeStamp": consumed,
            "delayTime": self._broker.clock.now_ms() - waiting if waiting else 0,
            "maxTimeStamp": self._store_time(topic, queue_id, high - 1) if high > low else 0,
            "messageQueue": self._key(topic, queue_id),
            "minTimeStamp": self._store_time(topic, queue_id, low) if high > low else 0,
        }

    async def all_offsets(self, request: Command, connection: Connection) -> Command:
        await self._broker.offsets.write_out()
        return request.reply(body=orjson.dumps(self._broker.offsets.as_json()))

    # --- small questions -------------------------------------------------------------------

    def _key(self, topic: str, queue_id: int) -> dict[str, Any]:
        return {"brokerName": self._broker.name, "queueId": queue_id, "topic": topic}

    def _bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        queue = self._broker.store.queue(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    def _store_time(self, topic: str, queue_id: int, offset: int) -> int:
        queue = self._broker.store.queue(topic, queue_id)
        entries = queue.entries(offset, 1) if queue is not None and offset >= queue.min_offset else []
        message = self._broker.store.message_at(entries[0][0]) if entries else None
        return 0 if message is None else message.store_timestamp
