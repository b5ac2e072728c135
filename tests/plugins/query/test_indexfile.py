"""Index files: RocketMQ's bytes, the same answers as a plain dictionary, and what a crash leaves."""

from __future__ import annotations

import errno
import itertools
import os
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verniermq.kernel import LARGEST_FOLIO, java_hash
from verniermq.kernel.commitlog import mapped
from verniermq.plugins.query import indexfile
from verniermq.plugins.query.indexfile import IndexFile
from verniermq.plugins.query.keys import key_hash, keys_of, topic_hash

T1 = topic_hash("T1")
UNIQUE = "C0A8010A00010B2C3D4E000000000000"


def bytes_at(path: Path, position: int, length: int) -> str:
    with path.open("rb") as file:
        file.seek(position)
        return file.read(length).hex(" ")


def test_the_worked_example_is_written_byte_for_byte(tmp_path: Path) -> None:
    file = IndexFile(tmp_path / "20231114221320123", 5_000_000, 20_000_000, create=True)

    stored = 1_700_000_000_123
    added = file.add([(key_hash(T1, UNIQUE), 4096, stored), (key_hash(T1, "k1"), 4096, stored)])

    assert added == 2
    assert file.path.stat().st_size == 420_000_040
    assert bytes_at(file.path, 0, 40) == (
        "00 00 01 8b cf e5 68 7b 00 00 01 8b cf e5 68 7b "
        "00 00 00 00 00 00 10 00 00 00 00 00 00 00 10 00 00 00 00 02 00 00 00 03"
    )
    assert bytes_at(file.path, 7_497_248, 4) == "00 00 00 01"
    assert bytes_at(file.path, 16_290_136, 4) == "00 00 00 02"
    assert bytes_at(file.path, 20_000_060, 20) == "20 4c 58 7e 00 00 00 00 00 00 10 00 00 00 00 00 00 00 00 00"
    assert bytes_at(file.path, 20_000_080, 20) == "04 b6 8d 0c 00 00 00 00 00 00 10 00 00 00 00 00 00 00 00 00"

    # 5.5 seconds later, one more message with the key k1.
    file.add([(key_hash(T1, "k1"), 4254, stored + 5500)])

    assert bytes_at(file.path, 20_000_100, 20) == "04 b6 8d 0c 00 00 00 00 00 00 10 9e 00 00 00 05 00 00 00 02"
    assert bytes_at(file.path, 16_290_136, 4) == "00 00 00 03"


def test_a_young_file_takes_little_room_on_the_disk(tmp_path: Path) -> None:
    file = IndexFile(tmp_path / "20231114221320123", 5_000_000, 20_000_000, create=True)

    file.add([(key_hash(T1, "k1"), 0, 1)])

    assert file.path.stat().st_blocks * 512 < 4 * LARGEST_FOLIO  # head, slot and entry, of 420 MB


