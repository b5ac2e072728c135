"""What a store finds again after any kind of stop."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.commitlog.stores import SEGMENT, abandon, bodies, make_store, open_store, pending
from verniermq.cli.repair import check_store
from verniermq.kernel.commitlog.checkpoint import Checkpoint
from verniermq.kernel.commitlog.scan import NewerFormat, Scan
from verniermq.kernel.dispatch.consumequeue import ENTRY
from verniermq.kernel.dispatch.event import DispatchEvent
from verniermq.kernel.dispatch.queuefiles import QueueFiles
from verniermq.kernel.errors import SegmentSizeMismatch, StoreError
from verniermq.kernel.message import SysFlag
from verniermq.kernel.store import Appended, Store, recovery
from verniermq.kernel.store.recovery import DamagedStore, MissingSegment
from verniermq.testing import ManualClock

pytestmark = pytest.mark.anyio


def fill(store: Store, count: int, first: int = 0) -> list[Appended]:
    return [store.append(pending(f"T{i % 2}", i % 3, f"body {i}".encode() * 20)) for i in range(first, first + count)]


def filled(path: Path, count: int = 100) -> tuple[dict[tuple[str, int], list[bytes]], list[Appended]]:
    """A store stopped in order."""
    store = open_store(path)
    appended = fill(store, count)
    store.dispatch()
    content = bodies(store)
    store.close()
    return content, appended


def segment(path: Path, offset: int) -> Path:
    return path / "commitlog" / f"{offset - offset % SEGMENT:020d}"


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with open(segment(path, offset), "r+b") as file:
        file.seek(offset % SEGMENT)
        file.write(data)


def crash_with_mark(path: Path) -> None:
    (path / "abort").write_text("1")


def forget_our_part(path: Path) -> None:
    """Leave a checkpoint as RocketMQ writes it, without the offsets that VernierMQ adds."""
    content = (path / "checkpoint").read_bytes()
    (path / "checkpoint").write_bytes(content[:40] + bytes(4056))


class Spy:
    """Which records a store reads while it opens, through its progress."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, done: int, total: int) -> None:
        self.total = max(self.total, done)


def test_progress_counts_up_to_the_last_byte_written_not_to_the_end_of_the_files(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_size=1 << 20)
    for number in range(9000):
        end = store.append(pending(body=b"%060d" % number, properties={"KEYS": "k"})).end
    abandon(store)
    with open(tmp_path / "commitlog" / f"{2 << 20:020d}", "wb") as prepared:
        prepared.truncate(1 << 20)
    reports: list[tuple[int, int]] = []
    again = make_store(tmp_path, segment_size=1 << 20)

    again.open(lambda done, total: reports.append((done, total)))

    assert again.end == end
    assert 1 << 20 < end < 2 << 20
    assert len(reports) == 3
    assert [total for _, total in reports] == [end] * 3
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})
    assert reports[-1][0] == end
    again.close()


# --- stopped in order ----------------------------------------------------------------------


def test_after_an_orderly_stop_the_log_is_not_read(tmp_path: Path) -> None:
    content, _ = filled(tmp_path)
    spy = Spy()
    store = make_store(tmp_path)

    store.open(spy)

    assert spy.total == 0
    assert bodies(store) == content
    store.close()


@pytest.mark.parametrize("ours", [True, False])
def test_prepared_messages_at_the_end_are_kept_after_an_orderly_stop(tmp_path: Path, ours: bool) -> None:
    store = open_store(tmp_path)
    fill(store, 10)
    half = store.append(pending(body=b"half", sys_flag=SysFlag.TRANSACTION_PREPARED))
    store.close()
    if not ours:
        forget_our_part(tmp_path)

    again = open_store(tmp_path)

    assert again.end == half.end
    assert again.message_at(half.commit_log_offset).body == b"half"  # type: ignore[union-attr]
    again.close()


