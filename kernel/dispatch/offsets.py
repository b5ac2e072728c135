"""How far each group has read (RocketMQ: ``ConsumerOffsetManager``).

Kept in ``config/consumerOffset.json``: ``topic@group`` → queue → the next offset to consume. A reset that an
administrator asked for waits in memory until the group's next pull of that queue learns of it; until then
what the consumers commit is ignored, or they would overwrite the reset with where they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from verniermq.kernel.versions import DataVersion

COMMITS_PER_VERSION: Final = 500
"""The table changes all the time; its version need not."""


class ConsumerOffsets:
    def __init__(self, now_ms: Callable[[], int], on_change: Callable[[], None]) -> None:
        self._committed: dict[tuple[str, str], dict[int, int]] = {}
        self._pulled: dict[tuple[str, str, int], int] = {}
        self._resets: dict[tuple[str, str, int], int] = {}
        self._commits = 0
        self._on_change = on_change
        self.version = DataVersion(now_ms)

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """The next offset the group will consume, or ``None`` if it never committed one."""
        queues = self._committed.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        if self._resets and (group, topic, queue_id) in self._resets:
            return
        self._put(group, topic, queue_id, offset)

    def _put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self._committed.setdefault((topic, group), {})[queue_id] = offset
        self._commits += 1
        if self._commits % COMMITS_PER_VERSION == 0:
            self.version.next()
        self._on_change()

    def note_pull(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Remember how far a group was served, which may be ahead of what it committed."""
        self._pulled[group, topic, queue_id] = next_offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        return max(self._pulled.get((group, topic, queue_id), 0), self.committed(group, topic, queue_id) or 0)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Move a group, whether or not its consumers are there to be told."""
        self._put(group, topic, queue_id, offset)
        self._resets[group, topic, queue_id] = offset
        self._pulled.pop((group, topic, queue_id), None)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset a reset wants this pull to jump to, once."""
        return self._resets.pop((group, topic, queue_id), None) if self._resets else None

    def topics_of(self, group: str) -> list[str]:
        return [topic for topic, owner in self._committed if owner == group]

    def groups_of(self, topic: str) -> list[str]:
        return [group for name, group in self._committed if name == topic]

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        return self._committed.get((topic, group), {})

    def __iter__(self) -> Iterator[tuple[str, str, Mapping[int, int]]]:
        """Every (topic, group, {queue: offset})."""
        return iter([(topic, group, queues) for (topic, group), queues in self._committed.items()])

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Drop what belongs to a deleted topic or group."""
        for key in [k for k in self._committed if k[0] == topic or k[1] == group]:
            del self._committed[key]
        for table in (self._pulled, self._resets):
            for place in [p for p in table if p[0] == group or p[1] == topic]:
                del table[place]
        self.version.next()
        self._on_change()

    # --- config/consumerOffset.json --------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        return {
            "dataVersion": self.version.as_json(),
            "offsetTable": {
                f"{topic}@{group}": {str(queue): offset for queue, offset in queues.items()}
                for (topic, group), queues in self._committed.items()
            },
        }

    def load_json(self, data: Mapping[str, Any]) -> None:
        self.version.load(data.get("dataVersion"))
        for name, queues in data.get("offsetTable", {}).items():
            topic, _, group = name.partition("@")
            self._committed[topic, group] = {int(queue): int(offset) for queue, offset in queues.items()}
