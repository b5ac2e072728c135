"""Tells of groups whose place in a queue is gone (RocketMQ: ``OffsetMovedEvent``).

A consumer that comes back after retention deleted what it had not read goes on at the oldest message there is. Each
such jump is an event in the topic ``OFFSET_MOVED_EVENT``, where ``mqadmin startMonitoring`` and other monitors listen.
A group and queue has one event a minute, so that a consumer that asks again and again does not fill the log.
"""

from __future__ import annotations

import logging
from typing import Final

import anyio
import orjson

from verniermq.kernel import OFFSET_MOVED_TOPIC, Context, PendingMessage, Property, RequestRefused

logger = logging.getLogger(__name__)

INTERVAL_MS: Final = 60_000
MOST: Final = 1000
"""Events of one interval; what is beyond is counted in one line of the log."""


class MovedOffsets:
    def __init__(self, broker: Context) -> None:
        self._broker = broker
        self._told: set[tuple[str, str, int]] = set()
        """Groups and queues with an event in this interval."""
        self._since = 0
        self._untold = 0
        self._pending: list[PendingMessage] = []
        self._news = anyio.Event()

    def note(self, group: str, topic: str, queue_id: int, asked: int, given: int) -> None:
        if topic == OFFSET_MOVED_TOPIC:
            return  # whoever listens to the events would make more of them
        now = self._broker.clock.now_ms()
        if not 0 <= now - self._since < INTERVAL_MS:
            self._begin(now)
        where = (group, topic, queue_id)
        if where in self._told:
            return
        if len(self._told) >= MOST:
            self._untold += 1
            return
        self._told.add(where)
        self._pending.append(self._event(group, topic, queue_id, asked, given, now))
        self._news.set()

    def _begin(self, now: int) -> None:
        if self._untold:
            logger.warning("%d more pulls had their offset moved, without an event each", self._untold)
        self._told.clear()
        self._since, self._untold = now, 0

    def _event(self, group: str, topic: str, queue_id: int, asked: int, given: int, now: int) -> PendingMessage:
        queue = {"brokerName": self._broker.name, "queueId": queue_id, "topic": topic}
        event = {"consumerGroup": group, "messageQueue": queue, "offsetNew": given, "offsetRequest": asked}
        marks = {Property.TAGS: group, Property.KEYS: group}
        return PendingMessage(OFFSET_MOVED_TOPIC, 0, orjson.dumps(event), marks, born_timestamp=now)

    async def run(self) -> None:
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            pending, self._pending = self._pending, []
            for event in pending:
                try:
                    await self._broker.put(event)
                except RequestRefused as error:
                    logger.warning("no event of a moved offset group=%s: %s", event.properties[Property.KEYS], error)
