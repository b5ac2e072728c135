"""Where a group is and where a queue begins and ends: offsets asked for, committed and looked up by time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verniermq.kernel.codes import RequestCode, ResponseCode
from verniermq.kernel.errors import BadField
from verniermq.kernel.handlers.table import HandlerTable
from verniermq.kernel.remoting import Command, Connection
from verniermq.kernel.requests import (
    GetEarliestStoreTime,
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from verniermq.kernel.tables.topics import MAX_QUEUES

if TYPE_CHECKING:
    from verniermq.kernel.handlers.parts import BrokerParts


class OffsetHandlers:
    def __init__(self, broker: BrokerParts) -> None:
        self._broker = broker

    def register(self, table: HandlerTable) -> None:
        table.serve(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset, self.query)
        table.serve(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset, self.update)
        table.serve(RequestCode.GET_MAX_OFFSET, GetMaxOffset, self.maximum)
        table.serve(RequestCode.GET_MIN_OFFSET, GetMinOffset, self.minimum)
        table.serve(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffset, self.by_time)
        table.serve(RequestCode.GET_EARLIEST_MSG_STORETIME, GetEarliestStoreTime, self.earliest_time)

    def query(self, request: Command, connection: Connection) -> Command:
        asked = QueryConsumerOffset.of(request)
        group, topic, queue_id = asked.group, asked.topic, asked.queue_id
        offset = self._broker.offsets.committed(group, topic, queue_id)
        if offset is not None:
            return request.reply(ext={"offset": str(offset)})
        if asked.zero_if_none and self._broker.store.is_young(topic, queue_id):
            return request.reply(ext={"offset": "0"})
        return request.reply(
            ResponseCode.QUERY_NOT_FOUND, remark=f"group {group!r} has no offset for queue {queue_id} of {topic!r} yet"
        )

    def update(self, request: Command, connection: Connection) -> Command:
        update = UpdateConsumerOffset.of(request)
        group, topic, queue_id, offset = update.group, update.topic, update.queue_id, update.offset
        self._broker.topics.get(topic)
        self._broker.groups.for_use(group, connection.peer_host)
        if not 0 <= queue_id < MAX_QUEUES:
            raise BadField("queueId", queue_id, f"0 to {MAX_QUEUES - 1}")
        if offset < 0:
            raise BadField("commitOffset", offset, "0 or more")
        self._broker.offsets.commit(group, topic, queue_id, offset)
        return request.reply()

    def maximum(self, request: Command, connection: Connection) -> Command:
        asked = GetMaxOffset.of(request)
        queue = self._broker.store.queue(asked.topic, asked.queue_id)
        return request.reply(ext={"offset": str(0 if queue is None else queue.max_offset)})

    def minimum(self, request: Command, connection: Connection) -> Command:
        asked = GetMinOffset.of(request)
        topic, queue_id = asked.topic, asked.queue_id
        config = self._broker.topics.find(topic)
        if config is None or not 0 <= queue_id < config.queues:
            return request.reply(ext={"offset": "-1"})
        return request.reply(ext={"offset": str(self._broker.store.min_offset(topic, queue_id))})

    async def by_time(self, request: Command, connection: Connection) -> Command:
        asked = SearchOffset.of(request)
        upper = asked.boundary.upper() == "UPPER"
        offset = await self._broker.store.find_by_time(asked.topic, asked.queue_id, asked.timestamp, upper=upper)
        return request.reply(ext={"offset": str(offset)})

    async def earliest_time(self, request: Command, connection: Connection) -> Command:
        asked = GetEarliestStoreTime.of(request)
        queue = self._broker.store.queue(asked.topic, asked.queue_id)
        timestamp = -1
        if queue is not None and (entries := queue.entries(queue.min_offset, 1)):
            message = await self._broker.store.find_message(entries[0][0])
            timestamp = message.store_timestamp if message is not None else -1
        return request.reply(ext={"timestamp": str(timestamp)})
