"""Segments: made ahead of time, never written without room, readable at any time."""

from __future__ import annotations

import os
import threading
from mmap import PAGESIZE
from pathlib import Path

import pytest

from tests.kernel.commitlog.stores import pages_in_memory
from verniermq.kernel.commitlog.log import AHEAD, CommitLog
from verniermq.kernel.commitlog.mapped import MappedFile, clear_from, file_name, file_starts, written_end
from verniermq.kernel.errors import MessageTooLarge, SegmentSizeMismatch, StoreNotWritable

SIZE = 4096


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    log = CommitLog(tmp_path, SIZE)
    log.load()
    log.open_at(0)
    return log


def put(log: CommitLog, data: bytes) -> int:
    if log.end + len(data) > log.room:
        log.make_room(len(data))
    offset = log.end
    log.write(data[:8], data[8:])
    return offset


def test_bytes_are_read_where_they_were_written(log: CommitLog) -> None:
    offsets = [put(log, bytes([i]) * 1000) for i in range(1, 20)]

    assert [log.read(offset, 1000) for offset in offsets] == [bytes([i]) * 1000 for i in range(1, 20)]
    assert [offset % SIZE for offset in offsets[:5]] == [0, 1000, 2000, 3000, 0]
    assert log.read(offsets[-1], 1001) is None
    assert log.read(3000, 2000) is None
    log.close()


def test_a_record_as_large_as_a_segment_is_refused(log: CommitLog) -> None:
    with pytest.raises(MessageTooLarge):
        log.make_room(SIZE - 7)
    assert log.make_room(SIZE - 8) == 0
    log.close()


def test_the_next_segment_is_asked_for_ahead_of_time(log: CommitLog, tmp_path: Path) -> None:
    asked: list[int] = []
    log.came_ahead = lambda: asked.append(log.end)
    put(log, bytes([1]) * 1000)
    assert asked == [0]

    thread = threading.Thread(target=log.get_ready)
    thread.start()
    thread.join()
    assert file_starts(tmp_path) == [0, SIZE]
    for _ in range(4):
        put(log, bytes([1]) * 1000)

    assert log.base == SIZE
    log.close()


def test_pages_are_in_memory_before_they_are_written(tmp_path: Path) -> None:
    log = CommitLog(tmp_path, 8 * AHEAD)
    log.load()
    log.open_at(0)
    put(log, bytes([1]) * 1000)

    with (tmp_path / file_name(0)).open("r+b") as file:

        def forgotten() -> int:
            """How many bytes are in memory after the system was asked to forget all that nobody has mapped."""
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            return pages_in_memory(file.fileno()) * PAGESIZE

        if forgotten() >= AHEAD:
            pytest.skip("this file system keeps its pages in memory")
        log.get_ready()
        assert pages_in_memory(file.fileno()) * PAGESIZE >= 2 * AHEAD
        while log.end < AHEAD + (1 << 20):
            put(log, bytes([1]) * (1 << 20))
        before = forgotten()
        log.get_ready()  # what lies behind what was made ready before
        assert pages_in_memory(file.fileno()) * PAGESIZE >= before + AHEAD
    log.close()


def test_rolling_while_segments_are_made_in_a_thread_keeps_every_byte(log: CommitLog) -> None:
    stop = threading.Event()

    def prepare() -> None:
        while not stop.is_set():
            log.get_ready()

    thread = threading.Thread(target=prepare)
    thread.start()
    try:
        offsets = [put(log, i.to_bytes(4, "big") * 250) for i in range(400)]
    finally:
        stop.set()
        thread.join()

    assert [log.read(offset, 1000) for offset in offsets] == [i.to_bytes(4, "big") * 250 for i in range(400)]
    log.close()


def test_reading_in_other_threads_never_sees_wrong_bytes(log: CommitLog) -> None:
    written: list[tuple[int, bytes]] = []
    wrong: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            for offset, data in written[-20:]:
                if log.read(offset, len(data)) != data:
                    wrong.append(offset)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for i in range(1, 150):
            data = i.to_bytes(4, "big") * 200
            written.append((put(log, data), data))
    finally:
        stop.set()
        thread.join()

    assert wrong == []
    log.close()


def test_a_closed_log_takes_nothing(log: CommitLog) -> None:
    log.close()

    with pytest.raises(StoreNotWritable, match="closed"):
        log.make_room(10)


def test_files_of_another_length_are_refused(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}").write_bytes(bytes(SIZE))
    (tmp_path / f"{SIZE:020d}").write_bytes(bytes(100))

    with pytest.raises(SegmentSizeMismatch, match="100 bytes, expected 4096"):
        CommitLog(tmp_path, SIZE).load()


def test_an_empty_last_file_is_removed_and_other_names_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}").write_bytes(bytes(SIZE))
    (tmp_path / f"{SIZE:020d}").touch()
    (tmp_path / "notes").write_text("mine")
    (tmp_path / f"{7:020d}").mkdir()

    assert CommitLog(tmp_path, SIZE).load() == [0]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f"{0:020d}", "notes", f"{7:020d}"])


def test_a_mapped_file_is_sparse_until_room_is_reserved(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}"
    file = MappedFile.create(path, 1 << 24)
    assert path.stat().st_size == 1 << 24
    assert path.stat().st_blocks == 0

    file.reserve(1 << 20)

    assert path.stat().st_blocks * 512 >= 1 << 20
    assert file.read(0, 10) == bytes(10)
    file.close()


def test_clearing_keeps_length_and_what_comes_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = os.urandom(3 << 20)
    path.write_bytes(content)

    clear_from(path, 12345)

    assert path.read_bytes() == content[:12345] + bytes(len(content) - 12345)


@pytest.mark.parametrize("end", [0, 1, 4096, (1 << 20) - 1, 1 << 20, (3 << 20) + 17, 5 << 20])
def test_the_end_of_what_was_written_is_found_in_sparse_and_in_full_files(tmp_path: Path, end: int) -> None:
    sparse, reserved, full = tmp_path / "sparse", tmp_path / "reserved", tmp_path / "full"
    content = os.urandom(end)[:-1] + b"x" if end else b""
    for path in (sparse, reserved):
        path.write_bytes(content)
        os.truncate(path, 5 << 20)
    file = MappedFile(reserved, 5 << 20)
    file.reserve(5 << 20)
    file.close()
    full.write_bytes(content + bytes((5 << 20) - end))

    assert [written_end(path) for path in (sparse, reserved, full)] == [end, end, end]
