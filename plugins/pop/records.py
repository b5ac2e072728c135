"""What was popped and is not acknowledged, for whoever asks (``mqadmin exportPopRecord``).

An Apache broker answers with nothing and moves its records from one kind of store into another. There is only one
kind here, so the records themselves are the answer, under RocketMQ's names (RocketMQ: ``PopConsumerRecord``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson

from verniermq.kernel import Command, Connection, Context, RequestRefused, in_steps
from verniermq.plugins.pop.inflight import InFlight
from verniermq.plugins.pop.orderinfo import OrderTable

RECORDS_PER_STEP: Final = 256


class PopRecords:
    def __init__(self, broker: Context, inflight: InFlight, orders: OrderTable) -> None:
        self._broker = broker
        self._inflight = inflight
        self._orders = orders

    async def export(self, request: Command, connection: Connection) -> Command:
        limit = self._broker.configuration.remoting.max_frame_size
        parts, size = [], 0
        async for record in in_steps(self._records(), RECORDS_PER_STEP):
            parts.append(orjson.dumps(record))
            size += len(parts[-1]) + 1
            if size > limit:
                raise RequestRefused(
                    f"what is popped and not acknowledged takes more than {limit} bytes; "
                    "raise max_frame_size in [remoting]"
                )
        return request.reply(body=b'{"records":[%s]}' % b",".join(parts))

    def _records(self) -> Iterator[dict[str, Any]]:
        for checkpoint in self._inflight:
            for offset in checkpoint.open_offsets:
                yield {
                    "groupId": checkpoint.group,
                    "topicId": checkpoint.topic,
                    "queueId": checkpoint.queue_id,
                    "offset": offset,
                    "popTime": checkpoint.pop_time,
                    "invisibleTime": checkpoint.invisible_ms,
                    "fifo": False,
                }
        for (topic, group, queue_id), pop in self._orders:
            for offset in pop.open_offsets():
                yield {
                    "groupId": group,
                    "topicId": topic,
                    "queueId": queue_id,
                    "offset": offset,
                    "popTime": pop.pop_time,
                    "invisibleTime": pop.visible(offset) - pop.pop_time,
                    "attemptTimes": pop.times.get(offset, 0),
                    "attemptId": pop.attempt_id,
                    "fifo": True,
                }
