"""Taking messages out of queues for a pop: where to look, what to read, what to note.

A pop goes round the queues of the topic from a random one on, and looks into the retry topic of its group before
or after that, until it has enough. For what it takes from a queue it leaves a checkpoint, or, in order, an entry
in the table of ordered pops.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import attrs

from verniermq.kernel import (
    MATCH_ALL,
    RETRY_PREFIX,
    Appended,
    Broker,
    MessageFilter,
    decode_record,
    encode_record,
    record_properties,
)
from verniermq.plugins.pop.checkpoint import CheckPoint
from verniermq.plugins.pop.handle import ORDER_QUEUE, Handle, mark_of, retry_topic
from verniermq.plugins.pop.inflight import QUEUES, InFlight
from verniermq.plugins.pop.ordering import OrderTable

if TYPE_CHECKING:
    from verniermq.plugins.pop import Config

POP_CK: Final = "POP_CK"

RECENT_BYTES: Final = 1 << 30
"""A group that begins "at the end" still gets a queue from its first message on if that is so young, as with
RocketMQ: a consumer that starts a moment after its producer misses nothing."""


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
class Taken:
    """What a pop has got together so far."""

    pop_time: int
    revive_queue: int
    pieces: list[bytes] = attrs.Factory(list)
    starts: list[str] = attrs.Factory(list)
    offsets: list[str] = attrs.Factory(list)
    counts: list[str] = attrs.Factory(list)
    rest: int = 0
    appended: Appended | None = None

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


class Taker:
    def __init__(self, broker: Broker, config: Config, inflight: InFlight, orders: OrderTable) -> None:
        self._broker = broker
        self._store = broker.store
        self._limits = broker.configuration.pull
        self.config = config
        self._inflight = inflight
        self._orders = orders
        self._turn = random.randrange(QUEUES)
        self._pulled = broker.host.calls("messages_pulled")

    def nothing(self, pop: Pop) -> Taken:
        if pop.is_ordered:
            return Taken(self._broker.clock.now_ms(), ORDER_QUEUE)
        self._turn = (self._turn + 1) % QUEUES
        return Taken(self._broker.clock.now_ms(), self._turn)

    def take(self, pop: Pop) -> Taken:
        taken = self.nothing(pop)
        for topic, queue_id in self.places(pop):
            self._take_from(pop, taken, topic, queue_id)
        return taken

    def places(self, pop: Pop) -> Iterator[tuple[str, int]]:
        """The queues a pop looks into, in its order."""
        retry = retry_topic(pop.topic, pop.group)
        has_retry = not pop.is_ordered and not pop.topic.startswith(RETRY_PREFIX) and retry in self._broker.topics
        retry_first = has_retry and random.random() * 100 < self.config.retry_first_percent
        if retry_first:
            yield retry, 0
        if pop.queue_id >= 0:
            yield pop.topic, pop.queue_id
        else:
            queues = self._broker.topics.get(pop.topic).read_queues
            first = random.randrange(queues) if queues else 0
            for step in range(queues):
                yield pop.topic, (first + step) % queues
        if has_retry and not retry_first:
            yield retry, 0

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
        queue = self._store.queue(topic, queue_id)
        is_young = queue is not None and low == 0 and self._store.end - queue.entries(0, 1)[0][0] <= RECENT_BYTES
        return low if is_young else high

    def read(self, pop: Pop, topic: str, queue_id: int, offset: int, wanted: int) -> tuple[list[bytes], list[int], int]:
        """Records that pass the filter, their offsets, and the offset after the last one looked at."""
        queue = self._store.queue(topic, queue_id)
        records: list[bytes] = []
        offsets: list[int] = []
        if queue is None or wanted <= 0:
            return records, offsets, offset
        wish = MATCH_ALL if topic != pop.topic else pop.filter  # what is tried again has passed it before
        budget = int(self._limits.max_bytes)
        for position, size, code in queue.entries(offset, wanted if wish is MATCH_ALL else self._limits.max_scan):
            if wish.tag_codes is None or code in wish.tag_codes:
                if size > budget and records:
                    break
                record = self._store.read(position, size)
                if record is not None and (wish.test is None or wish.test(record_properties(record))):
                    records.append(record)
                    offsets.append(offset)
                    budget -= size
            offset += 1
            if len(records) == wanted:
                break
        return records, offsets, offset

    def _take_from(self, pop: Pop, taken: Taken, topic: str, queue_id: int) -> None:
        if pop.is_ordered and self._orders.is_blocked((topic, pop.group, queue_id), pop.attempt_id):
            return
        start = self.position(pop, topic, queue_id)
        records, offsets, following = self.read(pop, topic, queue_id, start, pop.wanted - len(taken.pieces))
        taken.rest += max(0, self._store.max_offset(topic, queue_id) - following)
        if not records:
            if following > start:
                self._broker.offsets.commit(pop.group, topic, queue_id, following)  # nothing there is for this group
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
        for call in self._pulled:
            call(pop.group, topic, queue_id, len(records), sum(map(len, records)))

    def _with_handle(self, pop: Pop, taken: Taken, start: int, record: bytes) -> bytes:
        """A message of the retry topic as one of the topic itself; it has its handle with it, for it gives no other."""
        message = decode_record(record)
        handle = Handle(
            start, taken.pop_time, pop.invisible_ms, taken.revive_queue, mark_of(message.topic), self._broker.name,
            message.queue_id, message.queue_offset,
        )  # fmt: skip
        properties = {**message.properties, POP_CK: str(handle)}
        return encode_record(attrs.evolve(message, topic=pop.topic, properties=properties))

    def _note_ordered(self, pop: Pop, taken: Taken, topic: str, queue_id: int, offsets: list[int]) -> None:
        noted = self._orders.popped(
            (topic, pop.group, queue_id), pop.attempt_id, taken.pop_time, pop.invisible_ms, offsets
        )
        self._broker.offsets.commit(pop.group, topic, queue_id, offsets[0])
        mark = mark_of(topic)
        taken.counts.append(f"{mark} {queue_id} {min(noted.times.get(offset, 0) for offset in offsets)}")
        taken.counts += [f"{mark} qo{queue_id}%{offset} {noted.times.get(offset, 0)}" for offset in offsets]

    def has_message(self, pop: Pop) -> bool:
        for topic, queue_id in self.places(pop):
            if pop.is_ordered and self._orders.is_blocked((topic, pop.group, queue_id), pop.attempt_id):
                continue
            if self.position(pop, topic, queue_id) < self._store.max_offset(topic, queue_id):
                return True
        return False
