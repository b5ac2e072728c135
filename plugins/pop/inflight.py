"""The messages that were popped and not acknowledged: in memory, and in the revive log for the next start.

Every pop appends a checkpoint to one of the log's eight queues before it is answered, every acknowledgement a
note behind it. A queue's *low mark* is its first checkpoint that is still open; the offset that group
``CID_RMQ_SYS_REVIVE_GROUP`` has committed is the one before. What lies below is never read again. A
checkpoint that stays open for long is written anew at the end, so that the mark can move on: a restart reads
what is in flight, and not what was.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Final

from verniermq.kernel import SAME_MOMENT, Appended, Context, PendingMessage, Property, StoredMessage
from verniermq.plugins.pop.checkpoint import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_TAG,
    CheckPoint,
    Key,
    decode_acks,
    encode_acks,
)

logger = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
QUEUES: Final = 8

REWRITE_AFTER: Final = 10_000
"""A checkpoint that so many entries of its queue came after is written anew at the end."""

REWRITE_SHARE: Final = 4
"""… and only when a restart would read so many entries for each checkpoint that is open: with ten thousands of them
open, each would be in the way as soon as the others were written anew, without an end."""

REWRITTEN_PER_ADVANCE: Final = 64
"""Of each queue; the others are for the next time."""

FINISHED_PER_ADVANCE: Final = 256
_READ_AT_ONCE: Final = 1024


class InFlight:
    def __init__(self, broker: Context) -> None:
        self._broker = broker
        self._store = broker.store
        self.topic = f"rmq_sys_REVIVE_LOG_{broker.cluster}"
        self._by_key: dict[Key, CheckPoint] = {}
        self._open: list[dict[int, CheckPoint]] = [{} for _ in range(QUEUES)]
        """Per revive queue: by place in the log, in its order."""
        self._next = [0] * QUEUES
        """Per revive queue: where our next entry goes, if nobody else writes there."""
        self._unread: list[tuple[int, int, int]] = []
        """Entries that somebody else wrote: queue, first, and the one after the last."""
        self._due: list[tuple[float, int, CheckPoint]] = []
        """By the clock's ``monotonic``: whoever sets the clock makes nothing come again too early or an hour late."""
        self._sequence = count()
        self._finished = 0
        self.on_earlier: Callable[[], None] = lambda: None
        """Called when a checkpoint was added that is due before all others."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[CheckPoint]:
        return iter(list(self._by_key.values()))

    def __contains__(self, key: Key) -> bool:
        return key in self._by_key

    def find(self, key: Key) -> CheckPoint | None:
        return self._by_key.get(key)

    def overdue(self) -> list[tuple[int, int]]:
        """Per revive queue: how many checkpoints are due to come again, and for how many milliseconds the oldest is."""
        now, found = self._broker.clock.now_ms(), [(0, 0)] * QUEUES
        for checkpoint in self._by_key.values():
            late = now - checkpoint.revive_time
            if late > 0 and checkpoint.revive_queue < QUEUES:
                count, most = found[checkpoint.revive_queue]
                found[checkpoint.revive_queue] = count + 1, max(most, late)
        return found

    # --- changes ---------------------------------------------------------------------------

    def add(self, checkpoint: CheckPoint) -> Appended:
        """Note in the log that messages were popped."""
        appended = self._append(checkpoint.revive_queue, CHECKPOINT_TAG, checkpoint.encode())
        checkpoint.revive_offset = appended.queue_offset
        self._take_in(checkpoint)
        return appended

    def acknowledge(self, checkpoint: CheckPoint, offsets: Sequence[int]) -> Appended | None:
        """Note in the log that messages are done with; ``None`` when all of them were already."""
        offsets = [offset for offset in offsets if checkpoint.acknowledge(offset)]
        if not offsets:
            return None
        appended = self._append(checkpoint.revive_queue, *encode_acks(checkpoint, offsets))
        if not checkpoint.open_offsets:
            self._forget(checkpoint)
            self._finished += 1
            if self._finished % FINISHED_PER_ADVANCE == 0:
                self.advance()
        return appended

    def _append(self, queue: int, tag: str, body: bytes) -> Appended:
        now = self._broker.clock.now_ms()
        # An Apache broker takes the newest of these times for how far its own clock of revivals has come.
        properties = {Property.TAGS: tag, Property.TIMER_DELIVER_MS: str(now)}
        appended = self._store.append(PendingMessage(self.topic, queue, body, properties, born_timestamp=now))
        if appended.queue_offset > self._next[queue]:
            self._unread.append((queue, self._next[queue], appended.queue_offset))
        self._next[queue] = appended.queue_offset + 1
        return appended

    def _take_in(self, checkpoint: CheckPoint) -> None:
        self._by_key[checkpoint.key] = checkpoint
        self._open[checkpoint.revive_queue][checkpoint.revive_offset] = checkpoint
        if len(self._due) > 2 * len(self._by_key) + 1024:
            # An acknowledged checkpoint leaves its time behind; busy consumers would pile up minutes of them.
            self._due = [entry for entry in self._due if not entry[2].is_done]
            heapq.heapify(self._due)
        self.postpone(checkpoint, self._invisible_for(checkpoint))
        if self._due[0][2] is checkpoint:
            self.on_earlier()

    def _forget(self, checkpoint: CheckPoint) -> None:
        checkpoint.is_done = True
        if self._by_key.get(checkpoint.key) is checkpoint:
            del self._by_key[checkpoint.key]
        self._open[checkpoint.revive_queue].pop(checkpoint.revive_offset, None)

    # --- time ------------------------------------------------------------------------------

    def _invisible_for(self, checkpoint: CheckPoint) -> float:
        """How long its messages stay invisible, in seconds. One that the log had before the start was popped by a
        clock that may have been set since: it waits no longer than it was to."""
        left = checkpoint.revive_time - self._broker.clock.now_ms()
        return min(max(left, 0), checkpoint.invisible_ms) / 1000

    def next_due(self) -> float | None:
        """After how many seconds the next checkpoint has to be revived; ``None`` if nothing is in flight."""
        while self._due and self._due[0][2].is_done:
            heapq.heappop(self._due)
        return self._due[0][0] - self._broker.clock.monotonic() if self._due else None

    def take_due(self) -> CheckPoint | None:
        due = self.next_due()
        if due is None or due > SAME_MOMENT:
            return None
        return heapq.heappop(self._due)[2]

    def postpone(self, checkpoint: CheckPoint, seconds: float) -> None:
        """A checkpoint is due, or due again, after so many seconds."""
        due = self._broker.clock.monotonic() + seconds
        heapq.heappush(self._due, (due, next(self._sequence), checkpoint))

    # --- the low marks ---------------------------------------------------------------------

    def advance(self) -> None:
        """Commit how far nothing is in flight any more, and carry on what is in the way."""
        self.catch_up()
        for queue, checkpoints in enumerate(self._open):
            for _ in range(REWRITTEN_PER_ADVANCE):
                many = max(REWRITE_AFTER, REWRITE_SHARE * len(checkpoints))
                if not checkpoints or self._next[queue] - next(iter(checkpoints)) <= many:
                    break
                checkpoint = checkpoints.pop(next(iter(checkpoints)))
                checkpoint.revive_offset = self._append(queue, CHECKPOINT_TAG, checkpoint.encode()).queue_offset
                checkpoints[checkpoint.revive_offset] = checkpoint
            low = next(iter(checkpoints), self._next[queue])
            low = min([low, *[start for unread, start, _ in self._unread if unread == queue]])
            if low and self._broker.offsets.committed(GROUP, self.topic, queue) != low - 1:
                self._broker.offsets.commit(GROUP, self.topic, queue, low - 1)

    # --- what others wrote -----------------------------------------------------------------

    def catch_up(self) -> None:
        """Take in entries that are not ours: an Apache broker sends its checkpoints by way of its timer, and the
        timer may deliver them after this broker took over the store."""
        for queue in range(QUEUES):
            end = self._store.max_offset(self.topic, queue)
            if end > self._next[queue]:
                self._unread.append((queue, self._next[queue], end))
                self._next[queue] = end
        if not self._unread:
            return
        unread, self._unread = self._unread, []
        for queue, start, end in unread:
            if end > self._store.max_offset(self.topic, queue):
                self._unread.append((queue, start, end))  # not dispatched yet; the next time
                continue
            self._read_queue(queue, start, end)
            # They lie before entries of ours that we know already, and the first one is the low mark.
            self._open[queue] = dict(sorted(self._open[queue].items()))
        self._sort_out()

    # --- at the start ----------------------------------------------------------------------

    def rebuild(self) -> None:
        """Find what is in flight from the log. Called once, before anybody asks.

        The offsets of consumer groups are written every few seconds only. A checkpoint says how far its group
        had come, so what was popped just before a crash is not popped again beside being revived.
        """
        for queue in range(QUEUES):
            committed = self._broker.offsets.committed(GROUP, self.topic, queue)
            low, high = self._store.min_offset(self.topic, queue), self._store.max_offset(self.topic, queue)
            self._next[queue] = high
            self._read_queue(queue, max(-1 if committed is None else committed, low - 1) + 1, high)
        for checkpoint in self._by_key.values():
            known = self._broker.offsets.committed(checkpoint.group, checkpoint.topic, checkpoint.queue_id)
            following = max(checkpoint.offsets, default=-1) + 1
            if known is None or known < following:
                self._broker.offsets.commit(checkpoint.group, checkpoint.topic, checkpoint.queue_id, following)
        self._sort_out()
        self.advance()
        if self._by_key:
            logger.info("popped messages in flight found checkpoints=%d", len(self._by_key))

    def _sort_out(self) -> None:
        """Forget checkpoints whose messages all turned out to be acknowledged."""
        for checkpoint in [one for one in self._by_key.values() if not one.open_offsets]:
            self._forget(checkpoint)

    def _read_queue(self, queue_id: int, position: int, end: int) -> None:
        queue = self._store.queue(self.topic, queue_id)
        while queue is not None and position < end:
            entries = queue.entries(position, min(_READ_AT_ONCE, end - position))
            if not entries:
                break
            for offset, size, _ in entries:
                message = self._store.message_at(offset, size)
                if message is not None:
                    self._read(queue_id, position, message)
                position += 1

    def _read(self, queue_id: int, position: int, message: StoredMessage) -> None:
        try:
            if message.tags == CHECKPOINT_TAG:
                checkpoint = CheckPoint.decode(message.body)
                checkpoint.revive_queue, checkpoint.revive_offset = queue_id, position
                earlier = self._by_key.get(checkpoint.key)
                if earlier is not None:  # written anew, see advance()
                    checkpoint.acked |= earlier.acked
                    self._forget(earlier)
                self._take_in(checkpoint)
            elif message.tags in (ACK_TAG, BATCH_ACK_TAG):
                key, offsets = decode_acks(message.body)
                found = self._by_key.get(key)
                for offset in offsets if found is not None else ():
                    found.acknowledge(offset)  # type: ignore[union-attr]  # there are none without it
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("unreadable entry in the revive log queue=%d offset=%d: %r", queue_id, position, error)
