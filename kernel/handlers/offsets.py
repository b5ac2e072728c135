"""Where a group is and where a queue begins and ends: offsets asked for, committed and looked up by time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from verniermq.kernel.codes import RequestCode, ResponseCode
from verniermq.kernel.errors import BadField
from verniermq.kernel.remoting import Command, Connection, Handler
from verniermq.kernel.topics import MAX_QUEUES

if TYPE_CHECKING:
    from verniermq.kernel.broker import Broker

RECENT_SHARE_OF_MEMORY: Final = 0.4
"""RocketMQ counts this share of the machine's memory behind the log's end as still in the page cache."""


class OffsetHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._recent_bytes = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * RECENT_SHARE_OF_MEMORY)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.GET_MAX_OFFSET: self.maximum,
            RequestCode.GET_MIN_OFFSET: self.minimum,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.by_time,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_time,
        }

    def query(self, request: Command, connection: Connection) -> Command:
        group, topic = request.text("consumerGroup"), request.text("topic")
        queue_id = request.integer("queueId")
        offset = self._broker.offsets.committed(group, topic, queue_id)
        if offset is not None:
            return request.reply(ext={"offset": str(offset)})
        if request.boolean("setZeroIfNotFound", True) and self._is_young(topic, queue_id):
            return request.reply(ext={"offset": "0"})
        return request.reply(
            ResponseCode.QUERY_NOT_FOUND, remark=f"group {group!r} has no offset for queue {queue_id} of {topic!r} yet"
        )

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Whether a queue still has its first message, and that one recent: then a new group starts with it."""
        queue = self._broker.store.queue(topic, queue_id)
        if queue is None:
            return True
        if queue.min_offset > 0:
            return False
        entries = queue.entries(0, 1)
        return not entries or self._broker.store.end - entries[0][0] <= self._recent_bytes

    def update(self, request: Command, connection: Connection) -> Command:
        group, topic = request.text("consumerGroup"), request.text("topic")
        self._broker.topics.get(topic)
        self._broker.groups.for_use(group)
        queue_id, offset = request.integer("queueId"), request.integer("commitOffset")
        if not 0 <= queue_id < MAX_QUEUES:
            raise BadField("queueId", queue_id, f"0 to {MAX_QUEUES - 1}")
        if offset < 0:
            raise BadField("commitOffset", offset, "0 or more")
        self._broker.offsets.commit(group, topic, queue_id, offset)
        return request.reply()

    def maximum(self, request: Command, connection: Connection) -> Command:
        queue = self._broker.store.queue(request.text("topic"), request.integer("queueId"))
        return request.reply(ext={"offset": str(0 if queue is None else queue.max_offset)})

    def minimum(self, request: Command, connection: Connection) -> Command:
        topic, queue_id = request.text("topic"), request.integer("queueId")
        config = self._broker.topics.find(topic)
        if config is None or not 0 <= queue_id < config.queues:
            return request.reply(ext={"offset": "-1"})
        return request.reply(ext={"offset": str(self._broker.store.min_offset(topic, queue_id))})

    def by_time(self, request: Command, connection: Connection) -> Command:
        upper = request.text("boundaryType", "LOWER").upper() == "UPPER"
        offset = self._broker.store.offset_by_time(
            request.text("topic"), request.integer("queueId"), request.integer("timestamp"), upper=upper
        )
        return request.reply(ext={"offset": str(offset)})

    def earliest_time(self, request: Command, connection: Connection) -> Command:
        queue = self._broker.store.queue(request.text("topic"), request.integer("queueId"))
        timestamp = -1
        if queue is not None and (entries := queue.entries(queue.min_offset, 1)):
            message = self._broker.store.message_at(entries[0][0])
            timestamp = message.store_timestamp if message is not None else -1
        return request.reply(ext={"timestamp": str(timestamp)})
