"""The checkpoint, the lock and the abort mark."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.kernel.commitlog.fulldisk import FullDisk
from tests.kernel.commitlog.stores import make_store, open_store, pending
from verniermq.kernel.commitlog.checkpoint import Checkpoint
from verniermq.kernel.commitlog.lock import AbortMark, StoreLock
from verniermq.kernel.errors import StoreLocked

SAMPLE = bytes.fromhex(
    "00 00 01 8b cf e5 68 7b 00 00 01 8b cf e5 68 7b 00 00 01 8b cf d6 25 c0"
    "00 00 00 00 00 00 00 00 00 00 00 00 00 00 10 00"
)


def test_a_checkpoint_has_rocketmqs_bytes(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Checkpoint(1700000000123, 1700000000123, 0x18BCFD625C0, 0, 4096).save(path)

    assert path.read_bytes() == SAMPLE + bytes(4056)
    assert Checkpoint.load(path).min_timestamp == 1700000000123 - 3000


def test_our_offsets_are_kept_beside(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    saved = Checkpoint(1, 2, 3, 4, 5, log_durable=600, queues_durable=500, entries=7)
    saved.save(path)

    assert path.stat().st_size == 4096
    assert Checkpoint.load(path) == saved


def test_our_offsets_do_not_count_once_another_broker_wrote_the_file(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Checkpoint(1, 2, 3, 4, 5, log_durable=600, queues_durable=500).save(path)
    with open(path, "r+b") as file:
        file.write(SAMPLE)

    found = Checkpoint.load(path)

    assert found.log_timestamp == 1700000000123
    assert found.log_durable is None
    assert found.queues_durable is None


def test_a_checkpoint_of_the_first_version_does_not_say_how_many_entries_there_are(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Checkpoint(1, 2, 3, 4, 5, log_durable=600, queues_durable=500, entries=7).save(path)
    content = bytearray(path.read_bytes())
    content[64:72] = b"VERNIER1"
    content[144:148] = zlib.crc32(content[64:144]).to_bytes(4, "big")
    path.write_bytes(content)

    found = Checkpoint.load(path)

    assert (found.log_durable, found.queues_durable, found.entries) == (600, 500, -1)


@pytest.mark.parametrize("length", [0, 10, 39])
def test_a_torn_checkpoint_says_nothing(tmp_path: Path, length: int) -> None:
    (tmp_path / "checkpoint").write_bytes(bytes([1]) * length)

    assert Checkpoint.load(tmp_path / "checkpoint") == Checkpoint()
    assert Checkpoint.load(tmp_path / "missing") == Checkpoint()


@pytest.mark.parametrize("position", range(64, 148))
def test_a_changed_byte_in_our_part_is_noticed(tmp_path: Path, position: int) -> None:
    path = tmp_path / "checkpoint"
    Checkpoint(1, 2, 3, 4, 5, log_durable=600, queues_durable=500, entries=1).save(path)
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(content)

    assert Checkpoint.load(path).queues_durable is None


# --- lock ----------------------------------------------------------------------------------


def test_the_lock_file_has_rocketmqs_content(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path)
    assert (tmp_path / "lock").read_bytes() == b"lock"
    lock.release()


def test_a_second_store_in_the_same_process_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    with pytest.raises(StoreLocked, match="a broker uses"):
        make_store(tmp_path).open()
    store.append(pending())
    store.close()

    open_store(tmp_path).close()


def test_a_second_process_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from verniermq.kernel.commitlog.lock import StoreLock;"
        "lock = StoreLock(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(StoreLocked):
            StoreLock(tmp_path)
        other.kill()
        other.wait()

    StoreLock(tmp_path).release()


def test_a_lock_file_that_finds_no_room_leaves_nothing_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk(monkeypatch)
    disk.room = 2
    with pytest.raises(OSError, match="No space left"):
        StoreLock(tmp_path)
    disk.room = None
    (tmp_path / "lock").unlink()

    StoreLock(tmp_path).release()

    assert (tmp_path / "lock").read_bytes() == b"lock"


# --- abort ---------------------------------------------------------------------------------


def test_the_abort_mark_is_there_while_a_store_is_open(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert (tmp_path / "abort").read_text() == str(os.getpid())
    assert (tmp_path / "abort.bak").read_bytes() == b""

    store.close()

    assert not AbortMark(tmp_path).is_set
