"""What stands in a consume queue (``mqadmin queryCq``)."""

from __future__ import annotations

from typing import Any, Final

import orjson

from verniermq.kernel import Command, Connection, Context, Handler, RequestCode, RequestRefused
from verniermq.plugins.admin.requests import QueryConsumeQueue

MOST_ENTRIES: Final = 4096
"""Of one answer, however many are asked for."""


class QueueRequests:
    def __init__(self, broker: Context) -> None:
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.QUERY_CONSUME_QUEUE: self.query}

    def query(self, request: Command, connection: Connection) -> Command:
        asked = QueryConsumeQueue.of(request)
        queue = self._broker.store.queue(asked.topic, asked.queue_id)
        if queue is None:
            raise RequestRefused(
                f"there is no queue {asked.queue_id} of topic {asked.topic!r} that a message was ever put into"
            )
        count = min(asked.count, MOST_ENTRIES)
        is_there = queue.min_offset <= asked.index < queue.max_offset and count > 0
        entries = queue.entries(asked.index, count) if is_there else []
        body: dict[str, Any] = {
            "maxQueueIndex": queue.max_offset,
            "minQueueIndex": queue.min_offset,
            "queueData": [
                {"physicOffset": offset, "physicSize": size, "tagsCode": code, "eval": False}
                for offset, size, code in entries
            ],
        }
        if asked.group:
            body.update(self._subscription(asked.group, asked.topic))
        return request.reply(body=orjson.dumps(body))

    def _subscription(self, group: str, topic: str) -> dict[str, Any]:
        live = self._broker.clients.subscription(group, topic)
        if live is None:
            return {"filterData": f"{group}@{topic} is not online!"}
        return {"subscriptionData": dict(live.wire)}
