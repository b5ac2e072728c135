"""Rules on the side of a consumer."""

from __future__ import annotations

import pytest

from verniermq.kernel import Consuming, Message, MessageQueue
from verniermq.plugins.flow.consumer import ConsumeShaper
from verniermq.plugins.flow.engine import Engine
from verniermq.plugins.flow.gate import FlowRefused
from verniermq.plugins.flow.rules import BreakerRule, FlowRule
from verniermq.plugins.flow.shaper import NS_PER_MS

pytestmark = pytest.mark.anyio

START_NS = 1_700_000_000_000 * NS_PER_MS


class Time:
    """Sleeping moves it."""

    def __init__(self) -> None:
        self.now_ns = START_NS

    def clock_ns(self) -> int:
        return self.now_ns

    async def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    @property
    def passed_ms(self) -> int:
        return (self.now_ns - START_NS) // NS_PER_MS


def delivery(count: int = 1, topic: str = "orders", queue_topic: str = "") -> Consuming:
    queue = MessageQueue(queue_topic or topic, "broker-a", 0)
    return Consuming("billing", "10.0.0.1@7", queue, [Message(topic, b"message")] * count)


async def consume(smoother: ConsumeShaper, consuming: Consuming, *, succeeds: bool = True) -> None:
    waiting = smoother.before(consuming)
    if waiting is not None:
        await waiting
    consuming.succeeded = succeeds
    smoother.after(consuming)


def smoother_of(time: Time, *rules: FlowRule, breaker: BreakerRule | None = None) -> tuple[ConsumeShaper, Engine]:
    engine = Engine(rules, [breaker] if breaker else [])
    return ConsumeShaper(engine, time.clock_ns, time.sleep), engine


async def test_five_a_second_are_handled_one_each_200_ms() -> None:
    time = Time()
    rule = FlowRule(resource="billing:orders", count=5, behaviour="uniform_rate", max_queueing_ms=5000)
    smoother, engine = smoother_of(time, rule)

    moments = []
    for _ in range(4):
        await consume(smoother, delivery())
        moments.append(time.passed_ms)
    await consume(smoother, delivery(3))
    moments.append(time.passed_ms)

    assert moments == [0, 200, 400, 600, 1200], "three messages at once take the time of three"
    assert engine.resources[0].node.running == 0


async def test_a_retried_message_counts_for_the_topic_that_it_was_sent_to() -> None:
    time = Time()
    smoother, _ = smoother_of(time, FlowRule(resource="billing:*", count=5, behaviour="uniform_rate"))

    await consume(smoother, delivery())
    await consume(smoother, delivery(queue_topic="%RETRY%billing"))
    after_two_of_one_topic = time.passed_ms
    mixed = delivery(queue_topic="%RETRY%billing")
    mixed.messages = [Message("orders", b""), Message("refunds", b""), Message("refunds", b"")]
    await consume(smoother, mixed)

    assert after_two_of_one_topic == 200
    assert time.passed_ms == 400, "each topic has the count for itself"


async def test_a_refused_delivery_is_refused_and_another_topic_is_free() -> None:
    smoother, engine = smoother_of(Time(), FlowRule(resource="billing:orders", count=1))

    await consume(smoother, delivery())
    with pytest.raises(FlowRefused, match="billing:orders"):
        await consume(smoother, delivery())
    await consume(smoother, delivery(topic="refunds"))

    assert engine.resources[0].node.running == 0


async def test_handlers_that_fail_open_the_breaker() -> None:
    breaker = BreakerRule(resource="billing:orders", measure="error_ratio", limit=0.5)
    smoother, _ = smoother_of(Time(), breaker=breaker)

    for _ in range(5):
        await consume(smoother, delivery(), succeeds=False)

    with pytest.raises(FlowRefused, match=r"breaks above .* error ratio"):
        await consume(smoother, delivery())


async def test_a_delivery_whose_end_is_never_told_frees_its_place_when_it_is_dropped() -> None:
    smoother, engine = smoother_of(Time(), FlowRule(resource="billing:orders", count=1, grade="concurrency"))
    lost = delivery()
    smoother.before(lost)
    assert engine.resources[0].node.running == 1

    del lost

    assert engine.resources[0].node.running == 0
