"""Runs on their compiled way into an index file leave the bytes that the plain way leaves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verniermq.kernel import Run
from verniermq.plugins.query import indexfile, keys
from verniermq.plugins.query.indexfile import IndexFile

pytestmark = pytest.mark.skipif(keys.ENTRIES is None, reason="not compiled; make fast compiles it")

WORDS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=70)
UNIQUES = st.text(st.characters(max_codepoint=127, min_codepoint=33), min_size=1, max_size=60)


def run_of(messages: Sequence[tuple[str, str]], topic: str = "orders", time: int = 1_794_000_000_000) -> Run:
    size = len(messages)
    return Run(
        topic, 0, 0, [4096 + 200 * n for n in range(size)], [200] * size, [0] * size,
        [unique.encode() for unique, _ in messages], [words.encode() for _, words in messages], [b"\0\0"] * size,
        [b""], head_size=90, store_timestamp=time, store_host=bytes(8), sys_flag=0, born_timestamps=[time] * size,
        reconsume_times=0,
    )  # fmt: skip


@given(st.lists(st.tuples(UNIQUES, WORDS), min_size=1, max_size=20), st.sampled_from(["orders", "t", "größe"]))
def test_the_keys_of_a_run_have_the_same_numbers(messages: list[tuple[str, str]], topic: str) -> None:
    run = run_of(messages, topic)
    assert keys.keys_of_run(run) == keys._keys_of_run(run)


NUMBERS = st.integers(0, 2**31 - 1)
ENTRIES = st.lists(st.tuples(NUMBERS, st.integers(0, 2**62), st.integers(-5, 2**62)), max_size=40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(ENTRIES, max_size=4), st.integers(1, 9))
def test_a_file_gets_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: list[list[tuple[int, int, int]]], slots: int
) -> None:
    found = []
    for compiled in (keys.ENTRIES, None):
        with monkeypatch.context() as patch:
            patch.setattr(indexfile, "ENTRIES", compiled)
            path = tmp_path / f"{compiled is None}"
            path.unlink(missing_ok=True)
            file = IndexFile.begin(path, slots, 50, None)
            added = [file.add(batch) for batch in batches if not file.is_full]
            found.append((added, file.count, file.used_slots, file.end_time, path.read_bytes()))
    assert found[0] == found[1]


def test_what_is_wrong_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    assert keys.ENTRIES is not None
    file = IndexFile.begin(tmp_path / "one", 5, 10, None)
    before = file.path.read_bytes()
    reserved = bytearray(b"\1")
    for count, slots, entry in ((10, 5, (1, 2, 3)), (1, 5, (-1, 2, 3)), (1, 0, (1, 2, 3)), (-3, 5, (1, 2, 3))):
        with pytest.raises((IndexError, ValueError)):
            keys.ENTRIES.put(file._map, reserved, 40, slots, 60, count, 0, [entry], 0)
    with pytest.raises((IndexError, ValueError)):
        keys.ENTRIES.put(file._map, bytearray(), 4, 5, 60, 1, 0, [(1, 2, 3)], 0)
    with pytest.raises(ValueError, match="different lengths"):
        keys.ENTRIES.keys_of_run(1, [b"a"], [], [1], 1, keys.key_hash)
    assert file.path.read_bytes() == before


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(ENTRIES.filter(bool), st.integers(1, 9), st.data())
def test_a_file_is_cut_back_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: list[tuple[int, int, int]], slots: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(batch) + 1))
    found = []
    for compiled in (keys.ENTRIES, None):
        with monkeypatch.context() as patch:
            patch.setattr(indexfile, "ENTRIES", compiled)
            path = tmp_path / f"{compiled is None}"
            path.unlink(missing_ok=True)
            file = IndexFile.begin(path, slots, 50, None)
            file.add(batch)
            file.cut(count)
            found.append((file.used_slots, path.read_bytes()))
    assert found[0] == found[1]
