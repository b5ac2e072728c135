"""The broker's side: ranges of a queue in chunks, where queues begin and end, and figures of what came."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arrow.records import entry
from tests.kernel.commitlog.stores import open_store, pending
from tests.plugins.peer import Peer
from verniermq.contrib.arrow.requests import ENTRY
from verniermq.contrib.spark.plugin import Plugin
from verniermq.contrib.spark.ranges import RangeRead
from verniermq.kernel import MATCH_ALL, Broker, Command, RequestCode, ResponseCode, connect, decode_records, tags_code
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

SMALL_SEGMENTS = {"store__segment_size": "64KiB", "store__max_message_size": "32KiB"}


@asynccontextmanager
async def broker_and_peer(store: Path | None = None, **settings: Any) -> AsyncIterator[tuple[Broker, Peer]]:
    enable = settings.pop("plugins__enable", ["default", "spark"])
    async with running_broker(store, plugins__enable=enable, **settings) as broker:
        connection = await connect(broker.address)
        yield broker, Peer(connection)
        connection.close()


async def read(peer: Peer, begin: int, end: int, topic: str = "orders", **fields: object) -> Command:
    return await peer.ask(
        RequestCode.READ_QUEUE_RANGE, topic=topic, queueId=0, beginOffset=begin, endOffset=end, **fields
    )


def plugin_of(broker: Broker) -> Plugin:
    plugin = broker.host.active["spark"].instance
    assert isinstance(plugin, Plugin)
    return plugin


async def test_a_range_comes_back_as_records_and_their_entries() -> None:
    async with broker_and_peer() as (_, peer):
        for number in range(10):
            await peer.sent("orders", b"body %d" % number, TAGS="paid")

        answer = await read(peer, 2, 7)

    size = int(answer.ext["recordBytes"])
    messages = decode_records(answer.body[:size])
    assert [message.body for message in messages] == [b"body %d" % number for number in range(2, 7)]
    positions = [sum(message.size for message in messages[:number]) for number in range(5)]
    records = [answer.body[at : at + message.size] for at, message in zip(positions, messages, strict=True)]
    assert answer.body[size:] == b"".join([entry(record, tags_code("paid")) for record in records])
    assert answer.ext | {"recordBytes": ""} == {
        "nextBeginOffset": "7", "minOffset": "0", "maxOffset": "10", "recordBytes": ""
    }  # fmt: skip


async def test_an_answer_is_as_large_as_was_asked_for_and_says_where_to_go_on() -> None:
    async with broker_and_peer() as (_, peer):
        for _ in range(10):
            await peer.sent("orders", bytes(20_000))

        answer = await read(peer, 0, 10, maxBytes=65536)
        following = await read(peer, int(answer.ext["nextBeginOffset"]), 10, maxBytes=65536)

    assert len(decode_records(answer.body[: int(answer.ext["recordBytes"])])) == 3
    first = decode_records(following.body[: int(following.ext["recordBytes"])])[0]
    assert first.queue_offset == 3


async def test_a_message_larger_than_an_answer_still_comes() -> None:
    async with broker_and_peer() as (_, peer):
        await peer.sent("orders", bytes(200_000))
        await peer.sent("orders", b"small")

        answer = await read(peer, 0, 2, maxBytes=65536)

    assert answer.ext["nextBeginOffset"] == "1"
    assert int(answer.ext["recordBytes"]) > 200_000


async def test_a_range_goes_on_through_segments_and_from_file_to_memory(tmp_path: Path) -> None:
    settings = {**SMALL_SEGMENTS, "store__queue_entries": 100}
    async with broker_and_peer(tmp_path, **settings) as (_, peer):
        for number in range(250):
            await peer.sent("orders", b"%d" % number + bytes(500))
    async with broker_and_peer(tmp_path, **settings) as (_, peer):
        for number in range(250, 270):
            await peer.sent("orders", b"%d" % number + bytes(500))
        found: list[bytes] = []
        offset = 0
        while offset < 270:
            answer = await read(peer, offset, 270)
            found += [one.body.rstrip(b"\0") for one in decode_records(answer.body[: int(answer.ext["recordBytes"])])]
            offset = int(answer.ext["nextBeginOffset"])

    assert found == [b"%d" % number for number in range(270)]


@settings(deadline=None, max_examples=40)
@given(
    runs=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), min_size=1, max_size=30),
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=7),
    begin=st.integers(0, 40),
    budget=st.integers(1, 40_000),
)
def test_a_range_has_the_records_of_its_queue_however_they_lie(
    runs: list[tuple[int, int]], sizes: list[int], begin: int, budget: int
) -> None:
    """Side by side or apart, alone or among those of other queues, from segment to segment."""
    with TemporaryDirectory() as folder:
        store = open_store(Path(folder))
        for queue_id, count in [(0, begin + 1), *runs]:
            for number in range(count):
                store.append(pending(queue_id=queue_id, body=b"x" * sizes[number % len(sizes)]))
        store.dispatch()
        queue = store.queue("T1", 0)
        assert queue is not None
        places = queue.entries(begin, queue.max_offset - begin)
        records = [store.read(offset, size) or b"" for offset, size, _ in places]

        chunk = RangeRead.begin_at(store, queue, begin, queue.max_offset, MATCH_ALL, budget).finish()

        fitting = max(1, sum(end <= budget for end in accumulate(map(len, records))))
        assert chunk is not None
        assert chunk.next_offset == begin + fitting
        assert b"".join(chunk.records) == b"".join(records[:fitting])
        assert [place[:2] for place in ENTRY.iter_unpack(chunk.entries)] == [place[:2] for place in places[:fitting]]
        store.close()


async def test_a_range_can_be_filtered_by_tags_and_by_properties() -> None:
    async with broker_and_peer() as (_, peer):
        for number in range(20):
            await peer.sent("orders", b"%d" % number, TAGS="even" if number % 2 == 0 else "odd", n=number)

        by_tag = await read(peer, 0, 20, subscription="even")
        by_property = await read(peer, 0, 20, subscription="n > 16", expressionType="SQL92")
        wrong = await read(peer, 0, 20, subscription="n >", expressionType="SQL92")

    def bodies(answer: Command) -> list[int]:
        return [int(one.body) for one in decode_records(answer.body[: int(answer.ext["recordBytes"])])]

    assert bodies(by_tag) == list(range(0, 20, 2))
    assert by_tag.ext["nextBeginOffset"] == "20"
    assert bodies(by_property) == [17, 18, 19]
    assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_offsets_that_are_not_there_are_told_with_those_that_are() -> None:
    async with broker_and_peer() as (_, peer):
        await peer.sent("orders")

        beyond = await read(peer, 5, 9)

    assert beyond.code == ResponseCode.PULL_OFFSET_MOVED
    assert (beyond.ext["minOffset"], beyond.ext["maxOffset"]) == ("0", "1")
    assert "offset 5" in beyond.remark


async def test_what_retention_deleted_is_told(tmp_path: Path) -> None:
    async with broker_and_peer(tmp_path, **SMALL_SEGMENTS) as (broker, peer):
        for number in range(200):
            await peer.sent("orders", b"%d" % number + bytes(500))
        broker.store.delete_first_segment()

        answer = await read(peer, 0, 200)
        again = await read(peer, int(answer.ext["minOffset"]), 200)

    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert 0 < int(answer.ext["minOffset"]) < 200
    assert again.code == ResponseCode.SUCCESS


async def test_nonsense_is_refused() -> None:
    async with broker_and_peer() as (_, peer):
        await peer.sent("orders")

        backwards = await read(peer, 5, 5)
        unknown = await read(peer, 0, 1, topic="nobody")
        no_list = await peer.ask(RequestCode.GET_QUEUE_RANGES, b'{"a": 1}')

    assert backwards.code == ResponseCode.INVALID_PARAMETER
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
    assert no_list.code == ResponseCode.INVALID_PARAMETER


async def test_ranges_of_queues_have_their_figures_and_the_groups_offsets() -> None:
    async with broker_and_peer() as (_, peer):
        for queue in (0, 0, 1):
            await peer.sent("orders", queue=queue)
        await peer.ask_well(
            RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="billing", topic="orders", queueId=0, commitOffset=1
        )

        answer = await peer.ask_well(RequestCode.GET_QUEUE_RANGES, b'["orders", "nobody"]', groups="true")
        everything = orjson.loads((await peer.ask_well(RequestCode.GET_QUEUE_RANGES)).body)

    body = orjson.loads(answer.body)
    queues = body["topics"]["orders"]
    assert list(body["topics"]) == ["orders"]
    assert [(queue["min"], queue["max"], queue["messages"]) for queue in queues.values()] == [
        (0, 2, 2), (0, 1, 1), (0, 0, 0), (0, 0, 0)
    ]  # fmt: skip
    assert queues["0"]["storedAt"] > queues["0"]["delayMs"] // 2 > 0
    assert body["groups"]["billing"] == {"orders": {"0": 1}}
    assert "orders" in everything["topics"]
    assert "groups" not in everything


async def test_repeats_after_a_crash_are_counted_once(tmp_path: Path) -> None:
    async with broker_and_peer(tmp_path) as (broker, peer):
        for _ in range(3):
            await peer.sent("orders")
        plugin = plugin_of(broker)
        heard = []
        broker.store.listeners.append(heard.append)
        await peer.sent("orders", TAGS="last")
        broker.catch_up()
        plugin.messages_dispatched(heard[0])

        assert plugin.marks.get("orders", 0).messages == 4
        assert plugin.marks.get("orders", 0).high == 4


async def test_a_deleted_topic_begins_anew() -> None:
    async with broker_and_peer() as (broker, peer):
        await peer.sent("orders")
        await peer.ask_well(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
        await peer.sent("orders")
        broker.catch_up()

        assert plugin_of(broker).marks.get("orders", 0).messages == 1
        assert broker.host.active["spark"].calls["messages_dispatched"].failures == 0


async def test_the_default_plugins_do_not_include_it() -> None:
    async with broker_and_peer(plugins__enable=["default"]) as (broker, peer):
        await peer.sent("orders")

        answer = await read(peer, 0, 1)

    assert "spark" not in broker.host.active
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_brokers_status_shows_what_was_served() -> None:
    async with broker_and_peer() as (broker, peer):
        await peer.sent("orders")
        await read(peer, 0, 1)

        info = plugin_of(broker).runtime_info()

    assert info["sparkDispatchedMessages"] == "1"
    assert info["sparkServedRecords"] == "1"
