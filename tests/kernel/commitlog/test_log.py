"""Segments: made ahead of time, never written without room, readable at any time."""

from __future__ import annotations

import errno
import os
import threading
from mmap import PAGESIZE
from pathlib import Path

import pytest

from tests.kernel.commitlog.stores import pages_in_memory
from verniermq.kernel.commitlog import mapped
from verniermq.kernel.commitlog.log import AHEAD, CommitLog
from verniermq.kernel.commitlog.mapped import (
    LARGEST_FOLIO,
    MappedFile,
    clear_from,
    file_name,
    file_starts,
    write_all,
    written_end,
)
from verniermq.kernel.errors import MessageSizeExceeded, SegmentSizeMismatch, StoreNotWritable

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
    log.write(data)
    return offset


def test_bytes_are_read_where_they_were_written(log: CommitLog) -> None:
    offsets = [put(log, bytes([i]) * 1000) for i in range(1, 20)]

    assert [log.read(offset, 1000) for offset in offsets] == [bytes([i]) * 1000 for i in range(1, 20)]
    assert [offset % SIZE for offset in offsets[:5]] == [0, 1000, 2000, 3000, 0]
    assert log.read(offsets[-1], 1001) is None
    assert log.read(3000, 2000) is None
    log.close()


def test_a_record_as_large_as_a_segment_is_refused(log: CommitLog) -> None:
    with pytest.raises(MessageSizeExceeded):
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
    file = MappedFile.create(path, 4 * LARGEST_FOLIO)
    file.in_place = True  # whatever the tests run on
    assert path.stat().st_size == 4 * LARGEST_FOLIO
    assert path.stat().st_blocks == 0

    file.reserve(1000)

    assert LARGEST_FOLIO <= path.stat().st_blocks * 512 < 2 * LARGEST_FOLIO
    assert file.read(0, 10) == bytes(10)
    file.close()


def no_room_ahead(patch: pytest.MonkeyPatch, most: int) -> None:
    """A disk that refuses to reserve more than ``most`` bytes at a time."""
    real = os.posix_fallocate

    def reserve(descriptor: int, offset: int, length: int) -> None:
        if length > most:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor, offset, length)

    patch.setattr(os, "posix_fallocate", reserve)


@pytest.mark.parametrize("end", [0, 5000, LARGEST_FOLIO, LARGEST_FOLIO + 5000])
def test_nothing_is_stored_into_a_piece_of_which_a_part_has_no_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    """The system keeps a file in memory in pieces of many pages, and the first store wants blocks for a whole one."""
    monkeypatch.setattr(mapped, "writes_in_place", lambda descriptor: True)
    no_room_ahead(monkeypatch, LARGEST_FOLIO)
    path = tmp_path / file_name(0)
    MappedFile.create(path, 4 * LARGEST_FOLIO).close()
    log = CommitLog(tmp_path, 4 * LARGEST_FOLIO)
    log.load()
    log.open_at(end)

    put(log, bytes([1]) * 1000)

    begun = end // LARGEST_FOLIO * LARGEST_FOLIO
    assert path.stat().st_blocks * 512 >= LARGEST_FOLIO, "the whole piece, also before the end"
    assert end + 1000 <= log.room <= begun + LARGEST_FOLIO
    log.close()


def fails_after(patch: pytest.MonkeyPatch, allowed: int) -> None:
    """A disk on which calls write ``allowed`` bytes more, the last of them in part, and then none."""
    real, left = os.pwrite, [allowed]

    def write(descriptor: int, data: bytes, position: int) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(descriptor, data[: left[0]], position)
        left[0] -= written
        return written

    patch.setattr(os, "pwrite", write)


def test_a_write_is_whole_or_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    with (tmp_path / "file").open("w+b") as file:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", lambda descriptor, data, position: real(descriptor, data[:3], position))
            write_all(file.fileno(), b"0123456789", 5)
        assert file.read() == bytes(5) + b"0123456789"

        fails_after(monkeypatch, 4)
        with pytest.raises(OSError, match="No space left"):
            write_all(file.fileno(), b"0123456789", 5)


@pytest.mark.parametrize("why", ["hardly any room is left", "blocks are not written in place", "room is not promised"])
def test_where_a_store_could_kill_a_call_writes_and_what_failed_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "hardly any room is left":
        monkeypatch.setattr(mapped, "AMPLE_ROOM", 1 << 62)
    elif why == "blocks are not written in place":
        monkeypatch.setattr(mapped, "writes_in_place", lambda descriptor: False)
    else:

        def refuse(descriptor: int, offset: int, length: int) -> None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

        monkeypatch.setattr(os, "posix_fallocate", refuse)
    log = CommitLog(tmp_path, SIZE)
    log.load()
    log.open_at(0)
    first = put(log, b"a" * 1000)

    for allowed in (0, 1, 991, 992, 993, 999):  # the last 8 bytes to be written are the first of the record
        with monkeypatch.context() as patch:
            fails_after(patch, allowed)
            with pytest.raises(StoreNotWritable, match="No space left on device; free some disk space"):
                put(log, b"b" * 1000)
            with pytest.raises(StoreNotWritable):
                put(log, b"c" * 500)  # neither has what was left gone, nor is there room
        assert log.end == 1000
    second = put(log, b"d" * 500)

    assert log.read(first, 1000) == b"a" * 1000
    assert log.read(second, 500) == b"d" * 500
    assert (tmp_path / file_name(0)).read_bytes() == b"a" * 1000 + b"d" * 500 + bytes(SIZE - 1500)
    third = [put(log, bytes([i]) * 900) for i in range(1, 8)]  # and rolls
    assert [log.read(offset, 900) for offset in third] == [bytes([i]) * 900 for i in range(1, 8)]
    log.close()


def test_a_full_disk_is_one_line_and_room_on_it_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mapped, "writes_in_place", lambda descriptor: False)
    log = CommitLog(tmp_path, SIZE)
    log.load()
    log.open_at(0)
    put(log, b"a" * 100)
    assert not caplog.records

    for _ in range(2):
        with monkeypatch.context() as patch:
            fails_after(patch, 10)
            for _ in range(5):
                with pytest.raises(StoreNotWritable):
                    put(log, b"b" * 100)
        for _ in range(5):
            put(log, b"c" * 10)

    assert [record.getMessage() for record in caplog.records] == [
        f"no messages are taken any more: the commit log cannot grow in {tmp_path}: No space left on device; "
        "free some disk space",
        f"taking messages again: the commit log in {tmp_path} can grow",
    ], "a second pair within a few seconds is left out"
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    log.close()


def test_a_segment_that_cannot_be_ended_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = CommitLog(tmp_path, SIZE)
    log.load()
    log.open_at(0)
    for i in (1, 2, 3):
        put(log, bytes([i]) * 1100)

    with monkeypatch.context() as patch:
        fails_after(patch, 5)
        with pytest.raises(StoreNotWritable, match="No space left"):
            put(log, b"x" * 1100)
    offset = put(log, b"y" * 500)

    assert (tmp_path / file_name(0)).read_bytes()[3300:] == b"y" * 500 + bytes(SIZE - 3800)
    assert offset == 3300
    assert put(log, b"z" * 1100) == SIZE
    log.close()


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
