"""A broker stores each row of Spark's tasks once, though tasks run again, also after it was killed."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.peer import Peer
from tests.spark.test_plugin import broker_and_peer, plugin_of
from verniermq.contrib.spark.sink import batch_item
from verniermq.contrib.spark.sinkrows import (
    KEPT_BATCHES,
    MOST_TASKS,
    ROW_PROPERTY,
    RowSet,
    SinkRows,
    SinkTask,
    format_rows,
    parse_rows,
)
from verniermq.kernel import Command, InvalidParameter, RequestCode, ResponseCode, Run, decode_records

pytestmark = pytest.mark.anyio

TASK = "query-1/0/3"


async def send(peer: Peer, numbers: list[int], task: str = TASK, topic: str = "orders", **fields: object) -> Command:
    items = [
        batch_item(b"row %d" % row, {"UNIQ_KEY": f"{row:032}", ROW_PROPERTY: f"{task}/{row}"}, 0) for row in numbers
    ]
    given = {
        "a": "spark", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0, "m": "true",
        "task": task, "rows": format_rows(numbers),
    }  # fmt: skip
    return await peer.ask(RequestCode.SEND_ROWS, b"".join(items), **{**given, **fields})


async def bodies(peer: Peer, topic: str = "orders") -> list[int]:
    answer = await peer.ask(
        RequestCode.READ_QUEUE_RANGE, topic=topic, queueId=0, beginOffset=0, endOffset=10_000, maxBytes=4 << 20
    )
    return [int(one.body[4:]) for one in decode_records(answer.body[: int(answer.ext["recordBytes"])])]


async def test_rows_that_came_are_dropped_and_the_others_of_a_request_are_not() -> None:
    async with broker_and_peer() as (broker, peer):
        first = await send(peer, [0, 1, 2, 3])
        again = await send(peer, [0, 1, 2, 3])
        some = await send(peer, [2, 3, 4, 7])

        assert [answer.code for answer in (first, again, some)] == [ResponseCode.SUCCESS] * 3
        assert await bodies(peer) == [0, 1, 2, 3, 4, 7]
        assert plugin_of(broker).runtime_info()["sparkDroppedRows"] == "6"


async def test_tasks_batches_and_topics_are_told_apart() -> None:
    async with broker_and_peer() as (_, peer):
        for task in ("query-1/0/3", "query-1/0/4", "query-1/1/3", "query-2/0/3"):
            await send(peer, [0, 1], task)
        await send(peer, [0, 1], topic="others")

        assert await bodies(peer) == [0, 1] * 4
        assert await bodies(peer, "others") == [0, 1]


async def test_two_runs_of_a_task_at_a_time_store_each_row_once() -> None:
    async with broker_and_peer() as (_, peer):
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                for start in range(0, 2000, 500):
                    tasks.start_soon(send, peer, list(range(start, start + 500)))

        assert sorted(await bodies(peer)) == list(range(2000))


async def test_a_message_that_goes_alone_is_a_row_too() -> None:
    alone = {"m": "false", "i": f"{ROW_PROPERTY}\x01{TASK}/5\x02DELAY\x0118\x02"}
    async with broker_and_peer() as (broker, peer):
        for _ in range(2):
            answer = await send(peer, [5], **alone)
            assert answer.code == ResponseCode.SUCCESS

        assert broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 17) == 1


@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_a_broker_that_starts_anew_knows_its_rows(tmp_path: Path, end: str) -> None:
    table = tmp_path / "config" / "sparkRows.json"
    async with broker_and_peer(tmp_path) as (_, peer):
        await send(peer, [0, 1])
    before = table.read_bytes()
    async with broker_and_peer(tmp_path) as (_, peer):
        await send(peer, [2, 3], topic="others")
    if end == "killed":
        table.write_bytes(before)  # as a kill leaves it: older than the newest rows

    async with broker_and_peer(tmp_path) as (_, peer):
        await send(peer, [0, 1, 9])
        await send(peer, [2, 3], topic="others")

        assert await bodies(peer) == [0, 1, 9]
        assert await bodies(peer, "others") == [2, 3]


async def test_a_log_that_lost_its_end_lets_rows_come_again(tmp_path: Path) -> None:
    """What is known of rows is not believed when it is ahead of the log: a row that is lost must come again."""
    async with broker_and_peer(tmp_path / "with") as (_, peer):
        await send(peer, [0, 1])
    known = (tmp_path / "with" / "config" / "sparkRows.json").read_bytes()
    async with broker_and_peer(tmp_path / "without"):
        pass
    (tmp_path / "without" / "config" / "sparkRows.json").write_bytes(known)

    async with broker_and_peer(tmp_path / "without") as (_, peer):
        await send(peer, [0, 1])

        assert await bodies(peer) == [0, 1]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"task": "query"}, "expected <query>/<batch>/<partition>"),
        ({"task": "q/x/1"}, "expected <query>/<batch>/<partition>"),
        ({"task": f"{'q' * 300}/0/1"}, "300 at most"),
        ({"rows": "5-3"}, "expected such as 0-999,1003"),
        ({"rows": "0-99999999999"}, "at most 100000"),
        ({"rows": ""}, "expected such as"),
    ],
)
async def test_nonsense_is_refused(fields: dict[str, str], reason: str) -> None:
    async with broker_and_peer() as (_, peer):
        answer = await send(peer, [0, 1], **fields)

    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert reason in answer.remark


async def test_a_batch_of_another_length_than_its_rows_is_refused() -> None:
    async with broker_and_peer() as (_, peer):
        await send(peer, [0])

        answer = await send(peer, [0, 1], rows="0-2")

    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "the batch has 2 messages, and rows names 3" in answer.remark


def note(rows: SinkRows, task: str, row: int) -> None:
    rows._add({ROW_PROPERTY: f"{task}/{row}"}, "orders")


def test_what_is_kept_is_bounded() -> None:
    rows = SinkRows()
    for batch in range(10):
        note(rows, f"stream/{batch}/0", 1)
    assert len(rows) == KEPT_BATCHES
    note(rows, "stream/0/0", 1)
    assert len(rows) == KEPT_BATCHES

    for number in range(MOST_TASKS + 10):
        note(rows, f"job-{number}/0/0", 1)
    assert len(rows) == MOST_TASKS
    assert 1 not in rows.of(SinkTask("stream", 9, 0, "orders"))
    assert 1 in rows.of(SinkTask(f"job-{MOST_TASKS}", 0, 0, "orders"))


def test_rows_behind_other_messages_of_a_run_count() -> None:
    texts = [f"a\x01b\x02{row}UNIQ_KEY\x01U\x02".encode() for row in ("", f"{ROW_PROPERTY}\x01q/0/0/5\x02")]
    run = Run(
        "orders", 0, 0, [0, 100], [100, 100], [0, 0], [b"U", b"U"], [b"", b""],
        [len(text).to_bytes(2, "big") + text for text in texts], [text[:-11] for text in texts], head_size=90,
        store_timestamp=1, store_host=bytes(8), sys_flag=0, born_timestamps=[1, 1], reconsume_times=0,
    )  # fmt: skip
    rows = SinkRows()

    assert rows.note([run])

    assert 5 in rows.of(SinkTask("q", 0, 0, "orders"))
    assert len(rows) == 1


def test_other_people_s_properties_of_that_name_are_passed_over() -> None:
    rows = SinkRows()
    for text in ("", "a", "a/b/c/d", "q/0/0/-1", "q/0/0/x"):
        rows._add({ROW_PROPERTY: text}, "orders")

    assert len(rows) == 0


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9))))
def test_a_row_set_is_a_set(spans: list[tuple[int, int]]) -> None:
    rows, expected = RowSet(), set()
    for start, length in spans:
        rows.add(start, start + length)
        expected |= set(range(start, start + length))

    assert {row for row in range(80) if row in rows} == expected
    assert {row for row in range(80) if row in RowSet(rows.spans())} == expected
    assert len(rows.spans()) == sum(row - 1 not in expected for row in expected)


@given(st.sets(st.integers(0, 500), min_size=1))
def test_rows_are_the_same_after_their_text(rows: set[int]) -> None:
    assert parse_rows(format_rows(sorted(rows))) == sorted(rows)


def test_a_text_that_is_no_rows_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="expected such as"):
        parse_rows("1,x")
