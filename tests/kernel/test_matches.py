"""Reading a queue through a filter: which records come, and where the next read begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.kernel.commitlog.stores import open_store, pending
from verniermq.kernel import MATCH_ALL, MessageFilter, Store, tags_code

RED = MessageFilter(tag_codes=frozenset({tags_code("red")}))
EVEN = MessageFilter(test=lambda properties: int(properties["number"]) % 2 == 0)
RED_EVEN = MessageFilter(RED.tag_codes, EVEN.test)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Ten messages of one queue; every third is red."""
    store = open_store(tmp_path)
    for number in range(10):
        tag = "red" if number % 3 == 0 else "blue"
        store.append(pending(body=b"x" * 10, properties={"TAGS": tag, "number": str(number)}))
    store.dispatch()
    yield store
    store.close()


def entries(store: Store) -> bytes:
    queue = store.queue("T1", 0)
    assert queue is not None
    return queue.read(0, 100)


@pytest.mark.parametrize(
    ("wanted", "most", "numbers", "looked_at"),
    [
        (MATCH_ALL, 100, list(range(10)), 10), (MATCH_ALL, 4, [0, 1, 2, 3], 4), (RED, 100, [0, 3, 6, 9], 10),
        (RED, 2, [0, 3], 4), (EVEN, 100, [0, 2, 4, 6, 8], 10), (RED_EVEN, 100, [0, 6], 10), (RED_EVEN, 1, [0], 1),
        (MessageFilter(frozenset()), 100, [], 10),
    ],
)  # fmt: skip
def test_what_passes_comes_and_what_was_looked_at_is_done_with(
    store: Store, wanted: MessageFilter, most: int, numbers: list[int], looked_at: int
) -> None:
    found = store.matches(entries(store), wanted, most=most, max_bytes=1 << 20)

    assert (found.numbers, found.looked_at) == (numbers, looked_at)
    places = [store.queue("T1", 0).entries(number, 1)[0] for number in numbers]  # type: ignore[union-attr]
    assert found.records == [store.read(position, size) for position, size, _ in places]


@pytest.mark.parametrize(("budget", "numbers", "looked_at"), [(0, [0], 3), (1, [0], 3), (2, [0, 3], 6)])
def test_the_first_record_comes_however_large_it_is(
    store: Store, budget: int, numbers: list[int], looked_at: int
) -> None:
    size = store.queue("T1", 0).entries(0, 1)[0][1]  # type: ignore[union-attr]

    found = store.matches(entries(store), RED, most=100, max_bytes=budget * size)

    assert (found.numbers, found.looked_at) == (numbers, looked_at)


def test_a_record_that_is_gone_is_passed_over_or_ends_the_read(store: Store) -> None:
    gone = (1 << 40).to_bytes(8, "big") + entries(store)[8:20]
    three = entries(store)[:20] + gone + entries(store)[20:40]

    over = store.matches(three, MATCH_ALL, most=100, max_bytes=1 << 20)
    ended = store.matches(three, MATCH_ALL, most=100, max_bytes=1 << 20, skip_gone=False)

    assert (over.numbers, over.looked_at) == ([0, 2], 3)
    assert (ended.numbers, ended.looked_at) == ([0], 1)


@pytest.mark.parametrize("strict", [False, True])
def test_a_damaged_record_is_left_out_where_it_is_checked_and_told(store: Store, tmp_path: Path, strict: bool) -> None:
    position, size, _ = store.queue("T1", 0).entries(3, 1)[0]  # type: ignore[union-attr]
    record = store.read(position, size)
    assert record is not None
    segment = next((tmp_path / "commitlog").iterdir())
    with segment.open("r+b") as file:
        file.seek(position + record.index(b"x" * 10))
        file.write(b"y")

    checked = store.matches(entries(store), RED, most=100, max_bytes=1 << 20, check_before=store.end, strict=strict)
    trusted = store.matches(entries(store), RED, most=100, max_bytes=1 << 20, check_before=position)

    assert (checked.numbers, checked.damaged) == ([0, 6, 9], (3, position))
    assert (trusted.numbers, trusted.damaged) == ([0, 3, 6, 9], None)
    assert store.damage.found == 1


# --- side by side --------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 7, 100])
@pytest.mark.parametrize("max_bytes", [0, 150, 2000, 1 << 20])
def test_records_side_by_side_are_those_that_are_read_one_by_one(tmp_path: Path, most: int, max_bytes: int) -> None:
    store = open_store(tmp_path)
    chance = Random(7)
    for number in range(200):
        for _ in range(chance.choice([1, 1, 5])):
            store.append(pending(queue_id=number % 2, body=b"x" * chance.randrange(300)))
    store.dispatch()
    pieces = 0

    for queue in store.queues():
        for offset in range(0, queue.max_offset, 3):
            some = queue.read(offset, 40)
            adjacent = store.adjacent(some, most=most, max_bytes=max_bytes)
            found = store.matches(some, MATCH_ALL, most=most, max_bytes=max_bytes)
            assert adjacent is not None
            assert (b"".join(adjacent[0]), adjacent[1]) == (b"".join(found.records), len(found.records))
            assert adjacent[1] == found.looked_at
            pieces += len(adjacent[0]) < adjacent[1]

    assert pieces or most == 1 or max_bytes < 2000
    store.close()


def test_what_is_gone_is_left_to_the_plain_way(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(60):
        store.append(pending(body=b"%d" % number * 200))
    store.dispatch()
    queue = store.queue("T1", 0)
    assert queue is not None
    some = queue.read(0, 60)
    assert store.delete_first_segment() is not None

    assert store.adjacent(some, most=100, max_bytes=1 << 20) is None
    assert store.matches(some, MATCH_ALL, most=100, max_bytes=1 << 20).records
    assert store.adjacent(b"", most=100, max_bytes=1 << 20) == ([], 0)
    store.close()