@pytest.mark.parametrize("ours", [True, False])
def test_deleted_consume_queues_are_made_again(tmp_path: Path, ours: bool) -> None:
    content, _ = filled(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    if not ours:
        forget_our_part(tmp_path)
    spy = Spy()
    store = make_store(tmp_path)

    store.open(spy)

    assert spy.total > 0
    assert bodies(store) == content
    store.close()


@pytest.mark.parametrize("what", ["T1", "T1/0", "T1/0/00000000000000002000"])
def test_one_missing_queue_or_file_is_noticed_and_made_again(tmp_path: Path, what: str) -> None:
    store = open_store(tmp_path)
    fill(store, 800)
    store.dispatch()
    content = bodies(store)
    store.close()
    missing = tmp_path / "consumequeue" / what
    shutil.rmtree(missing) if missing.is_dir() else missing.unlink()

    again = open_store(tmp_path)

    assert bodies(again) == content
    again.close()


def test_a_rebuild_that_is_interrupted_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "KEPT", 100)
    content, _ = filled(tmp_path, 300)
    shutil.rmtree(tmp_path / "consumequeue" / "T0")
    store = make_store(tmp_path)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.open(interrupt)
    shutil.rmtree(tmp_path / "consumequeue" / "T1" / "1")

    again = open_store(tmp_path)
    assert bodies(again) == content
    again.close()


@pytest.mark.parametrize("kept", [recovery.KEPT, 100])
def test_after_a_crash_queue_files_are_made_when_the_broker_serves_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    content, _ = filled(tmp_path, 300)
    shutil.rmtree(tmp_path / "consumequeue")
    monkeypatch.setattr(recovery, "KEPT", kept)
    made: list[str] = []
    create = QueueFiles.create
    monkeypatch.setattr(QueueFiles, "create", lambda self, path: made.append(path) or create(self, path))

    store = open_store(tmp_path)

    assert bool(made) == (kept < 300), "many records are not all kept in memory"
    assert bodies(store) == content
    store.close()
    again = open_store(tmp_path)
    assert again.was_clean
    assert bodies(again) == content
    again.close()


def test_queues_that_know_more_than_the_log_are_cut(tmp_path: Path) -> None:
    _, appended = filled(tmp_path, 200)
    last = max(int(p.name) for p in (tmp_path / "commitlog").iterdir())
    kept = [a for a in appended if a.end <= last]
    for path in (tmp_path / "commitlog").iterdir():
        if int(path.name) >= last:
            path.unlink()
    forget_our_part(tmp_path)

    store = open_store(tmp_path)

    assert sum(map(len, bodies(store).values())) == len(kept)
    assert store.end == kept[-1].end
    store.close()


def test_a_log_without_files_forgets_the_queues(tmp_path: Path) -> None:
    filled(tmp_path)
    shutil.rmtree(tmp_path / "commitlog")

    store = open_store(tmp_path)

    assert bodies(store) == {}
    assert store.append(pending("T0")).queue_offset == 0
    store.close()


# --- crashed -------------------------------------------------------------------------------


def test_a_killed_store_finds_everything(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 300)
    store.dispatch()
    content = bodies(store)
    abandon(store)

    again = open_store(tmp_path)

    assert bodies(again) == content
    assert [a.queue_offset for a in fill(again, 6, 300)] == [50] * 6
    again.close()


async def test_only_what_came_after_the_checkpoint_is_read_after_a_crash(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    before = fill(store, 300)
    store.dispatch()
    await store.save_checkpoint()
    after = fill(store, 100, 300)
    store.dispatch()
    content = bodies(store)
    abandon(store)

    spy = Spy()
    again = make_store(tmp_path)
    again.open(spy)

    assert spy.total == after[-1].end - before[-1].end
    assert bodies(again) == content
    again.close()


async def test_after_another_brokers_crash_the_timestamps_choose_the_file(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    for i in range(300):
        fill(store, 1, i)
        await clock.advance(0.1)
    store.dispatch()
    await store.save_checkpoint()
    content = bodies(store)
    abandon(store)
    forget_our_part(tmp_path)

    spy = Spy()
    again = make_store(tmp_path)
    again.open(spy)

    assert bodies(again) == content
    assert 0 < spy.total < again.end / 2
    again.close()


async def test_what_a_power_cut_left_behind_a_hole_in_a_queue_does_not_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, queue_entries=1000)
    for number in range(400):
        store.append(pending(body=b"%d" % number))
        if number == 204:
            store.dispatch()
            await store.save_checkpoint()
            half = store.end
    store.dispatch()
    store._dispatcher.write_now()
    abandon(store)
    # The log lost what came after the checkpoint, and the queue's file the first of it.
    for start in range(half - half % SEGMENT, store.end, SEGMENT):
        os.truncate(segment(tmp_path, start), max(half - start, 0))
        os.truncate(segment(tmp_path, start), SEGMENT)
    file = tmp_path / "consumequeue" / "T1" / "0" / f"{0:020d}"
    content = file.read_bytes()
    file.write_bytes(content[: 205 * 20] + bytes(20) + content[206 * 20 :])

    again = open_store(tmp_path, queue_entries=1000)
    again.append(pending(body=b"next"))
    again.close()

    assert not any(file.read_bytes()[206 * 20 :])
    third = open_store(tmp_path, queue_entries=1000)
    assert "making them again" not in caplog.text
    assert bodies(third)["T1", 0] == [*(b"%d" % number for number in range(205)), b"next"]
    third.close()


def test_queue_entries_that_a_crash_tore_are_made_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 300)
    store.dispatch()
    content = bodies(store)
    store._dispatcher.write_now()
    abandon(store)
    with open(tmp_path / "consumequeue" / "T0" / "0" / "00000000000000000000", "r+b") as file:
        file.seek(20 * 7)
        file.write(bytes(20 * 3) + b"\xff" * 20)

    again = open_store(tmp_path)

    assert bodies(again) == content
    again.close()


