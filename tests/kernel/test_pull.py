"""PULL_MESSAGE: every row of the table of results, filters, limits and permissions."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.kernel.pulling import COMMIT, pull
from tests.plugins.peer import Peer, peer
from tests.work import WorkPerTurn
from verniermq.kernel import (
    Broker,
    Command,
    GroupConfig,
    PendingMessage,
    Perm,
    RequestCode,
    ResponseCode,
    TopicConfig,
    decode_records,
)
from verniermq.kernel.handlers.pull import TESTED_PER_PULL
from verniermq.kernel.store import matches
from verniermq.testing import running_broker


async def fill(client: Peer, count: int, topic: str = "orders", **properties: object) -> None:
    for number in range(count):
        await client.sent(topic, str(number).encode(), **properties)


def bodies(answer: Command) -> list[bytes]:
    return [message.body for message in decode_records(answer.body)]


def bounds(answer: Command) -> tuple[int, ...]:
    return tuple(int(answer.ext[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset"))


def drop_first(broker: Broker, client: Peer, messages: int) -> None:
    """Have the queue begin later, as when retention deleted what came before."""
    queue = broker.store.queue("orders", 0)
    assert queue is not None
    queue.min_offset = messages


# --- the table ----------------------------------------------------------------------------


async def test_messages_that_are_there_are_found() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await fill(client, 5)
        answer = await pull(client, offset=2)

    assert answer.code == ResponseCode.SUCCESS
    assert bodies(answer) == [b"2", b"3", b"4"]
    assert bounds(answer) == (5, 0, 5)
    assert answer.ext["suggestWhichBrokerId"] == "0"


async def test_the_next_offset_is_behind_the_last_message_looked_at_matched_or_not() -> None:
    async with running_broker(plugins__enable=["filter"]) as broker, peer(broker.address) as client:
        await client.sent("orders", b"a", TAGS="red")
        await client.sent("orders", b"b", TAGS="blue")
        await client.sent("orders", b"c", TAGS="blue")
        answer = await pull(client, subscription="red")

    assert (answer.code, bodies(answer)) == (ResponseCode.SUCCESS, [b"a"])
    assert bounds(answer) == (3, 0, 3)


async def test_messages_none_of_which_match_are_passed_over() -> None:
    async with running_broker(plugins__enable=["filter"]) as broker, peer(broker.address) as client:
        await fill(client, 4, TAGS="blue")
        answer = await pull(client, offset=1, subscription="red")

    assert (answer.code, answer.body) == (ResponseCode.PULL_RETRY_IMMEDIATELY, b"")
    assert bounds(answer) == (4, 0, 4)


async def test_a_filtered_pull_looks_at_so_many_and_says_how_far_it_came() -> None:
    async with (
        running_broker(plugins__enable=["filter"], pull__max_scan=3) as broker,
        peer(broker.address) as client,
    ):
        await fill(client, 10, TAGS="blue")
        answer = await pull(client, offset=2, subscription="red", maxMsgNums=1)

    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert bounds(answer) == (5, 0, 10)


@pytest.mark.parametrize(
    ("offset", "code", "following"),
    [
        (5, ResponseCode.PULL_NOT_FOUND, 5),
        (0, ResponseCode.PULL_OFFSET_MOVED, 2),
        (1, ResponseCode.PULL_OFFSET_MOVED, 2),
        (-1, ResponseCode.PULL_OFFSET_MOVED, 2),
        (6, ResponseCode.PULL_OFFSET_MOVED, 5),
        (2**62, ResponseCode.PULL_OFFSET_MOVED, 5),
    ],
)
async def test_an_offset_outside_the_queue_is_corrected(offset: int, code: ResponseCode, following: int) -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await fill(client, 5)
        drop_first(broker, client, 2)
        answer = await pull(client, offset=offset)

    assert (answer.code, answer.body) == (code, b"")
    assert bounds(answer) == (following, 2, 5)


@pytest.mark.parametrize(
    ("offset", "code"), [(0, ResponseCode.PULL_NOT_FOUND), (7, ResponseCode.PULL_OFFSET_MOVED), (-1, 21)]
)
async def test_a_queue_without_a_message_begins_at_nought(offset: int, code: int) -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("orders"))
        answer = await pull(client, offset=offset)

    assert answer.code == code
    assert bounds(answer) == (0, 0, 0)


async def test_a_reset_moves_the_next_pull_once() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await fill(client, 5)
        broker.offsets.reset("readers", "orders", 0, 1)
        moved = await pull(client, offset=5)
        again = await pull(client, offset=1)

    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
    assert bodies(again) == [b"1", b"2", b"3", b"4"]


# --- how much at a time -------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "got"), [(3, 3), (0, 1), (-5, 1), (10**12, 10)])
async def test_no_more_messages_than_asked_for_and_at_least_one(asked: int, got: int) -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await fill(client, 10)
        answer = await pull(client, maxMsgNums=asked)

    assert len(bodies(answer)) == got
    assert answer.ext["nextBeginOffset"] == str(got)


async def test_an_answer_has_at_most_so_many_bytes_but_one_message_always_goes() -> None:
    async with running_broker(plugins__enable=[], pull__max_bytes="10KiB") as broker, peer(broker.address) as client:
        for size in (20_000, 4_000, 4_000, 4_000):
            await client.sent("orders", bytes(size))
        large, small = await pull(client), await pull(client, offset=1)

    assert [len(body) for body in bodies(large)] == [20_000]
    assert [len(body) for body in bodies(small)] == [4_000, 4_000]
    assert small.ext["nextBeginOffset"] == "3"


# --- which filter -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("*", [b"red", b"blue", b"none"]),
        ("", [b"red", b"blue", b"none"]),
        ("red", [b"red"]),
        ("red || blue", [b"red", b"blue"]),
        (" blue||red ", [b"red", b"blue"]),
        ("green", []),
    ],
)
async def test_tags_choose_the_messages(expression: str, found: list[bytes]) -> None:
    async with running_broker(plugins__enable=["filter"]) as broker, peer(broker.address) as client:
        await client.sent("orders", b"red", TAGS="red")
        await client.sent("orders", b"blue", TAGS="blue")
        await client.sent("orders", b"none")

        assert bodies(await pull(client, subscription=expression)) == found


async def heartbeat(
    client: Peer, expression: str = "red", kind: str = "TAG", subscription_version: int = 10, **consumer: Any
) -> None:
    subscription = {
        "topic": "orders", "subString": expression, "expressionType": kind, "subVersion": subscription_version
    }  # fmt: skip
    group = {"groupName": "readers", "messageModel": "CLUSTERING", "subscriptionDataSet": [subscription], **consumer}
    await client.ask_well(RequestCode.HEART_BEAT, orjson.dumps({"clientID": "me", "consumerDataSet": [group]}))


async def test_without_a_subscription_of_its_own_a_pull_uses_the_heartbeat_s() -> None:
    async with running_broker(plugins__enable=["filter"]) as broker, peer(broker.address) as client:
        await client.sent("orders", b"red", TAGS="red")
        await client.sent("orders", b"blue", TAGS="blue")
        early = await pull(client, sysFlag=0, subVersion=10)
        await heartbeat(client)
        right = await pull(client, sysFlag=0, subVersion=10)
        broker.topics.put(TopicConfig("other"))
        other = await pull(client, "other", sysFlag=0, subVersion=10)

    assert early.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert bodies(right) == [b"red"]
    assert other.code == ResponseCode.SUBSCRIPTION_NOT_EXIST


async def test_a_newer_subscription_than_the_heartbeat_s_reads_everything_if_it_is_for_tags() -> None:
    async with running_broker() as broker, peer(broker.address) as client:
        await client.sent("orders", b"red", TAGS="red")
        await client.sent("orders", b"blue", TAGS="blue")
        await heartbeat(client)
        newer = await pull(client, sysFlag=0, subVersion=11)
        other_kind = await pull(client, sysFlag=0, subVersion=11, expressionType="SQL92")
        await heartbeat(client, "number > 1", kind="SQL92", subscription_version=12)
        newer_condition = await pull(client, sysFlag=0, subVersion=13, expressionType="SQL92")

    assert bodies(newer) == [b"red", b"blue"]
    assert other_kind.code == newer_condition.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def test_a_bad_expression_of_a_heartbeat_is_told_to_each_pull() -> None:
    async with running_broker() as broker, peer(broker.address) as client:
        await client.sent("orders")
        await heartbeat(client, "a >", kind="SQL92")
        answers = [await pull(client, sysFlag=0, subVersion=10) for _ in range(3)]
        (group,) = broker.clients.consumers.values()
        error = group.subscriptions["orders"].error

    assert {answer.code for answer in answers} == {ResponseCode.SUBSCRIPTION_PARSE_FAILED}
    assert error is not None
    depth, trace = 0, error.__traceback__
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    assert depth < 10, "the error keeps a traceback that grows with each pull"


@pytest.mark.parametrize(("kind", "plugin"), [("TAG", "filter"), ("SQL92", "sql"), ("MOOD", "mood")])
async def test_an_expression_that_nobody_understands_names_the_plugin_that_would(kind: str, plugin: str) -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await client.sent("orders")
        answer = await pull(client, subscription="a", expressionType=kind)

    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert f"needs the plugin '{plugin}', which is not active" in answer.remark


# --- who may ------------------------------------------------------------------------------


async def test_what_may_not_be_pulled_is_refused() -> None:
    async with running_broker(plugins__enable=[], groups__auto_create=False) as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("orders"))
        broker.topics.put(TopicConfig("write_only", perm=Perm.WRITE))
        broker.groups.put(GroupConfig("readers"))
        broker.groups.put(GroupConfig("paused", {"consumeEnable": False}))
        broker.groups.put(GroupConfig("forbidden"))
        broker.groups.forbidden["forbidden"] = {"orders": Perm.READ}
        codes = [
            (await pull(client, "nowhere")).code,
            (await pull(client, "write_only")).code,
            (await pull(client, queueId=4)).code,
            (await pull(client, queueId=-1)).code,
            (await pull(client, consumerGroup="unknown")).code,
            (await pull(client, consumerGroup="paused")).code,
            (await pull(client, consumerGroup="forbidden")).code,
            (await pull(client)).code,
        ]

    assert codes == [17, 16, 29, 29, 26, 16, 16, 19]


async def test_a_group_that_may_not_broadcast_is_refused_when_it_does() -> None:
    async with running_broker(plugins__enable=["filter"]) as broker, peer(broker.address) as client:
        await client.sent("orders", TAGS="red")
        broker.groups.put(GroupConfig("readers", {"consumeBroadcastEnable": False}))
        await heartbeat(client)
        assert (await pull(client)).code == ResponseCode.SUCCESS
        await heartbeat(client, messageModel="BROADCASTING")
        assert (await pull(client)).code == ResponseCode.NO_PERMISSION


# --- committing on the way ----------------------------------------------------------------


@pytest.mark.parametrize(("flags", "offset", "kept"), [(4, 3, None), (4 | COMMIT, 3, 3), (4 | COMMIT, -1, None)])
async def test_a_pull_commits_when_its_flag_says_so(flags: int, offset: int, kept: int | None) -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await fill(client, 5)
        await pull(client, offset=5, sysFlag=flags, commitOffset=offset)

        assert broker.offsets.committed("readers", "orders", 0) == kept


async def test_a_pull_may_be_a_lite_one() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await fill(client, 1)
        answer = await client.ask(
            RequestCode.LITE_PULL_MESSAGE, consumerGroup="readers", topic="orders", queueId=0, queueOffset=0,
            maxMsgNums=10, sysFlag=0x14, commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0,
        )  # fmt: skip

    assert bodies(answer) == [b"0"]


async def test_a_pull_has_its_filter_test_so_many_messages_and_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tested = WorkPerTurn().watch(monkeypatch, matches, "properties_of")
    async with running_broker(plugins__enable=["sql"]) as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("orders"))
        messages = [PendingMessage("orders", 0, b"", {"price": "5"}) for _ in range(TESTED_PER_PULL + 10)]
        broker.store.append_batch(messages)
        broker.store.dispatch()

        answer = await pull(client, offset=0, subscription="price > 10", expressionType="SQL92", maxMsgNums=1024)

    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext["nextBeginOffset"] == str(TESTED_PER_PULL)
    assert tested.most == TESTED_PER_PULL
