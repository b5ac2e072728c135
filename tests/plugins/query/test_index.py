"""The index as a whole: files in a row, what it keeps over a stop and a crash, and its memory."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import attrs
import pytest

from tests.kernel.test_full_disk import on_a_small_disk
from verniermq.kernel import LARGEST_FOLIO
from verniermq.plugins.query import indexfile
from verniermq.plugins.query.index import Index, IndexMismatch

SIZE = 100


@attrs.frozen
class Sent:
    """A message as the index sees it."""

    commit_log_offset: int
    properties: dict[str, str]
    topic: str = "orders"
    size: int = SIZE
    sys_flag: int = 0
    store_timestamp: int = 1_700_000_000_000


def messages(numbers: Iterable[int], **fields: int) -> list[Sent]:
    return [Sent(SIZE * n, {"UNIQ_KEY": f"unique-{n}", "KEYS": f"key-{n % 10} every"}, **fields) for n in numbers]


def opened(folder: Path, *, slots: int = 50, entries: int = 100) -> Index:
    index = Index(folder, slots=slots, entries=entries, now_ms=lambda: 1_700_000_000_000)
    index.load(clean=True, full_before=0)
    return index


def again(folder: Path, *, clean: bool = True, full_before: int = 0) -> tuple[Index, int | None]:
    """The index after another start, and the commit-log offset from which on it wants to hear messages again."""
    index = Index(folder, slots=50, entries=100, now_ms=lambda: 1_700_000_000_000)
    return index, index.load(clean=clean, full_before=full_before)


def found(index: Index, key: str) -> list[int]:
    """The numbers of the messages with a key, oldest first, as often as the index names them."""
    return sorted(offset // SIZE for offset in index.offsets("orders", key, 0, 2**62))


def test_a_full_file_is_followed_by_another_and_both_are_searched(tmp_path: Path) -> None:
    index = opened(tmp_path)

    index.add(messages(range(80)))

    assert [file.count for file in index.files] == [100, 100, 43]  # 240 keys, 99 to a file
    assert [path.name for path in sorted(tmp_path.iterdir())] == [file.path.name for file in index.files]
    assert found(index, "every") == list(range(80))
    assert found(index, "key-3") == [3, 13, 23, 33, 43, 53, 63, 73]
    assert found(index, "unique-42") == [42]
    assert found(index, "unknown") == []


def test_names_rise_although_the_clock_stands_still(tmp_path: Path) -> None:
    index = opened(tmp_path, entries=4)

    index.add(messages(range(4)))

    names = [file.path.name for file in index.files]
    assert names == sorted(set(names))
    assert len(names) == 4
    assert all(len(name) == 17 and name.isdecimal() for name in names)


def test_a_message_that_comes_again_is_not_added_again(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add(messages(range(10)))

    index.add(messages(range(5, 15)))

    assert found(index, "every") == list(range(15))


def test_after_an_orderly_stop_only_what_is_new_is_wanted(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.add(messages(range(50)))
    first.add([Sent(SIZE * 50, {})])
    first.finish()

    second, wanted = again(tmp_path)
    second.add(messages(range(40, 60)))

    assert wanted == 51 * SIZE
    assert found(second, "every") == [*range(50), *range(51, 60)]


def test_what_another_broker_added_before_its_orderly_stop_is_taken_over(tmp_path: Path) -> None:
    ours = opened(tmp_path)
    ours.add(messages(range(10)))
    ours.finish()
    # An Apache broker leaves no marks, and ours alone.
    ours.add(messages(range(10, 20)))

    taken_over, wanted = again(tmp_path)
    taken_over.add(messages(range(15, 25)))

    assert wanted is None
    assert found(taken_over, "every") == list(range(25))


def test_after_a_crash_the_file_ends_at_its_mark_and_the_log_is_read_from_there(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add(messages(range(10)))
    index.sync()
    index.add(messages(range(10, 20)))

    crashed, wanted = again(tmp_path, clean=False)

    assert wanted == 10 * SIZE
    assert found(crashed, "every") == list(range(10))
    crashed.add(messages(range(5, 30)))
    assert found(crashed, "every") == list(range(30))


def test_after_a_crash_only_full_files_that_were_synced_are_kept_whole(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add(messages(range(40), store_timestamp=1000))
    full_before = index.note_synced(index.sync())
    index.add(messages(range(40, 90), store_timestamp=2000))
    assert len(index.files) == 3

    crashed, wanted = again(tmp_path, clean=False, full_before=full_before)

    assert full_before == 1000
    assert [file.count for file in crashed.files] == [100, 22]
    assert len(list(tmp_path.iterdir())) == 2
    assert wanted == 40 * SIZE
    crashed.add(messages(range(100)))
    assert found(crashed, "every") == list(range(100))


def test_a_full_file_says_nothing_about_the_files_behind_it(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add(messages(range(500)))
    index.sync()
    index.add(messages(range(500, 520)))

    # The checkpoint was not written since: it knows of no full file.
    crashed, wanted = again(tmp_path, clean=False, full_before=0)
    assert wanted is not None
    crashed.add(messages(range(wanted // SIZE, 520)))

    assert wanted == 500 * SIZE
    assert sorted(set(found(crashed, "every"))) == list(range(520))
    assert [number for number in range(520) if not found(crashed, f"unique-{number}")] == []


def test_what_another_broker_filled_is_kept_after_our_own_crash(tmp_path: Path) -> None:
    theirs = opened(tmp_path)
    theirs.add(messages(range(80)))
    for file in theirs.files:
        file.path.write_bytes(without_mark(file.path.read_bytes()))

    ours, _ = again(tmp_path)
    ours.add(messages(range(80, 90)))
    ours.sync()
    crashed, wanted = again(tmp_path, clean=False, full_before=0)

    assert wanted == 90 * SIZE
    assert found(crashed, "every") == list(range(90))


def without_mark(content: bytes) -> bytes:
    """A file as an Apache broker would have left it."""
    entry_0 = 40 + 4 * 50
    return content[:entry_0] + bytes(20) + content[entry_0 + 20 :]


def test_after_another_broker_the_log_is_read_from_where_a_message_begins(tmp_path: Path) -> None:
    theirs = opened(tmp_path)
    theirs.add(messages(range(10)))
    for file in theirs.files:
        file.path.write_bytes(without_mark(file.path.read_bytes()))
    ours, _ = again(tmp_path)
    ours.finish()

    later, wanted = again(tmp_path)
    later.add(messages(range(9, 12)))

    assert wanted == 9 * SIZE
    assert found(later, "every") == list(range(12))


def test_a_message_that_the_disk_took_half_of_is_completed_after_an_orderly_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = opened(tmp_path)
    index.add(messages(range(32)))  # 96 of 99 keys
    index.sync()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)  # no second file
        with pytest.raises(OSError, match="No space left"):
            index.add([Sent(32 * SIZE, {"KEYS": "a b c d e"})])
    index.finish()
    after, wanted = again(tmp_path)
    after.add([Sent(32 * SIZE, {"KEYS": "a b c d e"})])

    assert wanted == 32 * SIZE
    assert [key for key in "abcde" if 32 not in found(after, key)] == []
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_was_being_made_at_a_crash_is_no_other_brokers(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add(messages(range(20)))
    index.finish()
    (tmp_path / "20991231235959000").write_bytes(bytes(index.files[0].size))
    (tmp_path / "20991231235959001").touch()

    after, wanted = again(tmp_path)

    assert wanted == 20 * SIZE
    assert found(after, "every") == list(range(20))
    assert len(list(tmp_path.iterdir())) == 1


def test_after_a_crash_what_replaced_lost_messages_is_indexed(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add(messages(range(30)))
    index.sync()
    shorter, _ = again(tmp_path, clean=False)
    shorter.trim(10 * SIZE)
    others = [Sent(SIZE * n, {"KEYS": f"other-{n}"}) for n in range(10, 30)]
    shorter.add(others[:5])

    crashed, wanted = again(tmp_path, clean=False)
    crashed.add(others)

    assert wanted == 10 * SIZE
    assert [n for n in range(10, 30) if found(crashed, f"other-{n}") != [n]] == []
    assert found(crashed, "every") == list(range(10))


def test_after_a_crash_files_without_a_mark_are_made_again(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add(messages(range(20)))

    crashed, wanted = again(tmp_path, clean=False)

    assert wanted == 0
    assert list(tmp_path.iterdir()) == []
    assert found(crashed, "every") == []


def test_a_head_that_cannot_be_true_is_not_believed(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add(messages(range(20)))
    index.finish()
    with index.files[0].path.open("r+b") as raw:
        raw.seek(36)
        raw.write(b"\x7f\xff\xff\xff")

    mended, _ = again(tmp_path)

    assert found(mended, "every") == list(range(20))
    assert mended.files[0].count == 61


def test_what_the_log_lost_is_forgotten(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add(messages(range(60)))

    index.trim(30 * SIZE)

    assert found(index, "every") == list(range(30))
    assert len(index.files) == 1
    index.add([Sent(30 * SIZE, {"KEYS": "new"}), Sent(31 * SIZE, {"KEYS": "new"})])
    assert found(index, "new") == [30, 31]
    assert found(index, "unique-30") == []


def test_files_go_with_the_log_but_never_the_last(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add(messages(range(80)))
    names = [file.path for file in index.files]

    some = index.forget_before(40 * SIZE)
    rest = index.forget_before(1000 * SIZE)

    assert some == names[:1]
    assert rest == names[1:2]
    assert found(index, "every")[-1] == 79


def test_a_log_without_keys_leaves_a_file_so_that_it_is_not_read_again(tmp_path: Path) -> None:
    index = opened(tmp_path / "index")
    index.add([Sent(0, {}), Sent(SIZE, {})])
    index.finish()

    assert again(tmp_path / "index")[1] == 2 * SIZE


@pytest.mark.parametrize("left", [1, 440, 2000])
@pytest.mark.parametrize(("files", "cut"), [(1, 0), (3, 2), (3, 1)])
def test_a_file_whose_length_a_power_cut_took_is_made_again(tmp_path: Path, files: int, cut: int, left: int) -> None:
    index = opened(tmp_path)
    index.add(messages(range(30 * files)))
    assert len(index.files) == files
    index.sync()
    os.truncate(index.files[cut].path, left)

    mended, resume = again(tmp_path, clean=False)
    assert resume is not None
    mended.add(messages(range(resume // SIZE, 30 * files)))

    assert set(found(mended, "every")) == set(range(30 * files))


def test_all_files_whose_lengths_a_power_cut_took_are_made_again(tmp_path: Path) -> None:
    index = opened(tmp_path)
    index.add(messages(range(60)))
    for file in index.files:
        os.truncate(file.path, 1024)

    mended, resume = again(tmp_path, clean=False)
    mended.add(messages(range(60)))

    assert resume == 0
    assert set(found(mended, "every")) == set(range(60))


def test_files_of_other_settings_are_refused_after_a_crash_too(tmp_path: Path) -> None:
    opened(tmp_path, entries=90).add(messages(range(60)))

    with pytest.raises(IndexMismatch, match="has 2040 bytes, expected 2240"):
        again(tmp_path, clean=False)


def test_files_of_other_sizes_are_refused_with_what_to_do(tmp_path: Path) -> None:
    opened(tmp_path).add(messages(range(1)))

    with pytest.raises(IndexMismatch, match="has 2240 bytes, expected 2440; set slots and entries in"):
        opened(tmp_path, slots=100)


@pytest.mark.parametrize("granted", [0, 2])
def test_a_full_disk_is_an_error_and_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, granted: int) -> None:
    """Whether it refuses room for a batch's entries, which is asked for first, or for a slot of one of them."""
    monkeypatch.setattr(indexfile, "stores_are_safe", lambda descriptor: True)
    # The first entries end what is reserved at a time.
    index = opened(tmp_path, slots=(20 * LARGEST_FOLIO - 1000) // 4, entries=100_000)
    index.add(messages(range(10)))
    real, asked = os.posix_fallocate, count()

    def refuse(descriptor: int, offset: int, length: int) -> None:
        if next(asked) >= granted:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor, offset, length)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(OSError, match="No space left"):
            index.add(messages(range(10, 2000)))
    done = index.done // SIZE

    assert (done > 10) == (granted > 0)
    assert done < 2000
    index.add(messages(range(done, 2000)))
    assert set(found(index, "every")) == set(range(2000))