@pytest.mark.parametrize("length", [1, 7, 8, 50, 90, 120, 200])
def test_a_torn_record_is_cut_off(tmp_path: Path, length: int) -> None:
    store = open_store(tmp_path)
    fill(store, 50)
    last = store.append(pending(body=b"torn" * 30, properties={"A": "1"}))
    assert last.size > length
    abandon(store)
    overwrite(tmp_path, last.commit_log_offset + length, bytes(last.size - length))

    again = open_store(tmp_path)

    assert again.end == last.commit_log_offset
    assert again.queue("T1", 0) is not None
    assert b"torn" * 30 not in [body for read in bodies(again).values() for body in read]
    again.append(pending(body=b"new"))
    again.close()
    assert b"torn" not in segment(tmp_path, last.commit_log_offset).read_bytes()


def test_records_behind_a_torn_one_do_not_come_back_later(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 10)
    torn = store.append(pending("X", body=b"a" * 100))
    store.append(pending("X", body=b"b" * 100))
    abandon(store)
    overwrite(tmp_path, torn.commit_log_offset + 100, b"?")

    # The next record has the same size: the one behind would fit exactly if it were still there.
    again = open_store(tmp_path)
    again.append(pending("X", body=b"c" * 100))
    abandon(again)
    third = open_store(tmp_path)

    assert bodies(third)["X", 0] == [b"c" * 100]
    third.close()


def test_a_crash_right_after_a_segment_was_made_is_harmless(tmp_path: Path) -> None:
    content, appended = filled(tmp_path, 30)
    crash_with_mark(tmp_path)
    (segment(tmp_path, appended[-1].end + SEGMENT)).touch()

    store = open_store(tmp_path)

    assert bodies(store) == content
    store.close()


