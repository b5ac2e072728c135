"""Which queues a consumer is told to pull or pop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.txn.peers import Peer, peer
from verniermq.kernel import MessageQueue, RequestCode, ResponseCode
from verniermq.plugins.allocate.averagely import averagely
from verniermq.plugins.pop.assignment import share_popped
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

GROUP = {"groupName": "G", "messageModel": "CLUSTERING", "consumeType": "CONSUME_PASSIVELY", "subscriptionDataSet": []}


async def query(it: Peer, topic: str = "T", strategy: str = "AVG", model: str = "CLUSTERING") -> Any:
    body = {
        "clientId": it.client_id, "consumerGroup": "G", "messageModel": model, "strategyName": strategy, "topic": topic,
    }  # fmt: skip
    answer = await it.ask(RequestCode.QUERY_ASSIGNMENT, {}, orjson.dumps(body))
    assert answer.code == 0, answer.remark
    return orjson.loads(answer.body)["messageQueueAssignments"]


def queue_ids(assignments: Any) -> list[int]:
    return sorted(one["messageQueue"]["queueId"] for one in assignments)


async def set_mode(it: Peer, mode: str = "POP", topic: str = "T", group: str = "G", share: int = 0) -> int:
    body = {"consumerGroup": group, "mode": mode, "popShareQueueNum": share, "topic": topic}
    return (await it.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, orjson.dumps(body))).code


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE"])
async def test_pulled_queues_are_shared_out(strategy: str) -> None:
    async with running_broker() as broker, peer(broker.address, "a") as a, peer(broker.address, "b") as b:
        await a.send("T")
        await a.join(consumers=(GROUP,))
        assert queue_ids(await query(a, strategy=strategy)) == [0, 1, 2, 3]
        await b.join(consumers=(GROUP,))

        to_a, to_b = await query(a, strategy=strategy), await query(b, strategy=strategy)

        assert queue_ids(to_a + to_b) == [0, 1, 2, 3]
        assert len(to_a) == len(to_b) == 2
        assert to_a[0]["mode"] == "PULL"
        assert to_a[0]["messageQueue"]["topic"] == "T"
        assert to_a[0]["messageQueue"]["brokerName"] == broker.name


async def test_popped_queues_are_everybodys_and_the_mode_is_remembered(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, peer(broker.address, "a") as a:
        await a.send("T")
        await a.join(consumers=(GROUP,))
        assert await set_mode(a) == 0
    async with running_broker(tmp_path) as broker, peer(broker.address, "a") as a:
        await a.join(consumers=(GROUP,))

        (any_queue,) = await query(a)

        assert any_queue["mode"] == "POP"
        assert any_queue["messageQueue"]["queueId"] == -1
        modes = orjson.loads((await a.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body)
        assert modes["messageRequestModeMap"]["T"]["G"]["mode"] == "POP"


async def test_a_retry_topic_is_always_pulled() -> None:
    async with running_broker(plugins__pop__default_mode="POP") as broker, peer(broker.address, "a") as a:
        await a.send("T")
        await a.join(consumers=(GROUP,))
        await a.send("%RETRY%G")

        assert (await query(a))[0]["mode"] == "POP"
        assert (await query(a, "%RETRY%G"))[0]["mode"] == "PULL"
        assert await set_mode(a, topic="%RETRY%G") == ResponseCode.NO_PERMISSION


async def test_a_mode_needs_a_topic_and_a_group() -> None:
    async with running_broker() as broker, peer(broker.address, "a") as a:
        await a.send("T")
        await a.join(consumers=(GROUP,))
        assert await set_mode(a, topic="absent") == ResponseCode.TOPIC_NOT_EXIST
        assert await set_mode(a, group="a b") == ResponseCode.INVALID_PARAMETER
        assert await set_mode(a, mode="PUSH") == ResponseCode.INVALID_PARAMETER
        assert await set_mode(a, share=2**31) == ResponseCode.INVALID_PARAMETER


async def test_a_mode_may_be_set_before_the_group_has_a_consumer() -> None:
    async with running_broker() as broker, peer(broker.address, "a") as a:
        await a.send("T")
        assert await set_mode(a, group="absent", mode="PUSH") == ResponseCode.INVALID_PARAMETER
        assert broker.groups.find("absent") is None, "created for a mode that was refused"
        assert await set_mode(a, group="absent") == 0
        assert broker.groups.find("absent") is not None
    async with running_broker(groups__auto_create=False) as broker, peer(broker.address, "a") as a:
        await a.send("T")
        assert await set_mode(a, group="absent") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_broadcasting_consumers_get_every_queue_and_strangers_none() -> None:
    async with running_broker() as broker, peer(broker.address, "a") as a, peer(broker.address, "b") as stranger:
        await a.send("T")
        await a.join(consumers=(GROUP,))
        assert queue_ids(await query(stranger, model="BROADCASTING")) == [0, 1, 2, 3]
        assert await query(stranger) == []
        assert await query(a, "absent") is None
        assert await query(a, strategy="BY_MOOD") is None


QUEUES = st.integers(1, 20).map(lambda count: [MessageQueue("T", "b", number) for number in range(count)])
CLIENTS = st.integers(1, 12).map(lambda count: [f"c{number:02}" for number in range(count)])


@given(QUEUES, CLIENTS, st.integers(-1, 12))
def test_popped_queues_are_shared_by_as_many_as_wanted(
    queues: list[MessageQueue], clients: list[str], share: int
) -> None:
    def allocate(client: str) -> list[MessageQueue]:
        return averagely(client, queues, clients)

    shares = [share_popped(allocate, queues, clients, me, share) for me in clients]

    if share <= 0 or share >= len(clients) - 1:
        assert shares == [[MessageQueue("T", "b", -1)]] * len(clients)
    else:
        assert all(shares), "everybody has something to do"
        assert {queue for one in shares for queue in one} == set(queues)
        if len(clients) <= len(queues):
            assert {sum(queue in one for one in shares) for queue in queues} == {share + 1}
