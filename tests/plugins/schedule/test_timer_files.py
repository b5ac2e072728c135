"""The timers' files, byte for byte, and what is found in them again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.commitlog.fulldisk import FullDisk
from verniermq.kernel import MessageIllegal, java_hash
from verniermq.plugins.schedule.timers.check import TimerCheckpoint, TimerCheckpointFile, read_check
from verniermq.plugins.schedule.timers.slot import OpenSlot
from verniermq.plugins.schedule.timers.timerlog import RECORD_SIZE, TimerEntry, TimerLog
from verniermq.plugins.schedule.timers.times import due_of, rolled_slot, slot_of, wished_ms
from verniermq.plugins.schedule.timers.wheel import SIZE, SLOTS, Wheel
from verniermq.protocol.recall import RecallHandle

DAY = 86_400


def entry(previous: int, log_offset: int, slot: int = 1_700_000_029, within: int = 0) -> TimerEntry:
    written = 1_700_000_000
    return TimerEntry(previous, 1, written * 1000, (slot - written) * 1000, log_offset, 210, java_hash("T1"), within)


# --- bytes ---------------------------------------------------------------------------------


def test_two_messages_for_one_second_are_written_as_rocketmq_writes_them(tmp_path: Path) -> None:
    log, wheel = TimerLog(tmp_path / "timerlog", 1 << 20), Wheel(tmp_path / "timerwheel")
    previous = -1
    for log_offset in (4096, 4306):
        previous = log.append(entry(previous, log_offset))
        wheel.add(1_700_000_029, previous, 1)

    content = (tmp_path / "timerlog" / "00000000000000000000").read_bytes()
    assert content[:104].hex(" ") == (
        "00 00 00 34 ff ff ff ff ff ff ff ff 00 00 00 01 00 00 01 8b cf e5 68 00 "
        "00 00 71 48 00 00 00 00 00 00 10 00 00 00 00 d2 00 00 0a 5d 00 00 00 00 00 00 00 00 "
        "00 00 00 34 00 00 00 00 00 00 00 00 00 00 00 01 00 00 01 8b cf e5 68 00 "
        "00 00 71 48 00 00 00 00 00 00 10 d2 00 00 00 d2 00 00 0a 5d 00 00 00 00 00 00 00 00"
    )
    with (tmp_path / "timerwheel").open("rb") as file:
        file.seek(16_384_928)
        slot = file.read(32).hex(" ")
    assert slot == ("00 00 00 00 65 53 f1 1d 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 34 00 00 00 02 00 00 00 00")
    assert (tmp_path / "timerwheel").stat().st_size == SIZE == 38_707_200


def test_a_full_file_ends_with_a_blank_and_the_next_one_begins(tmp_path: Path) -> None:
    log = TimerLog(tmp_path, 1000)  # 18 records, 64 bytes left
    positions = [log.append(entry(-1, number)) for number in range(40)]

    assert positions[17:19] == [17 * 52, 1000]
    assert (tmp_path / f"{0:020d}").read_bytes()[936:].hex() == "00000040" + "00" * 8 + "cbd43194" + "00" * 48
    again = TimerLog(tmp_path, 4096)
    assert [position for position, _ in again.scan(0)] == positions
    assert (again.end, again.last()) == (log.end, positions[-1])
    assert again.file_size == 1000


@pytest.mark.parametrize("room", range(0, RECORD_SIZE, 4))
def test_a_record_that_the_disk_took_only_a_part_of_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    disk = FullDisk(monkeypatch)
    log = TimerLog(tmp_path, 1000)
    log.append(entry(-1, 4096))
    disk.room = room

    with pytest.raises(OSError, match="No space left"):
        log.append(entry(0, 4306))

    assert [found.log_offset for _, found in TimerLog(tmp_path, 1000).scan(0)] == [4096]
    disk.room = None
    assert log.append(entry(0, 4516)) == RECORD_SIZE
    assert [found.log_offset for _, found in TimerLog(tmp_path, 1000).scan(0)] == [4096, 4516]


def test_the_progress_file_is_as_rocketmq_has_it(tmp_path: Path) -> None:
    log, wheel = TimerLog(tmp_path / "log", 4096), Wheel(tmp_path / "wheel")
    check = TimerCheckpoint(1_700_000_000, 52, 1, 250, 0, 1_700_000_000_500, 3)
    TimerCheckpointFile(tmp_path / "timercheck", log, wheel).save({"check": check})

    content = (tmp_path / "timercheck").read_bytes()
    assert len(content) == 4096
    assert content[:56].hex() == (
        "0000018bcfe56800" "0000000000000034" "0000000000000001" "0000000000000001"
        "0000000000000000" "0000018bcfe569f4" "0000000000000003"
    )  # fmt: skip
    assert read_check(tmp_path / "timercheck") == check


def test_what_we_noted_is_void_once_an_apache_broker_went_on(tmp_path: Path) -> None:
    check = TimerCheckpoint(1_700_000_000, 52, 1, 250, 0)
    content = bytearray(check.encode())
    content[16:24] = (9).to_bytes(8, "big")

    assert TimerCheckpoint.decode(bytes(content)) == TimerCheckpoint(1_700_000_000, 52, 9, 0, -1)
    assert TimerCheckpoint.decode(b"short") is None
    assert read_check(tmp_path / "none") is None


def test_a_wheel_of_another_size_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "timerwheel").write_bytes(b"wheel" * 200)

    wheel = Wheel(tmp_path / "timerwheel")

    assert wheel.is_new
    assert list(wheel.find_waiting(1)) == []
    assert wheel.path.stat().st_size == SIZE


def test_the_recall_handle_is_rocketmqs() -> None:
    text = "djEgVDEgYnJva2VyLWEgMTcwMDAwMDAyOTAwMSBDMEE4MDEwQTAwMDEwQjJDM0Q0RTAwMDAwMDAwMDAwMA=="
    handle = RecallHandle("T1", "broker-a", 1_700_000_029_001, "C0A8010A00010B2C3D4E000000000000")

    assert handle.encode() == text
    assert RecallHandle.decode(text) == handle


# --- the wheel -----------------------------------------------------------------------------


def test_a_slot_is_another_second_two_weeks_later(tmp_path: Path) -> None:
    wheel = Wheel(tmp_path / "wheel")
    wheel.add(1_700_000_000, 7, 1)
    wheel.add(1_700_000_000 + SLOTS, 9, 1)

    assert wheel.get(1_700_000_000) is None
    slot = wheel.get(1_700_000_000 + SLOTS)
    assert slot is not None
    assert (slot.first, slot.last, slot.messages) == (9, 9, 1)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 10**10), st.sets(st.integers(0, SLOTS - 1), max_size=20))
def test_waiting_slots_are_found_in_the_order_of_time(tmp_path_factory: object, start: int, ahead: set[int]) -> None:
    folder: Path = tmp_path_factory.mktemp("wheel")  # type: ignore[attr-defined]
    wheel = Wheel(folder / "wheel")
    for seconds in ahead:
        wheel.add(start + seconds, seconds, 1)

    for reopened in (wheel, Wheel(folder / "wheel")):
        if reopened is not wheel:
            assert {slot.last for slot in reopened.find_waiting(start)} == ahead
        found, second = [], start
        while (following := reopened.next_waiting(second)) is not None:
            found.append(following - start)
            reopened.emptied(following)
            second = following
        assert found == sorted(ahead)


# --- times ---------------------------------------------------------------------------------


@given(st.integers(1, 10**14))
def test_a_slot_ends_no_earlier_than_what_it_holds_is_due(due: int) -> None:
    slot = slot_of(due)

    assert slot * 1000 < due <= slot * 1000 + 1000
    assert due_of({"TIMER_OUT_MS": str(slot * 1000), "TIMER_DELIVER_MS": str(due)}) == due
    assert due_of({"TIMER_OUT_MS": str(slot * 1000)}) == slot * 1000 + 1000
    assert due_of({"TIMER_DELIVER_MS": str(due)}) is None


windows_and_distances = st.integers(10, 7 * DAY).flatmap(lambda w: st.tuples(st.just(w), st.integers(0, 40 * w)))


@given(windows_and_distances)
def test_every_stop_brings_a_far_message_nearer_and_the_last_stretch_is_long(drawn: tuple[int, int]) -> None:
    window, ahead = drawn
    now, slot, stops = 1_700_000_000, 1_700_000_000 + ahead, 0
    while (stop := rolled_slot(slot, now, window)) is not None:
        assert now < stop <= now + window
        assert stop < slot
        now, stops = stop, stops + 1

    assert slot - now < window
    if stops:
        assert slot - now >= window // 3
    assert stops <= ahead // (window // 2) + 1


@pytest.mark.parametrize("text", ["", "soon", "1e3", "1_000", "٣x", "9" * 30])
def test_a_time_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(MessageIllegal):
        wished_ms({"TIMER_DELAY_SEC": text}, 0)


# --- an open slot --------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 1000), max_size=60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 1000)), max_size=30),
    st.integers(0, 60),
)
def test_an_open_slot_gives_everything_once_in_the_order_of_time(
    chain: list[int], late: list[tuple[int, int]], already: int
) -> None:
    ordered = sorted((within, position) for position, within in enumerate(chain))
    done = ordered[:already][-1] if ordered[:already] else (0, -1)
    slot = OpenSlot(1_700_000_000, done)
    for position in reversed(range(len(chain))):
        slot.add_from_chain(chain[position], position)

    given_out: list[tuple[int, int]] = []
    arrivals = sorted(late)
    expected_late = []
    turn = 0
    while slot.next_within() is not None or arrivals:
        while arrivals and (arrivals[0][0] <= turn or slot.next_within() is None):
            within = max(arrivals.pop(0)[1], slot.done[0] or 1)  # as who takes it in does
            position = len(chain) + len(expected_late)
            expected_late.append((within, position))
            slot.add_late(within, position)
        first = slot.first()
        assert slot.next_due_ms() == 1_700_000_000_000 + first[0]
        given_out.append(first)
        slot.delivered(*first)
        turn += 1

    assert given_out == sorted(given_out)
    assert sorted(given_out) == sorted(ordered[already:] + expected_late)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60 * RECORD_SIZE))
def test_a_timer_log_can_be_cut_anywhere(tmp_path_factory: object, count: int, cut: int) -> None:
    folder: Path = tmp_path_factory.mktemp("log")  # type: ignore[attr-defined]
    log = TimerLog(folder, 1000)
    positions = [log.append(entry(-1, number)) for number in range(count)]
    kept = [position for position in positions if position + RECORD_SIZE <= cut]
    log.cut(kept[-1] + RECORD_SIZE if kept else 0)
    log.sync()

    again = TimerLog(folder, 1000)
    assert [position for position, _ in again.scan(0)] == kept
    following = again.append(entry(-1, 99))
    assert following == (positions[len(kept)] if len(kept) < len(positions) else again.last())
