"""Events of moved offsets, which ``mqadmin startMonitoring`` listens to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.kernel.pulling import pull, until
from tests.plugins.peer import Peer, served
from verniermq.kernel import OFFSET_MOVED_TOPIC, Broker, ResponseCode, decode_records
from verniermq.plugins.admin.moved import MOST
from verniermq.testing import ManualClock

pytestmark = pytest.mark.anyio


async def events(broker: Broker, client: Peer, count: int) -> list[Any]:
    def written() -> bool:
        queue = broker.store.queue(OFFSET_MOVED_TOPIC, 0)
        return queue is not None and queue.max_offset >= count

    await until(written)
    answer = await pull(client, OFFSET_MOVED_TOPIC, consumerGroup="monitor")
    return decode_records(answer.body)


async def test_a_pull_past_what_is_there_leaves_an_event(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        await client.sent("orders")

        assert (await pull(client, offset=9)).code == ResponseCode.PULL_OFFSET_MOVED

        (event,) = await events(broker, client, 1)
        assert orjson.loads(event.body) == {
            "consumerGroup": "readers",
            "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "orders"},
            "offsetNew": 1,
            "offsetRequest": 9,
        }
        assert (event.properties["TAGS"], event.properties["KEYS"]) == ("readers", "readers")
        assert event.born_timestamp == pytest.approx(broker.clock.now_ms(), abs=60_000)


async def test_a_consumer_that_asks_again_and_again_leaves_one_event_a_minute(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (broker, client):
        await client.sent("orders")
        for offset in (9, 8, 7):
            await pull(client, offset=offset)
        await pull(client, offset=6, consumerGroup="others")
        assert [orjson.loads(event.body)["offsetRequest"] for event in await events(broker, client, 2)] == [9, 6]

        await clock.advance(60)
        await pull(client, offset=5)
        assert [orjson.loads(event.body)["offsetRequest"] for event in await events(broker, client, 3)] == [9, 6, 5]


async def test_the_events_of_a_minute_are_limited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (broker, client):
        admin: Any = broker.host.active["admin"].instance
        for number in range(MOST + 3):
            admin.offset_moved(f"group-{number}", "orders", 0, 9, 1)
        await events(broker, client, MOST)

        await clock.advance(60)
        admin.offset_moved("another", "orders", 0, 9, 1)
        assert "3 more pulls had their offset moved" in caplog.text
        await events(broker, client, MOST + 1)
        assert broker.store.queue(OFFSET_MOVED_TOPIC, 0).max_offset == MOST + 1  # type: ignore[union-attr]


async def test_whoever_listens_to_the_events_makes_none(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        await client.sent("orders")
        await pull(client, OFFSET_MOVED_TOPIC, offset=9, consumerGroup="monitor")
        await pull(client, offset=9)

        (event,) = await events(broker, client, 1)
        assert event.properties["TAGS"] == "readers"


async def test_an_event_that_the_store_refuses_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as (broker, client):
        await client.sent("orders")
        broker.store.refuse_writes("the disk is full", "test")
        await pull(client, offset=9)
        await until(lambda: "no event of a moved offset group=readers: the disk is full" in caplog.text)

        broker.store.refuse_writes(None, "test")
        await pull(client, offset=9, consumerGroup="others")
        (event,) = await events(broker, client, 1)
        assert event.properties["TAGS"] == "others"