def test_a_topic_made_again_after_deletion_keeps_its_new_numbers_after_a_crash(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for _ in range(5):
        store.append(pending("T", body=b"old"))
    store.dispatch()
    store.delete_topic("T")
    for i in range(3):
        store.append(pending("T", body=b"new %d" % i))
    store.dispatch()
    abandon(store)

    again = open_store(tmp_path)

    assert bodies(again) == {("T", 0): [b"new 0", b"new 1", b"new 2"]}
    again.close()


def test_a_queue_rebuilt_from_a_log_that_lost_its_beginning_begins_in_the_middle(tmp_path: Path) -> None:
    store = open_store(tmp_path, queue_entries=8)
    appended = [store.append(pending(body=bytes([i]) * 1000)) for i in range(40)]
    store.flush()
    for _ in range(3):
        store.delete_first_segment()
    store.close()
    first = next(a.queue_offset for a in appended if a.commit_log_offset >= 3 * SEGMENT)
    assert first % 8
    shutil.rmtree(tmp_path / "consumequeue")

    again = open_store(tmp_path, queue_entries=8)

    assert (again.min_offset("T1", 0), again.max_offset("T1", 0)) == (first, 40)
    assert bodies(again)["T1", 0] == [bytes([i]) * 1000 for i in range(first, 40)]
    again.close()
    name = f"{first // 8 * 8 * 20:020d}"
    blank = bytes.fromhex("00 00 00 00 00 00 00 00 7f ff ff ff 00 00 00 00 00 00 00 00")
    queue_file = (tmp_path / "consumequeue" / "T1" / "0" / name).read_bytes()
    assert queue_file.startswith(blank * (first % 8))
    third = open_store(tmp_path, queue_entries=8)
    assert third.min_offset("T1", 0) == first
    third.close()


# --- crashed, and queue files are missing ---------------------------------------------------

QUEUE_FILE = 100 * 20


async def crashed(path: Path, **settings: Any) -> dict[tuple[str, int], list[bytes]]:
    """A store killed a little after a checkpoint; every queue has two files."""
    store = open_store(path, **settings)
    fill(store, 800)
    store.dispatch()
    await store.save_checkpoint()
    fill(store, 100, 800)
    store.dispatch()
    store._dispatcher.write_now()
    content = bodies(store)
    abandon(store)
    return content


def lacks(caplog: pytest.LogCaptureFixture) -> bool:
    return "consume queues lack entries" in caplog.text


async def test_after_a_crash_that_lost_no_queue_file_nothing_old_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = await crashed(tmp_path)
    durable = Checkpoint.load(tmp_path / "checkpoint").queues_durable
    spy = Spy()
    store = make_store(tmp_path)

    store.open(spy)

    assert durable is not None
    assert spy.total == store.end - durable
    assert not lacks(caplog)
    assert bodies(store) == content
    store.close()


@pytest.mark.parametrize("what", ["", "T1", "T1/0", f"T1/0/{0:020d}", f"T1/0/{QUEUE_FILE:020d}"])
async def test_queue_files_missing_after_a_crash_are_made_again_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    content = await crashed(tmp_path)
    missing = tmp_path / "consumequeue" / what
    shutil.rmtree(missing) if missing.is_dir() else missing.unlink()
    assert check_store(make_store(tmp_path).settings).missing_entries > 0

    store = open_store(tmp_path)

    assert lacks(caplog)
    assert bodies(store) == content
    assert [a.queue_offset for a in fill(store, 6, 900)] == [150] * 6
    store.close()
    caplog.clear()
    again = open_store(tmp_path)
    assert not lacks(caplog)
    again.close()


@pytest.mark.parametrize(("number", "keeps_its_length"), [(0, False), (1, False), (1, True)])
@pytest.mark.parametrize("stopped", [True, False])
async def test_a_queue_file_that_lost_its_end_is_made_again_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int, keeps_its_length: bool, stopped: bool
) -> None:
    content = await crashed(tmp_path)
    if stopped:
        open_store(tmp_path).close()
    file = tmp_path / "consumequeue" / "T1" / "0" / f"{number * QUEUE_FILE:020d}"
    os.truncate(file, 10 * 20 + 7)
    if keeps_its_length:
        os.truncate(file, QUEUE_FILE)

    store = open_store(tmp_path)

    assert lacks(caplog)
    assert bodies(store) == content
    store.close()


