"""A damaged store is described exactly, and mended without losing a whole record."""

from __future__ import annotations

import random
import shutil
from mmap import mmap
from pathlib import Path

import pytest

from tests.kernel.commitlog.stores import SEGMENT, abandon, make_store, open_store, pending
from verniermq.cli.repair import check_store, repair_store
from verniermq.kernel.commitlog.log import CommitLog
from verniermq.kernel.commitlog.scan import whole_records_after
from verniermq.kernel.errors import StoreError, StoreLocked
from verniermq.kernel.store import Appended, StoreSettings
from verniermq.kernel.store.recovery import DamagedStore


def settings(path: Path) -> StoreSettings:
    return make_store(path).settings


def filled(path: Path, count: int = 60) -> list[Appended]:
    store = open_store(path)
    appended = [store.append(pending(f"T{i % 2}", 0, b"%03d" % i * 100)) for i in range(count)]
    store.close()
    return appended


def damage(path: Path, offset: int, data: bytes) -> None:
    with open(path / "commitlog" / f"{offset - offset % SEGMENT:020d}", "r+b") as file:
        file.seek(offset % SEGMENT)
        file.write(data)


def surviving(path: Path) -> set[bytes]:
    store = open_store(path)
    found = set()
    for queue in store.queues():
        for offset in range(queue.min_offset, queue.max_offset):
            ((at, size, _),) = queue.entries(offset, 1)
            raw = store.read(at, size)
            if raw is not None:
                message = store.message_at(at)
                assert message is not None
                assert message.queue_offset == offset
                found.add(message.body)
    store.close()
    return found


