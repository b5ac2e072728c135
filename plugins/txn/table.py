"""Which half messages are open: in memory, found again at the start from two queues (RocketMQ: ``removeMap``).

::

    RMQ_SYS_TRANS_HALF_TOPIC queue 0    half messages, and the copies that checks put back at its end
    RMQ_SYS_TRANS_OP_HALF_TOPIC queue 0 tag "d", body "12,13,17,": these half messages are done

Done is what an operation message names; everything else from the *low mark* on is open. The low mark is the
first open half offset, and the offset that group ``CID_RMQ_SYS_TRANS`` has committed in the half topic; below
it nothing has to be read ever again. A long-lived half message moves to the end of the queue with each check,
so the mark follows, and neither a round of checks nor a restart costs more than what is open.

A half message that was put back exists twice. All copies share producer group and unique key, count as one,
and are done together, so that a late answer about an old copy ends the new one too.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from math import inf
from typing import Final

import attrs

from verniermq.kernel import (
    HALF_TOPIC,
    OPERATION_TOPIC,
    Appended,
    ConsumeQueue,
    Context,
    PendingMessage,
    Property,
    StoredMessage,
    StoreError,
)
from verniermq.plugins.txn.half import (
    HALF_QUEUE,
    identity,
    times_checked,
)

logger = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_TRANS"
DONE_TAG: Final = "d"

OPERATIONS_PER_BLOCK: Final = 64
"""How finely we remember which operation messages are still needed; the offset of a block is enough."""

FINISHED_PER_ADVANCE: Final = 256
_READ_AT_ONCE: Final = 1024
LOOKED_AT: Final = 200
"""Records that are read at a time to say what is open."""


@attrs.define(eq=False)
class OpenHalf:
    """One open transaction."""

    commit_log_offset: int
    size: int
    offsets: list[int]
    """In the half queue, of all its copies; the last one is the one that counts."""
    identity: tuple[str, str] | None = None
    """Known once somebody has looked into the record."""
    topic: str = ""
    """Where it is meant to go; known once somebody asked."""
    checks: int = 0
    born: float = -inf
    """By the clock's ``monotonic``; known with the identity."""


@attrs.define(eq=False)
class _Block:
    """Some operation messages in a row: where they begin, and the last half offset that they name."""

    first: int
    last_half_offset: int