async def test_a_missing_file_in_the_middle_is_noticed_after_a_crash(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = await crashed(tmp_path, queue_entries=20)
    (tmp_path / "consumequeue" / "T1" / "0" / f"{3 * 20 * 20:020d}").unlink()

    store = open_store(tmp_path, queue_entries=20)

    assert lacks(caplog)
    assert bodies(store) == content
    store.close()


async def test_a_queue_whose_messages_are_all_expired_goes_on_counting_when_others_are_made_again(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    for _ in range(7):
        store.append(pending("old"))
    fill(store, 300)
    store.dispatch()
    store.delete_first_segment()
    await store.expire_queues()
    await store.save_checkpoint()
    content = bodies(store)
    abandon(store)
    shutil.rmtree(tmp_path / "consumequeue" / "T1" / "0")

    again = open_store(tmp_path)

    assert bodies(again) == content
    assert again.append(pending("old")).queue_offset == 7
    again.close()


async def test_without_any_queue_after_another_brokers_crash_all_are_made_again(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    for i in range(300):
        fill(store, 1, i)
        await clock.advance(0.1)
    store.dispatch()
    await store.save_checkpoint()
    content = bodies(store)
    abandon(store)
    forget_our_part(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")

    again = open_store(tmp_path)

    assert bodies(again) == content
    again.close()


@pytest.mark.parametrize("saved_since", [True, False])
async def test_a_topic_deleted_before_a_crash_is_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, saved_since: bool
) -> None:
    store = open_store(tmp_path)
    fill(store, 300)
    store.dispatch()
    await store.save_checkpoint()
    store.delete_topic("T1")
    if saved_since:
        await store.save_checkpoint()
    content = bodies(store)
    abandon(store)
    report = check_store(make_store(tmp_path).settings)

    again = open_store(tmp_path)

    assert not lacks(caplog)
    assert {topic for topic, _ in content} == {"T0"}
    assert bodies(again) == content
    assert (report.is_whole, report.without_queue) == (True, 150)
    again.close()


@pytest.mark.parametrize("saved_since", [True, False])
async def test_queue_files_that_expired_before_a_crash_are_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, saved_since: bool
) -> None:
    store = open_store(tmp_path, queue_entries=10)
    fill(store, 300)
    store.dispatch()
    await store.save_checkpoint()
    store.delete_first_segment()
    store.delete_first_segment()
    assert await store.expire_queues() > 0
    if saved_since:
        await store.save_checkpoint()
    content = bodies(store)
    abandon(store)

    again = open_store(tmp_path, queue_entries=10)

    assert not lacks(caplog)
    assert bodies(again) == content
    again.close()


async def test_a_loss_after_a_topic_was_deleted_is_noticed_once_a_checkpoint_was_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    fill(store, 300)
    store.dispatch()
    await store.save_checkpoint()
    store.delete_topic("T1")
    await store.save_checkpoint()
    content = bodies(store)
    abandon(store)
    shutil.rmtree(tmp_path / "consumequeue" / "T0" / "2")

    again = open_store(tmp_path)

    assert lacks(caplog)
    assert {key: read for key, read in bodies(again).items() if key[0] == "T0"} == content
    again.close()


async def test_a_checkpoint_written_while_queue_files_are_removed_does_not_say_how_many_entries_there_are(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    path, keeper = tmp_path / "checkpoint", store._maintenance
    fill(store, 30)
    store.dispatch()
    await store.save_checkpoint()
    known = [Checkpoint.load(path).entries]
    keeper.begin_removal()
    known.append(Checkpoint.load(path).entries)
    keeper.begin_removal()
    keeper.end_removal()
    fill(store, 30)
    store.dispatch()
    await store.save_checkpoint()
    known.append(Checkpoint.load(path).entries)
    keeper.end_removal()
    await store.save_checkpoint()
    known.append(Checkpoint.load(path).entries)

    assert known == [30, -1, -1, 60]
    store.close()


async def test_the_number_of_entries_is_right_after_whatever_happened(tmp_path: Path) -> None:
    chance = random.Random(14)
    store = open_store(tmp_path, queue_entries=10)
    for step in range(300):
        match chance.randrange(12):
            case 0:
                store.delete_topic(f"T{chance.randrange(2)}")
            case 1:
                store.delete_first_segment()
                await store.expire_queues()
            case 2:
                store.append(pending(sys_flag=SysFlag.TRANSACTION_PREPARED))
            case 3:
                store._dispatcher.write_now()
            case _:
                fill(store, chance.randrange(20), step)
        store.dispatch()
        counted = store._dispatcher.entries
        store._dispatcher.count_again()
        assert counted == store._dispatcher.entries
    store.flush()
    files = (tmp_path / "consumequeue").glob("*/*/*")
    assert counted == sum(1 for file in files for _, size, _ in ENTRY.iter_unpack(file.read_bytes()) if size)
    store.close()


# --- whoever follows the log ---------------------------------------------------------------


def listened(path: Path) -> list[int]:
    """Where the messages are that a listener hears of while the store opens."""
    heard: list[int] = []

    def hear(events: Sequence[DispatchEvent]) -> None:
        heard.extend(event.commit_log_offset for event in events)

    store = make_store(path)
    store.listeners.append(hear)
    store.open()
    store.close()
    return heard


def test_after_a_crash_listeners_hear_again_what_they_may_have_missed(tmp_path: Path) -> None:
    _, appended = filled(tmp_path, 100)
    crash_with_mark(tmp_path)
    checkpoint = Checkpoint.load(tmp_path / "checkpoint")
    checkpoint.queues_durable, checkpoint.entries = appended[40].commit_log_offset, 40
    checkpoint.save(tmp_path / "checkpoint")

    assert listened(tmp_path) == [one.commit_log_offset for one in appended[40:]]


@pytest.mark.parametrize("crashed", [False, True])
def test_after_a_crash_the_log_is_synced_before_it_counts_as_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashed: bool
) -> None:
    filled(tmp_path, 100)
    if crashed:
        crash_with_mark(tmp_path)
    synced: list[str] = []
    real = os.fdatasync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", note)
        store = open_store(tmp_path)
    log_was_synced = any("/commitlog/" in path for path in synced)
    store.close()

    assert log_was_synced == crashed


def test_after_an_orderly_stop_listeners_hear_nothing_twice(tmp_path: Path) -> None:
    filled(tmp_path, 100)

    assert listened(tmp_path) == []


# --- damage --------------------------------------------------------------------------------


@pytest.mark.parametrize("crashed", [False, True])
def test_damage_before_durable_records_stops_the_start_and_names_the_bytes(tmp_path: Path, crashed: bool) -> None:
    content, appended = filled(tmp_path, 100)
    shutil.rmtree(tmp_path / "consumequeue")
    if crashed:
        crash_with_mark(tmp_path)
        checkpoint = Checkpoint.load(tmp_path / "checkpoint")
        checkpoint.queues_durable = 0
        checkpoint.save(tmp_path / "checkpoint")
    bad = appended[30]
    overwrite(tmp_path, bad.commit_log_offset + 100, b"\xff\xff")

    for _ in range(2):
        with pytest.raises(DamagedStore, match=f"{bad.commit_log_offset} to {bad.end}"):
            open_store(tmp_path)

    overwrite(tmp_path, bad.commit_log_offset + 88, b"body 30" * 20)
    store = open_store(tmp_path)
    assert bodies(store) == content
    store.close()


def test_a_missing_segment_stops_the_start(tmp_path: Path) -> None:
    filled(tmp_path, 200)
    segment(tmp_path, SEGMENT).rename(tmp_path / "away")

    with pytest.raises(MissingSegment, match=f"{SEGMENT:020d}"):
        open_store(tmp_path)

    (tmp_path / "away").rename(segment(tmp_path, SEGMENT))
    open_store(tmp_path).close()


def test_another_segment_size_stops_the_start_and_changes_nothing(tmp_path: Path) -> None:
    content, _ = filled(tmp_path)

    with pytest.raises(SegmentSizeMismatch, match="8192 bytes, expected 16384"):
        open_store(tmp_path, segment_size=2 * SEGMENT)

    spy = Spy()
    store = make_store(tmp_path)
    store.open(spy)
    assert spy.total == 0
    assert bodies(store) == content
    store.close()


def test_records_of_a_later_version_stop_the_start(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 10)
    newer = store.append(pending(body=b"x"))
    abandon(store)
    overwrite(tmp_path, newer.commit_log_offset + 7, b"\xaf")

    with pytest.raises(NewerFormat, match="0xdaa320af"):
        open_store(tmp_path)


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match="cannot be opened"):
        open_store(tmp_path / "file" / "store")


def test_holes_are_skipped_when_records_are_looked_for(tmp_path: Path) -> None:
    """A segment of 1 GiB that holds little is not read whole."""
    store = open_store(tmp_path, segment_size=1 << 30)
    fill(store, 10)
    torn = store.append(pending(body=b"x" * 50))
    abandon(store)
    path = tmp_path / "commitlog" / f"{0:020d}"
    with open(path, "r+b") as file:
        file.seek(torn.commit_log_offset + 90)
        file.write(b"y")

    again = open_store(tmp_path, segment_size=1 << 30)

    assert again.end == torn.commit_log_offset
    assert os.stat(path).st_blocks * 512 < 64 << 20
    again.close()


def test_a_scan_says_where_and_why_it_stopped(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    appended = fill(store, 30)
    scan = Scan(store._log, 0)

    offsets = [found.commit_log_offset for _, found in scan]

    assert offsets == [a.commit_log_offset for a in appended]
    assert scan.end == appended[-1].end
    assert "nothing was written" in scan.why.why
    store.close()
