"""Taking timed messages in: from ``rmq_sys_wheel_timer`` into the timer log and the wheel (RocketMQ: ``doEnqueue``)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

import attrs

from verniermq.kernel import TIMER_TOPIC, Context, Property, java_hash
from verniermq.plugins.schedule.timers.progress import TimerProgress
from verniermq.plugins.schedule.timers.recall import DELETE_KEY
from verniermq.plugins.schedule.timers.recovery import TimerFiles
from verniermq.plugins.schedule.timers.timerlog import DEFAULT, DELETE, ROLL, TimerEntry
from verniermq.plugins.schedule.timers.times import DAY_SECONDS, SECOND, due_of, rolled_slot, slot_of
from verniermq.plugins.schedule.timers.wheel import SLOTS

logger = logging.getLogger(__name__)

BATCH: Final = 128
LATE_SECONDS: Final = 2


class EnqueueResult(NamedTuple):
    """A timed message that has its place in the wheel now."""

    slot: int
    within: int
    position: int
    marker: str | None
    """If it takes back another message: that one's key."""
    is_stop: bool
    """The slot is only a stop on the way."""


@attrs.define(eq=False)
class TimerEnqueue:
    broker: Context
    files: TimerFiles
    progress: TimerProgress
    window: int
    """Seconds."""

    def waiting(self) -> list[tuple[int, int, int]]:
        """The next messages that were sent: (commit-log offset, size, tags code)."""
        queue = self.broker.store.queue(TIMER_TOPIC, 0)
        if queue is None:
            return []
        self.progress.queue_offset = max(self.progress.queue_offset, queue.min_offset)
        return queue.entries(self.progress.queue_offset, BATCH)

    def wish(self, log_offset: int, size: int) -> tuple[int, Mapping[str, str]] | None:
        """When a message is due, and its properties; ``None`` if it is not to be taken in."""
        message = self.broker.store.message_at(log_offset, size)
        properties = {} if message is None else message.properties
        due = due_of(properties)
        if due is None:
            logger.error("no timed message; it is skipped log_offset=%d", log_offset)
            return None
        if self.progress.queue_offset < self.files.again_below and self._was_delivered(due, log_offset):
            return None
        return due, properties

    def _was_delivered(self, due: int, log_offset: int) -> bool:
        """Whether a message's slot came before the one we go on with, or the stop on the way to it did.

        One with a short delay may have been taken in after its own slot and be in one of the next: it comes twice
        rather than never.
        """
        message = self.broker.store.message_at(log_offset)
        if message is None:
            return True
        stored = message.store_timestamp // SECOND
        stop = rolled_slot(slot_of(due), stored, self.window)
        slot = slot_of(due) if stop is None else stop
        return slot < self.files.delivered_before - (LATE_SECONDS if slot - stored < LATE_SECONDS else 0)

    def has_room(self, due: int) -> bool:
        """Whether the wheel has a slot that far ahead; after weeks of standstill the old ones are emptied first."""
        now_slot = slot_of(self.broker.clock.now_ms())
        furthest = min(slot_of(due), now_slot + self.window)
        return furthest - self.progress.second < SLOTS

    def take(self, due: int, log_offset: int, size: int, properties: Mapping[str, str]) -> EnqueueResult:
        """Give a message its place.

        Raises:
            OSError: the disk refused; nothing changed.
        """
        now_slot = self.broker.clock.now_ms() // SECOND
        magic, slot, within = DEFAULT, slot_of(due), due - slot_of(due) * SECOND
        stop = rolled_slot(slot, now_slot, self.window)
        if stop is not None:
            magic, slot, within = magic | ROLL, stop, 1
        progress = self.progress
        if slot < progress.second or (slot == progress.second and within < progress.earliest):
            slot, within = progress.second, progress.earliest
        marker = properties.get(DELETE_KEY)
        if marker is not None:
            magic |= DELETE
        log, wheel = self.files.log, self.files.wheel
        known = wheel.get(slot)
        before = log.end
        position = log.append(
            TimerEntry(
                -1 if known is None else known.last, magic, now_slot * SECOND, (slot - now_slot) * SECOND, log_offset,
                size, java_hash(properties.get(Property.REAL_TOPIC, "")), within,
            )
        )  # fmt: skip
        try:
            wheel.add(slot, position, 1 if marker is None else -1)
        except OSError:
            log.end = before
            raise
        return EnqueueResult(slot, within, position, marker, stop is not None)

    @property
    def is_set_back(self) -> bool:
        """Whether it is earlier now than what was delivered last: somebody set the clock back."""
        return self.broker.clock.now_ms() // SECOND < self.progress.second

    def follow_clock(self) -> None:
        """If somebody set the clock back: go on from there. What lies between was delivered and is forgotten."""
        if self.is_set_back:
            now_slot, second = self.broker.clock.now_ms() // SECOND, self.progress.second
            logger.warning("the clock went back by %d s; timers follow it", second - now_slot)
            self.files.wheel.forget(max(now_slot, second - DAY_SECONDS), second)
            self.progress.go_to(now_slot, self.broker.store.end)