class OpenTable:
    def __init__(self, broker: Context) -> None:
        self._broker = broker
        self._store = broker.store
        self._open: dict[int, OpenHalf] = {}
        """By half offset, in its order."""
        self._by_identity: dict[tuple[str, str], OpenHalf] = {}
        """Those that were looked at."""
        self._next = 0
        """The half queue has been read up to here."""
        self._moved: dict[int, OpenHalf] = {}
        """Copies beyond that, which we know because we wrote them."""
        self._done_ahead: set[int] = set()
        """Done before the queue was read up to them."""
        self._blocks: deque[_Block] = deque()
        self._next_operation = 0
        self._finished = 0

    def __len__(self) -> int:
        self.catch_up()
        return len(self._open) + len(self._moved)

    def topics(self) -> Iterator[str]:
        """Where each open one is meant to go; ``""`` for some that nobody asked about before, if they are many."""
        self.catch_up()
        left = LOOKED_AT
        for half in [*self._open.values(), *self._moved.values()]:
            if not half.topic and left:
                left -= 1
                message = self._store.message_at(half.commit_log_offset, half.size)
                half.topic = "" if message is None else message.properties.get(Property.REAL_TOPIC, "")
            yield half.topic

    # --- what is open ----------------------------------------------------------------------

    def catch_up(self) -> None:
        """Take in what came to the half queue. Looks at the queue's entries only, not at the messages."""
        queue = self._store.queue(HALF_TOPIC, HALF_QUEUE)
        if queue is None:
            return
        self._next = max(self._next, queue.min_offset)
        while self._next < queue.max_offset:
            for position, size, _ in _some(queue, self._next):
                offset = self._next
                self._next += 1
                if offset in self._done_ahead:
                    self._done_ahead.remove(offset)
                else:
                    moved = self._moved.pop(offset, None)
                    self._open[offset] = OpenHalf(position, size, [offset]) if moved is None else moved

    def oldest_first(self) -> Iterator[OpenHalf]:
        """The open ones; whoever iterates may end and move them meanwhile."""
        for offset in list(self._open):
            entry = self._open.get(offset)
            if entry is not None:
                yield entry

    def find(self, offset: int, half: StoredMessage) -> list[OpenHalf]:
        """The open transactions that an answer about this half message is about; none if it is done already."""
        self.catch_up()
        entry = self._open.get(offset)
        found = [] if entry is None else [entry]
        twin = self._by_identity.get(identity(half))
        if twin is not None and twin is not entry:
            found.append(twin)
        if not found and offset >= self._next and offset not in self._done_ahead:
            # Answered before it was dispatched: the producer did not want to wait for the disk.
            found.append(OpenHalf(half.commit_log_offset, half.size, [offset]))
        return found

    def look(self, entry: OpenHalf) -> StoredMessage | None:
        """The newest copy of a half message; ``None`` when the log does not have it any more, or only damaged.

        The first look finds out whose copy it is. When a newer copy is open too, that one stands for both from
        now on, and the answer is ``None``.
        """
        half = self._store.message_at(entry.commit_log_offset, entry.size)
        if half is None:
            logger.warning("an open transaction is gone from the log, or damaged half_offset=%d", entry.offsets[-1])
            self.drop(entry)
            return None
        if entry.identity is None and self._identify(entry, half) is not entry:
            return None
        return half

    def _identify(self, entry: OpenHalf, half: StoredMessage) -> OpenHalf:
        """Find out whose copy it is; the answer is the newest copy that is open."""
        entry.identity = identity(half)
        entry.checks = times_checked(half)
        clock = self._broker.clock
        entry.born = clock.monotonic() - (clock.now_ms() - half.born_timestamp) / 1000
        newest, older = entry, self._by_identity.get(entry.identity)
        if older is not None:
            if older.offsets[-1] > newest.offsets[-1]:
                newest, older = older, newest
            self.drop(older)
            newest.offsets = sorted({*older.offsets, *newest.offsets})
            newest.checks = max(newest.checks, older.checks)
            newest.born = max(newest.born, older.born)
        self._by_identity[entry.identity] = newest
        return newest

    # --- ending and moving -----------------------------------------------------------------

    def end(self, entries: list[OpenHalf]) -> Appended:
        """Note in the log that these are done, and forget them."""
        offsets = [offset for entry in entries for offset in entry.offsets]
        body = "".join([f"{offset}," for offset in offsets]).encode()
        appended = self._store.append(
            PendingMessage(
                OPERATION_TOPIC, HALF_QUEUE, body, {Property.TAGS: DONE_TAG}, born_timestamp=self._broker.clock.now_ms()
            )
        )
        self._note_operation(appended.queue_offset, max(offsets))
        for entry in entries:
            self.drop(entry)
        self._finished += 1
        if self._finished % FINISHED_PER_ADVANCE == 0:
            self.advance()
        return appended

    def drop(self, entry: OpenHalf) -> None:
        """Forget a transaction without a note."""
        if entry.identity is not None and self._by_identity.get(entry.identity) is entry:
            del self._by_identity[entry.identity]
        for offset in entry.offsets:
            self._open.pop(offset, None)
            self._moved.pop(offset, None)
        if entry.offsets[-1] >= self._next:
            self._done_ahead.add(entry.offsets[-1])

    def move(self, entry: OpenHalf, copy: Appended) -> None:
        """The half message was put back at the end of the queue; the copy counts from now on."""
        self._open.pop(entry.offsets[-1], None)
        self._moved.pop(entry.offsets[-1], None)
        entry.offsets.append(copy.queue_offset)
        entry.commit_log_offset, entry.size = copy.commit_log_offset, copy.size
        self._moved[copy.queue_offset] = entry

    def behind(self, entry: OpenHalf) -> int:
        """How many half messages came after this one."""
        return self._next - entry.offsets[-1]

    # --- the low mark ----------------------------------------------------------------------

    @property
    def low_mark(self) -> int:
        return next(iter(self._open), self._next)

    def advance(self) -> None:
        """Commit how far nothing is open any more."""
        low = self.low_mark
        while self._blocks and self._blocks[0].last_half_offset < low:
            self._blocks.popleft()
        needed = self._blocks[0].first if self._blocks else self._next_operation
        for topic, offset in ((HALF_TOPIC, low), (OPERATION_TOPIC, needed)):
            if self._broker.offsets.committed(GROUP, topic, HALF_QUEUE) != offset:
                self._broker.offsets.commit(GROUP, topic, HALF_QUEUE, offset)

    def _note_operation(self, offset: int, last_half_offset: int) -> None:
        self._next_operation = offset + 1
        if self._blocks and offset - self._blocks[-1].first < OPERATIONS_PER_BLOCK:
            block = self._blocks[-1]
            block.last_half_offset = max(block.last_half_offset, last_half_offset)
        else:
            self._blocks.append(_Block(offset, last_half_offset))

    # --- at the start ----------------------------------------------------------------------

    def rebuild(self) -> None:
        """Find what is open from the log. Called once, before anybody asks."""
        done = self._read_operations()
        low = self._next = self._committed(HALF_TOPIC)
        queue = self._store.queue(HALF_TOPIC, HALF_QUEUE)
        high = low if queue is None else queue.max_offset
        self._done_ahead = {offset for offset in done if low <= offset < high}
        self.catch_up()
        for entry in self.oldest_first():
            self.look(entry)
        self.advance()
        if self._open:
            logger.info("open transactions found count=%d low_mark=%d end=%d", len(self._open), low, self._next)

    def _read_operations(self) -> set[int]:
        done: set[int] = set()
        self._next_operation = self._committed(OPERATION_TOPIC)
        queue = self._store.queue(OPERATION_TOPIC, HALF_QUEUE)
        while queue is not None and self._next_operation < queue.max_offset:
            for position, size, _ in _some(queue, self._next_operation):
                # Without it, the transactions that it ended count as open, and their producers are asked.
                operation = self._store.message_at(position, size)
                offsets = [] if operation is None else parse_offsets(operation.body)
                self._note_operation(self._next_operation, max(offsets, default=-1))
                done.update(offsets)
        return done

    def _committed(self, topic: str) -> int:
        """Where to begin reading: what was committed, but nothing that the queue does not have."""
        low, high = self._store.min_offset(topic, HALF_QUEUE), self._store.max_offset(topic, HALF_QUEUE)
        return min(max(self._broker.offsets.committed(GROUP, topic, HALF_QUEUE) or 0, low), high)


def _some(queue: ConsumeQueue, offset: int) -> list[tuple[int, int, int]]:
    entries = queue.entries(offset, _READ_AT_ONCE)
    if not entries:
        raise StoreError(f"queue {queue.topic}:{queue.queue_id} ends at {queue.max_offset} but has no entry {offset}")
    return entries


def parse_offsets(body: bytes) -> list[int]:
    """The half offsets that an operation message names; old versions wrote one, without a comma."""
    return [int(number) for number in body.split(b",") if number.isdigit()]
