"""What the broker notes of each queue as messages are dispatched: how far it is, and figures since the start.

This runs for every message, so it adds a few numbers and makes no object.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from verniermq.kernel import DispatchEvent, Run, SysFlag, parts_of


@attrs.define(slots=True, eq=False)
class QueueMark:
    """One queue since the broker started."""

    high: int = 0
    """The offset after the newest message: its high-water mark."""
    messages: int = 0
    bytes: int = 0
    delay_ms: int = 0
    """From birth to store, of all messages together."""
    retried: int = 0
    """Messages that came back from a consumer."""
    stored_at: int = 0
    """The store timestamp of the newest one."""

    def as_json(self) -> dict[str, int]:
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "delayMs": self.delay_ms,
            "retried": self.retried,
            "storedAt": self.stored_at,
        }


class Marks:
    """The marks of all queues, by topic and queue id."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str, int], QueueMark] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def note(self, events: Sequence[DispatchEvent]) -> None:
        """Add a batch. Recovery announces messages again; what lies below a mark was counted already."""
        marks = self._marks
        for part in parts_of(events):
            if part.sys_flag & SysFlag.TRANSACTION_PREPARED:
                continue  # prepared or rolled back: in the log, in no queue
            key = (part.topic, part.queue_id)
            mark = marks.get(key)
            if mark is None:
                mark = marks[key] = QueueMark()
            # Of a run too the first one tells: a run is announced when it is stored, and recovery makes none.
            if part.queue_offset >= mark.high:
                count = part.count
                mark.high = part.newest_queue_offset + 1
                mark.messages += count
                mark.bytes += part.size
                mark.stored_at = stored = part.store_timestamp
                born = sum(part.born_timestamps) if isinstance(part, Run) else part.born_timestamp
                mark.delay_ms += stored * count - born
                if part.reconsume_times:
                    mark.retried += count

    def get(self, topic: str, queue_id: int) -> QueueMark:
        return self._marks.get((topic, queue_id)) or QueueMark()

    def forget(self, topics: Iterable[str]) -> None:
        """These topics are gone; new ones of the same name begin at offset 0."""
        gone = set(topics)
        for key in [key for key in self._marks if key[0] in gone]:
            del self._marks[key]

    def totals(self) -> tuple[int, int]:
        """Messages and bytes of all queues together."""
        return sum(mark.messages for mark in self._marks.values()), sum(mark.bytes for mark in self._marks.values())
