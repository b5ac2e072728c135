"""Queue locks over real sockets: one consumer of a group has a queue, until it is gone or silent."""

from __future__ import annotations

from pathlib import Path

import anyio
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.peer import Peer, peer, served
from tests.work import WorkPerTurn
from verniermq.kernel import ITEMS_PER_STEP, Broker, MessageQueue, RequestCode, ResponseCode
from verniermq.plugins import order
from verniermq.plugins.order.locks import QueueLocks
from verniermq.testing import ManualClock, broker_process

pytestmark = pytest.mark.anyio


def body(client: Peer, queues: list[int], group: str = "group") -> bytes:
    wanted = [{"brokerName": "b-0", "queueId": queue, "topic": "T"} for queue in queues]
    return orjson.dumps({"clientId": client.client_id, "consumerGroup": group, "mqSet": wanted})


async def lock(client: Peer, *queues: int, group: str = "group") -> list[int]:
    answer = await client.ask_well(RequestCode.LOCK_BATCH_MQ, body(client, list(queues), group))
    granted = orjson.loads(answer.body)["lockOKMQSet"]
    assert all((queue["topic"], queue["brokerName"]) == ("T", "b-0") for queue in granted)
    return [queue["queueId"] for queue in granted]


async def unlock(client: Peer, *queues: int) -> None:
    await client.ask_well(RequestCode.UNLOCK_BATCH_MQ, body(client, list(queues)))


async def test_a_locked_queue_is_refused_to_others_and_renewed_for_its_holder(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, _), peer(broker.address, "a") as a, peer(broker.address, "b") as b:
        assert await lock(a, 0, 1) == [0, 1]
        assert await lock(b, 1, 2) == [2]
        assert await lock(a, 0, 1) == [0, 1]
        assert await lock(b, 0, 1, group="other") == [0, 1]


async def test_only_the_holder_can_unlock(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, _), peer(broker.address, "a") as a, peer(broker.address, "b") as b:
        await lock(a, 0)
        await unlock(b, 0)
        assert await lock(b, 0) == []
        await unlock(a, 0)
        assert await lock(b, 0) == [0]


async def test_a_lock_is_free_sixty_seconds_after_its_last_renewal(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (broker, _), peer(broker.address, "a") as a, peer(broker.address, "b") as b:
        await lock(a, 0)
        await clock.advance(40)
        await lock(a, 0)
        await clock.advance(60)
        assert await lock(b, 0) == []
        await clock.advance(0.001)
        assert await lock(b, 0) == [0]


async def closed(broker: Broker, connections: int) -> None:
    with anyio.fail_after(30):
        while len(broker.server.connections) > connections:  # noqa: ASYNC110 - it is the socket that tells
            await anyio.sleep(0.001)


async def test_the_locks_of_a_client_that_is_gone_are_free_at_once(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, _), peer(broker.address, "b") as b:
        async with peer(broker.address, "a") as a:
            await lock(a, 0, 1)
        await closed(broker, 2)

        assert await lock(b, 0, 1) == [0, 1]


async def test_a_client_that_came_back_keeps_what_it_renewed(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, _), peer(broker.address, "b") as b, peer(broker.address, "a") as before:
        await lock(before, 0, 1)
        async with peer(broker.address, "a") as after:
            await lock(after, 0)
            before.connection.close()
            await closed(broker, 3)

            assert await lock(b, 0, 1) == [1]


async def test_locks_can_be_made_to_wait_for_their_end(tmp_path: Path) -> None:
    settings = {"plugins__order__free_on_disconnect": False, "plugins__order__lock_lifetime": "5s"}
    clock = ManualClock()
    async with served(tmp_path, clock, **settings) as (broker, _), peer(broker.address, "b") as b:
        async with peer(broker.address, "a") as a:
            await lock(a, 0)
        await closed(broker, 2)

        assert await lock(b, 0) == []
        await clock.advance(5.001)
        assert await lock(b, 0) == [0]


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"clientId":"c","consumerGroup":"g","mqSet":[{}]}'])
async def test_a_malformed_request_is_refused(tmp_path: Path, text: bytes) -> None:
    async with served(tmp_path) as (_, client):
        answer = await client.ask(RequestCode.LOCK_BATCH_MQ, text)

        assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_after_a_crash_a_queue_is_for_whoever_asks_first_and_still_in_order(tmp_path: Path) -> None:
    sent = [str(number).encode() for number in range(60)]
    with broker_process(tmp_path / "store") as process:
        async with peer(process.broker, "a") as a:
            for step in sent:
                await a.sent("T", step)
            assert await lock(a, 0) == [0]
            process.kill()
        process.start()
        async with peer(process.broker, "b") as b, peer(process.broker, "a") as a:
            assert await lock(b, 0) == [0]
            assert await lock(a, 0) == []
            assert await b.bodies("T") == sent


