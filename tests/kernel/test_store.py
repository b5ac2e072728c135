"""The store as the broker uses it: append, dispatch, read, expire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from tests.kernel.commitlog.stores import BORN, HOST, SEGMENT, bodies, make_store, open_store, pending
from verniermq.kernel.commitlog.record import MAGIC_BLANK, SIZE_AND_MAGIC
from verniermq.kernel.dispatch.event import DispatchEvent
from verniermq.kernel.errors import MessageIllegal, MessageSizeExceeded, PropertiesTooLarge, StoreNotWritable
from verniermq.kernel.message import SysFlag, pack_host
from verniermq.kernel.store import Store
from verniermq.testing import ManualClock

PREPARED = SysFlag.TRANSACTION_PREPARED


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


def test_a_stored_message_has_rocketmqs_bytes_in_log_and_queue(tmp_path: Path) -> None:
    store = open_store(tmp_path, clock=ManualClock(1700000000.123))
    for _ in range(7):
        store.append(pending(queue_id=1, body=b""))
    message = pending(queue_id=1, properties={"TAGS": "TagA", "KEYS": "k1"})

    appended = store.append(message)
    store.dispatch()
    store.close()

    log = (tmp_path / "commitlog" / "00000000000000000000").read_bytes()
    record = log[appended.commit_log_offset : appended.end]
    assert record[:36] == bytes.fromhex(
        "00000074 daa320a7 3610a686 00000001 00000000 0000000000000007"
    ) + appended.commit_log_offset.to_bytes(8, "big")
    assert record[36:88] == (
        bytes.fromhex("00000000 0000018bcfe56800") + BORN + bytes.fromhex("0000018bcfe5687b") + HOST
        + bytes.fromhex("00000000 0000000000000000 00000005")
    )  # fmt: skip
    assert record[88:] == b"hello\x02T1\x00\x12TAGS\x01TagA\x02KEYS\x01k1\x02"
    queue = (tmp_path / "consumequeue" / "T1" / "1" / "00000000000000000000").read_bytes()
    assert len(queue) == 100 * 20
    assert queue[7 * 20 : 8 * 20] == record[28:36] + record[:4] + bytes.fromhex("00 00 00 00 00 27 a8 07")
    assert appended.message_id == (HOST + record[28:36]).hex().upper()


def test_messages_are_found_by_queue_and_by_place(store: Store) -> None:
    first = store.append(pending(body=b"one"))
    second = store.append(pending(body=b"two"))
    other = store.append(pending(queue_id=3, body=b"three"))
    store.dispatch()

    assert (first.queue_offset, second.queue_offset, other.queue_offset) == (0, 1, 0)
    assert second.commit_log_offset == first.end
    assert bodies(store) == {("T1", 0): [b"one", b"two"], ("T1", 3): [b"three"]}
    assert store.read(first.commit_log_offset, first.size) is not None
    assert store.message_at(second.commit_log_offset).body == b"two"  # type: ignore[union-attr]


def test_places_where_no_record_begins_give_nothing(store: Store) -> None:
    appended = store.append(pending())

    assert store.message_at(appended.commit_log_offset + 1) is None
    assert store.message_at(appended.end) is None
    assert store.message_at(-5) is None
    assert store.message_at(10**15) is None
    assert store.read(appended.end - 4, 8) is None


def test_a_queue_without_messages_does_not_exist_on_disk(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(pending(sys_flag=PREPARED))
    store.dispatch()

    assert store.queue("T1", 0) is None
    assert store.queue("other", 0) is None
    assert (store.min_offset("T1", 0), store.max_offset("T1", 0)) == (0, 0)
    store.close()
    assert not (tmp_path / "consumequeue").exists()


@pytest.mark.parametrize("sys_flag", [SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK])
def test_prepared_and_rolled_back_messages_get_no_queue_entry(store: Store, sys_flag: int) -> None:
    store.append(pending(body=b"one"))
    half = store.append(pending(body=b"half", sys_flag=sys_flag))
    committed = store.append(pending(body=b"two", sys_flag=SysFlag.TRANSACTION_COMMIT))
    store.dispatch()

    assert half.queue_offset == 0
    assert committed.queue_offset == 1
    assert bodies(store) == {("T1", 0): [b"one", b"two"]}
    assert store.message_at(half.commit_log_offset).body == b"half"  # type: ignore[union-attr]


def test_a_full_segment_ends_with_a_blank_and_the_record_begins_the_next(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    appended = [store.append(pending(body=bytes([i]) * 1000)) for i in range(20)]
    store.dispatch()

    per_segment = (SEGMENT - 8) // appended[0].size
    assert [a.commit_log_offset // SEGMENT for a in appended] == [i // per_segment for i in range(20)]
    end = appended[per_segment - 1].end
    log = (tmp_path / "commitlog" / "00000000000000000000").read_bytes()
    assert log[end : end + 8] == SIZE_AND_MAGIC.pack(SEGMENT - end, MAGIC_BLANK)
    assert not any(log[end + 8 :])
    assert bodies(store)["T1", 0] == [bytes([i]) * 1000 for i in range(20)]
    store.close()


def test_a_record_that_leaves_less_than_a_blank_goes_to_the_next_segment(store: Store) -> None:
    overhead = store.append(pending(body=b"")).size
    store.append(pending(body=bytes(4096)))
    exact = SEGMENT - store.end - 8 - overhead

    fits = store.append(pending(body=bytes(exact)))
    next_one = store.append(pending(body=b""))

    assert fits.end == SEGMENT - 8
    assert next_one.commit_log_offset == SEGMENT


def test_a_batch_goes_into_one_segment_with_consecutive_offsets(store: Store) -> None:
    for _ in range(6):
        store.append(pending(body=bytes(1000)))
    assert SEGMENT - store.end < 3000

    appended = store.append_batch([pending(body=bytes([i]) * 900) for i in range(3)])
    store.dispatch()

    assert [a.commit_log_offset for a in appended] == [SEGMENT, appended[0].end, appended[1].end]
    assert [a.queue_offset for a in appended] == [6, 7, 8]
    assert len({a.store_timestamp for a in appended}) == 1
    assert bodies(store)["T1", 0][6:] == [bytes([i]) * 900 for i in range(3)]


def test_a_batch_with_one_bad_message_stores_nothing(store: Store) -> None:
    with pytest.raises(MessageSizeExceeded):
        store.append_batch([pending(), pending(body=bytes(5000))])

    assert store.end == 0
    assert store.append(pending()).queue_offset == 0


def test_a_batch_may_mix_queues(store: Store) -> None:
    appended = store.append_batch([pending(queue_id=q) for q in (0, 1, 0, 1, 1)])
    store.dispatch()

    assert [(a.queue_id, a.queue_offset) for a in appended] == [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)]
    assert store.max_offset("T1", 1) == 3


def test_what_does_not_fit_is_refused_and_changes_nothing(store: Store) -> None:
    with pytest.raises(MessageSizeExceeded, match="5000 bytes exceeds max_message_size of 4096"):
        store.append(pending(body=bytes(5000)))
    with pytest.raises(PropertiesTooLarge, match="40003"):
        store.append(pending(properties={"a": "x" * 40000}))
    with pytest.raises(MessageIllegal, match="record"):
        store.append(pending(flag=2**31))
    with pytest.raises(MessageIllegal, match="record"):
        store.append(pending(properties={"a": "\ud800"}))
    with pytest.raises(MessageIllegal, match="zero bytes"):
        store.append(pending(properties={"a": "\0" * 600}))

    assert store.end == 0


def test_a_record_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_size=4096, max_message_size=3584)

    with pytest.raises(MessageSizeExceeded, match="4088"):
        store.append(pending(body=bytes(3500), properties={"a": "x" * 1000}))
    store.close()


def test_properties_as_one_text_are_stored_as_they_came(store: Store) -> None:
    whole = store.append(pending(properties={"A": "1"}, properties_text="A\x011\x02"))
    trimmed = store.append(pending(properties={"A": "1"}, properties_text="A\x011"))

    for appended in (whole, trimmed):
        assert store.message_at(appended.commit_log_offset).properties == {"A": "1"}  # type: ignore[union-attr]


def test_ipv6_addresses_are_kept(tmp_path: Path) -> None:
    host, born = pack_host("2001:db8::2", 10911), pack_host("2001:db8::1", 50000)
    store = open_store(tmp_path, host=host)
    message = pending()
    message.born_host = born

    appended = store.append(message)
    found = store.message_at(appended.commit_log_offset)
    store.close()

    assert found is not None
    assert (found.born_host, found.store_host, found.sys_flag) == (born, host, 0x30)
    assert appended.message_id.startswith(host.hex().upper())


def test_a_long_retry_topic_is_kept(tmp_path: Path) -> None:
    topic = "%RETRY%" + "g" * 200
    store = open_store(tmp_path)
    store.append(pending(topic=topic))
    store.close()

    again = open_store(tmp_path)
    assert bodies(again) == {(topic, 0): [b"hello"]}
    again.close()


# --- dispatch ------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_messages_of_one_turn_are_dispatched_as_one_batch(store: Store) -> None:
    batches: list[Sequence[DispatchEvent]] = []
    store.listeners.append(batches.append)

    store.append(pending(body=b"one", properties={"TAGS": "a"}))
    store.append_batch([pending(body=b"two"), pending(body=b"three")])
    assert store.max_offset("T1", 0) == 0
    await anyio.lowlevel.checkpoint()
    assert store.max_offset("T1", 0) == 3
    store.append(pending())
    await anyio.lowlevel.checkpoint()

    assert [len(batch) for batch in batches] == [3, 1]
    event = batches[0][0]
    assert (event.topic, event.queue_id, event.queue_offset, event.tags_code) == ("T1", 0, 0, 97)
    assert event.properties == {"TAGS": "a"}
    assert event.body_size == 3


def test_a_listener_that_fails_does_not_keep_messages_from_others(store: Store) -> None:
    heard: list[int] = []

    def fail(events: Sequence[DispatchEvent]) -> None:
        raise RuntimeError("no")

    store.listeners += [fail, lambda events: heard.append(len(events))]
    store.append(pending())
    store.dispatch()

    assert heard == [1]
    assert store.max_offset("T1", 0) == 1


def test_a_topic_can_have_its_own_tags_codes(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.tags_coders["DELAYED"] = lambda properties, stored: stored + int(properties["DELAY"]) * 1000
    store.open()
    appended = store.append(pending("DELAYED", properties={"DELAY": "3"}))
    store.dispatch()

    codes = [code for _, _, code in store.queue("DELAYED", 0).entries(0, 9)]  # type: ignore[union-attr]
    assert codes == [appended.store_timestamp + 3000]
    store.close()


# --- life ----------------------------------------------------------------------------------


def test_a_restart_finds_everything_and_goes_on(tmp_path: Path) -> None:
    written: dict[tuple[str, int], list[bytes]] = {}
    for round_ in range(4):
        store = open_store(tmp_path)
        assert bodies(store) == written
        for i in range(150):
            topic, queue_id, body = f"T{i % 3}", i % 2, f"{round_}-{i}".encode() * (i % 20)
            appended = store.append(pending(topic, queue_id, body))
            known = written.setdefault((topic, queue_id), [])
            assert appended.queue_offset == len(known)
            known.append(body)
        store.close()


def test_a_closed_store_takes_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    with pytest.raises(StoreNotWritable, match="not open"):
        store.append(pending())
    store.open()
    store.close()
    with pytest.raises(StoreNotWritable, match="closed"):
        store.append(pending())
    store.close()


def test_writes_can_be_refused_by_several_parts(store: Store) -> None:
    store.refuse_writes("the disk is 90 % full", "retention")
    store.refuse_writes("this broker is a slave", "ha")

    with pytest.raises(StoreNotWritable, match="90 %"):
        store.append(pending())
    store.refuse_writes(None, "retention")
    with pytest.raises(StoreNotWritable, match="slave"):
        store.append_batch([pending()])
    store.refuse_writes(None, "ha")

    store.append(pending())


# --- time ----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_offsets_are_found_by_time(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    store = open_store(tmp_path, clock=clock)
    for _ in range(3):
        for _ in range(2):
            store.append(pending())
        await clock.advance(1)
    store.dispatch()

    # Stored at 1000 s (0, 1), 1001 s (2, 3) and 1002 s (4, 5).
    def lower(seconds: float) -> int:
        return store.offset_by_time("T1", 0, int(seconds * 1000))

    def upper(seconds: float) -> int:
        return store.offset_by_time("T1", 0, int(seconds * 1000), upper=True)

    assert [lower(t) for t in (0, 999, 1000, 1000.5, 1001, 1002, 1003)] == [0, 0, 0, 2, 2, 4, 6]
    assert [upper(t) for t in (0, 999, 1000, 1000.5, 1001, 1002, 1003)] == [0, 0, 1, 1, 3, 5, 5]
    assert store.offset_by_time("T1", 9, 0) == 0
    store.close()


# --- what goes away ------------------------------------------------------------------------


def test_a_deleted_topic_is_gone_and_can_begin_anew(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for queue_id in range(3):
        store.append(pending("gone", queue_id))
    store.append(pending("kept"))
    store.flush()

    store.delete_topic("gone")
    assert store.queue("gone", 0) is None
    assert not (tmp_path / "consumequeue" / "gone").exists()
    assert store.append(pending("gone", body=b"new")).queue_offset == 0
    store.close()

    again = open_store(tmp_path)
    assert bodies(again) == {("kept", 0): [b"hello"], ("gone", 0): [b"new"]}
    again.close()


@pytest.mark.anyio
async def test_expired_segments_raise_the_minimum_offsets(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for i in range(1000):
        store.append(pending(queue_id=i % 2, body=b"x" * 100))
        if i == 100:
            store.append(pending("old", body=b"x"))
    store.flush()
    assert len(list((tmp_path / "consumequeue" / "T1" / "0").iterdir())) == 5
    segments = store.segments()
    assert segments[-1].active
    assert not segments[0].active

    for _ in range(12):
        assert store.delete_first_segment() is not None
    removed = await store.expire_queues()

    assert store.start == 12 * SEGMENT
    assert removed > 0
    first = store.min_offset("T1", 0)
    assert first > 0
    ((offset, _, _),) = store.queue("T1", 0).entries(first, 1)  # type: ignore[union-attr]
    assert offset >= store.start
    before = store.queue("T1", 0).read_any(first - 1)  # type: ignore[union-attr]
    assert before is None or before[0] < store.start
    assert store.queue("T1", 0).read(first - 1, 5) == b""  # type: ignore[union-attr]
    assert (store.min_offset("old", 0), store.max_offset("old", 0)) == (1, 1)
    left = bodies(store)
    store.close()

    again = open_store(tmp_path)
    assert bodies(again) == left
    assert again.append(pending("old")).queue_offset == 1
    again.close()


def test_the_active_segment_is_never_deleted(store: Store) -> None:
    for _ in range(20):
        store.append(pending(body=bytes(1000)))
    deleted = 0
    while store.delete_first_segment() is not None:
        deleted += 1

    assert deleted == len(range(0, store.end, SEGMENT)) - 1
    assert store.append(pending()).queue_offset == 20


def test_thousands_of_queues_need_few_open_files(tmp_path: Path) -> None:
    store = open_store(tmp_path, mapped_queue_files=16, segment_size=1 << 20)
    for round_ in range(2):
        for topic in range(300):
            for queue_id in range(4):
                store.append(pending(f"topic-{topic}", queue_id, f"{round_}".encode()))
        store.flush()
    store.close()

    again = open_store(tmp_path, mapped_queue_files=16, segment_size=1 << 20)
    assert len(list(again.queues())) == 1200
    assert set(map(tuple, bodies(again).values())) == {(b"0", b"1")}
    again.close()


@pytest.mark.anyio
async def test_a_stop_with_very_many_unwritten_queues_leaves_them_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verniermq.kernel.store.store.MOST_QUEUES_AT_STOP", 10)
    store = open_store(tmp_path)
    for number in range(11):
        store.append(pending(f"T{number}", 0, b"%d" % number))
    store.close()
    files_made = list((tmp_path / "consumequeue").glob("*"))
    store = open_store(tmp_path)
    found = {queue.topic: [entry[1] > 0 for entry in queue.entries(0, 9)] for queue in store.queues()}
    store.append(pending("T0", 0, b"next"))
    store.close()
    store = open_store(tmp_path)

    assert files_made == []
    assert found == {f"T{number}": [True] for number in range(11)}
    assert store.max_offset("T0", 0) == 2
    store.close()
