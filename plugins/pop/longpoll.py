"""Pops that wait for the next message (RocketMQ: ``PopLongPollingService``).

A waiting pop listens to every queue of its topic and to the retry topic of its group. One message is for one
of them only: they are tried in the order in which they came, and who finds nothing goes on waiting. Those who
share group and queue would all find the same, so the first failure speaks for the rest. Many groups may wait for
one topic: after some of them, others have a turn of the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final

import attrs

from verniermq.kernel import Clock, Connection, Deadlines, DispatchEvent, RequestRefused, Steps, parts_of

logger = logging.getLogger(__name__)

ATTEMPTS_PER_STEP: Final = 16
"""Waiting pops that are tried before others have a turn; one of a topic with many queues counts as several."""
BYTES_PER_ATTEMPT: Final = 128 * 1024
"""So does one that was answered with more than this."""


@attrs.define(eq=False)
class HeldPop:
    """One request. ``attempt`` tries to answer it, and says with how many bytes; ``give_up`` answers "nothing"."""

    group: str
    topic: str
    retry_topic: str
    queue_id: int
    deadline: float
    connection: Connection
    attempt: Callable[[], int | None]
    give_up: Callable[[], None]
    weight: int = 1
    """How much an attempt costs: it looks into every queue."""
    done: bool = False


class HeldPops:
    def __init__(
        self, clock: Clock, most: int, most_per_key: int, most_per_connection: int, on_first: Callable[[], None]
    ) -> None:
        """``on_first`` is called once, before the first pop begins to wait."""
        self.most, self.most_per_key, self.most_per_connection = most, most_per_key, most_per_connection
        self._by_topic: dict[str, dict[HeldPop, None]] = {}
        self._by_key: dict[tuple[str, str, int], set[HeldPop]] = {}
        self._by_connection: dict[Connection, set[HeldPop]] = {}
        self._deadlines: Deadlines[HeldPop] = Deadlines(clock, self._give_up)
        self._size = 0
        self._on_first: Callable[[], None] | None = on_first
        self._waking = Steps(ATTEMPTS_PER_STEP)

    def __len__(self) -> int:
        return self._size

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """How many wait for one queue of a topic, or for any of them (-1)."""
        return len(self._by_key.get((topic, group, queue_id), ()))

    def add(self, waiting: HeldPop) -> bool:
        """Let a request wait; false when too many do already."""
        key = (waiting.topic, waiting.group, waiting.queue_id)
        if self._size >= self.most or len(self._by_key.get(key, ())) >= self.most_per_key:
            return False
        if len(self._by_connection.get(waiting.connection, ())) >= self.most_per_connection:
            return False
        if self._on_first is not None:
            self._on_first()
            self._on_first = None
        self._size += 1
        self._by_key.setdefault(key, set()).add(waiting)
        self._by_connection.setdefault(waiting.connection, set()).add(waiting)
        for topic in (waiting.topic, waiting.retry_topic):
            self._by_topic.setdefault(topic, {})[waiting] = None
        self._deadlines.add(waiting)
        return True

    def _remove(self, waiting: HeldPop) -> None:
        waiting.done = True
        self._size -= 1
        for topic in (waiting.topic, waiting.retry_topic):
            _discard(self._by_topic, topic, waiting)
        _discard(self._by_key, (waiting.topic, waiting.group, waiting.queue_id), waiting)
        _discard(self._by_connection, waiting.connection, waiting)

    # --- waking ----------------------------------------------------------------------------

    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        if self._by_topic:
            self.wake({part.topic for part in parts_of(events) if part.topic in self._by_topic})

    def wake(self, topics: Iterable[str]) -> None:
        """Let those who wait for these topics look again."""
        self._waking.begin(self._try(list(topics)))

    def _try(self, topics: Iterable[str]) -> Iterator[None]:
        for topic in topics:
            in_vain: set[tuple[str, int]] = set()
            for waiting in list(self._by_topic.get(topic, ())):
                who = (waiting.group, waiting.queue_id)
                if waiting.done or who in in_vain:
                    continue
                answered = self._attempt(waiting)
                if answered is not None:
                    self._remove(waiting)
                else:
                    in_vain.add(who)
                yield from repeat(None, waiting.weight + (answered or 0) // BYTES_PER_ATTEMPT)

    def _attempt(self, waiting: HeldPop) -> int | None:
        try:
            return waiting.attempt()
        except RequestRefused as error:
            # The topic is gone, or nothing can be written now: the request ends with its time, as if nothing came.
            logger.debug("a waiting pop cannot be answered topic=%s group=%s: %s", waiting.topic, waiting.group, error)
            return None

    def connection_closed(self, connection: Connection) -> None:
        for waiting in list(self._by_connection.get(connection, ())):
            self._remove(waiting)

    async def run(self) -> None:
        """Answer those whose time is over."""
        await self._deadlines.run()

    def _give_up(self, waiting: HeldPop) -> None:
        self._remove(waiting)
        waiting.give_up()


def _discard(table: dict, key: object, waiting: HeldPop) -> None:  # type: ignore[type-arg]  # of sets and of dicts
    members = table.get(key)
    if members is None:
        return
    if isinstance(members, dict):
        members.pop(waiting, None)
    else:
        members.discard(waiting)
    if not members:
        del table[key]
