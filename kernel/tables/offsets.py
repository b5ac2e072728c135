"""How far each group has read (RocketMQ: ``ConsumerOffsetManager``).

Kept in ``config/consumerOffset.json``: ``topic@group`` → queue → the next offset to consume. A reset that an
administrator asked for waits in memory until the group's next pull of that queue learns of it; until then
what the consumers commit is ignored, or they would overwrite the reset with where they were.

There is one offset for each group and queue, a million if need be. So topics and groups are found by each other
without a search, and for the file only what was committed since the last time is written out anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from verniermq.kernel.errors import LimitReached
from verniermq.kernel.loop import in_steps
from verniermq.kernel.tables.jsonfile import encoded
from verniermq.kernel.tables.version import DataVersion

COMMITS_PER_VERSION: Final = 500
"""The table changes all the time; its version need not."""

BROKERS_OWN: Final = "CID_RMQ_SYS_"
"""How the broker's own groups are called: the limit is not for them."""

Pair = tuple[str, str]
"""Topic and group."""

NOTHING: Final[Mapping[str, dict[int, int]]] = {}
NO_QUEUES: Final[Mapping[int, int]] = {}


class ConsumerOffsets:
    """At most ``most`` offsets are kept."""

    def __init__(self, now_ms: Callable[[], int], on_change: Callable[[], None], most: int) -> None:
        self._committed: dict[Pair, dict[int, int]] = {}
        self._pulled: dict[str, dict[str, dict[int, int]]] = {}
        """Topic → group → queue → offset."""
        self._resets: dict[Pair, dict[int, int]] = {}
        self._topics_of: dict[str, dict[str, None]] = {}
        self._groups_of: dict[str, dict[str, None]] = {}
        self._written: dict[str, orjson.Fragment] = {}
        """``topic@group`` → its offsets as they go into the file, but for those that changed since."""
        self._changed: set[Pair] = set()
        self._most = most
        self._count = 0
        self._pulled_count = 0
        self._commits = 0
        self._on_change = on_change
        self.committing: Sequence[Callable[[str, str, int, int], object]] = ()
        """Told of each commit."""
        self.version = DataVersion(now_ms)

    def __len__(self) -> int:
        return self._count

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """The next offset the group will consume, or ``None`` if it never committed one."""
        queues = self._committed.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """
        Raises:
            LimitReached: it would be a new offset, and there are as many as there may be.
        """
        if self._resets and queue_id in self._resets.get((topic, group), ()):
            return
        self._put(group, topic, queue_id, offset)
        for call in self.committing:
            call(group, topic, queue_id, offset)

    def _put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        pair = (topic, group)
        queues = self._committed.get(pair)
        if queues is None or queue_id not in queues:
            self._check_room(group)
            queues = self._queues(pair)
            self._count += 1
        queues[queue_id] = offset
        self._changed.add(pair)
        self._commits += 1
        if self._commits % COMMITS_PER_VERSION == 0:
            self.version.next()
        self._on_change()

    def _check_room(self, group: str) -> None:
        if self._count >= self._most and not group.startswith(BROKERS_OWN):
            raise LimitReached("the groups have committed offsets:", self._most, "max_offsets", "offsets")

    def _queues(self, pair: Pair) -> dict[int, int]:
        topic, group = pair
        self._topics_of.setdefault(group, {})[topic] = None
        self._groups_of.setdefault(topic, {})[group] = None
        return self._committed.setdefault(pair, {})

    def note_pull(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Remember how far a group was served, which may be ahead of what it committed."""
        queues = self._pulled.get(topic, NOTHING).get(group)
        if queues is None or queue_id not in queues:
            if self._pulled_count >= self._most:
                return  # it is only shown
            self._pulled_count += 1
            queues = self._pulled.setdefault(topic, {}).setdefault(group, {})
        queues[queue_id] = next_offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        pulled = self._pulled.get(topic, NOTHING).get(group, {}).get(queue_id, 0)
        return max(pulled, self.committed(group, topic, queue_id) or 0)

    def pulled_queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Where a group was served last, by queue, of those that it pulled from since the start."""
        return self._pulled.get(topic, NOTHING).get(group, NO_QUEUES)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Move a group, whether or not its consumers are there to be told.

        Raises:
            LimitReached: as :meth:`commit`.
        """
        self._put(group, topic, queue_id, offset)
        self._resets.setdefault((topic, group), {})[queue_id] = offset
        if self._pulled.get(topic, NOTHING).get(group, {}).pop(queue_id, None) is not None:
            self._pulled_count -= 1

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset a reset wants this pull to jump to, once."""
        if not self._resets:
            return None
        waiting = self._resets.get((topic, group), {})
        offset = waiting.pop(queue_id, None)
        if offset is not None and not waiting:
            del self._resets[topic, group]
        return offset

    def topics_of(self, group: str) -> list[str]:
        return list(self._topics_of.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        return list(self._groups_of.get(topic, ()))

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        return self._committed.get((topic, group), {})

    def __iter__(self) -> Iterator[tuple[str, str, Mapping[int, int]]]:
        """Every (topic, group, {queue: offset}), of a table that may change meanwhile."""
        for pair in list(self._committed):  # of the items there would be so many new objects that garbage is looked for
            queues = self._committed.get(pair)
            if queues is not None:
                yield *pair, queues

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Drop what belongs to a deleted topic or group."""
        pairs = [(name, group) for name in self._topics_of.get(group, ())] if group is not None else []
        pairs += [(topic, name) for name in self._groups_of.get(topic, ())] if topic is not None else []
        for pair in pairs:
            self._count -= len(self._committed.pop(pair, ()))
            self._resets.pop(pair, None)
            self._written.pop("@".join(pair), None)
            self._changed.discard(pair)
            _discard(self._topics_of, pair[1], pair[0])
            _discard(self._groups_of, pair[0], pair[1])
        if topic is not None:
            self._pulled_count -= sum(map(len, self._pulled.pop(topic, {}).values()))
        if group is not None:
            self._pulled_count -= sum(len(groups.pop(group, ())) for groups in self._pulled.values())
        self.version.next()
        self._on_change()

    # --- config/consumerOffset.json --------------------------------------------------------

    async def write_out(self) -> None:
        """Prepare :meth:`as_json`, in steps: afterwards that has little to do."""
        async for _ in in_steps(list(self._changed)):
            if self._changed:
                self._write(self._changed.pop())

    def as_json(self) -> dict[str, Any]:
        """What goes into the file, the offsets encoded already: it costs what changed since the last time."""
        while self._changed:
            self._write(self._changed.pop())
        return {"dataVersion": self.version.as_json(), "offsetTable": self._written.copy()}

    def _write(self, pair: Pair) -> None:
        queues = self._committed[pair]
        self._written["@".join(pair)] = encoded(queues)

    def load_json(self, data: Mapping[str, Any]) -> None:
        self.version.load(data.get("dataVersion"))
        for name, queues in data.get("offsetTable", {}).items():
            topic, _, group = name.partition("@")
            known = self._queues((topic, group))
            known.update({int(queue): int(offset) for queue, offset in queues.items()})
            self._count += len(known)
            self._changed.add((topic, group))


def _discard(table: dict[str, dict[str, None]], key: str, member: str) -> None:
    members = table.get(key, {})
    members.pop(member, None)
    if not members:
        table.pop(key, None)
