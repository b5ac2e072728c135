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

from verniermq.kernel import SCHEDULE_TOPIC, Context, MessageIllegal, PendingMessage, Property, Registry
from verniermq.plugins.schedule.delivery import Delivery, hide, reveal
from verniermq.plugins.schedule.progress import DelayOffsets

logger = logging.getLogger(__name__)

UNKNOWN_LEVEL_MS: Final = 1000
BATCH: Final = 64
"""Messages delivered in one turn of the loop: about two milliseconds in which nobody else gets served."""

LONGEST_STEP: Final = 60.0
"""We look again at least this often, in seconds: the machine may have been suspended while we slept."""


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
    broker: Context
    offsets: DelayOffsets
    delivery: Delivery
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
            left = self._left_ms(*entries[0])
            if left > 0:
                await clock.sleep(min(left / 1000, LONGEST_STEP))
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

    def _left_ms(self, position: int, size: int, delivery_time: int) -> int:
        """How long an entry has to wait. A delay lasts as long as it was to, whoever sets the clock meanwhile.

        One that is further away than its level allows is due now, as in RocketMQ: somebody made the level shorter, or
        set the clock while no broker ran."""
        set_ahead = self.broker.store.clock_changes.since(position)
        left = delivery_time + round(set_ahead * 1000) - self.broker.clock.now_ms()
        return 0 if self.delay_ms is not None and left > self.delay_ms else left

    async def _deliver(self, entries: Sequence[tuple[int, int, int]]) -> None:
        store = self.broker.store
        offset = self.offsets.get(self.level)
        for position, size, delivery_time in entries:
            if self._left_ms(position, size, delivery_time) > 0:
                return
            stored = store.message_at(position, size)
            message = None if stored is None else reveal(stored)
            if stored is not None and message is not None:
                await self.delivery.append(message, stored.commit_log_offset)
            elif stored is None:
                logger.error(
                    "a delayed message is gone from the log, or damaged; it is skipped level=%d log_offset=%d",
                    self.level, position,
                )  # fmt: skip
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

    def use(self, broker: Context) -> None:
        """Look at all levels that have messages: they may have come from another broker."""
        for queue in broker.store.queues():
            level = queue.queue_id + 1
            if queue.topic == SCHEDULE_TOPIC and level in self._queues:
                self._queues[level].used.set()

    def start(self, broker: Context, offsets: DelayOffsets, registry: Registry) -> None:
        """Register one service per level, also for queues of levels that a former configuration had."""
        kept = [queue.queue_id + 1 for queue in broker.store.queues() if queue.topic == SCHEDULE_TOPIC]
        delivery = Delivery(broker)
        for level in range(1, max([self.highest, *kept]) + 1):
            delay_ms = self.delays_ms[level - 1] if level <= self.highest else None
            queue = LevelQueue(level, delay_ms, broker, offsets, delivery)
            if level in kept:
                queue.used.set()
            self._queues[level] = queue
            registry.service(f"delay level {level}", queue.run, master_only=True)
