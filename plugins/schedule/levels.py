"""Delay levels: a message says "level 3" and comes 10 seconds later (RocketMQ: ``ScheduleMessageService``).

Level n waits in queue n - 1 of ``SCHEDULE_TOPIC_XXXX``. All messages of a level wait equally long, so each queue is
sorted by delivery time by itself, and one task per level has only to look at the first message. The delivery time
stands in the consume-queue entry where other topics keep the hash of the tags, so looking costs 20 bytes::

    queue 2 (10 s):   ..offset.. ..size.. 10:00:07.350   <- sleeps until then
                      ..offset.. ..size.. 10:00:08.100
                      ..offset.. ..size.. 10:00:08.100

A level that nobody uses has no task that runs and nothing that ticks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import anyio
import anyio.lowlevel
import attrs

from verniermq.kernel import Broker, MessageIllegal, PendingMessage, Property, Service
from verniermq.plugins.schedule.courier import Courier, hide, reveal
from verniermq.plugins.schedule.progress import DelayOffsets

logger = logging.getLogger(__name__)

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
UNKNOWN_LEVEL_MS: Final = 1000
BATCH: Final = 64
"""Messages delivered in one turn of the loop: about two milliseconds in which nobody else gets served."""


def level_of(properties: Mapping[str, str]) -> int:
    """The level that a message asks for; 0 or less means none.

    Raises:
        MessageIllegal: it is no number.
    """
    text = properties.get(Property.DELAY, "0")
    try:
        return int(text)
    except ValueError:
        raise MessageIllegal(f"property {Property.DELAY} is {text[:40]!r}, expected the number of a level") from None


@attrs.define(eq=False)
class LevelQueue:
    """One level's queue and the task that empties it."""

    level: int
    delay_ms: int | None
    """``None`` for a level that the configuration no longer has, whose queue still has messages."""
    broker: Broker
    offsets: DelayOffsets
    courier: Courier
    used: anyio.Event = attrs.field(factory=anyio.Event, init=False)

    @property
    def queue_id(self) -> int:
        return self.level - 1

    async def run(self) -> None:
        await self.used.wait()
        held_pulls, clock = self.broker.held_pulls, self.broker.clock
        while True:
            entries = self._waiting()
            if not entries:
                await held_pulls.arrival(SCHEDULE_TOPIC, self.queue_id, self.offsets.get(self.level))
                continue
            due = self._due_ms(entries[0][2])
            if due > clock.now_ms():
                await clock.sleep_until(due / 1000)
                continue
            await self._deliver(entries)
            await anyio.lowlevel.checkpoint()

    def _waiting(self) -> list[tuple[int, int, int]]:
        """The next entries: (commit-log offset, size, delivery time)."""
        queue = self.broker.store.queue(SCHEDULE_TOPIC, self.queue_id)
        if queue is None:
            return []
        self.offsets.correct(self.level, queue.min_offset, queue.max_offset)
        return queue.entries(self.offsets.get(self.level), BATCH)

    def _due_ms(self, delivery_time: int) -> int:
        """When an entry is due. One that is further away than its level allows is due now, as in RocketMQ:
        somebody set the clock, or made the level shorter."""
        now = self.broker.clock.now_ms()
        if self.delay_ms is not None and delivery_time > now + self.delay_ms:
            return now
        return delivery_time

    async def _deliver(self, entries: Sequence[tuple[int, int, int]]) -> None:
        store, now_ms = self.broker.store, self.broker.clock.now_ms
        offset = self.offsets.get(self.level)
        for position, _, delivery_time in entries:
            if self._due_ms(delivery_time) > now_ms():
                return
            stored = store.message_at(position)
            message = None if stored is None else reveal(stored)
            if message is not None:
                await self.courier.append(message)
            elif stored is None:
                logger.error("a delayed message is gone from the log level=%d log_offset=%d", self.level, position)
            offset += 1
            self.offsets.move(self.level, offset, store.end)


class Levels:
    """All levels of a broker: ``delays`` in seconds, level 1 first."""

    def __init__(self, delays: Sequence[float]) -> None:
        self.delays_ms = [round(seconds * 1000) for seconds in delays]
        self._queues: dict[int, LevelQueue] = {}

    @property
    def highest(self) -> int:
        return len(self.delays_ms)

    def schedule(self, message: PendingMessage, level: int) -> None:
        """Have a message wait in its level's queue; one above the highest counts as the highest."""
        if level > self.highest:
            level = self.highest
            message.set_property(Property.DELAY, str(level))
        hide(message, SCHEDULE_TOPIC, level - 1)
        self._queues[level].used.set()

    def delivery_time(self, properties: Mapping[str, str], store_timestamp: int) -> int:
        """What a consume-queue entry of the topic keeps (a ``TagsCoder``)."""
        try:
            level = min(int(properties.get(Property.DELAY, "0")), self.highest)
        except ValueError:
            level = 0
        return store_timestamp + (self.delays_ms[level - 1] if level > 0 else UNKNOWN_LEVEL_MS)

    def services(self, broker: Broker, offsets: DelayOffsets) -> list[Service]:
        """One task per level, also for queues of levels that a former configuration had."""
        kept = [queue.queue_id + 1 for queue in broker.store.queues() if queue.topic == SCHEDULE_TOPIC]
        courier = Courier(broker)
        for level in range(1, max([self.highest, *kept]) + 1):
            delay_ms = self.delays_ms[level - 1] if level <= self.highest else None
            queue = LevelQueue(level, delay_ms, broker, offsets, courier)
            if level in kept:
                queue.used.set()
            self._queues[level] = queue
        return [Service(f"delay level {level}", queue.run) for level, queue in self._queues.items()]
