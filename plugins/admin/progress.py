"""How far groups are and how full topics are (``mqadmin consumerProgress``, ``topicStatus``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from verniermq.kernel import Broker, Command, Connection, Handler, RequestCode, object_keyed_map
from verniermq.plugins.admin.rates import GET_NUMS, PUT_NUMS, Rates


class ProgressRequests:
    def __init__(self, broker: Broker, rates: Rates) -> None:
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

    def topic_stats(self, request: Command, connection: Connection) -> Command:
        self._broker.catch_up()
        topic = self._broker.topics.get(request.text("topic"))
        rows = []
        for queue_id in range(topic.queues):
            low, high = self._bounds(topic.name, queue_id)
            last = self._store_time(topic.name, queue_id, high - 1) if high > low else 0
            rows.append(
                (self._key(topic.name, queue_id), {"lastUpdateTimestamp": last, "maxOffset": high, "minOffset": low})
            )
        rate = self._rates.per_second(PUT_NUMS, topic.name)
        return request.reply(body=b'{"offsetTable":%s,"topicPutTps":%.2f}' % (object_keyed_map(rows), rate))

    def consume_stats(self, request: Command, connection: Connection) -> Command:
        group = request.text("consumerGroup")
        topics = [name for name in request.text("topicList", "").split(";") if name]
        if not topics:
            topic = request.text("topic", "")
            topics = [topic] if topic else self._topics_of(group)
        return request.reply(body=self._consume_stats(group, topics))

    def _topics_of(self, group: str) -> list[str]:
        """All topics that the group has offsets for; those it no longer subscribes are left out while it is online."""
        topics = self._broker.offsets.topics_of(group)
        live = self._broker.clients.consumers.get(group)
        return topics if live is None else [topic for topic in topics if topic in live.subscriptions]

    def _consume_stats(self, group: str, topics: Iterable[str]) -> bytes:
        rows, rate = [], 0.0
        for name in topics:
            topic = self._broker.topics.find(name)
            if topic is None:
                continue
            rate += self._rates.per_second(GET_NUMS, f"{name}@{group}")
            queues = range(topic.read_queues)
            rows += [(self._key(name, queue_id), self._offsets(group, name, queue_id)) for queue_id in queues]
        return b'{"consumeTps":%.2f,"offsetTable":%s}' % (rate, object_keyed_map(rows))

    def _offsets(self, group: str, topic: str, queue_id: int) -> dict[str, int]:
        _, high = self._bounds(topic, queue_id)
        committed = self._broker.offsets.committed(group, topic, queue_id) or 0
        return {
            "brokerOffset": high,
            "consumerOffset": committed,
            "lastTimestamp": self._store_time(topic, queue_id, committed - 1) if committed > 0 else 0,
            "pullOffset": self._broker.offsets.pulled(group, topic, queue_id),
        }

    def all_consume_stats(self, request: Command, connection: Connection) -> Command:
        """Every group's progress; a part of it is not valid JSON, so the text is put together by hand."""
        parts, difference, inflight = [], 0, 0
        for group in self._broker.groups.names():
            topics = self._topics_of(group)
            if not topics:
                continue
            for name in topics:
                topic = self._broker.topics.find(name)
                for queue_id in range(topic.read_queues if topic is not None else 0):
                    row = self._offsets(group, name, queue_id)
                    difference += row["brokerOffset"] - row["consumerOffset"]
                    inflight += row["pullOffset"] - row["consumerOffset"]
            parts.append(b"{%s:[%s]}" % (orjson.dumps(group), self._consume_stats(group, topics)))
        body = b'{"brokerAddr":%s,"consumeStatsList":[%s],"totalDiff":%d,"totalInflightDiff":%d}' % (
            orjson.dumps(self._broker.address), b",".join(parts), difference, inflight,
        )  # fmt: skip
        return request.reply(body=body)

    def time_span(self, request: Command, connection: Connection) -> Command:
        topic, group = self._broker.topics.get(request.text("topic")), request.text("group")
        spans = []
        for queue_id in range(topic.write_queues):
            low, high = self._bounds(topic.name, queue_id)
            committed = self._broker.offsets.committed(group, topic.name, queue_id) or 0
            consumed = self._store_time(topic.name, queue_id, committed - 1) if committed > 0 else 0
            waiting = self._store_time(topic.name, queue_id, committed) if committed < high else 0
            spans.append(
                {
                    "consumeTimeStamp": consumed,
                    "delayTime": self._broker.clock.now_ms() - waiting if waiting else 0,
                    "maxTimeStamp": self._store_time(topic.name, queue_id, high - 1) if high > low else 0,
                    "messageQueue": self._key(topic.name, queue_id),
                    "minTimeStamp": self._store_time(topic.name, queue_id, low) if high > low else 0,
                }
            )
        return request.reply(body=orjson.dumps({"consumeTimeSpanSet": spans}))

    def all_offsets(self, request: Command, connection: Connection) -> Command:
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
