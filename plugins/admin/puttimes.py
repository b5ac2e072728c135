"""How long messages take from the log into their queues, and onto the disk if that is waited for.

The store tells of each turn's messages together, so the oldest of a turn counts for all of them, and a turn costs one
look at the clock. What is shown is of the last minute, as RocketMQ shows it; the longest time is since the start.
(RocketMQ: ``StoreStatsService``.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from verniermq.kernel import DispatchEvent, parts_of

CLASSES: Final = (
    ("<=0ms", 1), ("0~10ms", 10), ("10~50ms", 50), ("50~100ms", 100), ("100~200ms", 200), ("200~500ms", 500),
    ("500ms~1s", 1000), ("1~2s", 2000), ("2~3s", 3000), ("3~4s", 4000), ("4~5s", 5000), ("5~10s", 10_000),
    ("10s~", None),
)  # fmt: skip
"""RocketMQ's, each up to and without so many milliseconds."""

LONGEST_KEPT_MS: Final = 60_000
"""All that take longer are shown as this long."""

MINUTE: Final = 6
"""In samples."""


class PutTimes:
    """A listener of the store."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._counts: dict[int, int] = {}
        """Milliseconds → messages, since the last sample."""
        self._minute: deque[dict[int, int]] = deque(maxlen=MINUTE)
        self.longest_ms = 0
        self.largest_turn = 0
        """The most messages that went into their queues together."""

    def __call__(self, events: Sequence[DispatchEvent]) -> None:
        took = self._now_ms() - parts_of(events)[0].store_timestamp
        count = len(events)
        self._counts[took] = self._counts.get(took, 0) + count
        if took > self.longest_ms:
            self.longest_ms = took
        if count > self.largest_turn:
            self.largest_turn = count

    def sample(self) -> None:
        """Ten seconds are over."""
        self._minute.append(self._counts)
        self._counts = {}

    def _last_minute(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for part in (*self._minute, self._counts):
            for took, count in part.items():
                took = min(max(took, 0), LONGEST_KEPT_MS)
                counts[took] = counts.get(took, 0) + count
        return counts

    def distribution(self) -> str:
        """How many messages took how long: ``[<=0ms]:12 [0~10ms]:3 …``."""
        left, parts = self._last_minute(), []
        for name, bound in CLASSES:
            within = [took for took in left if bound is None or took < bound]
            parts.append(f"[{name}]:{sum(left.pop(took) for took in within)} ")
        return "".join(parts)

    def percentile(self, share: float) -> float:
        """The milliseconds that so large a share of the messages took at most; 0 without messages."""
        counts = self._last_minute()
        wanted = share * sum(counts.values())
        for took in sorted(counts):
            wanted -= counts[took]
            if wanted <= 0:
                return float(took)
        return 0.0
