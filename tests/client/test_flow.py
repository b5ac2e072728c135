"""Flow rules in a consumer: a backlog is worked off at the pace of the rule, whatever its length."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count, pairwise
from typing import Any, ClassVar

import attrs
import pytest

from tests.client.place import Place, numbered, until
from verniermq.client import PushConsumer, ReceivedMessage
from verniermq.kernel import Consuming, hookimpl
from verniermq.plugins.flow import make_engine
from verniermq.plugins.flow.client import ClientPlugin
from verniermq.plugins.flow.consumer import ConsumeShaper
from verniermq.plugins.flow.engine import Engine

pytestmark = pytest.mark.anyio

SLOT_MS = 200
"""Five a second."""
IN_LINE = 20
"""Deliveries that wait for their moment: 25 fit in 5 s."""


class Time:
    """Moves to the next sleeper's moment, as soon as it may move at all: no second is really waited for."""

    def __init__(self) -> None:
        self.now_ns = 1_700_000_000 * 1_000_000_000
        self._sleepers: list[tuple[int, int, asyncio.Event]] = []
        self._numbers = count()
        self.may_go_on: Callable[[int], bool] = bool
        """Whether time may pass, by the number of those who sleep: what is real takes its real time meanwhile."""

    def clock_ns(self) -> int:
        return self.now_ns

    @property
    def now_ms(self) -> int:
        return self.now_ns // 1_000_000

    async def sleep(self, seconds: float) -> None:
        awake = asyncio.Event()
        heapq.heappush(self._sleepers, (self.now_ns + round(seconds * 1e9), next(self._numbers), awake))
        await awake.wait()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            if self._sleepers and self.may_go_on(len(self._sleepers)):
                self.now_ns, _, awake = heapq.heappop(self._sleepers)
                awake.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.run())
        try:
            yield
        finally:
            task.cancel()


@attrs.define(eq=False)
class TimedFlow(ClientPlugin):
    """The plugin as it is, by a clock of the test's."""

    time: ClassVar[Time]
    engine: ClassVar[Engine]

    def __attrs_post_init__(self) -> None:
        TimedFlow.engine = make_engine(self.config)
        self._consume_shaper = ConsumeShaper(self.engine, self.time.clock_ns, self.time.sleep)

    @hookimpl
    def before_consume(self, consuming: Consuming) -> Any:
        return self._consume_shaper.before(consuming)


@pytest.fixture
def time() -> Iterator[Time]:
    TimedFlow.time = Time()
    yield TimedFlow.time
    del TimedFlow.time


def _limited(place: Place, topic: str, **options: Any) -> PushConsumer:
    """A consumer with the rule of Sentinel's example: one message each 200 ms, at most 5 s of waiting."""
    group = place.name("shaved")
    rule = {"resource": f"{group}:{topic}", "count": 5, "behaviour": "uniform_rate", "max_queueing_ms": 5000}
    flow = {"from": f"{__name__}:TimedFlow", "rules": [rule]}
    consumer = PushConsumer(
        group, namesrv=place.namesrv, start="first", plugins={"enable": ["flow"], "flow": flow}, **options
    )
    consumer.subscribe(topic)
    return consumer


def _refused() -> int:
    return sum(resource.node.blocked for resource in TimedFlow.engine.resources)


async def _retried(place: Place, consumer: PushConsumer) -> list[ReceivedMessage]:
    return await place.stored(f"%RETRY%{consumer.group}")


@pytest.mark.parametrize("kind", [{}, {"orderly": True}, {"mode": "pop"}])
async def test_a_backlog_far_longer_than_the_waiting_time_is_worked_off_at_the_rate(
    place: Place, time: Time, kind: dict[str, Any]
) -> None:
    queues = 40 if "orderly" in kind else 4
    topic = await place.topic("peak", queues)
    total = 120  # 24 s, and a delivery waits 5 s at most
    await place.send(topic, numbered(total))
    consumer = _limited(place, topic, concurrency=64, **kind)
    got: list[tuple[int, ReceivedMessage]] = []

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        got.append((time.now_ms, message))

    def line_is_full(waiting: int) -> bool:
        """What was put off comes again in real time; in order, one of each queue waits."""
        left = Counter(dict.fromkeys(range(queues), total // queues))
        left.subtract(message.queue.queue_id for _, message in got)
        can_wait = sum(min(number, 1) if "orderly" in kind else number for number in left.values())
        return waiting >= min(IN_LINE, can_wait)

    time.may_go_on = line_is_full
    async with consumer:
        await until(lambda: _refused() > 20)  # the line is full, and much is put off
        async with time.running():
            await until(lambda: len(got) >= total)
        await asyncio.sleep(0.1)

        assert sorted(message.body for _, message in got) == sorted(numbered(total)), "each of them, once"
        moments = [moment for moment, _ in got]
        assert {later - earlier for earlier, later in pairwise(moments)} == {SLOT_MS}, "no burst and no gap"
        assert {message.reconsume_times for _, message in got} == {0}, "waiting costs no attempt"
        assert await _retried(place, consumer) == []


async def test_messages_that_come_again_keep_to_the_rule_of_their_own_topic(place: Place, time: Time) -> None:
    topic = await place.topic("again")
    total = 40
    await place.send(topic, numbered(total))
    consumer = _limited(place, topic, concurrency=64)
    moments: list[int] = []
    failed: set[bytes] = set()
    done: list[bytes] = []

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        moments.append(time.now_ms)
        if message.body not in failed:
            failed.add(message.body)
            raise ValueError("comes again by the retry topic")
        done.append(message.body)

    async with consumer, time.running():
        await until(lambda: len(failed) == total)
        while len(done) < total:
            await place.pass_time(11)
            await asyncio.sleep(0.05)

    assert sorted(done) == sorted(numbered(total))
    assert min(later - earlier for earlier, later in pairwise(moments)) >= SLOT_MS


async def test_what_a_rule_refuses_waits_for_the_next_window(place: Place, time: Time) -> None:
    topic = await place.topic("window")
    group = place.name("shaved")
    rules = [{"resource": f"{group}:{topic}", "count": 5}]  # which refuses at once
    flow = {"from": f"{__name__}:TimedFlow", "rules": rules}
    consumer = PushConsumer(group, namesrv=place.namesrv, start="first", plugins={"enable": ["flow"], "flow": flow})
    consumer.subscribe(topic)
    got: list[tuple[int, ReceivedMessage]] = []

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        got.append((time.now_ms // 1000, message))

    await place.send(topic, numbered(30))
    async with consumer:
        for second in range(6):
            await until(lambda second=second: len(got) == 5 * (second + 1))  # type: ignore[misc]
            time.now_ns += 1_000_000_000
        await asyncio.sleep(0.2)

    seconds = [second for second, _ in got]
    assert [seconds.count(second) for second in sorted(set(seconds))] == [5] * 6
    assert {message.reconsume_times for _, message in got} == {0}
