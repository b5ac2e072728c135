"""A failed message's way to the retry topic, and to the dead letters, over a real socket."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.peer import Peer, peer, served
from verniermq.kernel import GroupConfig, PendingMessage, RequestCode, ResponseCode, StoredMessage
from verniermq.plugins.retry.backoff import Wait, wait_before_retry
from verniermq.plugins.retry.reasons import note_reason, reasons_of
from verniermq.testing import ManualClock, broker_process

pytestmark = pytest.mark.anyio

RETRY, DEAD = "%RETRY%group", "%DLQ%group"
SHORT = {"plugins__schedule__levels": ["1s", "2s", "3s", "4s", "5s"]}


async def first(client: Peer, topic: str, offset: int = 0) -> StoredMessage:
    return (await client.pull(topic, offset=offset))[0]


async def test_a_failed_message_comes_again_after_ten_seconds_in_the_groups_own_topic(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", b"bad", TAGS="paid", KEYS="k1", UNIQ_KEY="U1", colour="blue")
        original = await first(client, "orders")

        answer = await client.fail(original, "group", maxReconsumeTimes=16)
        await clock.advance(9.999)
        early = await client.bodies(RETRY)
        await clock.advance(0.001)
        again = await first(client, RETRY)

        assert answer.code == ResponseCode.SUCCESS
        assert early == []
        assert again.body == b"bad"
        assert again.reconsume_times == 1
        assert again.properties["RETRY_TOPIC"] == "orders"
        assert again.properties["ORIGIN_MESSAGE_ID"] == original.offset_message_id
        assert (again.tags, again.keys, again.unique_key) == ("paid", ["k1"], "U1")
        assert again.properties["colour"] == "blue"
        assert (again.flag, again.born_timestamp, again.born_host) == (
            original.flag, original.born_timestamp, original.born_host,
        )  # fmt: skip


async def test_each_failure_waits_one_level_longer_until_the_message_is_dead(tmp_path: Path) -> None:
    waits = [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
    clock = ManualClock()
    async with served(tmp_path, clock) as (broker, client):
        await client.sent("orders", b"bad")
        origin = failing = await first(client, "orders")
        for attempt, wait in enumerate(waits):
            await client.fail(failing, "group")
            await clock.jump(wait - 0.001)
            assert len(await client.bodies(RETRY)) == attempt
            await clock.jump(0.001)
            failing = await first(client, RETRY, attempt)
            assert failing.reconsume_times == attempt + 1
        await client.fail(failing, "group")
        dead = await first(client, DEAD)

        assert dead.reconsume_times == 17
        assert dead.properties["RETRY_TOPIC"] == "orders"
        assert dead.properties["ORIGIN_MESSAGE_ID"] == origin.offset_message_id
        assert dead.properties["DELAY"] == "0"
        topic = broker.topics.get(DEAD)
        assert (topic.read_queues, topic.write_queues, topic.perm) == (1, 1, 6)


async def test_the_groups_maximum_decides_once_it_was_changed(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        for body in (b"one", b"two", b"three"):
            await client.sent("orders", body)
        one, two, three = await client.pull("orders")

        await client.fail(one, "group", maxReconsumeTimes=0)  # nobody changed the group's, so the member's counts
        broker.groups.put(GroupConfig("group", {"retryMaxTimes": 0}))
        await client.fail(two, "group", maxReconsumeTimes=5)
        broker.groups.put(GroupConfig("group", {"retryMaxTimes": 5}))
        await client.fail(three, "group", maxReconsumeTimes=0)

        assert await client.bodies(DEAD) == [b"one", b"two"]


async def test_a_negative_level_means_dead_and_a_positive_one_is_taken(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders", b"dead")
        await client.sent("orders", b"soon")
        dead, soon = await client.pull("orders")

        await client.fail(dead, "group", level=-1)
        await client.fail(soon, "group", level=1)
        await clock.advance(1)

        assert await client.bodies(DEAD) == [b"dead"]
        assert await client.bodies(RETRY) == [b"soon"]


async def test_the_retry_topic_is_there_as_soon_as_a_consumer_is(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        broker.groups.put(GroupConfig("group", {"retryQueueNums": 3}))
        await client.heartbeat("group", ["orders"])

        topic = broker.topics.get(RETRY)

        assert (topic.read_queues, topic.write_queues, topic.perm, topic.order) == (3, 3, 6, False)


async def test_a_group_without_retry_queues_drops_what_failed(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        broker.groups.put(GroupConfig("group", {"retryQueueNums": 0}))
        await client.heartbeat("group", ["orders"])
        await client.sent("orders")

        answer = await client.fail(await first(client, "orders"), "group")

        assert answer.code == ResponseCode.SUCCESS
        assert RETRY not in broker.topics


async def test_what_cannot_be_given_back_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with served(tmp_path, groups__auto_create=False) as (broker, client):
        await client.sent("orders")
        unknown = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=0, group="group", delayLevel=0)
        broker.groups.put(GroupConfig("group"))
        nothing = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=17, group="group", delayLevel=0)

        assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert nothing.code == ResponseCode.SYSTEM_ERROR
        assert "17" in nothing.remark


async def test_the_reason_of_each_failure_stays_with_the_message(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock, **SHORT) as (_, client):
        await client.sent("orders")
        await client.fail(await first(client, "orders"), "group", failureReason="ValueError: no such\ncustomer")
        await clock.advance(3)
        await client.fail(await first(client, RETRY), "group", level=-1, failureReason="x" * 600)

        dead = await first(client, DEAD)

        assert reasons_of(dead.properties) == {1: "ValueError: no such customer", 2: "x" * 499 + "…"}


async def test_a_group_may_have_a_back_off_of_its_own(tmp_path: Path) -> None:
    clock = ManualClock()
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 1, 200, 700]}}
    async with served(tmp_path, clock) as (broker, client):
        broker.groups.put(GroupConfig("group", {"groupRetryPolicy": policy}))
        await client.sent("orders")
        for attempt, wait in enumerate([0.2, 0.7, 0.7]):
            failing = await first(client, RETRY if attempt else "orders", max(0, attempt - 1))
            await client.fail(failing, "group")
            await clock.advance(wait - 0.001)
            assert len(await client.bodies(RETRY)) == attempt
            await clock.advance(0.001)
            assert len(await client.bodies(RETRY)) == attempt + 1


# --- the client sends it itself ------------------------------------------------------------


async def test_a_message_sent_to_the_retry_topic_is_dead_when_it_was_tried_too_often(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        await client.sent(RETRY, b"third of three", times=3, most=3, DELAY=1, RETRY_TOPIC="orders")
        await client.sent(RETRY, b"fourth of three", times=4, most=3, DELAY=6, RETRY_TOPIC="orders")
        await client.sent(RETRY, b"17th", times=17, DELAY=18, RETRY_TOPIC="orders")
        await clock.advance(1)

        (retried,) = await client.pull(RETRY)
        dead = await client.pull(DEAD)

        assert (retried.body, retried.reconsume_times) == (b"third of three", 3)
        assert [message.body for message in dead] == [b"fourth of three", b"17th"]
        assert dead[0].properties["RETRY_TOPIC"] == "orders"


async def test_a_message_of_a_group_that_holds_a_queue_lock_is_dead(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        body = (
            b'{"clientId":"c","consumerGroup":"group",'
            b'"mqSet":[{"brokerName":"%s","queueId":0,"topic":"orders"}]}' % broker.name.encode()
        )
        await client.ask_well(RequestCode.LOCK_BATCH_MQ, body)
        await client.sent(RETRY, b"given up", times=1, most=3)
        await client.ask_well(RequestCode.UNLOCK_BATCH_MQ, body)
        await client.sent(RETRY, b"tried again", times=1, most=3)

        assert await client.bodies(DEAD) == [b"given up"]
        assert await client.bodies(RETRY) == [b"tried again"]


async def test_without_the_plugin_the_answer_names_it(tmp_path: Path) -> None:
    async with served(tmp_path, plugins__enable=[]) as (_, client):
        answer = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=0, group="group", delayLevel=0)

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "'retry'" in answer.remark


async def test_a_crash_after_the_answer_loses_no_failed_message(tmp_path: Path) -> None:
    with broker_process(tmp_path / "store") as process:
        async with peer(process.broker) as client:
            for number in range(50):
                await client.sent("orders", str(number).encode())
            for message in await client.pull("orders"):
                level = -1 if message.queue_offset % 2 else 0
                assert (await client.fail(message, "group", level)).code == ResponseCode.SUCCESS
        process.kill()
        process.start()
        process.advance(10)
        async with peer(process.broker) as client:
            retried = await client.arrived(RETRY, 25)
            dead = await client.bodies(DEAD)

    assert dead == [str(number).encode() for number in range(1, 50, 2)]
    assert retried == {str(number).encode() for number in range(0, 50, 2)}


# --- pure parts ----------------------------------------------------------------------------


@given(st.integers(0, 40))
def test_the_default_back_off_is_level_three_and_up(times: int) -> None:
    assert wait_before_retry(0, times, {"type": "CUSTOMIZED"}) == Wait(level=3 + times)
    assert wait_before_retry(7, times, {}) == Wait(level=7)


@given(st.integers(0, 100), st.integers(1, 10**6), st.integers(1, 10**7), st.integers(1, 5))
def test_an_exponential_back_off_grows_to_its_maximum(times: int, initial: int, most: int, multiplier: int) -> None:
    settings = {"initial": initial, "max": most, "multiplier": multiplier}
    wait = wait_before_retry(0, times, {"type": "EXPONENTIAL", "exponentialRetryPolicy": settings})

    assert wait.level == 0
    assert wait.milliseconds == min(most, initial * multiplier ** min(times, 32))


@pytest.mark.parametrize(
    "policy",
    [{"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": []}}, {"type": "EXPONENTIAL"}, {"type": "NEW"},
     {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": "soon"}}, {"customizedRetryPolicy": 3}],
)  # fmt: skip
def test_a_policy_that_cannot_be_followed_leaves_the_levels(policy: dict[str, object]) -> None:
    assert wait_before_retry(0, 2, policy) == Wait(level=5)


def test_only_the_newest_reasons_are_kept() -> None:
    message = PendingMessage("T", 0, b"", {})
    for attempt in range(1, 31):
        note_reason(message, attempt, f"failure {attempt}", 100)

    assert list(reasons_of(message.properties)) == list(range(11, 31))
