"""How far every group is behind, online or not, from the offsets that are kept: one look at all of them per scrape.

A group is shown until it is deleted. (Apache's broker shows a group only while it has members, so that its lag is not
seen just when nobody consumes.) Groups that broadcast keep their places themselves and are left out.

What a group lets pass it by is no lag: where its members subscribe to some tags only, those are counted by the hashes
in the consume queue. At most ``SCANNED`` entries of a queue are looked at, and the rest is taken to be like them; a
condition in SQL cannot be judged so, and everything counts. ``verniermq_lag_estimated`` says of which rows that holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import attrs

from verniermq.kernel import RETRY_PREFIX, ConsumeQueue, Context, Sample, Subscription, java_hash

ROWS_PER_STEP: Final = 16
SCANNED: Final = 2048
"""Entries of a queue that are looked at for one group with tags; a tenth of a millisecond."""

MOST_TIMES: Final = 1024
"""Times of messages that are remembered beyond two for each row."""

LABELS: Final = ("consumer_group", "is_retry", "is_system", "topic")


@attrs.define(eq=False)
class Lag:
    """Of one group in one topic. It is kept from scrape to scrape: ten thousands of new objects would be looked
    through by the garbage collector each time, in one go."""

    labels: tuple[str, str, str, str]
    """``consumer_group``, ``is_retry``, ``is_system``, ``topic``."""
    lag: int = 0
    """Not consumed: what is ready and what is in flight."""
    inflight: int = 0
    """Handed out and not consumed."""
    ready: int = 0
    """Not handed out."""
    lag_ms: int = 0
    """The age of the oldest that is not consumed."""
    queueing_ms: int = 0
    """The age of the oldest that is not handed out."""
    is_estimated: bool | None = None
    """Whether a filter could not be judged for all of it; ``None`` without a filter."""
    oldest: int = 0
    waiting: int = 0
    """When the oldest of both was stored; 0 if there is none."""
    basis: Basis | None = None


class Basis(NamedTuple):
    """What a row was worked out from. While that is the same, only its ages change."""

    ranges: tuple[int, ...]
    """Of each queue: its first offset and its end."""
    committed: Mapping[int, int]
    pulled: Mapping[int, int]
    wanted: Subscription | None


class WaitingMessages(NamedTuple):
    """What a group has before it in one queue."""

    messages: int
    first: int
    """The offset of the first that it wants."""
    is_estimated: bool


class LagTable:
    def __init__(self, broker: Context) -> None:
        self._broker = broker
        self.rows: list[Lag] = []
        self.retries: list[Lag] = []
        """Those of retry topics among them."""
        self.made = 0
        """How many rows there ever were."""
        self._filtered: list[Lag] = []
        self._kept: defaultdict[str, dict[str, Lag]] = defaultdict(dict)
        """By group and topic."""
        self._times: dict[tuple[str, int, int], int] = {}
        """Topic, queue and offset → when that message was stored."""

    def look(self) -> Iterator[None]:
        """Make the table anew, in steps."""
        rows: list[Lag] = []
        retries: list[Lag] = []
        filtered: list[Lag] = []
        kept: defaultdict[str, dict[str, Lag]] = defaultdict(dict)
        if len(self._times) > 2 * len(self.rows) + MOST_TIMES:
            self._times.clear()
        now = self._broker.clock.now_ms()
        consumers, topics = self._broker.clients.consumers, self._broker.topics
        pulled_queues = self._broker.offsets.pulled_queues
        queues = yield from self._queues()
        last, system = "", "false"
        here: Sequence[ConsumeQueue] = ()
        ranges: tuple[int, ...] = ()
        for number, (topic, group, committed) in enumerate(self._broker.offsets):
            if number % ROWS_PER_STEP == 0:
                yield
            if topic != last:
                if topics.find(topic) is None:
                    continue
                last, system = topic, "true" if topics.is_system(topic) else "false"
                here = queues.get(topic, ())
                ranges = tuple([offset for queue in here for offset in (queue.min_offset, queue.max_offset)])
            live = consumers.get(group)
            if live is not None and live.message_model == "BROADCASTING":
                continue
            row = self._kept[group].get(topic)
            if row is None:
                row = Lag((group, "true" if topic.startswith(RETRY_PREFIX) else "false", system, topic))
                self.made += 1
            rows.append(row)
            kept[group][topic] = row
            if here:
                subscribed = None if live is None else live.subscriptions.get(topic)
                wanted = None if subscribed is None else subscribed.subscription
                pulled = pulled_queues(group, topic)
                if row.basis != (ranges, committed, pulled, wanted):
                    row.basis = Basis(ranges, dict(committed), dict(pulled), wanted)
                    self._count(row, here, row.basis)
                row.lag_ms = now - row.oldest if row.oldest else 0
                row.queueing_ms = now - row.waiting if row.waiting else 0
            if row.labels[1] == "true":
                retries.append(row)
            if row.is_estimated is not None:
                filtered.append(row)
        self.rows, self.retries, self._filtered, self._kept = rows, retries, filtered, kept

    def forget(self, topics: Iterable[str]) -> None:
        """Topics are deleted; others of these names begin anew."""
        gone = set(topics)
        for rows in self._kept.values():
            for topic in gone & rows.keys():
                del rows[topic]
        self._times = {place: stored for place, stored in self._times.items() if place[0] not in gone}

    def _queues(self) -> Generator[None, None, Mapping[str, Sequence[ConsumeQueue]]]:
        """By topic, of those that ever had a message; asked once, since many groups may read one."""
        found: dict[str, list[ConsumeQueue]] = defaultdict(list)
        for number, queue in enumerate(list(self._broker.store.queues())):
            found[queue.topic].append(queue)
            if number % 256 == 0:
                yield
        return found

    def _count(self, row: Lag, queues: Sequence[ConsumeQueue], basis: Basis) -> None:
        topic = row.labels[3]
        wanted = basis.wanted
        selects = wanted is not None and not wanted.wants_all
        lag = inflight = 0
        oldest: list[int] = []
        waiting: list[int] = []
        is_estimated = False
        for queue in queues:
            end, queue_id = queue.max_offset, queue.queue_id
            place = max(basis.committed.get(queue_id, 0), queue.min_offset)
            if place >= end:
                continue
            handed_out = min(max(basis.pulled.get(queue_id, 0), place), end)
            waits, first, ready, next_one = end - place, place, end - handed_out, handed_out
            if selects and wanted is not None:
                waits, first, is_guess = _waiting(queue, place, end, wanted)
                ready, next_one, is_guess_too = _waiting(queue, handed_out, end, wanted)
                is_estimated |= is_guess or is_guess_too
            lag += waits
            inflight += max(0, waits - ready)
            if waits:
                oldest.append(self._stored(topic, queue_id, first))
            if ready:
                waiting.append(self._stored(topic, queue_id, next_one))
        row.lag, row.inflight, row.ready = lag, inflight, lag - inflight
        row.oldest, row.waiting = min(filter(None, oldest), default=0), min(filter(None, waiting), default=0)
        row.is_estimated = is_estimated if selects else None

    def _stored(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored, 0 if it is gone. It is read once for the groups that wait before it, and for the
        next scrapes."""
        place = (topic, queue_id, offset)
        stored = self._times.get(place)
        if stored is None:
            stored = self._broker.store.stored_at(topic, queue_id, offset) or 0
            if stored:
                self._times[place] = stored
        return stored

    def estimated(self) -> Iterator[Sample]:
        """Of groups with a filter: whether what waits is not counted to its end."""
        for row in self._filtered:
            yield (row.labels[0], row.labels[3]), int(bool(row.is_estimated))

    def groups(self) -> Iterable[str]:
        """Those that have rows. There may be ten thousands of rows: what is shown of few is not looked for in all."""
        return self._kept

    def samples(self, figure: str) -> Callable[[], Iterator[Sample]]:
        """One figure of each row; there may be ten thousands of them, so nothing is called for each."""
        labels, value = attrgetter("labels"), attrgetter(figure)
        return lambda: zip(map(labels, self.rows), map(value, self.rows), strict=True)

    def queues(self, group: str, topic: str) -> Iterator[tuple[int, int, int, int]]:
        """Queue, committed, end and age in milliseconds of the oldest that waits, of one group in one topic."""
        store, now = self._broker.store, self._broker.clock.now_ms()
        committed = self._broker.offsets.queues(group, topic)
        config = self._broker.topics.find(topic)
        for queue_id in range(0 if config is None else config.read_queues):
            queue = store.queue(topic, queue_id)
            low, end = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
            place = max(committed.get(queue_id, 0), low)
            age = now - (store.stored_at(topic, queue_id, place) or now) if place < end else 0
            yield queue_id, place, end, age


def _waiting(queue: ConsumeQueue, begin: int, end: int, wanted: Subscription) -> WaitingMessages:
    """What of a queue a subscription wants, by the hashes of the tags."""
    if wanted.expression_type != "TAG":
        return WaitingMessages(end - begin, begin, True)
    hashes = {java_hash(tag.strip()) for tag in wanted.expression.split("||") if tag.strip()}
    place, count, first = begin, 0, begin
    while place < end and place - begin < SCANNED:
        entries = queue.entries(place, min(end - place, SCANNED - (place - begin)))
        if not entries:
            break
        matching = [number for number, entry in enumerate(entries) if entry[2] in hashes]
        if matching and not count:
            first = place + matching[0]
        count += len(matching)
        place += len(entries)
    if place >= end:
        return WaitingMessages(count, first, False)
    return WaitingMessages(count * (end - begin) // max(1, place - begin), first, True)
