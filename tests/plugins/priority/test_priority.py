"""Priority messages: where they are stored, and in which order they are popped."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from tests.plugins.pop.popper import GROUP, TOPIC, Consumer, consumer
from verniermq.kernel import Broker, PluginMissing, RequestCode, ResponseCode, TopicConfig
from verniermq.plugins.pop.reader import _within
from verniermq.plugins.priority import PRIORITY, priority_of
from verniermq.testing import ManualClock, running_broker

pytestmark = pytest.mark.anyio

QUEUES = 8


@asynccontextmanager
async def served(clock: ManualClock | None = None, **settings: Any) -> AsyncIterator[tuple[Broker, Consumer]]:
    """A broker with a topic for priority messages, and a consumer of it."""
    async with running_broker(clock=clock, **settings) as broker, consumer(broker.address, broker.name) as it:
        fields = {
            "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
            "attributes": "+message.type=PRIORITY",
        }  # fmt: skip
        answer = await it.peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert answer.code == 0, answer.remark
        yield broker, it


async def send(it: Consumer, priority: object, body: bytes = b"x", **properties: str) -> int:
    """Send one message; returns the queue that the producer is told."""
    answer = await it.peer.send(it.topic, body, {PRIORITY: str(priority), **properties}, queue_id=2)
    assert answer.code == 0, answer.remark
    return int(answer.ext["queueId"])


async def set_factor(it: Consumer, factor: object) -> int:
    body = orjson.dumps({"groupName": GROUP, "attributes": {"+priority.factor": str(factor)}})
    return (await it.peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code


# --- sending -------------------------------------------------------------------------------


@pytest.mark.parametrize(("priority", "queue"), [(0, 0), (5, 5), (7, 7), (8, 7), (2**31 - 1, 7)])
async def test_a_message_goes_to_the_queue_of_its_priority_and_its_producer_is_told(priority: int, queue: int) -> None:
    async with served() as (_, it):
        assert await send(it, priority) == queue

        (popped,) = await it.pop()
        assert popped.message.queue_id == queue
        assert popped.message.properties[PRIORITY] == str(priority)


@pytest.mark.parametrize("priority", ["-1", "", "high", "1.5", "9" * 5000])
async def test_what_is_no_priority_is_passed_over(priority: str) -> None:
    async with served() as (_, it):
        assert await send(it, priority) == 2
        (popped,) = await it.pop()
        assert PRIORITY not in popped.message.properties


@pytest.mark.parametrize(
    "other", [{"__SHARDINGKEY": "k"}, {"TRAN_MSG": "true"}, {"DELAY": "1"}, {"TIMER_DELAY_SEC": "9"}]
)
def test_a_message_of_another_kind_has_no_priority(other: dict[str, str]) -> None:
    assert priority_of({PRIORITY: "3"}) == 3
    assert priority_of({PRIORITY: "3", **other}) is None


async def test_a_message_with_a_sharding_key_stays_in_the_queue_that_its_producer_chose() -> None:
    async with served() as (_, it):
        assert await send(it, 7, __SHARDINGKEY="k") == 2


async def test_a_topic_need_not_be_one_for_priorities_to_store_by_them() -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        assert await send(it, 3) == 3


async def test_without_the_plugin_the_message_and_the_attribute_are_refused_with_its_name() -> None:
    async with running_broker(plugins__disable=["priority"]) as broker, consumer(broker.address, broker.name) as it:
        answer = await it.peer.send(it.topic, b"x", {PRIORITY: "3"})

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert str(PluginMissing("priority", f"a message with the property {PRIORITY}")) == answer.remark
        assert await set_factor(it, 3) == ResponseCode.INVALID_PARAMETER


# --- popping -------------------------------------------------------------------------------


@pytest.mark.parametrize(("highest_first", "order"), [(True, range(QUEUES)[::-1]), (False, range(QUEUES))])
async def test_the_more_urgent_message_is_popped_first(highest_first: bool, order: range) -> None:
    async with served(plugins__priority__highest_first=highest_first) as (_, it):
        for priority in (3, 0, 7, 1, 6, 2, 5, 4):
            await send(it, priority)

        popped = [(await it.pop(maxMsgNums=1))[0].message.queue_id for _ in range(QUEUES)]

        assert popped == list(order)


async def test_as_long_as_there_is_something_urgent_nothing_else_is_popped() -> None:
    async with served() as (_, it):
        for priority in range(QUEUES):
            for _ in range(20):
                await send(it, priority)

        singly = Counter([(await it.pop(maxMsgNums=1))[0].message.queue_id for _ in range(20)])
        together = [popped.message.queue_id for popped in await it.pop(maxMsgNums=30)]

        assert singly == {7: 20}
        assert together == [6] * 20 + [5] * 10


async def test_a_group_may_pop_regardless_of_priorities() -> None:
    async with served() as (_, it):
        assert await set_factor(it, 0) == 0
        for _ in range(40):
            for priority in range(QUEUES):
                await send(it, priority)

        first = Counter([(await it.pop(maxMsgNums=1))[0].message.queue_id for _ in range(100)])

        # By priority they would be of three queues.
        assert len(first) > 3


@pytest.mark.parametrize("factor", ["-1", "101", "all"])
async def test_a_factor_out_of_range_is_refused(factor: str) -> None:
    async with served() as (broker, it):
        assert await set_factor(it, factor) == ResponseCode.INVALID_PARAMETER
        assert GROUP not in broker.groups


async def test_the_queues_of_another_topic_are_popped_from_a_random_one_on() -> None:
    async with running_broker() as broker, consumer(broker.address, broker.name) as it:
        broker.topics.put(TopicConfig(TOPIC, QUEUES, QUEUES))
        for _ in range(40):
            for priority in range(QUEUES):
                await send(it, priority)

        assert len({(await it.pop(maxMsgNums=1))[0].message.queue_id for _ in range(100)}) > 3


# --- trying again --------------------------------------------------------------------------


@pytest.mark.parametrize(("percent", "place"), [(0, -1), (100, 0)])
async def test_what_is_tried_again_comes_last_or_first(percent: int, place: int) -> None:
    clock = ManualClock()
    async with served(clock, plugins__priority__retry_first_percent=percent) as (_, it):
        await send(it, 0, b"again")
        assert [popped.body for popped in await it.pop(invisibleTime=10_000)] == [b"again"]
        await clock.advance(11)
        for priority in range(QUEUES):
            await send(it, priority, b"new")

        bodies = [(await it.pop(maxMsgNums=1))[0].body for _ in range(QUEUES + 1)]

        assert bodies.index(b"again") == range(QUEUES + 1)[place]


async def test_what_is_tried_again_keeps_its_priority_in_a_queue_of_its_own() -> None:
    clock = ManualClock()
    async with served(clock, plugins__pop__separate_retry_queues=True) as (_, it):
        for priority in (1, 6, 3):
            await send(it, priority, str(priority).encode())
        assert len(await it.pop(invisibleTime=10_000)) == 3
        await clock.advance(11)

        again = [(await it.pop(maxMsgNums=1, invisibleTime=10_000))[0] for _ in range(3)]
        await clock.advance(11)
        once_more = await it.pop()

        assert [popped.body for popped in again] == [b"6", b"3", b"1"]
        assert [popped.body for popped in once_more] == [b"6", b"3", b"1"]
        assert [popped.message.queue_id for popped in again] == [6, 3, 1]
        assert [popped.message.reconsume_times for popped in once_more] == [2, 2, 2]
        assert [(await it.ack(popped)).code for popped in once_more] == [0, 0, 0]
        await clock.advance(120)
        assert await it.pop() == []


async def test_a_retry_topic_that_gets_more_queues_stays_as_it_is_otherwise() -> None:
    clock, retry = ManualClock(), f"%RETRY%{GROUP}_{TOPIC}"
    async with served(clock, plugins__pop__separate_retry_queues=True) as (broker, it):
        broker.topics.put(TopicConfig(retry, 1, 1, perm=7, sys_flag=1))
        await send(it, 5)
        assert len(await it.pop(invisibleTime=10_000)) == 1
        await clock.advance(11)

        assert [popped.message.queue_id for popped in await it.pop()] == [5]
        assert broker.topics.get(retry) == TopicConfig(retry, 6, 6, perm=7, sys_flag=1)


def test_all_queues_of_a_retry_topic_are_found_in_the_order_of_the_topic() -> None:
    assert _within([2, 1, 0], 5) == [2, 1, 0, 3, 4]
    assert _within([2, 1, 0], 2) == [1, 0]
    assert _within([0, 1], 1) == [0]
    assert _within(range(60_000)[::-1], 65_536)[-1] == 65_535, "each queue is looked for once, not once for each other"


async def test_queues_of_the_retry_topic_are_looked_into_also_when_they_are_not_used_any_more() -> None:
    clock = ManualClock()
    async with served(clock) as (broker, it):
        broker.topics.put(TopicConfig(f"%RETRY%{GROUP}_{TOPIC}", 4, 4))
        await it.peer.send(f"%RETRY%{GROUP}_{TOPIC}", b"left", {}, queue_id=3)

        assert [popped.body for popped in await it.pop()] == [b"left"]
