"""What went in and out, counted as batches are announced: whole numbers per topic and kind, per topic and group.

A message counts where its producer sent it, once, as at Apache: a delayed one when it comes and not when it is
delivered, a transactional one as half a message and not again when it is committed; what a group tries again counts
nowhere. Sizes are counted as they are and put into the ranges of a histogram only when somebody asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeVar

import attrs

from verniermq.kernel import (
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    DispatchEvent,
    Histogram,
    Property,
    Run,
    Sample,
    parts_of,
    sizes_of,
)

SIZES: Final = (1024.0, 4096.0, 524288.0, 1048576.0, 2097152.0, 4194304.0)
DELAYS: Final = (60.0, 600.0, 3600.0, 43200.0, 86400.0, 259200.0)
MARKS: Final = frozenset(
    {
        Property.REAL_TOPIC, Property.SHARDING_KEY, Property.TRANSACTION_PREPARED, Property.RETRY_TOPIC,
        Property.TIMER_OUT_MS, Property.DELAY,
    }
)  # fmt: skip
"""A message with none of these is an ordinary one of its topic."""
WAITING_TOPICS: Final = frozenset({TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC})
WRITTEN_AGAIN: Final = frozenset({Property.TIMER_OUT_MS, Property.DELAY, Property.TRANSACTION_PREPARED})
"""A message that was delivered or committed has its real topic and one of these: it counted when it came. A client's
own ``REAL_TOPIC`` alone means nothing."""
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
DELETE_KEY: Final = "TIMER_DEL_UNIQKEY"

MOST_SIZES: Final = 4096
"""Different sizes that are kept apart, of one topic and kind, before they are put into their ranges."""


_ORDERED: Final = Property.SHARDING_KEY.encode()
"""What tells an ordered message in a run. The other marks are of messages that are announced one by one: what concerns
a plugin, and what a plugin delivers, never comes in a run."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def pairs(table: Mapping[_Key, _Value]) -> Iterator[tuple[_Key, _Value]]:
    """Of a table that may change meanwhile. Its pairs are not made all at once: there may be ten thousands."""
    for key in list(table):
        value = table.get(key)
        if value is not None:
            yield key, value


_properties, _rests = attrgetter("properties"), attrgetter("rests")


def _are_ordinary(parts: Sequence[Run | DispatchEvent]) -> bool:
    """Whether none of all these messages has to be looked at by itself."""
    kinds = list(map(type, parts))
    runs: Sequence[Any]
    if kinds.count(Run) == len(kinds):
        runs = parts
    else:
        runs = [part for part in parts if isinstance(part, Run)]
        events = [part for part in parts if not isinstance(part, Run)]
        if not MARKS.isdisjoint(chain.from_iterable(map(_properties, events))):
            return False
    return not any(_ORDERED in rest for rest in set().union(*map(_rests, runs)))


@attrs.define(eq=False)
class Incoming:
    """Of one topic and one kind of message."""

    _messages: int = 0
    _size: int = 0
    _sizes: Counter[int] = attrs.Factory(Counter)
    _histogram: Histogram = attrs.Factory(lambda: Histogram(SIZES))

    def add(self, sizes: Sequence[int]) -> None:
        first = sizes[0]
        if sizes.count(first) == len(sizes):  # as they often are, and ten times as fast
            self._sizes[first] += len(sizes)
        else:
            self._sizes.update(sizes)
        if len(self._sizes) > MOST_SIZES:
            self._settle()

    @property
    def messages(self) -> int:
        self._settle()
        return self._messages

    @property
    def size(self) -> int:
        self._settle()
        return self._size

    @property
    def histogram(self) -> Histogram:
        self._settle()
        return self._histogram

    def _settle(self) -> None:
        """Work out what follows from the sizes that came: not with each message, but when somebody asks."""
        if self._sizes:
            for size, times in self._sizes.items():
                self._messages += times
                self._size += size * times
                self._histogram.observe(size, times)
            self._sizes.clear()


@attrs.define(eq=False)
class Outgoing:
    """Of one topic to one group."""

    messages: int = 0
    size: int = 0


