"""READ_QUEUE_RANGE: many records of one queue in one answer, as they lie in the log.

The ordinary pull answers with 32 messages or so; whoever reads millions spends the time waiting. Here one answer has
up to some megabytes. Fields of the request::

    topic, queueId              which queue
    beginOffset, endOffset      which messages: from the first to just before the second
    maxBytes                    how large the answer may be; the broker's own limit is smaller or equal
    subscription, expressionType   optional: which of them, as in a pull
    heads                       optional: true for the first 112 bytes of each record only

and of the answer, where code 21 (OFFSET_MOVED) says that ``beginOffset`` is outside ``minOffset`` and ``maxOffset``::

    nextBeginOffset             where to go on
    minOffset, maxOffset        what the queue has now
    recordBytes                 how many bytes of the body are records

    body:  record | record | … | entry | entry | …

The records are as in a pull's body. Behind them is the 20-byte entry that the consume queue has of each (commit-log
offset, size, tags code): the reader knows where records begin without looking, and gets the tags code, which
only the queue has. Where only heads are asked for, a body is neither read nor sent: the head of a record and its entry
are the event that was dispatched.
"""

from __future__ import annotations

import struct
import time
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from sys import byteorder
from typing import Final

import attrs

from verniermq.contrib.arrow.requests import ENTRY, HEAD_BYTES
from verniermq.kernel import MATCH_ALL, ConsumeQueue, MessageFilter, Store

MOST_ENTRIES: Final = 16_384
"""That one answer looks at: a third of a megabyte of the queue, read on the event loop, so it has to be little."""

STEP: Final = 1024
"""Records after which the thread lets the event loop have the interpreter: half a millisecond's work."""

SHORT_RUNS: Final = 8
"""Where records that lie side by side are fewer than this, on average, it is quicker to read each by itself."""

_PLACE: Final = "q12x"
_STEP: Final = struct.Struct(">" + _PLACE * STEP)


@attrs.frozen
class RangeChunk:
    """What one answer carries."""

    next_offset: int
    records: Sequence[bytes] = ()
    """In pieces, which are put together where the answer is written."""
    entries: bytes = b""

    @property
    def record_bytes(self) -> int:
        return sum(map(len, self.records))


@attrs.frozen
class RangeRead:
    """A read that was begun on the event loop, where the queue may be looked at; a worker thread finishes it."""

    store: Store
    begin: int
    entries: bytes
    wanted: MessageFilter
    max_bytes: int
    heads: bool = False

    @classmethod
    def begin_at(
        cls,
        store: Store,
        queue: ConsumeQueue,
        begin: int,
        end: int,
        wanted: MessageFilter,
        max_bytes: int,
        heads: bool = False,
    ) -> RangeRead:
        entries = queue.read(begin, min(end - begin, MOST_ENTRIES))
        return cls(store, begin, entries, wanted, max_bytes, heads)

    def finish(self) -> RangeChunk | None:
        """Gather the records; ``None`` when the first is not in the log any more. For a worker thread."""
        if self.wanted is not MATCH_ALL:
            return self._filtered()
        count, records = self._read_heads(self.max_bytes) if self.heads else self._read(self.max_bytes)
        return RangeChunk(self.begin + count, records, self.entries[: count * ENTRY.size]) if count else None

    def _read(self, budget: int) -> tuple[int, list[bytes]]:
        """How many records fit, and their bytes, in as few pieces as they lie in."""
        count = 0
        pieces: list[bytes] = []
        for start in range(0, len(self.entries), STEP * ENTRY.size):
            step = self.entries[start : start + STEP * ENTRY.size]
            sizes = _sizes(step)
            ends = list(accumulate(sizes, initial=0))
            fitting = bisect_right(ends, budget, lo=1) - 1
            if not fitting:
                if count:
                    break
                fitting = 1  # the first of all goes, however large it is
            found = self._runs(step, ends[: fitting + 1])
            if found is None:
                found = self.store.read_many(zip(_positions(step), sizes, strict=True), max(budget, 1))
                fitting = len(found)
            pieces += found
            count += fitting
            if fitting < len(sizes):
                break
            budget -= ends[-1]
            time.sleep(0)
        return count, pieces

    def _read_heads(self, budget: int) -> tuple[int, list[bytes]]:
        """The same for the beginning of each record."""
        pieces: list[bytes] = []
        for start in range(0, len(self.entries), STEP * ENTRY.size):
            step = self.entries[start : start + STEP * ENTRY.size]
            lengths = [min(size, HEAD_BYTES) for size in _sizes(step)]
            found = self.store.read_many(zip(_positions(step), lengths, strict=True), budget)
            pieces += found
            budget -= sum(map(len, found))
            if len(found) < len(lengths) or budget <= 0:
                break
            time.sleep(0)
        return len(pieces), pieces

    def _runs(self, step: bytes, ends: Sequence[int]) -> list[bytes] | None:
        """The records of a step, those that lie side by side in one copy: a busy queue, or batches.

        A queue's records lie in its order, so where the bytes from one to another are just those of the records
        between, nothing else is among them: a run's end is found by bisection. ``None`` if runs are short, or if some
        records are not in the log any more.

        Args:
            ends: how many bytes the records before the first one have, before the second one, and so on; and all
        """
        pieces: list[bytes] = []
        count = len(ends) - 1
        first = 0
        while first < count:
            start = _position(step, first)
            base = start - ends[first]
            following = count
            if _position(step, count - 1) - ends[count - 1] != base:
                following = bisect_right(
                    range(first + 1, count), base, key=lambda number: _position(step, number) - ends[number]
                )
                following += first + 1
            piece = self.store.read(start, ends[following] - ends[first])
            if piece is None or (len(pieces) > SHORT_RUNS and following < SHORT_RUNS * len(pieces)):
                return None
            pieces.append(piece)
            first = following
        return pieces

    def _filtered(self) -> RangeChunk | None:
        """The same for what passes a filter; the tag's hash decides without a look at the record."""
        records: list[bytes] = []
        entries: list[bytes] = []
        budget, looked_at = self.max_bytes, 0
        for start in range(0, len(self.entries), STEP * ENTRY.size):
            step = self.entries[start : start + STEP * ENTRY.size]
            found = self.store.matches(step, self.wanted, most=STEP, max_bytes=budget, skip_gone=False)
            if records and found.records and sum(map(len, found.records)) > budget:
                break  # its first record goes however large it is, but it is not the first of the answer
            records += found.records
            entries += [step[number * ENTRY.size : (number + 1) * ENTRY.size] for number in found.numbers]
            budget -= sum(map(len, found.records))
            looked_at += found.looked_at
            if found.looked_at * ENTRY.size < len(step):
                break
            time.sleep(0)
        if self.heads:
            records = [record[:HEAD_BYTES] for record in records]
        return RangeChunk(self.begin + looked_at, records, b"".join(entries)) if looked_at else None


def _position(entries: bytes, number: int) -> int:
    """The commit-log offset that one of the entries tells."""
    return int.from_bytes(entries[number * 20 : number * 20 + 8], "big")


def _positions(entries: bytes) -> Sequence[int]:
    """All of them in one go."""
    count = len(entries) // ENTRY.size
    return (_STEP if count == STEP else struct.Struct(">" + _PLACE * count)).unpack(entries)


def _sizes(entries: bytes) -> array[int]:
    """The sizes of the records: every fifth word of the entries, without an object for each."""
    sizes = array("i", memoryview(entries).cast("i")[2::5].tobytes())
    if byteorder == "little":
        sizes.byteswap()
    return sizes
