"""The timers of one broker: nothing but a note of how the store was found, until there is a timed message.

Only then there are files, and :mod:`~verniermq.plugins.schedule.timers.service` is imported and runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
import anyio.to_thread

from verniermq.kernel import Clock, Context
from verniermq.plugins.schedule.timers.times import QUEUE, slot_of

if TYPE_CHECKING:
    from verniermq.plugins.schedule.timers.check import TimerCheckpoint
    from verniermq.plugins.schedule.timers.recovery import TimerFiles
    from verniermq.plugins.schedule.timers.service import TimerService
    from verniermq.plugins.schedule.timers.wheel import Slot

BOUNDS: Final = (5, 60, 300, 900, 3600, 14400, 28800, 86400)
"""In seconds, as Apache counts what is due."""

UNKNOWN_SECONDS: Final = 60
"""If nothing says what was delivered: so long before the newest message was stored everything was, even by a broker
that was late."""


class AtStart(NamedTuple):
    """How the store was found, before anything was appended to it."""

    log_end: int
    """The end of the commit log."""
    queue_end: int
    """How many timed messages were sent."""
    delivered_before: int
    """The second to begin with if nothing says it."""


class Timers:
    """Runs on one broker. ``window`` is in seconds."""

    def __init__(self, broker: Context, *, window: int, file_size: int, persist_interval: float) -> None:
        self.used = anyio.Event()
        """Set by the first timed message."""
        self.service: TimerService | None = None
        self._broker = broker
        self._clock: Clock = broker.clock
        self._window = window
        self._file_size = file_size
        self._persist_interval = persist_interval
        self._at_start: AtStart
        self._root = Path(broker.store.path)
        self._ready = anyio.Event()
        self._recalled: set[str] = set()
        """Taken back, and the marker not taken in yet."""

    def store_opened(self) -> None:
        """Note what the store has before anything is put into it."""
        store = self._broker.store
        newest = slot_of(store.newest_timestamp) - UNKNOWN_SECONDS
        self._at_start = AtStart(store.end, store.max_offset(*QUEUE), newest)

    async def prepare(self) -> None:
        """Open the files, if there are any; before that nothing is taken in or delivered."""
        if self._broker.store.max_offset(*QUEUE) > 0 or (self._root / "timerlog").exists():
            self._start_from(await anyio.to_thread.run_sync(self._open))
            self.used.set()
        self._ready.set()

    def take_over(self) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """What to run when the broker becomes a master: the queue grew by copies, of which nothing was taken in.

        As after a start without the files: what was due a while ago counts as delivered, the rest is looked at.
        """
        if self.service is not None or not self._ready.is_set() or not self._broker.store.max_offset(*QUEUE):
            return None
        self._ready = anyio.Event()
        self.store_opened()
        return self.prepare

    async def run(self) -> None:
        await self._ready.wait()
        await self.used.wait()
        # With the first timed message of this store there is nothing to read, so opening takes no time.
        await (self.service or self._start_from(self._open())).run()

    def _open(self) -> TimerFiles:
        from verniermq.plugins.schedule.timers.recovery import open_files

        at_start = self._at_start
        if not at_start.queue_end:
            at_start = at_start._replace(delivered_before=slot_of(self._clock.now_ms()))
        return open_files(self._root, self._broker.store, file_size=self._file_size, at_start=at_start, queue=QUEUE)

    def _start_from(self, files: TimerFiles) -> TimerService:
        from verniermq.plugins.schedule.timers.service import TimerService

        self.service = TimerService(
            self._broker, files, self._recalled, window=self._window, persist_interval=self._persist_interval
        )
        return self.service

    def recall(self, key: str) -> None:
        """A message was taken back: it must not be delivered from now on."""
        self._recalled.add(key)

    # --- how it is doing -------------------------------------------------------------------

    @property
    def checkpoint(self) -> TimerCheckpoint:
        """How far the timers are by what is on the disk, for slaves."""
        from verniermq.plugins.schedule.timers.check import TimerCheckpoint

        if self.service is not None:
            return self.service.checkpoint
        now = self._clock.now_ms()
        return TimerCheckpoint(slot_of(now), 0, 0, timestamp=now)

    @property
    def late_seconds(self) -> int:
        """By how much the delivery is late."""
        waiting = None if self.service is None else self.service.next_waiting()
        return 0 if waiting is None else max(0, slot_of(self._clock.now_ms()) - waiting)

    @property
    def not_taken_in(self) -> int:
        """How many messages are not taken in yet."""
        return 0 if self.service is None else self.service.not_taken_in

    def taking_in_behind(self) -> int:
        """The age of the oldest message that is not taken in yet, in milliseconds."""
        stored = None if self.service is None else self.service.oldest_not_taken_in()
        return 0 if stored is None else max(0, self._clock.now_ms() - stored)

    def _slots(self, until: int) -> Iterable[Slot]:
        return () if self.service is None else self.service.slots(until)

    def late_messages(self) -> int:
        """How many messages are due and not delivered."""
        return sum(slot.messages for slot in self._slots(slot_of(self._clock.now_ms())))

    def snapshot(self) -> list[tuple[tuple[str], int]]:
        """How many messages are due within which time: bound in seconds → those after the bound before it."""
        now = slot_of(self._clock.now_ms())
        counts = [0] * len(BOUNDS)
        for slot in self._slots(now + BOUNDS[-1]):
            counts[bisect_left(BOUNDS, slot.second - now)] += slot.messages
        return [((str(bound),), count) for bound, count in zip(BOUNDS, counts, strict=True)]

    def figures(self) -> dict[str, str]:
        """Seconds that the delivery is late, and messages that are not taken in yet, by RocketMQ's names."""
        if self.service is None:
            return {}
        return {"timerReadBehind": str(self.late_seconds), "timerOffsetBehind": str(self.not_taken_in)}
