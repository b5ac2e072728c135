"""Where a group is, and where a queue begins and ends."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.plugins.peer import Peer, peer
from tests.work import WorkPerTurn
from verniermq.kernel import ITEMS_PER_STEP, ConsumerOffsets, RequestCode, ResponseCode, TopicConfig
from verniermq.kernel.tables.offsets import COMMITS_PER_VERSION
from verniermq.testing import ManualClock, running_broker


async def commit(client: Peer, offset: object, queue: object = 0, **fields: object) -> int:
    usual: dict[str, object] = {"consumerGroup": "readers", "topic": "orders", "queueId": queue, "commitOffset": offset}
    return (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **{**usual, **fields})).code


async def query(client: Peer, queue: int = 0, **fields: object) -> tuple[int, str | None]:
    usual: dict[str, object] = {"consumerGroup": "readers", "topic": "orders", "queueId": queue}
    answer = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, **{**usual, **fields})
    return answer.code, answer.ext.get("offset")


# --- what a group committed ---------------------------------------------------------------


async def test_what_was_committed_is_answered() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await client.sent("orders")

        assert await commit(client, 7) == ResponseCode.SUCCESS
        assert await query(client) == (0, "7")
        assert await commit(client, 3) == ResponseCode.SUCCESS  # a smaller one is taken too
        assert await query(client) == (0, "3")
        assert await query(client, consumerGroup="others", setZeroIfNotFound="false") == (22, None)


async def test_a_new_group_on_a_young_queue_starts_at_its_first_message() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await client.sent("orders")

        assert await query(client) == (0, "0")
        assert await query(client, queue=1) == (0, "0")  # no message yet
        assert await query(client, setZeroIfNotFound="true") == (0, "0")


async def test_a_new_group_is_told_nothing_where_it_did_not_ask_for_nought() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await client.sent("orders")

        assert await query(client, setZeroIfNotFound="false") == (ResponseCode.QUERY_NOT_FOUND, None)


async def test_a_new_group_on_an_old_queue_decides_for_itself() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        for _ in range(3):
            await client.sent("orders")
        queue = broker.store.queue("orders", 0)
        assert queue is not None
        queue.min_offset = 2  # retention took the first ones

        assert await query(client) == (ResponseCode.QUERY_NOT_FOUND, None)


async def test_a_new_group_decides_for_itself_where_the_first_message_is_long_out_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("verniermq.kernel.store.store.RECENT_BYTES", 12)  # a machine of few bytes
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await client.sent("orders")

        assert await query(client) == (ResponseCode.QUERY_NOT_FOUND, None)


async def test_a_commit_needs_a_topic_a_group_and_numbers() -> None:
    async with running_broker(plugins__enable=[], groups__auto_create=False) as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("orders"))
        assert await commit(client, 1) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("orders"))
        assert await commit(client, 1, topic="nowhere") == ResponseCode.TOPIC_NOT_EXIST
        for offset, queue in ((-1, 0), ("x", 0), ("", 0), (1, -1), (1, 2**31), (1, "x"), (2**70, 0)):
            assert await commit(client, offset, queue) == ResponseCode.INVALID_PARAMETER, (offset, queue)
        assert list(broker.offsets) == []


async def test_commits_are_ignored_while_a_reset_waits_to_be_seen() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        for _ in range(5):
            await client.sent("orders")
        await commit(client, 5)
        broker.offsets.reset("readers", "orders", 0, 2)

        assert await commit(client, 5) == ResponseCode.SUCCESS
        assert await query(client) == (0, "2")
        await client.ask(
            RequestCode.PULL_MESSAGE, consumerGroup="readers", topic="orders", queueId=0, queueOffset=5, maxMsgNums=1,
            sysFlag=4, commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0,
        )  # fmt: skip
        await commit(client, 3)
        assert await query(client) == (0, "3")


async def test_offsets_are_found_again_after_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path, plugins__enable=[]) as broker, peer(broker.address) as client:
        await client.sent("orders")
        await commit(client, 7)
        await commit(client, 9, queue=3)
    written = orjson.loads((tmp_path / "config" / "consumerOffset.json").read_bytes())
    assert written["offsetTable"] == {"orders@readers": {"0": 7, "3": 9}}

    async with running_broker(tmp_path, plugins__enable=[]) as broker, peer(broker.address) as client:
        assert await query(client) == (0, "7")
        assert await query(client, queue=3) == (0, "9")


async def test_the_table_s_version_moves_now_and_then() -> None:
    async with running_broker(plugins__enable=[]) as broker:
        before = broker.offsets.version.as_json()["counter"]
        for offset in range(COMMITS_PER_VERSION * 2):
            broker.offsets.commit("readers", "orders", 0, offset)

        assert broker.offsets.version.as_json()["counter"] == before + 2


# --- where a queue begins and ends --------------------------------------------------------


async def offset(client: Peer, code: RequestCode, topic: str = "orders", **fields: object) -> int:
    answer = await client.ask_well(code, b"", **{"topic": topic, "queueId": 0, **fields})
    return int(answer.ext["offset"])


async def test_the_bounds_of_queues() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        for _ in range(3):
            await client.sent("orders")

        assert await offset(client, RequestCode.GET_MAX_OFFSET) == 3
        assert await offset(client, RequestCode.GET_MIN_OFFSET) == 0
        assert await offset(client, RequestCode.GET_MAX_OFFSET, queueId=1) == 0
        assert await offset(client, RequestCode.GET_MIN_OFFSET, queueId=1) == 0
        assert await offset(client, RequestCode.GET_MAX_OFFSET, "nowhere") == 0
        assert await offset(client, RequestCode.GET_MIN_OFFSET, "nowhere") == -1
        assert await offset(client, RequestCode.GET_MIN_OFFSET, queueId=4) == -1


async def test_offsets_by_time() -> None:
    clock = ManualClock(start=1000.0)
    async with running_broker(clock=clock, plugins__enable=[]) as broker, peer(broker.address) as client:
        for _ in range(3):  # stored at 1000 s, 1010 s, 1020 s
            await client.sent("orders")
            await clock.advance(10)

        async def at(ms: int, **fields: object) -> int:
            return await offset(client, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=ms, **fields)

        assert [await at(ms) for ms in (0, 1_000_000, 1_000_001, 1_010_000, 1_020_001)] == [0, 0, 1, 1, 3]
        upper = {"boundaryType": "upper"}
        assert [await at(ms, **upper) for ms in (0, 1_000_000, 1_019_999, 1_020_000, 9_999_999)] == [0, 0, 1, 2, 2]
        assert await at(0, queueId=3) == 0

        answer = await client.ask_well(RequestCode.GET_EARLIEST_MSG_STORETIME, topic="orders", queueId=0)
        assert answer.ext["timestamp"] == "1000000"
        answer = await client.ask_well(RequestCode.GET_EARLIEST_MSG_STORETIME, topic="orders", queueId=1)
        assert answer.ext["timestamp"] == "-1"


# --- many ---------------------------------------------------------------------------------


class Name(str):
    """A name that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


