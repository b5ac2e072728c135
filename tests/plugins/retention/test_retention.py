"""Old messages go, over a real socket, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.plugins.peer import Peer, served
from verniermq.kernel import Broker, Command, RequestCode, ResponseCode, decode_records
from verniermq.plugins.retention import Config
from verniermq.testing import ManualClock

pytestmark = pytest.mark.anyio

# Segments of 4 KiB: a few messages each. The disk of whoever runs the test plays no part.
ROOMY: dict[str, Any] = {f"plugins__retention__disk_{what}_at": 100 for what in ("delete", "force", "refuse")}
SMALL: dict[str, Any] = {
    "store__segment_size": "4KiB", "store__max_message_size": "2KiB", "store__queue_entries": 4,
    "store__checkpoint_interval": "10ms",
}  # fmt: skip
HOUR = 3600.0


def at_noon() -> ManualClock:
    return ManualClock(datetime(2026, 3, 1, 12, 30).timestamp())


async def fill(client: Peer, segments: int, topic: str = "orders") -> None:
    """Three messages of 1 KiB to a segment."""
    for number in range(3 * segments):
        await client.sent(topic, b"%04d" % number * 256, KEYS=f"k{number}")


def starts(broker: Broker) -> list[int]:
    return [segment.start // 4096 for segment in broker.store.segments()]


async def until(condition: Callable[[], bool]) -> None:
    """The files go in a thread, which the clock does not wait for."""
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - a thread tells nobody
            await anyio.sleep(0.005)


async def pull(client: Peer, offset: int, queue: int = 0) -> Command:
    return await client.ask(
        RequestCode.PULL_MESSAGE, consumerGroup="readers", topic="orders", queueId=queue, queueOffset=offset,
        maxMsgNums=1, sysFlag=4, commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0,
    )  # fmt: skip


async def test_files_go_at_the_hour_when_they_are_old_enough_and_offsets_stay_right(tmp_path: Path) -> None:
    clock = at_noon()
    queue_files = tmp_path / "consumequeue" / "orders" / "0"
    async with served(tmp_path, clock, **ROOMY, **SMALL) as (broker, client):
        await fill(client, 3)
        await clock.jump(60 * HOUR)
        await fill(client, 2)
        await until((queue_files / f"{12 * 20:020d}").exists)
        await clock.jump(3.5 * HOUR)  # at four, but the oldest are 63.5 hours old
        await clock.advance(20)
        at_four = starts(broker)
        await clock.jump(9.5 * HOUR)  # 73 hours old, but it is half past one
        await clock.advance(20)
        at_one = starts(broker)
        await clock.jump(14.5 * HOUR)  # at four again
        await clock.advance(20)
        # The third file ended when the first message of the fourth came, 27.5 hours ago.
        await until(lambda: starts(broker) == [2, 3, 4])
        await until(lambda: broker.store.min_offset("orders", 0) == 6)

        moved = await pull(client, 0)
        first = await pull(client, 6)
        minimum = await client.ask_well(RequestCode.GET_MIN_OFFSET, topic="orders", queueId=0)
        newest = await client.sent("orders", b"new")

    assert at_four == at_one == [0, 1, 2, 3, 4]
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert (moved.ext["nextBeginOffset"], moved.ext["minOffset"], moved.ext["maxOffset"]) == ("6", "6", "15")
    assert decode_records(first.body)[0].body[:4] == b"0006"
    assert minimum.ext["offset"] == "6"
    assert newest["queueOffset"] == "15"
    # Four entries to a file: the first file went too.
    assert min(path.name for path in queue_files.iterdir()) == f"{4 * 20:020d}"


async def test_the_file_that_is_written_to_never_goes(tmp_path: Path) -> None:
    clock = at_noon()
    async with served(tmp_path, clock, **ROOMY, **SMALL) as (broker, client):
        await fill(client, 1)
        await clock.jump(1000 * HOUR)
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)

        assert starts(broker) == [0]
        assert len(await client.pull("orders")) == 3


async def test_an_operator_deletes_expired_files_at_any_hour(tmp_path: Path) -> None:
    clock = at_noon()
    async with served(tmp_path, clock, **ROOMY, **SMALL) as (broker, client):
        await fill(client, 3)
        await clock.jump(73 * HOUR)
        await client.sent("orders", b"x" * 1024)

        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)

        # The last file that was full 73 hours ago is followed by a message of now, so it is not that old yet.
        assert starts(broker) == [2, 3]
        assert broker.store.min_offset("orders", 0) == 6


async def test_a_pass_deletes_no_more_files_than_it_may(tmp_path: Path) -> None:
    clock = at_noon()
    # No pass by itself comes in between.
    own = {"plugins__retention__files_per_pass": 2, "plugins__retention__interval": "1000h"}
    async with served(tmp_path, clock, **own, **ROOMY, **SMALL) as (broker, client):
        await fill(client, 6)
        await clock.jump(100 * HOUR)
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)
        first = starts(broker)
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)

        assert first == [2, 3, 4, 5]
        assert starts(broker) == [4, 5]


async def test_a_filling_disk_takes_the_oldest_files_before_they_expire(tmp_path: Path) -> None:
    clock = at_noon()
    marks = {**ROOMY, "plugins__retention__disk_force_at": 1, "plugins__retention__files_per_pass": 3}
    async with served(tmp_path, clock, **marks, **SMALL) as (broker, client):
        await fill(client, 5)
        before = starts(broker)

        await clock.jump(HOUR)
        await clock.advance(10)
        await until(lambda: broker.store.min_offset("orders", 0) == 9)

        assert before == [0, 1, 2, 3, 4]
        assert starts(broker) == [3, 4]


async def test_a_full_disk_refuses_sends_and_keeps_what_was_just_acknowledged(tmp_path: Path) -> None:
    clock = at_noon()
    marks = {**ROOMY, "plugins__retention__disk_force_at": 1, "plugins__retention__disk_refuse_at": 1}
    async with served(tmp_path, clock, **marks, **SMALL) as (broker, client):
        await fill(client, 5)
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)  # a pass, and no need to wait for it
        refused = await client.send("orders", b"too much")
        kept = starts(broker)
        await clock.jump(HOUR)
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)

        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "messages younger than 1h are not deleted for new ones" in refused.remark
        assert kept == [0, 1, 2, 3, 4]
        assert starts(broker) == [4]


async def test_a_full_disk_refuses_sends_with_the_reason_and_takes_them_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = at_noon()
    marks = {**ROOMY, "plugins__retention__disk_refuse_at": 1, "plugins__retention__force": False}
    async with served(tmp_path, clock, **marks, **SMALL) as (broker, client):
        await fill(client, 2)
        await clock.advance(10)
        await until(lambda: "no messages are taken any more" in caplog.text)

        refused = await client.send("orders", b"too much")
        kept = await client.pull("orders")
        broker.host.active["retention"].calls["settings_changed"](Config(disk_refuse_at=100, disk_force_at=100))
        await clock.advance(10)
        with anyio.fail_after(30):
            while (again := await client.send("orders", b"now")).code != ResponseCode.SUCCESS:  # noqa: ASYNC110
                await anyio.sleep(0.005)

    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "% full" in refused.remark
    assert "disk_refuse_at is 1" in refused.remark
    assert len(kept) == 6
    assert again.ext["queueOffset"] == "6"


async def test_the_index_follows_the_log(tmp_path: Path) -> None:
    clock = at_noon()
    index = {"plugins__query__slots": 10, "plugins__query__entries": 10}
    async with served(tmp_path, clock, **index, **ROOMY, **SMALL) as (broker, client):
        await fill(client, 5)
        broker.catch_up()  # the index is in no hurry
        files = len(list((tmp_path / "index").iterdir()))
        await clock.jump(100 * HOUR)
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)
        await until(lambda: len(list((tmp_path / "index").iterdir())) == 2)
        fields = {"topic": "orders", "maxNum": 10, "beginTimestamp": 0, "endTimestamp": 2**62}
        gone = await client.ask(RequestCode.QUERY_MESSAGE, key="k2", **fields)
        there = await client.ask(RequestCode.QUERY_MESSAGE, key="k14", **fields)

    assert files == 4  # 15 messages with two keys each, 9 entries to a file
    assert gone.code == ResponseCode.QUERY_NOT_FOUND
    assert decode_records(there.body)[0].body[:4] == b"0014"


async def test_minimum_offsets_are_the_same_after_a_restart(tmp_path: Path) -> None:
    clock = at_noon()
    async with served(tmp_path, clock, **ROOMY, **SMALL) as (_, client):
        await fill(client, 3)
        await clock.jump(100 * HOUR)
        await client.sent("other", b"y" * 1024)
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)
    async with served(tmp_path, clock, **ROOMY, **SMALL) as (broker, client):
        left = await client.pull("orders", offset=6)

        assert broker.store.min_offset("orders", 0) == 6
        assert broker.store.max_offset("orders", 0) == 9
        assert [message.queue_offset for message in left] == [6, 7, 8]


async def test_an_empty_queue_goes_on_counting_when_queues_are_cleaned(tmp_path: Path) -> None:
    clock = at_noon()
    async with served(tmp_path, clock, **ROOMY, **SMALL) as (broker, client):
        await client.sent("orders", b"old", queue=1)
        await fill(client, 2, "other")
        await clock.jump(100 * HOUR)
        await client.ask_well(RequestCode.DELETE_EXPIRED_COMMITLOG)
        await client.ask_well(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

        moved = await pull(client, 0, queue=1)
        following = await client.sent("orders", b"new", queue=1)

        assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
        assert following["queueOffset"] == "1"
        assert broker.store.min_offset("orders", 1) == 1
