"""Where the timers are: the slot and the moment in it that come next, and how much of that the disk may know.

What was delivered is on the disk only after the commit log's next sync; until then the file must not say that it was,
or a power cut would lose it. So each move waits here until the log is durable up to where it was then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from verniermq.plugins.schedule.timers.check import TimerCheckpoint

SlotMark = tuple[int, int, int]
"""Second, within, position: as in :class:`TimerCheckpoint`."""


class TimerProgress:
    def __init__(self, check: TimerCheckpoint, changed: Callable[[], None]) -> None:
        self.second = check.second
        """The slot that is delivered now or next; everything before it is done."""
        self.done = (check.within, check.position)
        """In that slot: (within, position) of the last one delivered."""
        self.queue_offset = check.queue_offset
        """The next timed message to take in."""
        self._counter = check.counter
        self._changed = changed
        self._kept: SlotMark = (self.second, *self.done)
        self._moves: deque[tuple[SlotMark, int]] = deque()
        """With the end of the commit log at that time."""

    @property
    def earliest(self) -> int:
        """The first moment of the slot that can still be delivered in order."""
        return self.done[0] or 1

    def go_to(self, second: int, log_end: int) -> bool:
        """Be done with everything before a slot; says whether that is news."""
        if second == self.second:
            return False
        self.second, self.done = second, (0, -1)
        self.moved(log_end)
        return True

    def moved(self, log_end: int) -> None:
        """What was delivered up to now lies before ``log_end`` in the commit log."""
        self._moves.append(((self.second, *self.done), log_end))
        self._changed()

    def kept(self, durable_end: int, log_position: int, now_ms: int) -> TimerCheckpoint:
        """What may be written to the disk now. Asks to be asked again while that is not everything."""
        while self._moves and self._moves[0][1] <= durable_end:
            self._kept = self._moves.popleft()[0]
        if self._moves:
            self._changed()
        self._counter += 1
        second, within, position = self._kept
        return TimerCheckpoint(second, log_position, self.queue_offset, within, position, now_ms, self._counter)