async def test_the_topics_of_a_group_are_found_without_a_search() -> None:
    async with running_broker(plugins__enable=[]) as broker:
        for number in range(200):
            broker.offsets.commit(Name(f"group-{number}"), Name("orders"), 0, 1)
        Name.compared = 0

        assert broker.offsets.topics_of("group-7") == ["orders"]
        assert len(broker.offsets.groups_of("orders")) == 200
        broker.offsets.forget(group="group-7")
        assert broker.offsets.topics_of("group-7") == []
        assert broker.offsets.committed("group-7", "orders", 0) is None
        assert Name.compared < 50


async def test_only_the_offsets_that_changed_are_written_out_anew_and_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = WorkPerTurn().watch(monkeypatch, ConsumerOffsets, "_write")
    settings = {"offsets__persist_interval": 0.01}
    async with running_broker(tmp_path, plugins__enable=[], **settings) as broker:
        for number in range(1000):
            broker.offsets.commit(f"group-{number}", "orders", 0, number)
        await broker.offsets_document.saved()
        broker.offsets.commit("group-7", "orders", 1, 70)
        await broker.offsets_document.saved()
        table = orjson.loads((tmp_path / "config" / "consumerOffset.json").read_bytes())["offsetTable"]

    assert table["orders@group-7"] == {"0": 7, "1": 70}
    assert len(table) == 1000
    assert written.total == 1001
    assert written.most <= ITEMS_PER_STEP


async def test_offsets_beyond_the_limit_are_refused_with_its_name() -> None:
    async with (
        running_broker(plugins__enable=["topics"], offsets__max_offsets=2) as broker,
        peer(broker.address) as client,
    ):
        await client.sent("orders")
        assert await commit(client, 1, 0) == ResponseCode.SUCCESS
        assert await commit(client, 1, 1) == ResponseCode.SUCCESS
        answer = await client.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="readers", topic="orders", queueId=2, commitOffset=1
        )
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "2, as many as there may be; raise max_offsets in [offsets]" in answer.remark
        assert await commit(client, 5, 1) == ResponseCode.SUCCESS

        await client.ask_well(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="readers", cleanOffset="true")
        assert await commit(client, 1, 2) == ResponseCode.SUCCESS
