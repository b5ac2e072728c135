"""Pulls that wait: woken by a message that is for them, by their deadline, by nothing else."""

from __future__ import annotations

import anyio
import pytest

from tests.kernel.pulling import COMMIT, INCLUDED, SUSPEND, Waiting, until
from tests.plugins.peer import Peer, peer
from tests.work import WorkPerTurn
from verniermq.kernel import MATCH_ALL, ResponseCode, TopicConfig, connect, decode_records
from verniermq.kernel.handlers.longpoll import BYTES_PER_PULL, PULLS_PER_STEP, HeldPull
from verniermq.kernel.handlers.pull import PullHandler
from verniermq.testing import ManualClock, running_broker


async def test_a_message_wakes_the_pull_that_waits_for_it() -> None:
    # A clock that stands still: nothing but the message can have woken it.
    clock = ManualClock()
    async with running_broker(clock=clock, plugins__enable=[]) as broker, peer(broker.address) as client:
        await client.sent("orders", b"old")
        waiting = Waiting()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting.run, client, "orders", 1, {})
            await until(lambda: len(broker.held_pulls) == 1)
            await client.sent("orders", b"elsewhere", queue=1)
            assert waiting.answer is None
            await client.sent("orders", b"new")

        assert waiting.answer is not None
        assert [message.body for message in decode_records(waiting.answer.body)] == [b"new"]
        assert len(broker.held_pulls) == 0


@pytest.mark.parametrize(
    ("kind", "expression", "wrong", "right"),
    [
        ("TAG", "red", {"TAGS": "blue"}, {"TAGS": "red"}),
        ("TAG", "red || green", {}, {"TAGS": "green"}),
        ("SQL92", "price > 10", {"price": 5}, {"price": 11}),
    ],
)
async def test_only_a_message_that_matches_wakes_it(
    kind: str, expression: str, wrong: dict[str, object], right: dict[str, object]
) -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("orders"))
        waiting = Waiting()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting.run, client, "orders", 0, {"subscription": expression, "expressionType": kind})
            await until(lambda: len(broker.held_pulls) == 1)
            await client.sent("orders", b"wrong", **wrong)
            await client.sent("orders", b"wrong", **wrong)
            assert waiting.answer is None
            await client.sent("orders", b"right", **right)

        assert waiting.answer is not None
        assert [message.body for message in decode_records(waiting.answer.body)] == [b"right"]
        assert waiting.answer.ext["nextBeginOffset"] == "3"


@pytest.mark.parametrize(("asked_ms", "seconds"), [(15_000, 15), (3_600_000, 25), (1, 0.05)])
async def test_a_pull_is_answered_when_its_time_is_over(asked_ms: int, seconds: float) -> None:
    clock = ManualClock()
    async with running_broker(clock=clock, plugins__enable=[]) as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("orders"))
        waiting = Waiting()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting.run, client, "orders", 0, {"suspendTimeoutMillis": asked_ms})
            await until(lambda: len(broker.held_pulls) == 1)
            await clock.advance(seconds * 0.9)
            assert len(broker.held_pulls) == 1
            await clock.advance(seconds * 0.1)

        assert waiting.answer is not None
        assert waiting.answer.code == ResponseCode.PULL_NOT_FOUND
        assert waiting.answer.ext["nextBeginOffset"] == "0"


async def test_at_its_end_a_filtered_pull_says_how_far_it_looked() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock, plugins__enable=["filter"]) as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("orders"))
        waiting = Waiting()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting.run, client, "orders", 0, {"subscription": "red"})
            await until(lambda: len(broker.held_pulls) == 1)
            for _ in range(3):
                await client.sent("orders", TAGS="blue")
            await clock.advance(20)

        assert waiting.answer is not None
        assert (waiting.answer.code, waiting.answer.ext["nextBeginOffset"]) == (20, "3")


@pytest.mark.parametrize("fields", [{"sysFlag": INCLUDED}, {"suspendTimeoutMillis": 0}, {"queueOffset": 9}])
async def test_what_need_not_wait_does_not(fields: dict[str, object]) -> None:
    async with running_broker(clock=ManualClock(), plugins__enable=[]) as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("orders"))
        waiting = Waiting()
        await waiting.run(client, "orders", 0, fields)

        assert waiting.answer is not None
        assert len(broker.held_pulls) == 0


