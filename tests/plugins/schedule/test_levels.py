"""Delay levels over a real socket, by a clock that the test moves."""

from __future__ import annotations

import errno
from pathlib import Path

import orjson
import pytest

from tests.plugins.peer import peer, served
from verniermq.kernel import RequestCode, ResponseCode
from verniermq.testing import ManualClock, broker_process

pytestmark = pytest.mark.anyio

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


async def test_a_message_comes_when_its_level_is_over_and_not_before(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", b"later", queue=2, DELAY=2, TAGS="paid", colour="blue")

        await clock.advance(4.999)
        early = await client.bodies("orders", 2)
        await clock.advance(0.001)
        (message,) = await client.pull("orders", 2)

        assert early == []
        assert message.body == b"later"
        assert message.tags == "paid"
        assert message.properties["colour"] == "blue"
        assert (message.flag, message.born_timestamp) == (7, 1_600_000_000_000)
        assert message.store_timestamp == clock.now_ms()
        # As an Apache broker leaves them.
        assert message.properties["REAL_TOPIC"] == "orders"
        assert message.properties["REAL_QID"] == "2"
        assert message.properties["DELAY"] == "2"


async def test_the_waiting_record_and_its_entry_are_as_rocketmq_has_them(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (broker, client):
        answer = await client.sent("orders", queue=3, DELAY=3)

        queue = broker.store.queue(SCHEDULE, 2)
        assert queue is not None
        ((position, _, delivery_time),) = queue.entries(0, 1)
        waiting = broker.store.message_at(position)
        assert waiting is not None
        assert delivery_time == waiting.store_timestamp + 10_000
        assert (waiting.topic, waiting.queue_id) == (SCHEDULE, 2)
        assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("orders", "3")
        assert answer["msgId"] == waiting.offset_message_id
        assert answer["queueId"] == "3"


async def test_a_level_above_the_highest_counts_as_the_highest(tmp_path: Path) -> None:
    clock = ManualClock()
    levels = ["1s", "3s"]
    async with served(tmp_path, clock, plugins__schedule__levels=levels) as (_, client):
        await client.sent("orders", DELAY=99)

        await clock.advance(2.999)
        early = await client.bodies("orders")
        await clock.advance(0.001)

        assert early == []
        assert await client.bodies("orders") == [b"hello"]


async def test_level_zero_is_no_delay_and_a_word_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        await client.sent("orders", DELAY=0)
        refused = await client.send("orders", DELAY="soon")

        assert await client.bodies("orders") == [b"hello"]
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "'soon'" in refused.remark


async def test_levels_do_not_wait_for_each_other(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        for level in (5, 4, 3, 2, 1):
            await client.sent("orders", str(level).encode(), DELAY=level)

        await clock.advance(60)

        assert await client.bodies("orders") == [b"1", b"2", b"3", b"4", b"5"]


async def test_many_that_are_due_together_come_in_the_order_they_were_sent(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        sent = [str(number).encode() for number in range(500)]
        for body in sent:
            await client.sent("orders", body, DELAY=1)

        await clock.advance(1)

        assert await client.bodies("orders") == sent


async def test_what_fell_due_while_the_broker_was_down_comes_at_its_start_in_order(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        for number in range(3):
            await client.sent("orders", str(number).encode(), DELAY=3)
            await clock.advance(1)
        await client.sent("orders", b"much later", DELAY=18)

    await clock.advance(600)
    async with served(tmp_path, clock) as (_, client):
        await clock.advance(0)

        assert await client.bodies("orders") == [b"0", b"1", b"2"]
        await clock.advance(7200)
        assert await client.bodies("orders") == [b"0", b"1", b"2", b"much later"]


async def test_a_topic_whose_table_was_lost_is_there_again_when_its_message_comes(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        await client.sent("new", b"later", queue=2, DELAY=3)
    for kept in (tmp_path / "config").glob("topics.json*"):
        kept.unlink()

    async with served(tmp_path, clock) as (broker, client):
        await clock.advance(10)

        assert await client.arrived("new", 1, queue=2) == {b"later"}
        assert broker.topics.get("new").queues == 8


async def test_nothing_comes_twice_after_an_orderly_stop(tmp_path: Path) -> None:
    clock = ManualClock()
    for _ in range(3):
        async with served(tmp_path, clock) as (_, client):
            await client.sent("orders", DELAY=1)
            await clock.advance(1)

    async with served(tmp_path, clock) as (_, client):
        await clock.advance(10)

        assert len(await client.bodies("orders")) == 3
    table = orjson.loads((tmp_path / "config" / "delayOffset.json").read_bytes())
    assert table["offsetTable"] == {"1": 3}
    assert table["dataVersion"].keys() == {"counter", "stateVersion", "timestamp"}


async def test_the_offsets_of_an_apache_broker_are_taken_over(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        for number in range(3):
            await client.sent("orders", str(number).encode(), DELAY=1)

    # Bare integer keys, as its writer leaves them; offset 2 means that two were delivered.
    (tmp_path / "config" / "delayOffset.json").write_text('{\n\t"offsetTable":{1:2,7:400\n\t}\n}')
    async with served(tmp_path, clock) as (_, client):
        await clock.advance(5)

        assert await client.bodies("orders") == [b"2"]
    async with served(tmp_path, clock) as (_, client):
        answer = await client.ask_well(RequestCode.GET_ALL_DELAY_OFFSET)
        assert orjson.loads(answer.body)["offsetTable"] == {"1": 3, "7": 400}


async def test_messages_of_a_level_that_was_taken_out_of_the_list_still_come(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", DELAY=4)

    async with served(tmp_path, clock, plugins__schedule__levels=["1s"]) as (_, client):
        await clock.advance(30)

        assert await client.bodies("orders") == [b"hello"]


async def test_half_a_transaction_is_not_delayed(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (broker, client):
        await client.send("orders", flags=4, TRAN_MSG="true", DELAY=1)

        assert broker.store.queue(SCHEDULE, 0) is None


async def test_without_the_plugin_the_answer_names_it(tmp_path: Path) -> None:
    async with served(tmp_path, plugins__enable=[]) as (_, client):
        answer = await client.send("orders", DELAY=1)

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "'schedule'" in answer.remark
        assert (await client.send("orders", DELAY=0)).code == ResponseCode.SUCCESS


async def test_a_store_that_refuses_writes_holds_delivery_up_and_loses_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (broker, client):
        await client.sent("orders", b"first", DELAY=1)
        await client.sent("orders", b"second", DELAY=1)
        broker.store.refuse_writes("the disk is full", "test")

        await clock.advance(30)
        refused = await client.bodies("orders")
        broker.store.refuse_writes(None, "test")
        await clock.advance(1)

        assert refused == []
        assert await client.bodies("orders") == [b"first", b"second"]


async def test_a_crash_in_the_middle_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with broker_process(tmp_path / "store") as process:
        async with peer(process.broker) as client:
            for number in range(200):
                await client.sent("orders", str(number).encode(), DELAY=1 + number % 2)
            process.advance(1)
            await client.arrived("orders", 50)  # half of those that are due
        process.kill()
        process.start()
        async with peer(process.broker) as client:
            process.advance(10)  # a process that was killed forgets that its time was moved ahead
            delivered = await client.arrived("orders", 200)

    assert delivered == {str(number).encode() for number in range(200)}


@pytest.mark.parametrize("properties", [{"DELAY": 1}, {"TIMER_DELAY_MS": 1000}], ids=["level", "time"])
async def test_a_power_cut_while_the_broker_stops_loses_no_delivered_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: dict[str, int]
) -> None:
    clock = ManualClock()
    settings = {"store__flush_interval": "1h", "store__checkpoint_interval": "1h"}
    async with served(tmp_path, clock, **settings) as (broker, client):
        await client.sent("orders", b"later", **properties)
        durable = broker.store.end
        await clock.advance(2)
        delivered = await client.arrived("orders", 1)

        def sync() -> int:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(broker.store._log, "sync", sync)
    (log,) = (tmp_path / "commitlog").iterdir()
    with log.open("r+b") as file:  # what the disk never had
        file.seek(durable)
        file.write(bytes(1 << 16))

    async with served(tmp_path, clock, **settings) as (_, client):
        await clock.advance(2)

        assert delivered == await client.arrived("orders", 1) == {b"later"}
