"""Filters on topic, queue, offset, tag and store time that save reading what they would drop.

Each filter narrows spans of offsets (or the set of tags); Spark still applies all of them to the rows that come, so a
filter that is not understood here, or only roughly, costs time and nothing else. Needs the option ``pushFilters`` and
Spark's setting ``spark.sql.python.filterPushdown.enabled``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import attrs
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from verniermq.contrib.arrow.offsets import Span
from verniermq.contrib.arrow.plan import Plan, place_of
from verniermq.contrib.spark.source import BatchReader, read_spans


class PushingReader(BatchReader):
    """A batch reader that Spark may hand filters to."""

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    lowest: int = 0
    highest: int | None = None
    tags: frozenset[str] | None = None
    stored_from: int | None = None
    """Milliseconds."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for one in filters:
            self._take(one)
            yield one

    def _take(self, one: Filter) -> None:
        if isinstance(one, EqualTo):
            self._values(one.attribute, [one.value])
        elif isinstance(one, In):
            self._values(one.attribute, list(one.value))
        elif isinstance(one, GreaterThan | GreaterThanOrEqual):
            if one.attribute == ("queueOffset",):
                self.lowest = max(self.lowest, one.value + isinstance(one, GreaterThan))
            elif one.attribute == ("storeTimestamp",) and isinstance(one.value, datetime):
                earliest = int(one.value.timestamp() * 1000)
                self.stored_from = max(self.stored_from or earliest, earliest)
        elif isinstance(one, LessThan | LessThanOrEqual) and one.attribute == ("queueOffset",):
            self._below(one.value + isinstance(one, LessThanOrEqual))

    def _values(self, attribute: tuple[str, ...], values: list[Any]) -> None:
        if attribute == ("topic",):
            self.topics = frozenset(values) & (self.topics if self.topics is not None else frozenset(values))
        elif attribute == ("queueId",):
            self.queue_ids = frozenset(values) & (self.queue_ids if self.queue_ids is not None else frozenset(values))
        elif attribute == ("tags",) and all(values):
            self.tags = frozenset(values) & (self.tags if self.tags is not None else frozenset(values))
        elif attribute == ("queueOffset",):
            self.lowest = max(self.lowest, min(values))
            self._below(max(values) + 1)

    def _below(self, end: int) -> None:
        self.highest = end if self.highest is None else min(self.highest, end)

    def narrowed(self, span: Span) -> Span | None:
        queue = span.queue
        if self.topics is not None and queue.topic not in self.topics:
            return None
        if self.queue_ids is not None and queue.queue_id not in self.queue_ids:
            return None
        begin = max(span.begin, self.lowest)
        end = span.end if self.highest is None else min(span.end, self.highest)
        return Span(queue, begin, end) if begin < end else None

    def spans(self) -> list[Span]:
        if self.stored_from is None:
            return super().spans()
        place = place_of(self.options)
        try:
            spans = Plan(self.options, place).batch(self.narrowed)
            firsts = {span.queue: place.offset_by_time(span.queue, self.stored_from) for span in spans}
            later = [Span(span.queue, max(span.begin, firsts[span.queue]), span.end) for span in spans]
            return [span for span in later if len(span) > 0]
        finally:
            place.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        options = self.options
        if self.tags and not options.sub_expression and not any("|" in tag or tag.strip() != tag for tag in self.tags):
            options = attrs.evolve(options, sub_expression=" || ".join(sorted(self.tags)), expression_type="TAG")
        return read_spans(options, self.columns, partition)
