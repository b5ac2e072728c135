"""The two tasks of the timers: one takes in what producers sent, one delivers what is due.

Both run on the loop and touch the files only between two of their waits, so there is nothing to lock. What comes too
late for its own slot goes into the one that is delivered now, at the earliest moment that is still to come in it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs

from verniermq.kernel import TIMER_TOPIC, Clock, Context, PendingMessage, StoredMessage, StoreError
from verniermq.plugins.schedule.delivery import Delivery, reveal
from verniermq.plugins.schedule.timers.check import TimerCheckpoint, TimerCheckpointFile
from verniermq.plugins.schedule.timers.enqueue import EnqueueResult, TimerEnqueue
from verniermq.plugins.schedule.timers.progress import TimerProgress
from verniermq.plugins.schedule.timers.recall import DELETE_KEY, delete_key_of
from verniermq.plugins.schedule.timers.recovery import TimerFiles, mend
from verniermq.plugins.schedule.timers.slot import OpenSlot
from verniermq.plugins.schedule.timers.timerlog import DELETE, ROLL, TimerEntry
from verniermq.plugins.schedule.timers.times import LONGEST_WINDOW, QUEUE, SECOND, slot_of
from verniermq.plugins.schedule.timers.wheel import Slot

logger = logging.getLogger(__name__)

DELIVER_BATCH: Final = 64
CHAIN_BATCH: Final = 2000
LOOKED_AT: Final = 500
"""Slots that are looked at to count what is due, each a read of a file: messages of seconds after them do not count."""


class DamagedTimers(StoreError):
    """A chain of the timer log does not lead where it should."""

    def __init__(self, position: int, second: int) -> None:
        super().__init__(f"the timer log is damaged at position {position}, in the chain of second {second}")


class TimerService:
    """Works with the files once they are open. ``window`` is in seconds; ``recalled``, the keys of what was taken back
    and whose marker is not taken in yet, is filled from outside."""

    def __init__(
        self, broker: Context, files: TimerFiles, recalled: set[str], *, window: int, persist_interval: float
    ) -> None:
        self._broker = broker
        self._clock: Clock = broker.clock
        self._delivery = Delivery(broker)
        self._mending = False
        self._saved: dict[str, Any] = {}
        self._files = files
        file = TimerCheckpointFile(Path(broker.store.path) / "config" / "timercheck", files.log, files.wheel)
        self._document = broker.keep(file, self._snapshot, persist_interval)
        self._progress = TimerProgress(files.check, self._document.touch)
        self._enqueue = TimerEnqueue(broker, files, self._progress, window)
        self._slot: OpenSlot | None = None
        self._fresh_recalls = recalled
        self._changed = anyio.Event()
        self._sleeps_until: float = inf
        self._room = anyio.Event()
        self._document.touch()

    async def run(self) -> None:
        while True:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._take_in)
                    tasks.start_soon(self._deliver)
            except* DamagedTimers as damage:
                logger.error("%s; the timers' files are made again", damage.exceptions[0])
            await self._mend()

    async def _mend(self) -> None:
        """While both tasks rest: make again what does not fit."""
        self._slot, self._mending = None, True
        progress = self._progress
        now = TimerCheckpoint(progress.second, self._files.log.end, progress.queue_offset, *progress.done)
        mended = await anyio.to_thread.run_sync(mend, self._files, now, self._broker.store, QUEUE)
        self._files.again_below, self._files.delivered_before = mended.again_below, mended.delivered_before
        progress.queue_offset = mended.check.queue_offset
        progress.done = (mended.check.within, mended.check.position)
        self._mending = False
        self._document.touch()

    def _snapshot(self) -> dict[str, Any]:
        if self._mending:
            return self._saved  # until the files are whole again it says what they lack
        log, store = self._files.log, self._broker.store
        kept = self._progress.kept(store.durable_end, log.end, self._clock.now_ms())
        while (last := log.last_of_first_file) is not None:
            over = last.write_ms // SECOND + LONGEST_WINDOW < kept.second
            if not over and last.log_offset >= store.start:
                break
            log.drop_first_file()
        check = attrs.evolve(
            kept, log_start=log.start, file_size=log.file_size, slots_from=self._progress.second,
            slots=self._files.wheel.number_waiting,
        )  # fmt: skip
        self._saved = {"check": check}
        return self._saved

    @property
    def checkpoint(self) -> TimerCheckpoint:
        """How far the timers are by what is on the disk, for slaves."""
        if self._mending and self._saved:
            check: TimerCheckpoint = self._saved["check"]
            return check
        return self._progress.kept(self._broker.store.durable_end, self._files.log.end, self._clock.now_ms())

    # --- how it is doing -------------------------------------------------------------------

    @property
    def not_taken_in(self) -> int:
        """How many messages are not taken in yet."""
        return self._broker.store.max_offset(*QUEUE) - self._progress.queue_offset

    def oldest_not_taken_in(self) -> int | None:
        """When the oldest message that is not taken in yet was stored, in milliseconds."""
        return self._broker.store.stored_at(*QUEUE, self._progress.queue_offset) if self.not_taken_in > 0 else None

    def next_waiting(self) -> int | None:
        """The first second with messages that are not delivered."""
        return self._files.wheel.next_waiting(self._progress.second)

    def slots(self, until: int) -> Iterator[Slot]:
        """The next slots with messages that are not delivered, up to a second; at most ``LOOKED_AT`` of them."""
        second = self._progress.second
        for _ in range(LOOKED_AT):
            waiting = self._files.wheel.next_waiting(second)
            slot = self._files.wheel.get(waiting) if waiting is not None and waiting <= until else None
            if slot is None:
                return
            yield slot
            second = slot.second + 1

    # --- taking in -------------------------------------------------------------------------

    async def _take_in(self) -> None:
        while True:
            entries = self._enqueue.waiting()
            if not entries:
                await self._broker.held_pulls.arrival(TIMER_TOPIC, 0, self._progress.queue_offset)
                continue
            while self._slot is not None and self._enqueue.is_set_back:
                self._room = anyio.Event()
                await self._room.wait()  # what is left of the old time is delivered first
            if self._slot is None:
                self._enqueue.follow_clock()
            for log_offset, size, _ in entries:
                wish = self._enqueue.wish(log_offset, size)
                if wish is not None:
                    due, properties = wish
                    await self._wait_for_room(due)
                    self._place(self._enqueue.take(due, log_offset, size, properties))
                self._progress.queue_offset += 1
            self._document.touch()
            await anyio.lowlevel.checkpoint()

    async def _wait_for_room(self, due: int) -> None:
        while not self._enqueue.has_room(due):
            if self._slot is None and self._files.wheel.next_waiting(self._progress.second) is None:
                self._go_to(slot_of(self._clock.now_ms()))  # nothing has waited for weeks
            else:
                self._room = anyio.Event()
                await self._room.wait()

    def _place(self, taken: EnqueueResult) -> None:
        """Tell the delivery about a message, if it does not find it in the wheel by itself in time."""
        self._fresh_recalls.discard(taken.marker or "")
        slot = self._slot
        if slot is not None and slot.second == taken.slot:
            if taken.marker is not None and not taken.is_stop:
                slot.recalled.add(taken.marker)
            else:
                slot.add_late(taken.within, taken.position)
        if taken.slot * SECOND + taken.within < self._sleeps_until:
            self._changed.set()

    # --- delivering ------------------------------------------------------------------------

    async def _deliver(self) -> None:
        while True:
            second = self._files.wheel.next_waiting(self._progress.second)
            if second is None:
                await self._sleep_until(inf)
            elif second * SECOND + 1 > self._clock.now_ms():
                await self._sleep_until(second * SECOND + 1)
            else:
                self._go_to(second)
                await self._empty(second)

    def _go_to(self, second: int) -> None:
        if self._progress.go_to(second, self._broker.store.end):
            self._room.set()

    async def _sleep_until(self, moment_ms: float) -> None:
        """Wait for a time, or for something that is due before it."""
        self._sleeps_until = moment_ms
        self._changed = anyio.Event()
        async with anyio.create_task_group() as tasks:
            if moment_ms != inf:
                tasks.start_soon(self._sleep, moment_ms, self._changed.set)
            await self._changed.wait()
            tasks.cancel_scope.cancel()

    async def _sleep(self, moment_ms: float, wake: Callable[[], None]) -> None:
        if self._slot is not None:
            # Within a second: that is over in time, whoever sets the clock meanwhile.
            await self._clock.sleep((moment_ms - self._clock.now_ms()) / 1000)
        else:
            await self._clock.sleep_until(moment_ms / 1000)
        wake()

    async def _empty(self, second: int) -> None:
        """Deliver what a slot holds, each at its millisecond, until its second is over."""
        self._slot = slot = OpenSlot(second, self._progress.done)
        await self._load(slot)
        over = (second + 1) * SECOND
        while True:
            due = slot.next_due_ms()
            if due is None and self._now_ms(slot) >= over:
                break
            if due is None or due > self._now_ms(slot):
                await self._sleep_until(over if due is None else due)
                continue
            await self._deliver_batch(slot)
            await anyio.lowlevel.checkpoint()
        self._slot = None
        self._files.wheel.emptied(second)
        self._go_to(second + 1)

    def _now_ms(self, slot: OpenSlot) -> int:
        """The time in a slot. If the clock was set back since it was opened, its second is over: it would come once
        more an hour later, and nobody could tell what of it was delivered."""
        now = self._clock.now_ms()
        return now if now >= slot.second * SECOND else (slot.second + 1) * SECOND

    async def _load(self, slot: OpenSlot) -> None:
        """Read the chain of a slot as it is now; what comes meanwhile is put into the slot by who takes it in."""
        head = self._files.wheel.get(slot.second)
        position = -1 if head is None else head.last
        markers: list[int] = []
        steps = 0
        while position >= 0:
            entry = self._files.log.read(position)
            if entry is None and position < self._files.log.start:
                break  # its message is gone from the log, and so is its record
            if entry is None or entry.slot != slot.second:
                raise DamagedTimers(position, slot.second)
            if entry.magic & DELETE and not entry.magic & ROLL:
                markers.append(entry.log_offset)
            else:
                slot.add_from_chain(entry.within or SECOND, position)
            if entry.previous >= position:
                break
            position = entry.previous
            steps += 1
            if steps % CHAIN_BATCH == 0:
                await anyio.lowlevel.checkpoint()
        for number, log_offset in enumerate(markers, 1):
            message = self._broker.store.message_at(log_offset)
            if message is not None:
                slot.recalled.add(message.properties.get(DELETE_KEY, ""))
            if number % DELIVER_BATCH == 0:
                await anyio.lowlevel.checkpoint()

    async def _deliver_batch(self, slot: OpenSlot) -> None:
        try:
            for _ in range(DELIVER_BATCH):
                due = slot.next_due_ms()
                if due is None or due > self._now_ms(slot):
                    return
                within, position = slot.first()
                await self._deliver_one(slot, position)
                slot.delivered(within, position)
                self._progress.done = slot.done
        finally:
            self._progress.moved(self._broker.store.end)

    async def _deliver_one(self, slot: OpenSlot, position: int) -> None:
        entry = self._files.log.read(position)
        stored = None if entry is None else self._broker.store.message_at(entry.log_offset, entry.size)
        if entry is None or stored is None:
            logger.error(
                "a timed message is gone from the log, or damaged; it is skipped second=%d position=%d",
                slot.second, position,
            )  # fmt: skip
            return
        message = self._made_ready(entry, stored, slot.recalled)
        if message is not None:
            await self._delivery.append(message, stored.commit_log_offset)

    def _made_ready(self, entry: TimerEntry, stored: StoredMessage, recalled: set[str]) -> PendingMessage | None:
        """The message as it goes on, with the times that RocketMQ notes; ``None`` if it was taken back."""
        message: PendingMessage | None
        if entry.magic & ROLL:
            message = stored.pending()
            times = stored.properties.get("TIMER_ROLL_TIMES", "0")
            message.set_property("TIMER_ROLL_TIMES", str(int(times) + 1 if times.isdecimal() else 1))
        else:
            key = delete_key_of(stored.properties)
            message = None if key in recalled or key in self._fresh_recalls else reveal(stored)
            if message is None:
                return None
        message.set_property("TIMER_ENQUEUE_MS", str(entry.write_ms))
        message.set_property("TIMER_DEQUEUE_MS", str(self._clock.now_ms()))
        return message