def test_a_whole_store_is_whole(tmp_path: Path) -> None:
    appended = filled(tmp_path)
    report = check_store(settings(tmp_path))

    assert report.is_whole
    assert (report.records, report.end, report.segments) == (60, appended[-1].end, -(-appended[-1].end // SEGMENT))
    assert repair_store(settings(tmp_path)).mended == []


def test_the_progress_of_a_check_counts_what_was_written(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_size=4 << 20)
    for number in range(10_000):
        end = store.append(pending(body=b"%d" % number, properties={"KEYS": "k"})).end
    chosen = store.settings
    store.close()
    reports: list[tuple[int, int]] = []

    check_store(chosen, lambda done, total: reports.append((done, total)))

    assert reports == [(end, end)]


def test_records_are_looked_for_up_to_the_last_byte_of_a_segment(tmp_path: Path) -> None:
    # Whatever reads a byte too many meets nothing there: the map lies below a room that is empty again.
    size = 4 << 20
    (tmp_path / f"{0:020d}").write_bytes(b"x" * size)
    log = CommitLog(tmp_path, size)
    room = mmap(-1, size)
    assert log.file_at(0) is not None
    room.close()

    for offset in range(size - 100, size):  # a search skips bytes: each beginning ends elsewhere
        assert list(whole_records_after(log, offset)) == []
    log.close()


def test_a_running_store_is_not_touched(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    for look in (check_store, repair_store):
        with pytest.raises(StoreLocked):
            look(settings(tmp_path))
    store.close()


def test_a_directory_without_a_store_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store"):
        check_store(settings(tmp_path))


def test_damage_is_named_and_mended_and_every_other_record_is_kept(tmp_path: Path) -> None:
    appended = filled(tmp_path)
    bad = [appended[7], appended[8], appended[30]]
    for record in bad:
        damage(tmp_path, record.commit_log_offset + 120, b"\xff" * 8)
    shutil.rmtree(tmp_path / "consumequeue")
    with pytest.raises(DamagedStore):
        open_store(tmp_path)

    report = check_store(settings(tmp_path))
    assert [(d.start, d.end) for d in report.damage] == [
        (appended[7].commit_log_offset, appended[8].end),
        (appended[30].commit_log_offset, appended[30].end),
    ]
    assert "checksum" in report.damage[0].why
    assert report.records == 57
    mended = repair_store(settings(tmp_path))

    assert mended.damage == []
    assert len(mended.mended) == 2
    assert (tmp_path / "damaged" / f"{bad[0].commit_log_offset:020d}").stat().st_size == bad[0].size + bad[1].size
    assert surviving(tmp_path) == {b"%03d" % i * 100 for i in range(60) if i not in (7, 8, 30)}
    assert check_store(settings(tmp_path)).is_whole
    store = open_store(tmp_path)
    assert (store.min_offset("T0", 0), store.max_offset("T0", 0)) == (0, 30)
    assert store.offset_by_time("T0", 0, 0) == 0
    store.close()


def test_damage_up_to_the_end_of_a_file_becomes_a_blank(tmp_path: Path) -> None:
    appended = filled(tmp_path)
    first_of_next = next(i for i, a in enumerate(appended) if a.commit_log_offset >= SEGMENT)
    lost = range(first_of_next - 3, first_of_next)
    start = appended[lost[0]].commit_log_offset
    damage(tmp_path, start + 4, bytes(SEGMENT - start - 4))

    repair_store(settings(tmp_path))

    assert surviving(tmp_path) == {b"%03d" % i * 100 for i in range(60) if i not in lost}


@pytest.mark.parametrize("how", ["missing", "short", "empty"])
def test_a_missing_or_short_file_is_replaced(tmp_path: Path, how: str) -> None:
    appended = filled(tmp_path)
    file = tmp_path / "commitlog" / f"{SEGMENT:020d}"
    kept = 0 if how != "short" else 4000
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:kept])
    in_file = [i for i, a in enumerate(appended) if SEGMENT <= a.commit_log_offset < 2 * SEGMENT]
    lost = [i for i in in_file if appended[i].end > SEGMENT + kept]

    report = repair_store(settings(tmp_path))

    assert report.mended
    assert surviving(tmp_path) == {b"%03d" % i * 100 for i in range(60) if i not in lost}


def test_a_file_that_became_longer_is_cut_and_the_rest_is_kept(tmp_path: Path) -> None:
    filled(tmp_path)
    file = tmp_path / "commitlog" / f"{SEGMENT:020d}"
    with file.open("ab") as end:
        end.write(b"something else")

    report = repair_store(settings(tmp_path))

    assert report.mended
    assert (tmp_path / "damaged" / f"{SEGMENT:020d}.surplus").read_bytes() == b"something else"
    assert surviving(tmp_path) == {b"%03d" % i * 100 for i in range(60)}


def test_a_torn_tail_is_reported_and_is_no_damage(tmp_path: Path) -> None:
    filled(tmp_path)
    store = open_store(tmp_path)
    last = store.append(pending(body=b"torn" * 20))
    abandon(store)
    damage(tmp_path, last.commit_log_offset + 100, b"?")

    report = check_store(settings(tmp_path))

    assert report.damage == []
    assert report.torn_tail is not None
    assert report.torn_tail.start == last.commit_log_offset


def test_missing_queue_entries_are_counted(tmp_path: Path) -> None:
    filled(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / "T1")

    assert check_store(settings(tmp_path)).missing_entries == 30


def test_zeros_in_the_middle_of_a_queue_are_told_and_mended(tmp_path: Path) -> None:
    filled(tmp_path, 400)
    with open(tmp_path / "consumequeue" / "T1" / "0" / f"{0:020d}", "r+b") as file:
        file.seek(20 * 17)
        file.write(bytes(20 * 5))

    found = check_store(settings(tmp_path))
    mended = repair_store(settings(tmp_path))

    assert (found.lost_entries, found.missing_entries, found.needs_repair) == (5, 0, True)
    assert mended.mended == ["the next start makes the consume queues again, which lack 5 records"]
    assert (mended.lost_entries, mended.missing_entries, mended.needs_repair) == (0, 5, False)
    assert len(surviving(tmp_path)) == 400
    assert check_store(settings(tmp_path)).is_whole


def test_a_topic_that_was_deleted_and_made_again_lacks_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for topic, count in (("T", 9), ("gone", 2)):
        for _ in range(count):
            store.append(pending(topic))
        store.flush()
        store.delete_topic(topic)
    for _ in range(3):
        store.append(pending("T"))
    store.close()

    report = check_store(settings(tmp_path))

    assert report.is_whole
    assert (report.records, report.without_queue, report.queues_counted) == (14, 2, True)


def test_random_damage_never_costs_a_record_that_was_not_hit(tmp_path: Path) -> None:
    chance = random.Random(57)
    for round_ in range(25):
        path = tmp_path / str(round_)
        path.mkdir()
        appended = filled(path)
        hits = []
        for _ in range(chance.randrange(1, 6)):
            start = chance.randrange(appended[-1].end)
            length = min(chance.choice([1, 10, 600, 3000]), SEGMENT - start % SEGMENT)
            damage(path, start, chance.randbytes(length))
            hits.append((start, start + length))
        hit = [i for i, a in enumerate(appended) if any(s < a.end and e > a.commit_log_offset for s, e in hits)]

        repair_store(settings(path))

        expected = {b"%03d" % i * 100 for i in range(60) if i not in hit}
        assert expected <= surviving(path)


def test_a_wrong_number_in_one_record_does_not_cost_those_behind_it(tmp_path: Path) -> None:
    """No checksum covers a record's head; a number that is possible is believed, but displaces nobody."""
    appended = filled(tmp_path)
    damage(tmp_path, appended[20].commit_log_offset + 27, b"\x19")
    shutil.rmtree(tmp_path / "consumequeue")

    assert appended[20].queue_offset == 10
    found = surviving(tmp_path)

    assert found >= {b"%03d" % i * 100 for i in range(60) if i not in (20, 50)}
