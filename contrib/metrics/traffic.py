"""What went in and out, counted as batches are announced: whole numbers per topic and kind, per topic and group.

A message counts where its producer sent it, once, as at Apache: a delayed one when it comes and not when it is
delivered, a transactional one as half a message and not again when it is committed; what a group tries again counts
nowhere. Sizes are counted as they are and put into the ranges of a histogram only when somebody asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

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
    SysFlag,
    parts_of,
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
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
DELETE_KEY: Final = "TIMER_DEL_UNIQKEY"

MOST_SIZES: Final = 4096
"""Different sizes that are kept apart, of one topic and kind, before they are put into their ranges."""


_MARKS_IN_TEXT: Final = tuple(f"{mark}\x01".encode() for mark in MARKS)


def _is_plain(run: Run) -> bool:
    """Whether all messages of a run are ordinary ones of a topic, by a look at the text of their properties."""
    text = b"".join(run.texts)
    return not run.topic.startswith("%") and not any(mark in text for mark in _MARKS_IN_TEXT)


@attrs.define(eq=False)
class Incoming:
    """Of one topic and one kind of message."""

    messages: int = 0
    size: int = 0
    sizes: Counter[int] = attrs.Factory(Counter)
    histogram: Histogram = attrs.Factory(lambda: Histogram(SIZES))

    def add(self, sizes: Sequence[int]) -> None:
        self.messages += len(sizes)
        self.size += sum(sizes)
        self.sizes.update(sizes)
        if len(self.sizes) > MOST_SIZES:
            self.settle()

    def settle(self) -> Histogram:
        for size, times in self.sizes.items():
            self.histogram.observe(size, times)
        self.sizes.clear()
        return self.histogram


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
        plain: dict[str, list[int]] = {}
        for part in parts_of(events):
            if isinstance(part, Run):
                if _is_plain(part):
                    self._add(part.topic, "normal", part.sizes)
                else:
                    self.dispatched(list(part))
            elif MARKS.isdisjoint(part.properties):
                sizes = plain.get(part.topic)
                if sizes is None:
                    plain[part.topic] = [part.size]
                else:
                    sizes.append(part.size)
            else:
                self._marked(part)
        for topic, sizes in plain.items():
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
        elif topic.startswith(RETRY_PREFIX) or real.startswith(RETRY_PREFIX):
            pass  # tried again: neither in nor out
        elif topic == TIMER_TOPIC:
            if DELETE_KEY not in properties:
                self.timed_in[real] += 1
                self._delayed(event, real)
                self._add(real, "delay", [event.size])
        elif topic == SCHEDULE_TOPIC:
            self._add(real, "delay", [event.size])
        elif topic == HALF_TOPIC:
            if CHECK_TIMES not in properties:
                self._add(real, "transaction", [event.size])
        elif Property.TIMER_OUT_MS in properties:
            self.timed_out[topic] += 1
        elif real or event.sys_flag & SysFlag.TRANSACTION_MASK:
            pass  # delivered or committed: it counted when it came
        elif Property.SHARDING_KEY in properties:
            self._add(topic, "fifo", [event.size])
        else:
            self._add(topic, "normal", [event.size])

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
        for topic, came in list(self.timed_in.items()):
            yield (topic,), max(0, came - self.timed_out[topic])
