"""Taking messages out of queues for a pop: where to look, what to read, what to note.

A pop goes round the queues of the topic from a random one on, or in the order that a plugin says, and looks into the
retry topic of its group before or after that, until it has enough. For what it takes from a queue it leaves a
checkpoint, or, in order, an entry in the table of ordered pops.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from verniermq.kernel import (
    MATCH_ALL,
    RETRY_PREFIX,
    Appended,
    Context,
    GroupConfig,
    MessageFilter,
    TopicConfig,
    decode_record,
    encode_record,
    hookspec,
)
from verniermq.plugins.pop.checkpoint import CheckPoint
from verniermq.plugins.pop.handle import ORDER_QUEUE, ReceiptHandle, mark_of, retry_topic
from verniermq.plugins.pop.inflight import QUEUES, InFlight
from verniermq.plugins.pop.orderinfo import OrderTable

if TYPE_CHECKING:
    from verniermq.plugins.pop import Config

POP_CK: Final = "POP_CK"

ENTRIES_PER_POP: Final = 4096
TESTED_PER_POP: Final = 256
"""Entries that one pop looks at in all queues together, and messages that it has its filter test. A pop that found
nothing up to there is answered so, and the next one goes on where it stopped."""


@hookspec("question")
def pop_order(topic: TopicConfig, group: GroupConfig) -> tuple[Sequence[int], bool] | None:
    """Say in which order a pop looks into the queues of a topic, and whether into the retry topic before them.

    Silence means: from a random queue on, and ``retry_first_percent``. Not asked for pops in order. Used by
    ``priority``.
    """


@attrs.frozen
class Pop:
    """The fields of a request; a waiting pop is tried again with them."""

    group: str
    topic: str
    queue_id: int
    wanted: int
    invisible_ms: int
    from_end: bool
    filter: MessageFilter
    is_ordered: bool = False
    attempt_id: str = ""


@attrs.define
class PopResult:
    """What a pop has got together so far."""

    pop_time: int
    revive_queue: int
    pieces: list[bytes] = attrs.Factory(list)
    starts: list[str] = attrs.Factory(list)
    offsets: list[str] = attrs.Factory(list)
    counts: list[str] = attrs.Factory(list)
    rest: int = 0
    appended: Appended | None = None
    room: int = ENTRIES_PER_POP
    """How many entries may still be looked at."""
    fetching: Coroutine[Any, Any, None] | None = None
    """Nothing was taken: what would be is on the disk only. To be awaited before the next try."""

    @property
    def is_cut_short(self) -> bool:
        """Whether there was more to look at."""
        return self.room <= 0

    def ext(self, pop: Pop) -> dict[str, str]:
        fields = {
            "popTime": str(self.pop_time),
            "invisibleTime": str(pop.invisible_ms),
            "reviveQid": str(self.revive_queue),
            "restNum": str(self.rest),
        }
        if self.pieces:
            fields["startOffsetInfo"] = ";".join(self.starts)
            fields["msgOffsetInfo"] = ";".join(self.offsets)
        if self.counts:
            fields["orderCountInfo"] = ";".join(self.counts)
        return fields


class PopReader:
    def __init__(self, broker: Context, config: Config, inflight: InFlight, orders: OrderTable) -> None:
        self._broker = broker
        self._store = broker.store
        self._limits = broker.configuration.pull
        self.config = config
        self._inflight = inflight
        self._orders = orders
        self._turn = random.randrange(QUEUES)

    def nothing(self, pop: Pop) -> PopResult:
        queue = ORDER_QUEUE
        if not pop.is_ordered:
            queue = self._turn = (self._turn + 1) % QUEUES
        room = ENTRIES_PER_POP if pop.filter.test is None else TESTED_PER_POP
        return PopResult(self._broker.clock.now_ms(), queue, room=room)

    def take(self, pop: Pop, *, patient: bool = False) -> PopResult:
        """Take what there is. It ends before the first queue whose messages have to come from the disk, unless it is
        ``patient``."""
        taken = self.nothing(pop)
        for topic, queue_id in self.places(pop):
            if not patient and (fetching := self._fetching(pop, taken, topic, queue_id)) is not None:
                if taken.pieces:
                    fetching.close()
                else:
                    taken.fetching = fetching
                break
            self._take_from(pop, taken, topic, queue_id)
        return taken

    def _fetching(self, pop: Pop, taken: PopResult, topic: str, queue_id: int) -> Coroutine[Any, Any, None] | None:
        offset = self.position(pop, topic, queue_id)
        return self.fetching(pop, topic, queue_id, offset, pop.wanted - len(taken.pieces), taken.room)

    def fetching(
        self, pop: Pop, topic: str, queue_id: int, offset: int, wanted: int, room: int = ENTRIES_PER_POP
    ) -> Coroutine[Any, Any, None] | None:
        """Something to await before :meth:`read`, if it would wait for the disk."""
        queue = self._store.queue(topic, queue_id)
        if queue is None or wanted <= 0 or room <= 0:
            return None
        wish = self._wish(pop, topic)
        return self._store.fetching_entries(queue, offset, self._entries(wish, wanted, room), wish, wanted)

    def _wish(self, pop: Pop, topic: str) -> MessageFilter:
        return pop.filter if topic == pop.topic else MATCH_ALL  # what is tried again has passed it before

    def _entries(self, wish: MessageFilter, wanted: int, room: int) -> int:
        """How many entries are looked at for as many messages as wanted."""
        return wanted if wish is MATCH_ALL else min(self._limits.max_scan, room)

    def places(self, pop: Pop) -> Iterator[tuple[str, int]]:
        """The queues a pop looks into, in its order."""
        topics = self._broker.topics
        topic, retry = topics.get(pop.topic), None
        order = None
        if not pop.is_ordered:
            group = self._broker.groups.find(pop.group) or GroupConfig(pop.group)
            order = self._broker.hooks.ask(pop_order, topic, group)
            if not pop.topic.startswith(RETRY_PREFIX):
                retry = topics.find(retry_topic(pop.topic, pop.group))
        queues, retry_first = order or (
            _from_random(topic.read_queues), random.random() * 100 < self.config.retry_first_percent
        )  # fmt: skip
        again = [] if retry is None else [(retry.name, queue) for queue in _within(queues, retry.read_queues)]
        if retry_first:
            yield from again
        for queue in queues if pop.queue_id < 0 else (pop.queue_id,):
            yield pop.topic, queue
        if not retry_first:
            yield from again

    def position(self, pop: Pop, topic: str, queue_id: int) -> int:
        """Where a group goes on in a queue."""
        offsets = self._broker.offsets
        offsets.take_reset(pop.group, topic, queue_id)  # it is committed already, and now we know of it
        low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        committed = offsets.committed(pop.group, topic, queue_id)
        if committed is not None:
            return min(max(committed, low), high)
        if not pop.from_end or topic.startswith(RETRY_PREFIX) or low == high:
            return low
        # A consumer that starts a moment after its producer misses nothing, though it begins "at the end".
        return low if self._store.is_young(topic, queue_id) else high

    def read(
        self, pop: Pop, topic: str, queue_id: int, offset: int, wanted: int, room: int = ENTRIES_PER_POP
    ) -> tuple[list[bytes], list[int], int]:
        """Records that pass the filter, their offsets, and the offset after the last one of ``room`` looked at."""
        queue = self._store.queue(topic, queue_id)
        if queue is None or wanted <= 0 or room <= 0:
            return [], [], offset
        is_retry = topic != pop.topic
        wish = self._wish(pop, topic)
        look_at = self._entries(wish, wanted, room)
        old_before = self._store.damage.old_before if self._limits.verify_old else 0
        found = self._store.matches(
            queue.read(offset, look_at),
            wish,
            most=wanted,
            max_bytes=self._limits.max_bytes,
            # What is tried again gets a new record with a new checksum, so the old one must be right.
            check_before=self._store.end if is_retry else old_before,
            strict=is_retry,
        )
        return found.records, [offset + number for number in found.numbers], offset + found.looked_at

    def _take_from(self, pop: Pop, taken: PopResult, topic: str, queue_id: int) -> None:
        if pop.is_ordered and self._orders.is_blocked((topic, pop.group, queue_id), pop.attempt_id):
            return
        start = self.position(pop, topic, queue_id)
        wanted = pop.wanted - len(taken.pieces)
        records, offsets, following = self.read(pop, topic, queue_id, start, wanted, taken.room)
        taken.room -= following - start
        taken.rest += max(0, self._store.max_offset(topic, queue_id) - following)
        if not records:
            # Nothing there is for this group; and a group that begins at the end keeps that place from now on.
            if following > start or self._broker.offsets.committed(pop.group, topic, queue_id) is None:
                self._broker.offsets.commit(pop.group, topic, queue_id, following)
            return
        if pop.is_ordered:
            self._note_ordered(pop, taken, topic, queue_id, offsets)
        else:
            checkpoint = CheckPoint(
                pop.group, topic, queue_id, start, taken.pop_time, pop.invisible_ms, offsets, self._broker.name,
                revive_queue=taken.revive_queue,
            )  # fmt: skip
            while checkpoint.key in self._inflight and not taken.pieces:
                # The same messages popped twice within a millisecond, after a reset: each needs a key of its own.
                taken.pop_time = checkpoint.pop_time = checkpoint.pop_time + 1
            taken.appended = self._inflight.add(checkpoint)
            self._broker.offsets.commit(pop.group, topic, queue_id, following)
        mark = mark_of(topic)
        taken.starts.append(f"{mark} {queue_id} {start}")
        taken.offsets.append(f"{mark} {queue_id} {','.join(map(str, offsets))}")
        if topic != pop.topic:
            records = [self._with_handle(pop, taken, start, record) for record in records]
        taken.pieces += records
        self._broker.messages_pulled(pop.group, topic, queue_id, len(records), sum(map(len, records)))

    def _with_handle(self, pop: Pop, taken: PopResult, start: int, record: bytes) -> bytes:
        """A message of the retry topic as one of the topic itself; it has its handle with it, for it gives no other."""
        message = decode_record(record)
        handle = ReceiptHandle(
            start, taken.pop_time, pop.invisible_ms, taken.revive_queue, mark_of(message.topic), self._broker.name,
            message.queue_id, message.queue_offset,
        )  # fmt: skip
        properties = {**message.properties, POP_CK: str(handle)}
        return encode_record(attrs.evolve(message, topic=pop.topic, properties=properties))

    def _note_ordered(self, pop: Pop, taken: PopResult, topic: str, queue_id: int, offsets: list[int]) -> None:
        noted = self._orders.popped(
            (topic, pop.group, queue_id), pop.attempt_id, taken.pop_time, pop.invisible_ms, offsets
        )
        self._broker.offsets.commit(pop.group, topic, queue_id, offsets[0])
        mark = mark_of(topic)
        taken.counts.append(f"{mark} {queue_id} {min(noted.times.get(offset, 0) for offset in offsets)}")
        taken.counts += [f"{mark} qo{queue_id}%{offset} {noted.times.get(offset, 0)}" for offset in offsets]

    def has_message(self, pop: Pop) -> bool:
        """Whether a pop would find something; also if there is more to look at than it may."""
        room = ENTRIES_PER_POP
        for topic, queue_id in self.places(pop):
            if pop.is_ordered and self._orders.is_blocked((topic, pop.group, queue_id), pop.attempt_id):
                continue
            start, end = self.position(pop, topic, queue_id), self._store.max_offset(topic, queue_id)
            if start >= end:
                continue
            if pop.filter is MATCH_ALL:
                return True
            records, _, following = self.read(pop, topic, queue_id, start, 1, room)
            if records or following < end:
                return True
            room -= following - start
        return False


def _from_random(queues: int) -> list[int]:
    first = random.randrange(queues) if queues else 0
    return [*range(first, queues), *range(first)]


def _within(order: Sequence[int], queues: int) -> list[int]:
    """All queues of a retry topic, in the order of the queues of the topic itself where it has as many."""
    if queues <= 1:
        return list(range(queues))
    known = dict.fromkeys(queue for queue in order if queue < queues)
    return [*known, *(queue for queue in range(queues) if queue not in known)]
