"""Offsets: as JSON and back, limited fairly, split into enough parts; none lost and none twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verniermq.contrib.arrow.offsets import Span, as_json, from_json, limited, packed, split
from verniermq.kernel import MessageQueue

QUEUES = st.builds(MessageQueue, st.sampled_from(["orders", "paid"]), st.sampled_from(["a", "b"]), st.integers(0, 3))
SPANS = st.builds(lambda q, begin, n: Span(q, begin, begin + n), QUEUES, st.integers(0, 99), st.integers(0, 200))
OFFSETS = st.dictionaries(QUEUES, st.integers(0, 10_000), max_size=8)


@given(OFFSETS)
def test_json_and_back_is_the_same(offsets: dict[MessageQueue, int]) -> None:
    assert from_json(as_json(offsets)) == offsets


@pytest.mark.parametrize("wrong", [[], {"orders": 1}, {"orders": {"a": 5}}, {"orders": {"a": {"0": "x"}}}, "text"])
def test_other_json_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="offset"):
        from_json(wrong)


@given(OFFSETS, st.dictionaries(QUEUES, st.integers(0, 500)), st.integers(1, 1000))
def test_a_limit_is_kept_and_nothing_goes_back(
    start: dict[MessageQueue, int], waiting: dict[MessageQueue, int], most: int
) -> None:
    end = {queue: offset + waiting.get(queue, 0) for queue, offset in start.items()}

    stop = limited(start, end, most)

    read = sum(stop[queue] - start[queue] for queue in start)
    assert read == min(most, sum(end.values()) - sum(start.values()))
    assert all(start[queue] <= stop[queue] <= end[queue] for queue in start)


@given(st.lists(SPANS, max_size=6), st.integers(1, 20))
def test_parts_cover_the_spans_without_gap_or_overlap(spans: list[Span], minimum: int) -> None:
    parts = split(spans, minimum)

    def offsets(some: list[Span]) -> list[tuple[MessageQueue, int]]:
        return sorted((span.queue, offset) for span in some for offset in range(span.begin, span.end))

    assert offsets(parts) == offsets(spans)
    assert len(parts) >= min(minimum, sum(map(len, spans)))
    assert all(len(part) for part in parts)


@given(st.lists(st.integers(1, 60), max_size=12), st.integers(1, 8))
def test_short_spans_share_a_task_and_none_is_lost(lengths: list[int], minimum: int) -> None:
    spans = [Span(MessageQueue("orders", "a", number), 5, 5 + length) for number, length in enumerate(lengths)]

    tasks = packed(spans, minimum, worth=50)

    assert [span for task in tasks for span in task] == spans
    assert len(tasks) >= min(minimum, len(spans))
    assert all(sum(map(len, task[:-1])) < 50 for task in tasks)
    if minimum == 1:
        assert all(sum(map(len, task)) >= 50 for task in tasks[:-1])
