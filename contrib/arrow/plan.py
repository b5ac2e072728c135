"""What a read will read: from options to queues, from queues to spans of offsets.

The same for brokers and for a store on a shared disk: both can list queues and say where each begins and ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs

from verniermq.contrib.arrow.cluster import Bounds, Cluster
from verniermq.contrib.arrow.errors import DataLost, NoSuchTopic, OffsetOutOfRange
from verniermq.contrib.arrow.offsets import EARLIEST, LATEST, Offsets, Span, limited, split
from verniermq.contrib.arrow.options import ReadOptions
from verniermq.kernel import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class Place(Protocol):
    """Where messages are."""

    def topics(self) -> list[str]: ...
    def queues(self, topics: Sequence[str]) -> list[MessageQueue]: ...
    def bounds(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, Bounds]: ...
    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int: ...
    def close(self) -> None: ...


class Reader(Protocol):
    """Reads spans of it."""

    def batches(self, span: Span, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]: ...
    def close(self) -> None: ...


def place_of(options: ReadOptions) -> Place:
    if options.path:
        from verniermq.contrib.arrow.files import StoreFiles

        return StoreFiles(options.path)
    return Cluster(options.name_servers, options.retry_seconds)


def reader_of(options: ReadOptions) -> Reader:
    reader = _plain_reader(options)
    if options.value is None:
        return reader
    from verniermq.contrib.arrow.values.typed import TypedReader

    return TypedReader(reader, options.value)


def _plain_reader(options: ReadOptions) -> Reader:
    if options.path:
        from verniermq.contrib.arrow.files import FileReader

        return FileReader(options)
    from verniermq.contrib.arrow.fetch import Fetcher

    return Fetcher(options)


def with_schema(options: ReadOptions) -> ReadOptions:
    """The options with the schema of values in them, looked for in the oldest messages if it is to be found.

    Raises:
        BadOption: nothing can be found.
    """
    value = options.value
    if value is None or not value.infer or value.schema:
        return options
    from verniermq.contrib.arrow.ddl import type_text
    from verniermq.contrib.arrow.values import SAMPLES, decoder_of

    place, reader = place_of(options), _plain_reader(options)
    samples: list[bytes] = []
    try:
        for span in Plan(options, place).batch():
            for rows in reader.batches(attrs.evolve(span, end=min(span.end, span.begin + SAMPLES)), ("body",)):
                samples += rows.column("body").to_pylist()[: SAMPLES - len(samples)]
            if len(samples) >= SAMPLES:
                break
    finally:
        place.close()
        reader.close()
    found = type_text(decoder_of(value, samples).type).removeprefix("struct<").removesuffix(">")
    return attrs.evolve(options, value=attrs.evolve(value, schema=found.encode()))


@attrs.frozen
class Plan:
    """Answers what Spark asks before it reads."""

    options: ReadOptions
    place: Place

    def queues(self) -> list[MessageQueue]:
        """The queues that the options mean, now.

        Raises:
            NoSuchTopic: a topic, or a queue of it, that was named does not exist.
        """
        topics = self.options.topics
        if topics.pattern or topics.everything:
            return self.place.queues([name for name in self.place.topics() if topics.matches(name)])
        if not topics.queues:
            return self.place.queues(topics.names)
        found = set(self.place.queues(sorted({queue.topic for queue in topics.queues})))
        missing = [queue for queue in topics.queues if queue not in found]
        if missing:
            raise NoSuchTopic(map(str, missing), ", ".join(self.options.name_servers), self.place.topics())
        return list(topics.queues)

    def starting(self, bounds: Mapping[MessageQueue, Bounds]) -> Offsets:
        options = self.options
        return self._resolve(bounds, options.starting, options.starting_timestamp, "startingOffsets", EARLIEST)

    def ending(self, bounds: Mapping[MessageQueue, Bounds]) -> Offsets:
        options = self.options
        return self._resolve(bounds, options.ending, options.ending_timestamp, "endingOffsets", LATEST)

    def _resolve(
        self,
        bounds: Mapping[MessageQueue, Bounds],
        given: Offsets | int,
        timestamp: int | None,
        option: str,
        other: int,
    ) -> Offsets:
        """An offset for each queue; one that is not among those given gets ``other``.

        Raises:
            OffsetOutOfRange: an offset is not in its queue, and that matters.
        """
        if timestamp is not None:
            return {queue: self.place.offset_by_time(queue, timestamp) for queue in bounds}
        if isinstance(given, int):
            return {queue: bound.low if given == EARLIEST else bound.high for queue, bound in bounds.items()}
        for queue in given:
            if queue not in bounds:
                raise NoSuchTopic([str(queue)], ", ".join(self.options.name_servers), {q.topic for q in bounds})
        found = {}
        for queue, bound in bounds.items():
            offset = given.get(queue, other)
            if offset in (EARLIEST, LATEST):
                offset = bound.low if offset == EARLIEST else bound.high
            elif not bound.low <= offset <= bound.high:
                if self.options.fail_on_data_loss:
                    raise OffsetOutOfRange(queue, offset, bound.low, bound.high, option)
                logger.warning("%s has offset %d for %s, which has %s", option, offset, queue, bound)
                offset = min(max(offset, bound.low), bound.high)
            found[queue] = offset
        return found

    def batch(self, narrowed: Callable[[Span], Span | None] = lambda span: span) -> list[Span]:
        """The spans of a batch read; ``narrowed`` may cut each to what filters leave of it."""
        bounds = self.place.bounds(self.queues())
        start, end = self.starting(bounds), self.ending(bounds)
        spans = [narrowed(Span(queue, start[queue], max(start[queue], end[queue]))) for queue in sorted(bounds)]
        return split([span for span in spans if span is not None], self.options.min_partitions)

    def between(self, start: Offsets, end: Offsets) -> list[Span]:
        """The spans of one micro-batch. A queue that is new since ``start`` is read from its beginning.

        Raises:
            DataLost: retention was faster than the stream, and that matters.
        """
        moved = [queue for queue in sorted(end) if start.get(queue, -1) < end[queue]]
        bounds = self.place.bounds(moved) if moved else {}
        spans = []
        for queue in moved:
            begin = start.get(queue, bounds[queue].low)
            if bounds[queue].low > begin:
                begin = self._skip(queue, begin, min(bounds[queue].low, end[queue]))
            spans.append(Span(queue, begin, end[queue]))
        return split(spans, self.options.min_partitions)

    def ends(self) -> Offsets:
        """Where the queues end now; queues and topics that are new are among them."""
        return {queue: bound.high for queue, bound in self.place.bounds(self.queues()).items()}

    def following(self, begin: Offsets, end: Offsets, most: int | None) -> Offsets:
        """Where the next batch of a stream ends that has come to ``begin``: at ``end``, or after ``most`` messages.

        A queue whose broker is away keeps its place; none ever goes back.

        Raises:
            DataLost: a queue ends before what was read of it, and that matters.
        """
        for queue, offset in begin.items():
            if end.get(queue, offset) < offset and self.options.fail_on_data_loss:
                ends = f"it was read up to {offset} and ends at {end[queue]}"
                raise DataLost(queue, end[queue], offset, f"{ends}: the topic was made anew, or the newest are lost")
        merged = {**begin, **{queue: max(stop, begin.get(queue, 0)) for queue, stop in end.items()}}
        if most is None:
            return merged
        fresh = [queue for queue in merged if queue not in begin]
        lows = self.place.bounds(fresh) if fresh else {}
        return limited({**begin, **{queue: lows[queue].low for queue in fresh}}, merged, most)

    def _skip(self, queue: MessageQueue, begin: int, following: int) -> int:
        why = f"the queue begins at {following} or later now: old files were deleted before they were read"
        if self.options.fail_on_data_loss:
            raise DataLost(queue, begin, following, why)
        logger.warning("offsets %d to %d of %s are skipped: %s", begin, following, queue, why)
        return following
