"""Popping in order: one pop at a time for each queue and group (RocketMQ: ``ConsumerOrderInfoManager``).

Ordered pops need no checkpoints: the group's offset stays before the first message that is not acknowledged,
and the queue is blocked until all of the last pop are, or until their invisible time is over; then the same
messages come again, with a count of how often. A repeated request with the same attempt id is not blocked:
its first answer was lost on the way.

``config/consumerOrderInfo.json`` keeps the table, with RocketMQ's short names; it is written every few seconds,
so a crash may let an ordered group see its last messages twice, as it may with ordinary pulls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from verniermq.kernel import SAME_MOMENT, Clock

FORGET_AFTER_MS: Final = 24 * 3600 * 1000

QueueKey = tuple[str, str, int]
"""Topic, group, queue."""


@attrs.define(eq=False)
class OrderedPop:
    """The last pop of one queue by one group."""

    pop_time: int
    invisible_ms: int
    offsets: list[int]
    attempt_id: str = ""
    acked: int = 0
    visible_at: dict[int, int] = attrs.Factory(dict)
    """By offset, where it is not ``pop_time + invisible_ms``; for the file."""
    until: dict[int, float] = attrs.Factory(dict)
    """By offset: how long it is invisible, by the clock's ``monotonic``, which nobody can set."""
    times: dict[int, int] = attrs.Factory(dict)
    """By offset: how often it was delivered before."""
    last_used: int = 0

    def open_offsets(self) -> list[int]:
        return [offset for index, offset in enumerate(self.offsets) if not self.acked >> index & 1]

    def visible(self, offset: int) -> int:
        """When it comes again, by the clock as it was when it was popped; for the file, and to be shown."""
        return self.visible_at.get(offset, self.pop_time + self.invisible_ms)

    def as_json(self) -> dict[str, Any]:
        first = self.offsets[0] if self.offsets else 0
        data: dict[str, Any] = {
            "popTime": self.pop_time,
            "i": self.invisible_ms,
            "o": [first, *[offset - first for offset in self.offsets[1:]]] if self.offsets else [],
            "oc": {str(offset): count for offset, count in self.times.items()},
            "l": self.last_used,
            "cm": self.acked,
        }
        if self.visible_at:
            data["ot"] = {str(offset): time for offset, time in self.visible_at.items()}
        if self.attempt_id:
            data["a"] = self.attempt_id
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OrderedPop:
        first, *others = data.get("o") or [0]
        return cls(
            pop_time=int(data["popTime"]),
            invisible_ms=int(data.get("i") or 0),
            offsets=[first, *[first + other for other in others]] if data.get("o") else [],
            attempt_id=data.get("a") or "",
            acked=int(data.get("cm") or 0),
            visible_at={int(offset): int(time) for offset, time in (data.get("ot") or {}).items()},
            times={int(offset): int(count) for offset, count in (data.get("oc") or {}).items()},
            last_used=int(data.get("l") or 0),
        )


class OrderTable:
    """The last ordered pop of every queue and group; ``on_change`` is called after each change."""

    def __init__(self, clock: Clock, on_change: Callable[[], None]) -> None:
        self._clock = clock
        self._on_change = on_change
        self._pops: dict[QueueKey, OrderedPop] = {}

    def __iter__(self) -> Iterator[tuple[QueueKey, OrderedPop]]:
        return iter(list(self._pops.items()))

    def find(self, place: QueueKey) -> OrderedPop | None:
        return self._pops.get(place)

    def is_blocked(self, place: QueueKey, attempt_id: str) -> bool:
        last = self._pops.get(place)
        if last is None or (attempt_id and last.attempt_id == attempt_id):
            return False
        return self.blocked_for(place) is not None

    def blocked_for(self, place: QueueKey) -> float | None:
        """After how many seconds a blocked queue opens by itself; ``None`` if it is not blocked."""
        last = self._pops.get(place)
        now = self._clock.monotonic()
        times = [] if last is None else [last.until[offset] - now for offset in last.open_offsets()]
        longest = max(times, default=0)
        return longest if longest > SAME_MOMENT else None

    def popped(
        self, place: QueueKey, attempt_id: str, pop_time: int, invisible_ms: int, offsets: Sequence[int]
    ) -> OrderedPop:
        """Note a pop; messages of the last one that come again count one more time, acknowledged ones among them too.

        The same attempt again is no new delivery: its answer got lost, and that uses up no retry.
        """
        last = self._pops.get(place)
        times: dict[int, int] = {}
        if last is not None and attempt_id and last.attempt_id == attempt_id:
            times = last.times
        elif last is not None:
            again = set(last.offsets)
            times = {offset: last.times.get(offset, 0) + 1 for offset in offsets if offset in again}
        pop = OrderedPop(
            pop_time, invisible_ms, list(offsets), attempt_id, times=times, last_used=self._clock.now_ms(),
            until=dict.fromkeys(offsets, self._clock.monotonic() + invisible_ms / 1000),
        )  # fmt: skip
        self._pops[place] = pop
        self._on_change()
        return pop

    def acknowledge(self, place: QueueKey, offset: int, pop_time: int) -> int | None:
        """Note that a message is done with. Returns where the group has come to; ``None`` if it is not of this pop."""
        last = self._pops.get(place)
        if last is None or last.pop_time != pop_time or offset not in last.offsets:
            return None
        last.acked |= 1 << last.offsets.index(offset)
        last.last_used = self._clock.now_ms()
        self._on_change()
        return next(iter(last.open_offsets()), last.offsets[-1] + 1)

    def change_visible(self, place: QueueKey, offset: int, pop_time: int, invisible_ms: int) -> bool:
        last = self._pops.get(place)
        if last is None or last.pop_time != pop_time or offset not in last.offsets:
            return False
        last.visible_at[offset] = self._clock.now_ms() + invisible_ms
        last.until[offset] = self._clock.monotonic() + invisible_ms / 1000
        self._on_change()
        return True

    # --- config/consumerOrderInfo.json -----------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        oldest = self._clock.now_ms() - FORGET_AFTER_MS
        table: dict[str, dict[str, Any]] = {}
        for (topic, group, queue_id), pop in self._pops.items():
            if pop.last_used >= oldest:
                table.setdefault(f"{topic}@{group}", {})[str(queue_id)] = pop.as_json()
        return {"table": table}

    def load_json(self, data: Mapping[str, Any]) -> None:
        for name, queues in (data.get("table") or {}).items():
            topic, _, group = name.partition("@")
            for queue_id, pop in queues.items():
                self._pops[topic, group, int(queue_id)] = last = OrderedPop.from_json(pop)
                for offset in last.offsets:
                    # The clock may have been set since: nothing is invisible for longer than it was to be.
                    left = last.visible(offset) - self._clock.now_ms()
                    left = left if offset in last.visible_at else min(left, last.invisible_ms)
                    last.until[offset] = self._clock.monotonic() + left / 1000
