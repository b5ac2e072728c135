"""What is compiled finds the whole records that Python finds, and takes nothing else for one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.commitlog.stores import open_store, pending
from verniermq.kernel.commitlog import integrity
from verniermq.kernel.commitlog.record import BLANK_SIZE, RecordLayout, layout, pack_blank
from verniermq.kernel.errors import CorruptRecord
from verniermq.kernel.message import PendingMessage, pack_host

RECORDS = integrity.RECORDS
V6 = pack_host("2001:db8::1", 10911)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Records of several shapes, one behind the other."""
    if RECORDS is None:
        pytest.skip("not compiled: make fast")
    path: Path = tmp_path_factory.mktemp("records")
    store = open_store(path / "store", segment_size=1 << 20)
    for number, length in enumerate((1, 5, 600, 0, 3000, 40)):
        properties = {"TAGS": "ä" if number % 2 else "a", "long": "x" * (700 * (number % 3))}
        store.append(pending("T" * (1 + 30 * number), number, b"b" * length, properties=properties, flag=number))
        store.append(pending("T2", number, b"\0" * length, properties={}))
    store.append(PendingMessage("T1", 0, b"six", born_timestamp=1, born_host=V6, properties={}))
    store.append(pending("L" * 200, 0, b"last"))
    found = store.read(0, store.end)
    store.close()
    assert found is not None
    return bytes(found)


def in_python(data: bytes, position: int, end: int, offset: int) -> RecordLayout | str | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integrity, "RECORDS", None)
        return either(data, position, end, offset)


def either(data: bytes, position: int, end: int, offset: int) -> RecordLayout | str | None:
    try:
        return integrity.whole_record_at(data, position, offset, end)
    except CorruptRecord as error:
        return str(error)


def starts(log: bytes) -> list[int]:
    found = [0]
    while found[-1] < len(log):
        found.append(found[-1] + layout(log, found[-1]).size)
    return found[:-1]


def test_whole_records_are_found_alike(log: bytes) -> None:
    assert RECORDS is not None
    quick = 0
    for start in starts(log):
        expected = in_python(log, start, len(log), start)
        assert isinstance(expected, RecordLayout)
        assert either(log, start, len(log), start) == expected
        quick += RECORDS.whole_record(log, start, len(log), start) is not None
    assert 10 <= quick < len(starts(log)), "empty bodies and IPv6 are left to Python, and only they"


def test_a_record_is_whole_at_its_own_place_only(log: bytes) -> None:
    for end in range(len(log)):
        start = max(found for found in starts(log) if found <= end)
        assert either(log, start, end, start) == in_python(log, start, end, start)
    for start in starts(log):
        assert either(log, start, len(log), start + 1) == in_python(log, start, len(log), start + 1)


def test_a_blank_is_none() -> None:
    data = bytes(20) + pack_blank(BLANK_SIZE)
    assert either(data, 20, len(data), 20) is None
    assert either(data, 0, len(data), 0) == in_python(data, 0, len(data), 0)


@settings(max_examples=400)
@given(choice=st.data())
def test_damage_is_seen_alike(log: bytes, choice: st.DataObject) -> None:
    start = choice.draw(st.sampled_from(starts(log)))
    size = layout(log, start).size
    damaged = bytearray(log)
    for _ in range(choice.draw(st.integers(1, 3))):
        # Heads and what lies behind bodies are small beside them: half of all damage is there.
        place = choice.draw(st.one_of(st.integers(0, min(size, 100) - 1), st.integers(0, size - 1)))
        width = choice.draw(st.sampled_from((1, 2, 4, 8, 512)))
        with_what = choice.draw(st.sampled_from((b"\0", b"\xff", b"\x01", b"/")))
        damaged[start + place : start + min(place + width, size)] = with_what * (min(place + width, size) - place)
    data = bytes(damaged)
    assert either(data, start, len(data), start) == in_python(data, start, len(data), start)