async def test_earlier_deadlines_come_first_whatever_the_order_of_the_pulls() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock, plugins__enable=[]) as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("orders"))
        pulls = [Waiting(), Waiting(), Waiting()]
        async with anyio.create_task_group() as tasks:
            for number, (waiting, wait_ms) in enumerate(zip(pulls, (20_000, 5_000, 10_000), strict=True), 1):
                tasks.start_soon(waiting.run, client, "orders", 0, {"queueId": number, "suspendTimeoutMillis": wait_ms})
                await until(lambda number=number: len(broker.held_pulls) == number)
            for number in (1, 2, 0):
                first = pulls[number]
                assert first.answer is None
                await clock.advance(5 if number else 10)
                await until(lambda first=first: first.answer is not None)
                assert sum(waiting.answer is None for waiting in pulls) == {1: 2, 2: 1, 0: 0}[number]


async def test_a_waiting_pull_commits_once_and_at_its_beginning() -> None:
    async with running_broker(clock=ManualClock(), plugins__enable=[]) as broker, peer(broker.address) as client:
        await client.sent("orders")
        waiting = Waiting()
        async with anyio.create_task_group() as tasks:
            fields: dict[str, object] = {"sysFlag": INCLUDED | SUSPEND | COMMIT, "commitOffset": 1}
            tasks.start_soon(waiting.run, client, "orders", 1, fields)
            await until(lambda: len(broker.held_pulls) == 1)
            assert broker.offsets.committed("readers", "orders", 0) == 1
            broker.offsets.commit("readers", "orders", 0, 0)
            await client.sent("orders")

        assert broker.offsets.committed("readers", "orders", 0) == 0


async def test_a_closed_connection_is_forgotten() -> None:
    async with running_broker(clock=ManualClock(), plugins__enable=[]) as broker, peer(broker.address) as other:
        broker.topics.put(TopicConfig("orders"))
        async with peer(broker.address) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(Waiting().run, client, "orders", 0, {})
            tasks.start_soon(Waiting().run, client, "orders", 0, {"queueId": 1})
            await until(lambda: len(broker.held_pulls) == 2)
            tasks.cancel_scope.cancel()
        await until(lambda: len(broker.held_pulls) == 0)

        await other.sent("orders", b"nobody waits")


async def test_many_pulls_wait_and_each_gets_its_own_message() -> None:
    async with running_broker(clock=ManualClock(), plugins__enable=[], topics__default_queues=64) as broker:
        broker.topics.put(TopicConfig("orders", 64, 64))
        async with peer(broker.address) as consumer, peer(broker.address) as producer:
            pulls = [Waiting() for _ in range(64)]
            async with anyio.create_task_group() as tasks:
                for queue, waiting in enumerate(pulls):
                    tasks.start_soon(waiting.run, consumer, "orders", 0, {"queueId": queue})
                await until(lambda: len(broker.held_pulls) == 64)
                for queue in reversed(range(64)):
                    await producer.sent("orders", str(queue).encode(), queue=queue)

            found = [decode_records(waiting.answer.body)[0].body for waiting in pulls if waiting.answer is not None]
            assert found == [str(queue).encode() for queue in range(64)]


async def test_a_broker_that_stops_answers_those_who_wait() -> None:
    waiting = Waiting()
    async with (
        anyio.create_task_group() as tasks,
        running_broker(clock=ManualClock(), plugins__enable=[]) as broker,
    ):
        broker.topics.put(TopicConfig("orders"))
        tasks.start_soon(waiting.run, Peer(await connect(broker.address)), "orders", 0, {})
        await until(lambda: len(broker.held_pulls) == 1)

    assert waiting.answer is not None
    assert waiting.answer.code == ResponseCode.PULL_NOT_FOUND


# --- many pulls ----------------------------------------------------------------------------


class CountedPull(HeldPull):
    """Counts how often it is compared with another one."""

    comparisons = 0
    __hash__ = HeldPull.__hash__

    def __eq__(self, other: object) -> bool:
        CountedPull.comparisons += 1
        return self is other


