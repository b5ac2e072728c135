"""A log that is a copy: read in blocks from one store, put raw into another."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.commitlog.stores import SEGMENT, abandon, bodies, open_store, pending
from verniermq.kernel.errors import NotACopy
from verniermq.kernel.message import SysFlag
from verniermq.kernel.store import Store

MESSAGES = 200


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Store]:
    """Messages of several topics and lengths, over some segments; prepared ones have no queue entry."""
    store = open_store(tmp_path / "master")
    dice = random.Random(5)
    for number in range(MESSAGES):
        body = dice.randbytes(dice.randrange(600))
        prepared = SysFlag.TRANSACTION_PREPARED if number % 17 == 0 else 0
        store.append(pending(f"T{number % 3}", number % 2, body, sys_flag=prepared))
    store.dispatch()
    yield store
    store.close()


def copy(master: Store, slave: Store, up_to: int | None = None, largest: int = 700, seed: int = 1) -> None:
    dice = random.Random(seed)
    end = master.end if up_to is None else up_to
    while slave.end < end:
        block = master.read_block(slave.end, min(dice.randrange(1, largest), end - slave.end))
        assert block
        slave.append_raw(slave.end, block)
    slave.dispatch()


def log_files(store: Store) -> dict[str, bytes]:
    return {segment.path.name: segment.path.read_bytes() for segment in store.segments()}


@pytest.mark.parametrize("largest", [2, 100, 700, 1 << 20])
def test_a_copy_has_the_same_files_and_messages(master: Store, tmp_path: Path, largest: int) -> None:
    slave = open_store(tmp_path / "slave")

    copy(master, slave, largest=largest)

    assert len(log_files(master)) > 3
    assert log_files(slave) == log_files(master)
    assert bodies(slave) == bodies(master)
    assert slave.copied_end == slave.end == slave.dispatched_end == master.end
    slave.close()


def test_large_pieces_that_are_written_and_small_ones_that_are_stored_lie_side_by_side(
    master: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verniermq.kernel.commitlog.log.LARGE_PIECE", 350)
    slave = open_store(tmp_path / "slave")

    copy(master, slave)

    assert log_files(slave) == log_files(master)
    assert bodies(slave) == bodies(master)
    slave.close()


def test_blocks_end_at_the_end_of_a_file(master: Store) -> None:
    assert len(master.read_block(SEGMENT - 10, 100) or b"") == 10
    assert len(master.read_block(0, 1 << 20) or b"") == SEGMENT
    assert master.read_block(master.end, 100) == b""
    assert master.read_block(master.end + 1, 100) is None
    master.delete_first_segment()
    assert master.read_block(0, 100) is None


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_copy_that_was_stopped_within_a_record_goes_on_with_it(
    master: Store, tmp_path: Path, orderly: bool, seed: int
) -> None:
    dice = random.Random(seed)
    for stop in sorted(dice.randrange(master.end) for _ in range(4)):
        slave = open_store(tmp_path / "slave")
        copy(master, slave, max(stop, slave.end), seed=seed)
        whole = slave.copied_end
        slave.close() if orderly else abandon(slave)

        slave = open_store(tmp_path / "slave")
        assert slave.end <= whole  # less if a filler was the last whole thing: recovery goes by records
        slave.close()
    slave = open_store(tmp_path / "slave")
    copy(master, slave)

    assert log_files(slave) == log_files(master)
    assert bodies(slave) == bodies(master)
    slave.close()


def test_a_copy_can_be_written_to_afterwards(master: Store, tmp_path: Path) -> None:
    slave = open_store(tmp_path / "slave")
    copy(master, slave)
    before = slave.max_offset("T1", 1)

    slave.append(pending("T1", 1, b"ours"))
    slave.dispatch()

    assert slave.max_offset("T1", 1) == before + 1
    assert bodies(slave)["T1", 1] == [*bodies(master)["T1", 1], b"ours"]
    slave.close()


def test_an_empty_copy_begins_where_its_master_does(master: Store, tmp_path: Path) -> None:
    master.delete_first_segment()
    slave = open_store(tmp_path / "slave")

    while slave.end < master.end:
        offset = max(slave.end, master.start)
        slave.append_raw(offset, master.read_block(offset, 500) or b"")
    slave.dispatch()

    assert slave.start == master.start == SEGMENT
    assert log_files(slave) == log_files(master)
    assert slave.max_offset("T1", 1) == master.max_offset("T1", 1)
    slave.close()
    again = open_store(tmp_path / "slave")
    assert (again.start, again.end) == (master.start, master.end)
    again.close()


def test_what_does_not_continue_the_log_is_refused(master: Store, tmp_path: Path) -> None:
    slave = open_store(tmp_path / "slave")
    with pytest.raises(NotACopy, match="no file of 8192 bytes begins"):
        slave.append_raw(100, b"x")
    with pytest.raises(NotACopy, match="segment_size"):
        slave.append_raw(0, bytes(SEGMENT + 1))
    copy(master, slave, 1000)
    with pytest.raises(NotACopy, match="ends at 1000, and the master sends what follows 2000"):
        slave.append_raw(2000, b"x")
    slave.close()


def test_bytes_that_are_no_record_are_not_kept(master: Store, tmp_path: Path) -> None:
    slave = open_store(tmp_path / "slave")
    copy(master, slave, master.message_at(0).size)  # type: ignore[union-attr]
    whole = slave.end
    block = bytearray(master.read_block(whole, 1000) or b"")
    block[90:95] = b"wrong"

    with pytest.raises(NotACopy, match=f"at {whole} are no record: its body's checksum"):
        slave.append_raw(whole, bytes(block))

    assert slave.end == whole
    copy(master, slave)
    assert log_files(slave) == log_files(master)
    slave.close()
