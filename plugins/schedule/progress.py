"""How far each delay level has been delivered: ``config/delayOffset.json``, in RocketMQ's form.

::

    {"dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 1700000000000},
     "offsetTable": {"1": 10, "3": 4}}

The key is the level, the value the offset in queue level - 1 of ``SCHEDULE_TOPIC_XXXX`` that comes next.

The file is on the disk at once, a delivered message only after the log's next sync. So the file never says more
than the log has kept: after a power cut a message may come twice, but none is missing. At an orderly stop the
log is synced first, and the file says everything: then none comes twice either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from verniermq.kernel import DataVersion, Document

MOVES_PER_VERSION: Final = 200
"""The table changes all the time; its version need not."""


class DelayOffsets:
    """The table. ``durable_end`` says up to which commit-log offset the disk has the log."""

    def __init__(self, now_ms: Callable[[], int], durable_end: Callable[[], int]) -> None:
        self._next: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        self._moves: dict[int, deque[tuple[int, int]]] = {}
        """Level → (offset, the log's end after its delivery), for moves that are not known to be on the disk."""
        self._durable_end = durable_end
        self._version = DataVersion(now_ms)
        self._moved = 0
        self.document: Document | None = None

    def load(self, data: Mapping[str, Any]) -> None:
        self._version.load(data.get("dataVersion"))
        for level, offset in (data.get("offsetTable") or {}).items():
            self._next[int(level)] = self._kept[int(level)] = int(offset)

    def take_over(self, data: Mapping[str, Any]) -> None:
        """What the master of this slave has delivered, as :meth:`as_json` says it there."""
        self.load(data)
        if self.document is not None:
            self.document.touch()

    def get(self, level: int) -> int:
        return self._next.get(level, 0)

    def correct(self, level: int, low: int, high: int) -> None:
        """Keep a level within its queue: what lies before was deleted, what lies behind never came."""
        offset = min(max(self.get(level), low), high)
        if offset != self.get(level):
            self.move(level, offset, 0)

    def move(self, level: int, offset: int, log_end: int) -> None:
        """A level is at ``offset`` now; what was delivered before it is in the log up to ``log_end``."""
        self._next[level] = offset
        self._moves.setdefault(level, deque()).append((offset, log_end))
        self._moved += 1
        if self._moved % MOVES_PER_VERSION == 0:
            self._version.next()
        if self.document is not None:
            self.document.touch()

    def as_json(self) -> dict[str, Any]:
        """What may be written to the disk now. Asks to be asked again while that is not everything."""
        durable = self._durable_end()
        for level, moves in self._moves.items():
            while moves and moves[0][1] <= durable:
                self._kept[level] = moves.popleft()[0]
        if any(self._moves.values()) and self.document is not None:
            self.document.touch()
        return {
            "dataVersion": self._version.as_json(),
            "offsetTable": {str(level): offset for level, offset in sorted(self._kept.items())},
        }