def test_many_keys_do_not_grow_the_memory(tmp_path: Path) -> None:
    index = opened(tmp_path, slots=50_000, entries=200_000)
    index.add(messages(range(20_000)))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for first in range(20_000, 60_000, 100):
            index.add(messages(range(first, first + 100)))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert after - before < 100_000  # 120,000 keys: less than a byte for each
    assert found(index, "unique-59999") == [59999]


def test_a_full_disk_of_memory_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    """On a tmpfs even a look into a hole of a mapped file takes a page, and kills if there is none."""
    script = """
        from tests.plugins.query.test_index import found, messages
        from verniermq.plugins.query.index import Index
        def filled():
            with open(root / "ballast", "ab", buffering=0) as ballast:
                try:
                    while True:
                        ballast.write(bytes(512))
                except OSError:
                    pass
        index = Index(root / "index", slots=50_000, entries=100, now_ms=lambda: 1_700_000_000_000)
        index.load(clean=True, full_before=0)
        index.add(messages(range(3)))
        index.finish()
        for start in (3, 40):
            filled()
            try:
                index.add(messages(range(start, start + 37)))
            except OSError as error:
                print("refused", error.errno)
            (root / "ballast").unlink()
            index.add(messages(range(start, start + 37)))
        print(sorted(set(found(index, "every"))) == list(range(77)))
    """

    assert on_a_small_disk(script, tmp_path).split("\n") == ["refused 28", "refused 28", "True", ""]
