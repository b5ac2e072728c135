"""The two tasks of the timers: one takes in what producers sent, one delivers what is due.

Both run on the loop and touch the files only between two of their waits, so there is nothing to lock. ``second`` is
the slot that is delivered now or next; everything before it is done. What comes too late for its own slot goes into
that one, at the earliest moment that is still to come in it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import anyio.to_thread

from verniermq.kernel import (
    Broker,
    Clock,
    Document,
    PendingMessage,
    Property,
    StoredMessage,
    java_hash,
    record_properties,
)
from verniermq.plugins.schedule.courier import Courier, reveal
from verniermq.plugins.schedule.timers.check import Check, CheckFile
from verniermq.plugins.schedule.timers.recall import DELETE_KEY, delete_key_of
from verniermq.plugins.schedule.timers.recovery import TimerFiles, open_files
from verniermq.plugins.schedule.timers.slot import OpenSlot
from verniermq.plugins.schedule.timers.timerlog import DEFAULT, DELETE, ROLL, Entry
from verniermq.plugins.schedule.timers.times import DAY_SECONDS, SECOND, due_of, rolled_slot, slot_of
from verniermq.plugins.schedule.timers.wheel import SLOTS

logger = logging.getLogger(__name__)

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TAKE_IN_BATCH: Final = 128
DELIVER_BATCH: Final = 64
CHAIN_BATCH: Final = 2000
LONGEST_WINDOW: Final = 7 * DAY_SECONDS
"""No slot is further away than this from when its record was written."""


class Timers:
    """Runs on one broker. ``window`` is in seconds."""

    def __init__(self, broker: Broker, *, window: int, file_size: int, persist_interval: float) -> None:
        self.used = anyio.Event()
        """Set by the first timed message; before it there are no files and no tasks."""
        self.stopping = False
        self._broker = broker
        self._clock: Clock = broker.clock
        self._courier = Courier(broker)
        self._window = window
        self._file_size = file_size
        self._persist_interval = persist_interval
        self._log_end_at_start = broker.store.end
        self._root = Path(broker.store.path)
        self._ready = anyio.Event()
        self._opened = False
        self._files: TimerFiles
        self._document: Document
        self._second = 0
        self._done = (0, -1)
        self._queue_offset = 0
        self._counter = 0
        self._kept = (0, 0, -1)
        self._moves: deque[tuple[tuple[int, int, int], int]] = deque()
        """(second, within, position) and the log's end after it, for progress that may not be on the disk yet."""
        self._slot: OpenSlot | None = None
        self._fresh_recalls: set[str] = set()
        """Taken back, and the marker not taken in yet."""
        self._changed = anyio.Event()
        self._sleeps_until: float = inf
        self._room = anyio.Event()

    async def prepare(self) -> None:
        """Open the files, if there are any; before that nothing is taken in or delivered."""
        if self._broker.store.max_offset(TIMER_TOPIC, 0) > 0 or (self._root / "timerlog").exists():
            self._start_from(await anyio.to_thread.run_sync(self._open))
            self.used.set()
        self._ready.set()

    async def run(self) -> None:
        await self._ready.wait()
        await self.used.wait()
        if not self._opened:
            # The first timed message of this store: there is nothing to read, so it takes no time.
            self._start_from(self._open())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._take_in)
            tasks.start_soon(self._deliver)

    def _open(self) -> TimerFiles:
        return open_files(
            self._root, self._broker.store, file_size=self._file_size, log_end=self._log_end_at_start,
            now_slot=slot_of(self._clock.now_ms()), queue=(TIMER_TOPIC, 0),
        )  # fmt: skip

    def _start_from(self, files: TimerFiles) -> None:
        check = files.check
        self._files = files
        self._second, self._done = check.second, (check.within, check.position)
        self._kept = (check.second, check.within, check.position)
        self._queue_offset, self._counter = check.queue_offset, check.counter
        file = CheckFile(self._root / "config" / "timercheck", files.log, files.wheel)
        self._document = self._broker.documents.add(file, self._snapshot, self._persist_interval)
        self._document.touch()
        self._opened = True

    def recall(self, key: str) -> None:
        """A message was taken back: it must not be delivered from now on."""
        self._fresh_recalls.add(key)

    # --- progress on disk ------------------------------------------------------------------

    def _snapshot(self) -> dict[str, Any]:
        durable = self._broker.store.durable_end
        while self._moves and (self.stopping or self._moves[0][1] <= durable):
            self._kept = self._moves.popleft()[0]
        if self._moves:
            self._document.touch()
        self._expire()
        self._counter += 1
        second, within, position = self._kept
        check = Check(
            second, self._files.log.end, self._queue_offset, within, position, self._clock.now_ms(), self._counter
        )
        return {"check": check}

    def _moved(self) -> None:
        self._moves.append(((self._second, *self._done), self._broker.store.end))
        self._document.touch()

    def _expire(self) -> None:
        """Remove files of the timer log all of whose slots are done or whose messages are gone."""
        log = self._files.log
        while (last := log.last_of_first_file) is not None:
            over = last.write_ms // SECOND + LONGEST_WINDOW < self._kept[0]
            if not over and last.log_offset >= self._broker.store.start:
                return
            log.drop_first_file()

    # --- taking in -------------------------------------------------------------------------

    async def _take_in(self) -> None:
        store, held_pulls = self._broker.store, self._broker.held_pulls
        while True:
            queue = store.queue(TIMER_TOPIC, 0)
            if queue is not None:
                self._queue_offset = max(self._queue_offset, queue.min_offset)
            entries = [] if queue is None else queue.entries(self._queue_offset, TAKE_IN_BATCH)
            if not entries:
                await held_pulls.arrival(TIMER_TOPIC, 0, self._queue_offset)
                continue
            for log_offset, size, _ in entries:
                record = store.read(log_offset, size)
                properties = {} if record is None else record_properties(record)
                due = due_of(properties)
                if due is None:
                    logger.error("no timed message; it is skipped log_offset=%d", log_offset)
                elif self._queue_offset >= self._files.again_below or not self._was_delivered(due, log_offset):
                    while not self._has_room(due):
                        self._room = anyio.Event()
                        await self._room.wait()
                    self._take(due, log_offset, size, properties)
                self._queue_offset += 1
            self._document.touch()
            await anyio.lowlevel.checkpoint()

    def _was_delivered(self, due: int, log_offset: int) -> bool:
        """Whether a message's slot came before the one we go on with, or the stop on the way to it did."""
        message = self._broker.store.message_at(log_offset)
        if message is None:
            return True
        stop = rolled_slot(slot_of(due), message.store_timestamp // SECOND, self._window)
        return (slot_of(due) if stop is None else stop) < self._second

    def _has_room(self, due: int) -> bool:
        """Whether the wheel has a slot that far ahead; after weeks of standstill the old ones are emptied first."""
        now_slot = slot_of(self._clock.now_ms())
        furthest = min(slot_of(due), now_slot + self._window)
        if furthest - self._second < SLOTS:
            return True
        if self._slot is None and self._files.wheel.next_waiting(self._second) is None:
            self._go_to(now_slot)
            return True
        return False

    def _take(self, due: int, log_offset: int, size: int, properties: dict[str, str]) -> None:
        now_slot = slot_of(self._clock.now_ms() + 1)
        if now_slot < self._second:
            self._turn_back(now_slot)
        magic, slot, within = DEFAULT, slot_of(due), due - slot_of(due) * SECOND
        rolled = rolled_slot(slot, now_slot, self._window)
        if rolled is not None:
            magic, slot, within = magic | ROLL, rolled, 1
        earliest = self._done[0] or 1
        if slot < self._second or (slot == self._second and within < earliest):
            slot, within = self._second, earliest
        marker = properties.get(DELETE_KEY)
        if marker is not None:
            magic |= DELETE
        position = self._write(slot, within, magic, now_slot, log_offset, size, properties)
        self._fresh_recalls.discard(marker or "")
        if self._slot is not None and self._slot.second == slot:
            if marker is not None and not magic & ROLL:
                self._slot.recalled.add(marker)
            else:
                self._slot.add_late(within, position)
        if slot * SECOND + within < self._sleeps_until:
            self._changed.set()

    def _write(
        self, slot: int, within: int, magic: int, now_slot: int, log_offset: int, size: int, properties: dict[str, str]
    ) -> int:
        log, wheel = self._files.log, self._files.wheel
        known = wheel.get(slot)
        before = log.end
        position = log.append(
            Entry(
                -1 if known is None else known.last, magic, now_slot * SECOND, (slot - now_slot) * SECOND, log_offset,
                size, java_hash(properties.get(Property.REAL_TOPIC, "")), within,
            )
        )  # fmt: skip
        try:
            wheel.add(slot, position, -1 if magic & DELETE else 1)
        except OSError:
            log.end = before
            raise
        return position

    def _turn_back(self, now_slot: int) -> None:
        """Somebody set the clock back: go on from there. What lies between was delivered and is forgotten."""
        logger.warning("the clock went back by %d s; timers follow it", self._second - now_slot)
        if self._slot is None:
            self._files.wheel.forget(max(now_slot, self._second - DAY_SECONDS), self._second)
            self._go_to(now_slot)

    # --- delivering ------------------------------------------------------------------------

    async def _deliver(self) -> None:
        while True:
            second = self._files.wheel.next_waiting(self._second)
            if second is None:
                await self._sleep_until(inf)
            elif second * SECOND + 1 > self._clock.now_ms():
                await self._sleep_until(second * SECOND + 1)
            else:
                self._go_to(second)
                await self._empty(second)

    def _go_to(self, second: int) -> None:
        if second != self._second:
            self._second, self._done = second, (0, -1)
            self._moved()
            self._room.set()

    async def _sleep_until(self, moment_ms: float) -> None:
        """Wait for a time, or for something that is due before it."""
        self._sleeps_until = moment_ms
        self._changed = anyio.Event()
        async with anyio.create_task_group() as tasks:
            if moment_ms != inf:
                tasks.start_soon(self._sleep, moment_ms / 1000, self._changed.set)
            await self._changed.wait()
            tasks.cancel_scope.cancel()

    async def _sleep(self, moment: float, wake: Callable[[], None]) -> None:
        await self._clock.sleep_until(moment)
        wake()

    async def _empty(self, second: int) -> None:
        """Deliver what a slot holds, each at its millisecond, until its second is over."""
        self._slot = slot = OpenSlot(second, self._done)
        await self._load(slot)
        while True:
            due = slot.next_due_ms()
            over = (second + 1) * SECOND
            if due is None and self._clock.now_ms() >= over:
                break
            if due is None or due > self._clock.now_ms():
                await self._sleep_until(over if due is None else due)
                continue
            await self._deliver_batch(slot)
            await anyio.lowlevel.checkpoint()
        self._slot = None
        self._files.wheel.emptied(second)
        self._go_to(second + 1)

    async def _load(self, slot: OpenSlot) -> None:
        """Read the chain of a slot as it is now; what comes meanwhile is put into the slot by who takes it in."""
        head = self._files.wheel.get(slot.second)
        position = -1 if head is None else head.last
        markers: list[int] = []
        steps = 0
        while position >= 0:
            entry = self._files.log.read(position)
            if entry is None:
                break
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
        for number, log_offset in enumerate(markers):
            message = self._broker.store.message_at(log_offset)
            if message is not None:
                slot.recalled.add(message.properties.get(DELETE_KEY, ""))
            if number % DELIVER_BATCH == 0:
                await anyio.lowlevel.checkpoint()

    async def _deliver_batch(self, slot: OpenSlot) -> None:
        try:
            for _ in range(DELIVER_BATCH):
                due = slot.next_due_ms()
                if due is None or due > self._clock.now_ms():
                    return
                within, position = slot.first()
                await self._deliver_one(slot, position)
                slot.delivered(within, position)
                self._done = slot.done
        finally:
            self._moved()

    async def _deliver_one(self, slot: OpenSlot, position: int) -> None:
        entry = self._files.log.read(position)
        stored = None if entry is None else self._broker.store.message_at(entry.log_offset)
        if entry is None or stored is None:
            logger.error("a timed message is gone from the log second=%d position=%d", slot.second, position)
            return
        message = self._made_ready(entry, stored, slot.recalled)
        if message is not None:
            await self._courier.append(message)

    def _made_ready(self, entry: Entry, stored: StoredMessage, recalled: set[str]) -> PendingMessage | None:
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