class Traffic:
    def __init__(self) -> None:
        self.incoming: dict[tuple[str, str], Incoming] = {}
        """By topic and kind."""
        self.outgoing: dict[tuple[str, str], Outgoing] = {}
        """By topic and group."""
        self.dead: Counter[tuple[str, str]] = Counter()
        """By group and the topic that the dead letters came from."""
        self.timed_in: Counter[str] = Counter()
        self.timed_out: Counter[str] = Counter()
        """By the topic that timed messages go to."""
        self.delays: dict[str, Histogram] = {}

    # --- counting --------------------------------------------------------------------------

    def dispatched(self, events: Sequence[DispatchEvent]) -> None:
        if _are_ordinary(parts_of(events)):
            self._plain(sizes_of(events))
            return
        ordinary: list[DispatchEvent] = []
        for event in events:
            if MARKS.isdisjoint(event.properties):
                ordinary.append(event)
            else:
                self._marked(event)
        self._plain(sizes_of(ordinary))

    def _plain(self, by_topic: Mapping[str, Sequence[int]]) -> None:
        """Count ordinary messages by their sizes."""
        for topic, sizes in by_topic.items():
            if not topic.startswith("%"):
                self._add(topic, "normal", sizes)
            elif topic.startswith(DEAD_LETTER_PREFIX):
                self.dead[topic[len(DEAD_LETTER_PREFIX) :], ""] += len(sizes)

    def _add(self, topic: str, kind: str, sizes: Sequence[int]) -> None:
        counter = self.incoming.get((topic, kind))
        if counter is None:
            counter = self.incoming[topic, kind] = Incoming()
        counter.add(sizes)

    def _marked(self, event: DispatchEvent) -> None:
        topic, properties = event.topic, event.properties
        real = properties.get(Property.REAL_TOPIC, "")
        if topic.startswith(DEAD_LETTER_PREFIX):
            origin = properties.get(Property.RETRY_TOPIC, "")
            self.dead[topic[len(DEAD_LETTER_PREFIX) :], origin] += 1
        elif topic.startswith(RETRY_PREFIX):
            pass  # tried again: neither in nor out
        elif topic in WAITING_TOPICS:
            if not real.startswith(RETRY_PREFIX):
                self._waiting(event, real)
        elif real and not WRITTEN_AGAIN.isdisjoint(properties):
            if Property.TIMER_OUT_MS in properties:
                self.timed_out[topic] += 1
        elif Property.SHARDING_KEY in properties:
            self._add(topic, "fifo", [event.size])
        else:
            self._add(topic, "normal", [event.size])

    def _waiting(self, event: DispatchEvent, topic: str) -> None:
        """Count a message that has to wait before it is in its topic."""
        if event.topic == TIMER_TOPIC:
            if DELETE_KEY not in event.properties:
                self.timed_in[topic] += 1
                self._delayed(event, topic)
                self._add(topic, "delay", [event.size])
        elif event.topic == SCHEDULE_TOPIC:
            self._add(topic, "delay", [event.size])
        elif CHECK_TIMES not in event.properties:
            self._add(topic, "transaction", [event.size])

    def _delayed(self, event: DispatchEvent, topic: str) -> None:
        due = event.properties.get(Property.TIMER_DELIVER_MS) or event.properties.get(Property.TIMER_OUT_MS, "")
        if due.isdecimal():
            histogram = self.delays.setdefault(topic, Histogram(DELAYS))
            histogram.observe(max(0, (int(due) - event.store_timestamp) // 1000))

    def pulled(self, group: str, topic: str, count: int, size: int) -> None:
        if topic.startswith("%"):
            return
        counter = self.outgoing.get((topic, group))
        if counter is None:
            counter = self.outgoing[topic, group] = Outgoing()
        counter.messages += count
        counter.size += size

    def forget(self, topics: Iterable[str]) -> None:
        """Topics are deleted."""
        gone = set(topics)
        for table in (self.incoming, self.outgoing):
            for key in [key for key in table if key[0] in gone]:
                del table[key]
        for topic in gone:
            self.delays.pop(topic, None)
            self.timed_in.pop(topic, None)
            self.timed_out.pop(topic, None)

    def timing(self) -> Iterator[Sample]:
        """How many timed messages wait, by topic: those that came less those that were delivered."""
        for topic, came in pairs(self.timed_in):
            yield (topic,), max(0, came - self.timed_out[topic])
