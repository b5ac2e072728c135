"""Consume queues: RocketMQ's entries, in memory first, in files soon after."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verniermq.kernel.dispatch.consumequeue import BLANK_ENTRY, ENTRY, ENTRY_SIZE, ConsumeQueue
from verniermq.kernel.dispatch.event import DispatchEvent
from verniermq.kernel.dispatch.queuefiles import QueueFiles
from verniermq.kernel.message import tags_code

PER_FILE = 10


def make_queue(root: Path, limit: int = 100) -> ConsumeQueue:
    return ConsumeQueue("T", 0, root, QueueFiles(root, PER_FILE * ENTRY_SIZE, limit))


def stored(offset: int, size: int, code: int) -> DispatchEvent:
    return DispatchEvent(offset, size, 0, 0, 0, b"", "T", code, 0, 0, {}, 0, 0, 0)


def add(queue: ConsumeQueue, count: int) -> None:
    for _ in range(count):
        number = queue.max_offset
        queue.append(stored(number * 100, 100, number))


def write(queue: ConsumeQueue) -> list[str]:
    end, paths = queue.write_out()
    queue.release(end)
    return [Path(path).name for path in paths]


def entry(number: int) -> tuple[int, int, int]:
    return number * 100, 100, number


@pytest.mark.parametrize(
    ("offset", "size", "tag", "expected"),
    [
        (4096, 158, "TagA", "00 00 00 00 00 00 10 00 00 00 00 9e 00 00 00 00 00 27 a8 07"),
        (0, 1, "order_paid_event", "00 00 00 00 00 00 00 00 00 00 00 01 ff ff ff ff cf 7f c0 f8"),
        (0, 1, None, "00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00"),
    ],
)
def test_an_entry_has_rocketmqs_bytes(tmp_path: Path, offset: int, size: int, tag: str | None, expected: str) -> None:
    queue = make_queue(tmp_path)
    queue.append(stored(offset, size, tags_code(tag)))

    assert queue.read(0, 1) == bytes.fromhex(expected)


def test_a_delivery_time_fits_where_tags_are_kept() -> None:
    packed = ENTRY.pack(8192, 200, 1700000000123 + 10000)

    assert packed == bytes.fromhex("00 00 00 00 00 00 20 00 00 00 00 c8 00 00 01 8b cf e5 8f 8b")


def test_files_have_full_length_and_are_named_by_byte(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    add(queue, 25)

    names = write(queue)

    assert names == [f"{start:020d}" for start in (0, 200, 400)]
    sizes = {path.stat().st_size for path in (tmp_path / "T" / "0").iterdir()}
    assert sizes == {PER_FILE * ENTRY_SIZE}


def test_reading_goes_across_the_line_between_file_and_memory(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    add(queue, 4)
    write(queue)
    add(queue, 4)

    assert queue.entries(2, 4) == [entry(i) for i in (2, 3, 4, 5)]
    assert queue.entries(6, 100) == [entry(6), entry(7)]
    assert queue.entries(8, 100) == []
    assert queue.entries(-1, 100) == []


def test_reading_stops_at_the_end_of_a_file(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    add(queue, 30)
    write(queue)

    assert queue.entries(7, 100) == [entry(i) for i in (7, 8, 9)]
    assert queue.entries(10, 4) == [entry(i) for i in (10, 11, 12, 13)]


@given(counts=st.lists(st.integers(0, 25), max_size=6), limit=st.integers(1, 3))
def test_what_was_added_is_found_however_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], limit: int
) -> None:
    root = tmp_path_factory.mktemp("queues")
    queue = make_queue(root, limit)
    for count in counts:
        add(queue, count)
        write(queue)
    again = make_queue(root, limit)
    lacking = again.load()

    total = sum(counts)
    assert (again.min_offset, again.max_offset) == (0, total)
    assert again.physical_end == (total * 100 if total else -1)
    assert (lacking, again.first_entry) == (0, 0)
    assert [again.entries(i, 1)[0] for i in range(total)] == [entry(i) for i in range(total)]


@pytest.mark.parametrize("keep", [0, 1, 9, 10, 11, 20, 24, 25])
def test_cutting_leaves_exactly_what_lies_before(tmp_path: Path, keep: int) -> None:
    queue = make_queue(tmp_path)
    add(queue, 25)
    write(queue)

    queue.cut(keep * 100)

    assert queue.max_offset == queue.next_offset == keep
    again = make_queue(tmp_path)
    again.load()
    assert again.max_offset == keep
    add(again, 3)
    write(again)
    third = make_queue(tmp_path)
    third.load()
    assert third.max_offset == keep + 3


def test_the_end_is_found_in_a_long_file(tmp_path: Path) -> None:
    files = QueueFiles(tmp_path, 300_000 * ENTRY_SIZE, 10)
    for total in (1, 203, 204, 205, 5000, 299_999, 300_000):
        queue = ConsumeQueue(f"T{total}", 0, tmp_path, files)
        queue.tail = bytearray(ENTRY.pack(100, 100, 1) * total)
        write(queue)
        again = ConsumeQueue(f"T{total}", 0, tmp_path, files)
        again.load()
        assert again.max_offset == total


def test_a_queue_that_begins_in_the_middle_has_blank_entries_before(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    queue.begin_at(23)
    add(queue, 3)
    write(queue)

    content = (tmp_path / "T" / "0" / f"{400:020d}").read_bytes()
    assert content[:60] == BLANK_ENTRY * 3
    assert bytes.fromhex("00 00 00 00 00 00 00 00 7f ff ff ff 00 00 00 00 00 00 00 00") == BLANK_ENTRY
    again = make_queue(tmp_path)
    again.load()
    again.raise_minimum(0)
    assert (again.min_offset, again.max_offset) == (23, 26)


@pytest.mark.parametrize(
    ("log_minimum", "first", "removed"), [(0, 0, 0), (50, 1, 0), (950, 10, 1), (1000, 10, 1), (9999, 25, 2)]
)
def test_expired_entries_raise_the_minimum_and_remove_files(
    tmp_path: Path, log_minimum: int, first: int, removed: int
) -> None:
    queue = make_queue(tmp_path)
    add(queue, 25)
    write(queue)

    assert queue.delete_files_below(log_minimum) == removed

    assert (queue.min_offset, queue.max_offset) == (first, 25)
    assert len(list((tmp_path / "T" / "0").iterdir())) == 3 - removed
    assert queue.read(first - 1, 1) == b""
    again = make_queue(tmp_path)
    again.load()
    again.raise_minimum(log_minimum)
    assert (again.min_offset, again.max_offset) == (first, 25)


def test_few_files_stay_open(tmp_path: Path) -> None:
    files = QueueFiles(tmp_path, PER_FILE * ENTRY_SIZE, 3)
    queues = [ConsumeQueue("T", i, tmp_path, files) for i in range(20)]
    for queue in queues:
        add(queue, 5)
        write(queue)

    assert len(files._handles) == 3
    assert all(queue.entries(4, 1) == [entry(4)] for queue in queues)


def test_a_deleted_queue_does_not_come_back_when_it_is_written_late(tmp_path: Path) -> None:
    queue = make_queue(tmp_path)
    add(queue, 5)
    write(queue)
    add(queue, 5)

    queue.delete()

    assert queue.write_out() == (0, [])
    assert not (tmp_path / "T" / "0").exists()


def test_entries_written_twice_are_let_go_once(tmp_path: Path) -> None:
    """Two writers may overlap: what came in between must stay in memory until it is written."""
    queue = make_queue(tmp_path)
    add(queue, 3)
    first, _ = queue.write_out()
    add(queue, 2)
    second, _ = queue.write_out()
    add(queue, 4)

    queue.release(second)
    queue.release(first)

    assert [queue.entries(i, 1)[0] for i in range(9)] == [entry(i) for i in range(9)]
    assert len(queue.tail) == 4 * ENTRY_SIZE


def test_a_cut_writes_over_what_was_there_and_leaves_the_hole_behind_it(tmp_path: Path) -> None:
    files = QueueFiles(tmp_path, 50_000 * ENTRY_SIZE, 100)
    queue = ConsumeQueue("T", 0, tmp_path, files)
    add(queue, 5)
    write(queue)
    (path,) = Path(queue.directory).iterdir()
    before = path.stat().st_blocks

    queue.cut(200)

    assert path.read_bytes() == ENTRY.pack(*entry(0)) + ENTRY.pack(*entry(1)) + bytes(49_998 * ENTRY_SIZE)
    assert path.stat().st_blocks == before