async def test_without_the_plugin_the_answer_names_it(tmp_path: Path) -> None:
    async with served(tmp_path, plugins__enable=[]) as (_, client):
        answer = await client.ask(RequestCode.LOCK_BATCH_MQ, body(client, [0]))

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "'order'" in answer.remark


class Someone:
    """Stands for a connection: the table of locks only asks whether two are the same."""


steps = st.lists(
    st.one_of(
        st.tuples(st.just("lock"), st.integers(0, 2), st.sets(st.integers(0, 3))),
        st.tuples(st.just("unlock"), st.integers(0, 2), st.sets(st.integers(0, 3))),
        st.tuples(st.just("gone"), st.integers(0, 2), st.just(set[int]())),
        st.tuples(st.just("wait"), st.integers(1, 70), st.just(set[int]())),
    ),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(steps)
async def test_no_queue_ever_has_two_holders(steps: list[tuple[str, int, set[int]]]) -> None:
    clock = ManualClock()
    locks = QueueLocks(clock, 60, most=4, most_per_client=4)
    connections = [Someone() for _ in range(3)]
    holders: dict[int, tuple[int, float]] = {}
    for step, who, numbers in steps:
        queues = [MessageQueue("T", "b", number) for number in numbers]
        if step == "wait":
            await clock.jump(who)
        elif step == "gone":
            locks.free_connection(connections[who])  # type: ignore[arg-type]
            holders = {queue: held for queue, held in holders.items() if held[0] != who}
        elif step == "unlock":
            for queue in queues:
                locks.unlock("group", queue, str(who))
            holders = {queue: held for queue, held in holders.items() if held[0] != who or queue not in numbers}
        else:
            connection = connections[who]
            granted = {q.queue_id for q in queues if locks.lock("group", q, str(who), connection)}  # type: ignore[arg-type]
            free = {
                number for number in numbers
                if number not in holders or holders[number][0] == who or clock.now() - holders[number][1] > 60
            }  # fmt: skip
            assert granted == free
            holders.update({number: (who, clock.now()) for number in granted})
        assert locks.is_held("group") == any(clock.now() - since <= 60 for _, since in holders.values())
        assert len(locks) >= sum(clock.now() - since <= 60 for _, since in holders.values())


# --- many ---------------------------------------------------------------------------------


async def test_a_lock_of_thousands_of_queues_lets_others_have_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = WorkPerTurn().watch(monkeypatch, order, "MessageQueue")
    async with served(tmp_path) as (_, client):
        assert await lock(client, *range(1000)) == list(range(1000))

    assert queues.total == 1000
    assert queues.most <= ITEMS_PER_STEP


@pytest.mark.parametrize("setting", ["max_locks", "max_locks_per_client"])
async def test_locks_beyond_a_limit_are_refused_with_its_name(tmp_path: Path, setting: str) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock, **{f"plugins__order__{setting}": 2}) as (broker, client):
        assert await lock(client, 0, 1) == [0, 1]
        answer = await client.ask(RequestCode.LOCK_BATCH_MQ, body(client, [0, 1, 2]))

        assert answer.code == ResponseCode.NO_PERMISSION
        assert f"2, as many as there may be; raise {setting} in [plugins.order]" in answer.remark
        assert await lock(client, 0, 1) == [0, 1], "its own are renewed all the same"
        await unlock(client, 0)
        assert await lock(client, 2) == [2]
        await clock.advance(61)
        async with peer(broker.address, "other") as other:
            assert await lock(other, 3, 4) == [3, 4], "what is over makes room"
