"""Messages that one append put into one queue, kept in columns: an event is made when somebody asks for it.

A batch of 32 messages would otherwise cost 32 events, each with a dictionary of properties, which nearly always nobody
looks at: the queue wants offsets, sizes and tags codes, the key index wants keys, figures want sums.

::

    Run          offsets  [4096, 4320, 4544]      one topic, one queue, one time
                 codes    [   0,  212,    0]
                 uniques  [b"7F…00", b"7F…01", b"7F…02"]
    Dispatched   [Run, DispatchEvent, Run]        a sequence of events, of which ``parts_of`` gives the parts
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from operator import attrgetter
from struct import Struct
from typing import TypeAlias, final, overload

from verniermq.kernel.dispatch.event import DispatchEvent
from verniermq.kernel.message import parse_properties


@final
class Run:
    """What was stored in a row, in one queue.

    Attributes:
        queue_offset: Of the first message; the others follow without a gap.
        offsets, sizes: Where in the log each record lies; records of other queues may lie between them.
        codes: The tags code of each.
        uniques, keys: The unique key of each, which is ASCII, and the text of its other keys, ``b""`` if there is none.
        texts: The properties of each, as the record has them: two bytes of length, then the text.
        rests: Their properties without unique keys and keys, which hardly differ: each text that differs from the one
            before it.
    """

    __slots__ = (
        "born_timestamps",
        "codes",
        "head_size",
        "keys",
        "offsets",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "rests",
        "sizes",
        "store_host",
        "store_timestamp",
        "sys_flag",
        "texts",
        "topic",
        "uniques",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        offsets: Sequence[int],
        sizes: Sequence[int],
        codes: Sequence[int],
        uniques: Sequence[bytes],
        keys: Sequence[bytes],
        texts: Sequence[bytes],
        rests: Sequence[bytes],
        *,
        head_size: int,
        store_timestamp: int,
        store_host: bytes,
        sys_flag: int,
        born_timestamps: Sequence[int],
        reconsume_times: int,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.offsets = offsets
        self.sizes = sizes
        self.codes = codes
        self.uniques = uniques
        self.keys = keys
        self.texts = texts
        self.rests = rests
        self.head_size = head_size
        """Of each record: all but its body and its properties."""
        self.store_timestamp = store_timestamp
        self.store_host = store_host
        self.sys_flag = sys_flag
        self.born_timestamps = born_timestamps
        self.reconsume_times = reconsume_times

    def __repr__(self) -> str:
        return f"<Run {self.topic}:{self.queue_id}[{self.queue_offset}] of {len(self)} at {self.commit_log_offset}>"

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[DispatchEvent]:
        return map(self.event, range(len(self.offsets)))

    @property
    def count(self) -> int:
        """How many messages it is about."""
        return len(self.offsets)

    @property
    def commit_log_offset(self) -> int:
        """Where the first record begins."""
        return self.offsets[0]

    @property
    def end(self) -> int:
        """Where the last record ends."""
        return self.offsets[-1] + self.sizes[-1]

    @property
    def size(self) -> int:
        """Bytes of all records together."""
        return sum(self.sizes)

    @property
    def newest_queue_offset(self) -> int:
        return self.queue_offset + len(self.offsets) - 1

    @property
    def message_ids(self) -> str:
        """The offset message ids, as the answer to a batch has them: with commas between them."""
        host, count = self.store_host, len(self.offsets)
        flat: list[int | bytes] = [host] * (2 * count)
        flat[1::2] = self.offsets
        return _ids(len(host), count).pack(*flat).hex(",", len(host) + 8).upper()

    def event(self, number: int) -> DispatchEvent:
        """The event of one message."""
        size, text = self.sizes[number], self.texts[number]
        return DispatchEvent(
            self.offsets[number],
            size,
            self.queue_id,
            self.queue_offset + number,
            self.store_timestamp,
            self.store_host,
            self.topic,
            self.codes[number],
            self.sys_flag,
            0,
            parse_properties(text[2:].decode()),
            self.born_timestamps[number],
            size - self.head_size - len(text),
            self.reconsume_times,
        )

    def queue_entries(self) -> bytes:
        """The entries that the consume queue gets, one behind the other."""
        count = len(self.offsets)
        flat = [0] * (3 * count)
        flat[::3] = self.offsets
        flat[1::3] = self.sizes
        flat[2::3] = self.codes
        return _entries(count).pack(*flat)


@lru_cache(maxsize=64)
def _entries(count: int) -> Struct:
    return Struct(f">{'qiq' * count}")


@lru_cache(maxsize=64)
def _ids(host: int, count: int) -> Struct:
    return Struct(">" + f"{host}sq" * count)


Part: TypeAlias = Run | DispatchEvent


@final
class Dispatched(Sequence[DispatchEvent]):
    """Messages in the order of the log, some of them as runs."""

    __slots__ = ("_length", "_sizes", "parts")

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self._length = count_messages(parts)
        self._sizes: Mapping[str, Sequence[int]] | None = None

    def __repr__(self) -> str:
        return f"<Dispatched {self._length} messages in {len(self.parts)} parts>"

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[DispatchEvent]:
        if self._interleaved:
            return iter(self._in_order())
        return chain.from_iterable(part if isinstance(part, Run) else (part,) for part in self.parts)

    @property
    def _interleaved(self) -> bool:
        """Whether records of one run lie between those of another, as when a peer sends to several queues in turn."""
        return any(before.end > after.commit_log_offset for before, after in pairwise(self.parts))

    def _in_order(self) -> list[DispatchEvent]:
        events = chain.from_iterable(part if isinstance(part, Run) else (part,) for part in self.parts)
        return sorted(events, key=attrgetter("commit_log_offset"))

    @property
    def sizes(self) -> Mapping[str, Sequence[int]]:
        """The bytes of each record, by topic; worked out once for all who count."""
        if self._sizes is None:
            self._sizes = _sizes_by_topic(self.parts)
        return self._sizes

    @overload
    def __getitem__(self, index: int) -> DispatchEvent: ...

    @overload
    def __getitem__(self, index: slice) -> list[DispatchEvent]: ...

    def __getitem__(self, index: int | slice) -> DispatchEvent | list[DispatchEvent]:
        if isinstance(index, slice) or self._interleaved:
            return list(self)[index]
        number = index + self._length if index < 0 else index
        if 0 <= number < self._length:
            for part in self.parts:
                if number < part.count:
                    return part.event(number) if isinstance(part, Run) else part
                number -= part.count
        raise IndexError(f"there is no message {index} among {self._length}")


def dispatched(parts: Sequence[Part]) -> Sequence[DispatchEvent]:
    """The same as a sequence of events: itself, while it has no run."""
    for part in parts:
        if isinstance(part, Run):
            return Dispatched(parts)
    return parts  # type: ignore[return-value]  # events, then


def sizes_of(events: Sequence[DispatchEvent]) -> Mapping[str, Sequence[int]]:
    """The bytes of each record, by topic."""
    return events.sizes if isinstance(events, Dispatched) else _sizes_by_topic(events)


def _sizes_by_topic(parts: Sequence[Part]) -> Mapping[str, Sequence[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for part in parts:
        if isinstance(part, Run):
            found[part.topic] += part.sizes
        else:
            found[part.topic].append(part.size)
    return dict(found)


def parts_of(events: Sequence[DispatchEvent]) -> Sequence[Part]:
    """The runs and single events that a sequence of events consists of: for those who know how to ask a run."""
    return events.parts if type(events) is Dispatched else events  # an abstract class takes isinstance long


def events_of(parts: Sequence[Part]) -> list[DispatchEvent]:
    """The events of parts, each of them made, in the order of the log."""
    return list(Dispatched(parts))


def count_messages(parts: Sequence[object]) -> int:
    """How many messages there are in runs and single events."""
    count = len(parts)
    for part in parts:
        if isinstance(part, Run):
            count += len(part) - 1
    return count


def count_parts(parts: Sequence[object], messages: int) -> int:
    """How many of the first parts have so many messages together, or a few more: neither a run is divided, nor runs
    whose records lie between each other."""
    end = 0
    for number, part in enumerate(parts):
        if isinstance(part, Run):
            if messages <= 0 and part.commit_log_offset >= end:
                return number
            end = max(end, part.end)
            messages -= len(part)
        elif messages <= 0:
            return number
        else:
            messages -= 1
    return len(parts)


def count_up_to(parts: Sequence[Part], end: int) -> int:
    """How many of the first parts lie before a place of the log, and before all that follow them."""
    ready = reach = 0
    for number, part in enumerate(parts):
        if part.commit_log_offset >= reach:
            ready = number
        if (stop := part.end) > reach:
            if stop > end:
                return ready
            reach = stop
    return len(parts)