async def test_a_lost_connection_takes_its_pulls_along_without_comparing_them() -> None:
    CountedPull.comparisons = 0
    async with running_broker(clock=ManualClock(), plugins__enable=[]) as broker:
        client = await connect(broker.address)
        await until(lambda: broker.server.connections)
        (connection,) = broker.server.connections
        deadline = broker.clock.monotonic() + 20
        for _ in range(500):
            broker.held_pulls.hold(CountedPull("orders", 0, 0, MATCH_ALL, deadline, connection, lambda: None))
        client.close()
        await until(lambda: len(broker.held_pulls) == 0)

    assert CountedPull.comparisons < 500


async def test_a_message_that_wakes_hundreds_of_pulls_lets_others_have_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = WorkPerTurn().watch(monkeypatch, PullHandler, "_execute_again")
    async with running_broker(clock=ManualClock(), plugins__enable=[]) as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("orders"))
        pulls = [Waiting() for _ in range(300)]
        async with anyio.create_task_group() as tasks:
            for waiting in pulls:
                tasks.start_soon(waiting.run, client, "orders", 0, {})
            await until(lambda: len(broker.held_pulls) == 300)
            await client.sent("orders", b"new")

    assert answers.total == 300
    assert answers.most <= PULLS_PER_STEP
    assert all(waiting.answer is not None and waiting.answer.code == ResponseCode.SUCCESS for waiting in pulls)


async def test_a_large_message_that_wakes_many_pulls_lets_others_have_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, body = WorkPerTurn().watch(monkeypatch, PullHandler, "_execute_again"), bytes(1024 * 1024)
    async with running_broker(clock=ManualClock(), plugins__enable=[]) as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("orders"))
        pulls = [Waiting() for _ in range(40)]
        async with anyio.create_task_group() as tasks:
            for waiting in pulls:
                tasks.start_soon(waiting.run, client, "orders", 0, {})
            await until(lambda: len(broker.held_pulls) == 40)
            await client.sent("orders", body)

    assert answers.total == 40
    assert answers.most * len(body) <= PULLS_PER_STEP * BYTES_PER_PULL
    assert all(waiting.answer is not None and waiting.answer.code == ResponseCode.SUCCESS for waiting in pulls)


async def test_a_message_that_hundreds_of_pulls_do_not_want_lets_others_have_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = WorkPerTurn().watch(monkeypatch, HeldPull, "wants")
    async with (
        running_broker(clock=ManualClock(), plugins__enable=["filter"]) as broker,
        peer(broker.address) as client,
    ):
        broker.topics.put(TopicConfig("orders"))
        async with anyio.create_task_group() as tasks:
            for _ in range(300):
                tasks.start_soon(Waiting().run, client, "orders", 0, {"subscription": "red"})
            await until(lambda: len(broker.held_pulls) == 300)
            await client.sent("orders", TAGS="blue")
            await until(lambda: looks.total == 300)
            assert len(broker.held_pulls) == 300
            tasks.cancel_scope.cancel()

    assert looks.most <= PULLS_PER_STEP


async def test_pulls_beyond_the_limit_of_a_connection_are_refused() -> None:
    settings = {"pull__max_held_per_connection": 2, "pull__max_held": 3}
    async with (
        running_broker(clock=ManualClock(), plugins__enable=[], **settings) as broker,
        peer(broker.address) as client,
        peer(broker.address) as other,
        anyio.create_task_group() as tasks,
    ):
        broker.topics.put(TopicConfig("orders"))
        for _ in range(2):
            tasks.start_soon(Waiting().run, client, "orders", 0, {})
        await until(lambda: len(broker.held_pulls) == 2)

        refused = Waiting()
        await refused.run(client, "orders", 0, {})
        assert refused.answer is not None
        assert refused.answer.code == ResponseCode.SYSTEM_BUSY
        assert "raise max_held_per_connection in [pull]" in refused.answer.remark

        tasks.start_soon(Waiting().run, other, "orders", 0, {})
        await until(lambda: len(broker.held_pulls) == 3)
        await refused.run(other, "orders", 0, {})
        assert "raise max_held in [pull]" in refused.answer.remark
        tasks.cancel_scope.cancel()
