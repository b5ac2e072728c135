"""A copy whose records are found by compiled code has the messages that Python finds, one by one."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.commitlog.stores import BORN, HOST, append_run, make_store, open_store
from tests.kernel.test_runs import PIECES, fields_of
from verniermq.kernel.commitlog import integrity
from verniermq.kernel.commitlog.record import pack_record, topic_field
from verniermq.kernel.dispatch.run import Run, count_up_to
from verniermq.kernel.errors import NotACopy
from verniermq.kernel.message import SysFlag, pack_host

V6 = pack_host("2001:db8::1", 10911)

needs_compiled = pytest.mark.skipif(integrity.RECORDS is None, reason="not compiled: make fast")

UNIQUE = st.sampled_from([b"UNIQ_KEY\x01%d\x02" % number for number in range(3)])
TEXTS = st.builds(
    lambda before, unique, after: b"".join([*before, unique, *after]),
    st.lists(PIECES, max_size=3), UNIQUE, st.lists(PIECES, max_size=4),
)  # fmt: skip


class Made(NamedTuple):
    """What a record of the log is made of."""

    topic: str
    queue_id: int
    text: bytes
    body: bytes
    skipped: int
    time: int
    fields: dict[str, Any]


MADE = st.builds(
    Made,
    topic=st.sampled_from(["T1", "T1", "T10", "L" * 200, "CODED"]),
    queue_id=st.integers(0, 1),
    text=TEXTS,
    body=st.sampled_from([b"x", b"y" * 300, b""]),
    skipped=st.sampled_from([0] * 9 + [2]),
    time=st.sampled_from([1000, 1000, 1000, 1001]),
    fields=st.sampled_from(
        [
            *[{}] * 8,
            {"sys_flag": SysFlag.COMPRESSED},
            {"sys_flag": SysFlag.TRANSACTION_PREPARED},
            {"sys_flag": SysFlag.TRANSACTION_COMMIT, "prepared_transaction_offset": 7},
            {"reconsume_times": 2},
            {"born_host": V6},
            {"store_host": pack_host("10.0.0.6", 10911)},
            {"flag": 5, "born_timestamp": 9},
        ]
    ),
)


def log_of(records: list[Made]) -> bytes:
    log = b""
    numbers: Counter[tuple[str, int]] = Counter()
    for made in records:
        place = made.topic, made.queue_id
        numbers[place] += made.skipped if len(log) > 1000 else 0
        magic, field = topic_field(made.topic)
        log += pack_record(
            magic, field, made.body, made.text, queue_id=made.queue_id, queue_offset=numbers[place],
            commit_log_offset=len(log), store_timestamp=made.time,
            **{"store_host": HOST, "born_host": BORN, **made.fields},
        )  # fmt: skip
        if not made.fields.get("sys_flag", 0) & SysFlag.TRANSACTION_PREPARED:
            numbers[place] += 1
    return log


class Copied(NamedTuple):
    events: list[dict[str, Any]]
    queues: dict[tuple[str, int], list[tuple[int, int, int]]]
    end: int
    error: str


def copied(log: bytes, piece: int, limits: list[int] | None = None) -> tuple[Copied, int]:
    """What a copy knows that gets the log in such pieces, and how many runs it found."""
    runs = 0
    events: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder), segment_size=1 << 20)
        store.tags_coders["CODED"] = lambda properties, timestamp: timestamp + len(properties)
        store.listeners.append(lambda batch: events.extend(map(fields_of, batch)))
        if limits is not None:
            store.dispatch_limit = 0
        store.open()
        error = ""
        try:
            for start in range(0, len(log), piece):
                store.append_raw(start, log[start : start + piece])
                runs += sum(isinstance(part, Run) for part in store._dispatcher.pending)
                if limits is None:
                    store.dispatch()
        except NotACopy as found:
            error = str(found)
        for limit in limits or []:
            store.dispatch_limit = limit
            assert all(event["commit_log_offset"] + event["size"] <= limit for event in events)
        store.dispatch_limit = None
        store.dispatch()
        entries = {(queue.topic, queue.queue_id): queue.entries(queue.min_offset, 1000) for queue in store.queues()}
        found = Copied(events, entries, store.copied_end, error)
        with suppress(OSError):
            store.close()
    return found, runs


def in_python(log: bytes, piece: int) -> Copied:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integrity, "RECORDS", None)
        found, runs = copied(log, piece)
    assert not runs
    return found


@needs_compiled
@settings(max_examples=50, deadline=None)
@given(records=st.lists(MADE, min_size=1, max_size=20), piece=st.sampled_from([1 << 20, 1500, 333]))
def test_a_copy_has_the_messages_that_python_finds(records: list[Made], piece: int) -> None:
    log = log_of(records)

    assert copied(log, piece)[0] == in_python(log, piece)


@needs_compiled
@settings(max_examples=50, deadline=None)
@given(records=st.lists(MADE, min_size=2, max_size=8), choice=st.data())
def test_what_is_no_record_ends_it_at_the_same_place(records: list[Made], choice: st.DataObject) -> None:
    log = bytearray(log_of(records))
    place = choice.draw(st.integers(0, len(log) - 1))
    log[place : place + 4] = choice.draw(
        st.sampled_from([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x02", b"\xcb\xd4\x31\x94"])
    )

    assert copied(bytes(log), 1 << 20)[0] == in_python(bytes(log), 1 << 20)


PLAIN = [
    Made("T1", number % 3, b"UNIQ_KEY\x01U\x02TAGS\x01a\x02", b"x", 0, 1000 + number // 9, {}) for number in range(30)
]


@needs_compiled
def test_records_of_one_queue_and_time_are_one_run_though_others_lie_between_them() -> None:
    found, runs = copied(log_of(PLAIN), 1 << 20)

    assert runs == 3 * 4
    assert len(found.events) == 30


@needs_compiled
@pytest.mark.parametrize("mark", [b"REAL_TOPIC\x01T2\x02", b"DELAY\x013\x02", b"TRAN_MSG\x01true\x02"])
@pytest.mark.parametrize("topic", ["T1", "%RETRY%readers", "rmq_sys_wheel_timer"])
def test_what_means_something_to_plugins_is_in_no_run(mark: bytes, topic: str) -> None:
    marked = [made._replace(text=made.text + mark if made.queue_id == 1 else made.text, topic=topic) for made in PLAIN]

    found, runs = copied(log_of(marked), 1 << 20)

    assert runs == (20 if topic == "T1" else 0)  # a marked one ends all runs
    assert found == in_python(log_of(marked), 1 << 20)


@needs_compiled
def test_a_limit_holds_back_runs_that_lie_between_each_other() -> None:
    log = log_of(PLAIN)

    found, _ = copied(log, 1 << 20, limits=[*range(0, len(log), 50), len(log)])

    assert found.queues == in_python(log, 1 << 20).queues
    offsets = [event["commit_log_offset"] for event in found.events]
    assert offsets == sorted(offsets)
    assert len(offsets) == 30


def test_parts_are_ready_when_all_that_lies_among_them_is(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_size=1 << 16)
    one, two, three = (append_run(store, topic, 0, [b"a:", b"b:", b"c:"]) for topic in ("T1", "T2", "T3"))
    assert [count_up_to([one, two, three], end) for end in (0, one.end - 1, one.end, two.end, three.end)] == [
        0,
        0,
        1,
        2,
        3,
    ]
    long = Run(
        "T1", 0, 0, [one.offsets[0], two.offsets[0]], [one.sizes[0], two.sizes[0]], [], [], [], [], [], head_size=0,
        store_timestamp=0, store_host=HOST, sys_flag=0, born_timestamps=[], reconsume_times=0,
    )  # fmt: skip
    assert [count_up_to([long, one, three], end) for end in (one.end, long.end, three.end)] == [0, 2, 3]
    store.close()
