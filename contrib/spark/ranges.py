"""READ_QUEUE_RANGE: many records of one queue in one answer, as they lie in the log.

The ordinary pull answers with 32 messages or so; whoever reads millions spends the time waiting. Here one answer has
up to 4 MiB. Fields of the request::

    topic, queueId              which queue
    beginOffset, endOffset      which messages: from the first to just before the second
    maxBytes                    how large the answer may be; the broker's own limit is smaller or equal
    subscription, expressionType   optional: which of them, as in a pull

and of the answer, where code 21 (OFFSET_MOVED) says that ``beginOffset`` is outside ``minOffset`` and ``maxOffset``::

    nextBeginOffset             where to go on
    minOffset, maxOffset        what the queue has now
    recordBytes                 how many bytes of the body are records

    body:  record | record | … | entry | entry | …

The records are as in a pull's body. Behind them is the 20-byte entry that the consume queue has of each (commit-log
offset, size, tags code): the reader knows where records begin without looking, and gets the tags code, which
only the queue has.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from typing import Final

import attrs

from verniermq.kernel import MATCH_ALL, ConsumeQueue, MessageFilter, Store, decode_record

ENTRY: Final = struct.Struct(">qiq")

MOST_ENTRIES: Final = 16_384
"""That one answer looks at: a third of a megabyte of the queue, read on the event loop, so it has to be little."""

STEP: Final = 256
"""Records after which the thread lets the event loop have the interpreter."""


@attrs.frozen
class Chunk:
    """What one answer carries."""

    next_offset: int
    records: bytes = b""
    entries: bytes = b""


@attrs.frozen
class RangeRead:
    """A read that was begun on the event loop, where the queue may be looked at; a worker thread finishes it."""

    store: Store
    begin: int
    entries: bytes
    wanted: MessageFilter
    max_bytes: int

    @classmethod
    def begin_at(
        cls, store: Store, queue: ConsumeQueue, begin: int, end: int, wanted: MessageFilter, max_bytes: int
    ) -> RangeRead:
        entries = queue.read(begin, min(end - begin, MOST_ENTRIES))
        return cls(store, begin, entries, wanted, max_bytes)

    def finish(self) -> Chunk | None:
        """Gather the records; ``None`` when the first is not in the log any more. For a worker thread."""
        if self.wanted is not MATCH_ALL:
            return self._filtered()
        count, records = self._read(self.max_bytes)
        return Chunk(self.begin + count, records, self.entries[: count * ENTRY.size]) if count else None

    def _read(self, budget: int) -> tuple[int, bytes]:
        """How many records fit, and their bytes."""
        count = 0
        pieces: list[bytes] = []
        for start in range(0, len(self.entries), STEP * ENTRY.size):
            step = self.entries[start : start + STEP * ENTRY.size]
            places = [(position, size) for position, size, _ in ENTRY.iter_unpack(step)]
            first, (last, last_size) = places[0][0], places[-1]
            size = sum([size for _, size in places])
            found: list[bytes] = []
            if size == last + last_size - first and size <= budget and (run := self.store.read(first, size)):
                # A busy queue, or a batch: the records lie side by side, and one copy takes them all.
                found, taken = [run], len(places)
            else:
                found = self.store.read_many(places, budget)
                if pieces and found and len(found[0]) > budget:
                    break  # read_many gives the first in any case, but only the first of all may be too large
                size, taken = sum(map(len, found)), len(found)
            pieces += found
            count += taken
            budget -= size
            if taken < len(places) or budget <= 0:
                break
            time.sleep(0)
        return count, b"".join(pieces)

    def _filtered(self) -> Chunk | None:
        """The same for what passes a filter; the tag's hash decides without a look at the record."""
        codes, test = self.wanted.tag_codes, self.wanted.test
        records: list[bytes] = []
        entries: list[bytes] = []
        budget = self.max_bytes
        offset = self.begin
        for number, (position, size, code) in enumerate(ENTRY.iter_unpack(self.entries)):
            if codes is None or code in codes:
                if budget < size and records:
                    break
                record = self.store.read(position, size)
                if record is None:
                    return None if offset == self.begin else self._chunk(offset, records, entries)
                if test is None or test(decode_record(record).properties):
                    records.append(record)
                    entries.append(self.entries[number * ENTRY.size : (number + 1) * ENTRY.size])
                    budget -= size
            offset += 1
            if number % STEP == STEP - 1:
                time.sleep(0)
        return self._chunk(offset, records, entries)

    @staticmethod
    def _chunk(offset: int, records: Iterable[bytes], entries: Iterable[bytes]) -> Chunk:
        return Chunk(offset, b"".join(records), b"".join(entries))