def test_nothing_is_stored_into_a_piece_of_which_a_part_has_no_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system keeps a file in memory in pieces of many pages, and the first store wants blocks for a whole one."""
    monkeypatch.setattr(indexfile, "stores_are_safe", lambda descriptor: True)
    file = IndexFile(tmp_path / "index", 5_000_000, 20_000_000, create=True)

    file.add([(key_hash(T1, "k1"), 0, 1)])

    pieces = {at // LARGEST_FOLIO for at in (0, 40 + 4 * (key_hash(T1, "k1") % 5_000_000), 20_000_060)}
    assert len(pieces) > 1
    assert file.path.stat().st_blocks * 512 >= len(pieces) * LARGEST_FOLIO


def test_where_a_store_could_kill_calls_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [(key_hash(T1, f"key-{number}"), number * 100, 1000 * number) for number in range(300)]
    written = []
    for ample in (0, 1 << 62):
        monkeypatch.setattr(mapped, "AMPLE_ROOM", ample)
        file = IndexFile(tmp_path / f"{ample}", 100, 1000, create=True)
        file.add(keys[:100])
        file.sync(0)
        file.add(keys[100:])
        file.cut(250)
        written.append(file.path.read_bytes())

    assert written[0] == written[1]


@pytest.mark.parametrize("granted", [0, 1, 2, 3, 4, 100, 101])
def test_a_call_that_finds_no_room_is_an_error_and_what_came_before_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, granted: int
) -> None:
    monkeypatch.setattr(mapped, "AMPLE_ROOM", 1 << 62)
    file = IndexFile(tmp_path / "index", 100, 1000, create=True)
    keys = [(key_hash(T1, f"key-{number}"), number, number) for number in range(300)]
    real, asked = os.pwrite, itertools.count()

    def refuse(descriptor: int, data: bytes, position: int) -> int:
        if next(asked) >= granted:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        with pytest.raises(OSError, match="No space left"):
            file.add(keys)
    done = file.count - 1
    assert done < 60
    file.add(keys[done:])

    for key, offset, _ in keys:
        assert offset in file.offsets(key, 0, 1 << 60)


@given(st.text(max_size=80), st.text(max_size=80) | st.text("0123456789ABCDEF", min_size=56, max_size=56))
def test_a_hash_is_the_absolute_value_of_javas(topic: str, key: str) -> None:
    value = java_hash(f"{topic}#{key}")

    assert key_hash(topic_hash(topic), key) == (0 if value == -(2**31) else abs(value))


def test_hashes_of_unique_keys_and_of_the_smallest_number() -> None:
    assert key_hash(T1, UNIQUE) == 541874302
    assert key_hash(T1, "k1") == 79072524
    # Java has no absolute value of its smallest number; RocketMQ takes 0.
    assert java_hash("T#0jdpfbq") == -(2**31)
    assert key_hash(topic_hash("T"), "0jdpfbq") == 0


def test_keys_are_the_unique_one_then_each_word() -> None:
    assert keys_of({"UNIQ_KEY": "u", "KEYS": "a  b "}) == ["u", "a", "b"]
    assert keys_of({"KEYS": "a"}) == ["a"]
    assert keys_of({}) == []
    assert keys_of({"UNIQ_KEY": "u"}, sys_flag=0x4) == ["u"]
    assert keys_of({"UNIQ_KEY": "u"}, sys_flag=0xC) == []


Entries = st.lists(st.tuples(st.integers(0, 2**31 - 1) | st.integers(0, 30), st.integers(0, 5000)), max_size=80)


@settings(deadline=None)
@given(entries=Entries, slots=st.integers(1, 12), batch=st.integers(1, 30), data=st.data())
def test_a_file_answers_as_a_dictionary_of_lists_would(
    entries: list[tuple[int, int]], slots: int, batch: int, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        file = IndexFile(Path(folder) / "20231114221320123", slots, 100, create=True)
        model: dict[int, list[tuple[int, int]]] = defaultdict(list)
        now, offset, keys = 1_700_000_000_000, 0, []
        for number, pause in entries:
            now, offset = now + pause, offset + 100
            model[number].append((offset, now))
            keys.append((number, offset, now))

        for first in range(0, len(keys), batch):
            assert file.add(keys[first : first + batch]) == len(keys[first : first + batch])
        begin = data.draw(st.integers(1_700_000_000_000 - 2000, now + 2000))
        end = data.draw(st.integers(begin, now + 4000))
        reopened = IndexFile(file.path, slots, 100)

        assert reopened.used_slots == len({number % slots for number in model})
        for number in [*model, 999_999]:
            found = list(reopened.offsets(number, begin, end))
            exact = [offset for offset, time in reversed(model[number]) if begin <= time <= end]
            near = [offset for offset, time in reversed(model[number]) if begin - 2000 <= time <= end + 2000]
            assert [offset for offset in found if offset in exact] == exact
            assert set(found) <= set(near)
        assert reopened.count == len(entries) + 1
        if entries:
            assert not reopened.overlaps(0, keys[0][2] - 1)
            assert not reopened.overlaps(now + 1000, now + 2000)


@settings(deadline=None)
@given(entries=Entries, slots=st.integers(1, 12), data=st.data())
def test_a_file_cut_back_is_as_if_the_rest_had_never_come(
    entries: list[tuple[int, int]], slots: int, data: st.DataObject
) -> None:
    keys = [(number, 100 * at, 1_700_000_000_000 + 1000 * at) for at, (number, _) in enumerate(entries)]
    kept = data.draw(st.integers(0, len(keys)))
    with TemporaryDirectory() as folder:
        file = IndexFile(Path(folder) / "20231114221320123", slots, 100, create=True)
        file.add(keys[:kept])
        file.sync(complete=kept * 100)
        file.add(keys[kept:])
        # What a power cut leaves of entries that were not synced: nothing, whole ones, or halves.
        lost = data.draw(st.integers(0, len(keys) - kept))
        with file.path.open("r+b") as raw:
            raw.seek(file.size - 20 * (100 - len(keys) - 1 + lost))
            raw.write(bytes(20 * lost))
        crashed = IndexFile(file.path, slots, 100)
        mark = crashed.mark()
        assert mark is not None
        crashed.cut(mark.count)

        fresh = IndexFile(Path(folder) / "20231114221320124", slots, 100, create=True)
        fresh.add(keys[:kept])

        assert (mark.count, mark.complete) == (kept + 1, kept * 100)
        for number in {number for number, _ in entries}:
            assert list(crashed.offsets(number, 0, 2**60)) == list(fresh.offsets(number, 0, 2**60))
        assert (crashed.count, crashed.used_slots) == (fresh.count, fresh.used_slots)
        assert (crashed.end_offset, crashed.end_time) == (fresh.end_offset, fresh.end_time)
        assert crashed.add(keys[kept:]) == len(keys) - kept


def test_a_torn_mark_is_none(tmp_path: Path) -> None:
    file = IndexFile(tmp_path / "20231114221320123", 10, 10, create=True)
    file.add([(7, 100, 1)])
    file.sync(complete=200)
    with file.path.open("r+b") as raw:
        raw.seek(40 + 4 * 10 + 9)
        raw.write(b"\xff")

    assert IndexFile(file.path, 10, 10).mark() is None


def test_a_file_takes_what_fits_and_says_so(tmp_path: Path) -> None:
    file = IndexFile(tmp_path / "20231114221320123", 3, 4, create=True)

    added = file.add([(number, 100 * number, 1_000_000) for number in range(9)])

    assert added == 3
    assert file.is_full
    assert file.end_offset == 200


def test_the_first_entry_of_a_following_file_counts_from_the_end_of_the_one_before(tmp_path: Path) -> None:
    full = IndexFile(tmp_path / "20231114221320123", 3, 2, create=True)
    full.add([(1, 100, 1_700_000_000_000)])
    following = IndexFile(tmp_path / "20231114221320124", 3, 4, create=True)
    following.follow(full)
    following.add([(1, 200, 1_700_000_090_500), (1, 300, 1_700_000_092_000)])

    assert bytes_at(following.path, 40 + 12 + 20, 20) == "00 00 00 01 00 00 00 00 00 00 00 c8 00 00 00 5a 00 00 00 00"
    assert bytes_at(following.path, 40 + 12 + 40, 20) == "00 00 00 01 00 00 00 00 00 00 01 2c 00 00 00 01 00 00 00 01"
    # Its time is the file's beginning all the same.
    assert list(following.offsets(1, 1_700_000_090_000, 1_700_000_091_000)) == [200]


def test_a_file_of_another_size_is_refused_with_both_sizes(tmp_path: Path) -> None:
    IndexFile(tmp_path / "20231114221320123", 10, 10, create=True)

    with pytest.raises(ValueError, match="has 280 bytes, expected 284"):
        IndexFile(tmp_path / "20231114221320123", 11, 10)


def test_a_chain_that_leads_nowhere_ends(tmp_path: Path) -> None:
    file = IndexFile(tmp_path / "20231114221320123", 1, 10, create=True)
    file.add([(1, 100, 1000), (1, 200, 1000)])
    with file.path.open("r+b") as raw:
        raw.seek(40 + 4 + 20 * 2 + 16)
        raw.write((2).to_bytes(4, "big"))  # the second entry names itself
        raw.flush()
        os.fsync(raw.fileno())

    assert list(file.offsets(1, 0, 5000)) == [200]
