"""From rules to gates, and a call's way through one."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from itertools import islice

import pytest

from verniermq.kernel import ResponseCode
from verniermq.plugins.flow.breaker import BreakerState
from verniermq.plugins.flow.engine import Engine
from verniermq.plugins.flow.entry import passing
from verniermq.plugins.flow.gate import FlowRefused, Gate
from verniermq.plugins.flow.rules import BreakerRule, FlowRule, SystemRule
from verniermq.plugins.flow.shaper import NS_PER_MS, REFUSED

T0 = 1_700_000_000_000


def at(ms: int) -> int:
    return (T0 + ms) * NS_PER_MS


def gate_of(engine: Engine, group: str = "billing", topic: str = "orders", client: str = "", request: str = "") -> Gate:
    gate = engine.gate(group, topic, client, request)
    assert gate is not None
    return gate


# --- which rules concern a call ------------------------------------------------------------


def test_a_rule_concerns_its_kind_and_its_pattern() -> None:
    engine = Engine(
        [
            FlowRule(resource="billing:*", count=1),
            FlowRule(topic="orders", count=1),
            FlowRule(client="10.1.*", count=1),
            FlowRule(request="PULL_*", count=1),
        ]
    )

    def names(*call: str) -> list[str]:
        gate = engine.gate(*call)
        return [resource.name for resource in gate.resources] if gate else []

    assert names("billing", "refunds") == ["resource billing:refunds"]
    assert names("audit", "orders") == ["topic orders"]
    assert names("billing", "orders", "10.1.0.7@5", "PULL_MESSAGE") == [
        "resource billing:orders", "topic orders", "client 10.1.0.7@5", "request PULL_MESSAGE",
    ]  # fmt: skip
    assert names("audit", "refunds", "10.2.0.7@5", "SEND_MESSAGE") == []


def test_every_resource_of_a_pattern_has_the_whole_count() -> None:
    engine = Engine([FlowRule(topic="*", count=1)])

    assert gate_of(engine, topic="a").enter(at(0)) == 0
    assert gate_of(engine, topic="a").enter(at(0)) == REFUSED
    assert gate_of(engine, topic="b").enter(at(0)) == 0


def test_a_topic_is_counted_over_all_groups_and_a_group_for_itself() -> None:
    engine = Engine([FlowRule(topic="orders", count=3), FlowRule(resource="billing:orders", count=2)])

    billing = [gate_of(engine).enter(at(0)) for _ in range(3)]
    audit = [gate_of(engine, "audit").enter(at(0)) for _ in range(2)]

    assert billing == [0, 0, REFUSED]
    assert audit == [0, REFUSED]


def test_kinds_without_rules_do_not_multiply_the_gates() -> None:
    engine = Engine([FlowRule(topic="orders", count=3)])

    assert gate_of(engine, "a", "orders", "client-1", "X") is gate_of(engine, "b", "orders", "client-2", "Y")


def test_no_rule_is_no_gate() -> None:
    assert Engine().gate("billing", "orders") is None
    assert not Engine().is_active


def test_made_up_names_make_room_for_each_other_and_real_ones_stay() -> None:
    engine = Engine([FlowRule(topic="*", count=2, grade="concurrency"), FlowRule(topic="*", count=3)], max_resources=10)
    busy = gate_of(engine, topic="busy")
    assert [busy.enter(at(0)) for _ in range(2)] == [0, 0]

    limited = []
    for number in range(200):
        gate = gate_of(engine, topic=f"made-up-{number}")
        gate.enter(at(0))
        gate.leave(at(0), at(0))
        gate = gate_of(engine, topic="limited")
        limited.append(gate.enter(at(0)))
        if limited[-1] == 0:
            gate.leave(at(0), at(0))

    assert len(engine.resources) <= 22
    assert gate_of(engine, topic="busy").enter(at(0)) == REFUSED, "its calls still run"
    assert limited == [0, 0, 0] + [REFUSED] * 197, "its second is not over, whatever came in between"


# --- through the gate ----------------------------------------------------------------------


def test_a_refused_call_has_not_used_up_a_place_in_the_queue() -> None:
    engine = Engine(
        [
            FlowRule(topic="orders", count=5, behaviour="uniform_rate"),
            FlowRule(topic="orders", count=1, grade="concurrency"),
        ]
    )
    gate = gate_of(engine)

    assert gate.enter(at(0)) == 0
    assert [gate.enter(at(0)) for _ in range(5)] == [REFUSED] * 5
    gate.leave(at(0), at(10))
    assert gate.enter(at(10)) == 190 * NS_PER_MS


def test_the_longest_wait_of_all_rules_counts() -> None:
    engine = Engine(
        [
            FlowRule(topic="orders", count=10, behaviour="uniform_rate"),
            FlowRule(resource="billing:orders", count=5, behaviour="uniform_rate"),
        ]
    )
    gate = gate_of(engine)

    assert [gate.enter(at(0)) // NS_PER_MS for _ in range(3)] == [0, 200, 400]


def test_a_call_that_waited_runs_only_after_begin() -> None:
    engine = Engine([FlowRule(topic="orders", count=5, behaviour="uniform_rate")])
    gate = gate_of(engine)
    node = gate.resources[0].node

    gate.enter(at(0))
    assert gate.enter(at(0)) > 0
    assert node.running == 1
    assert gate.begin(at(200)) == 0
    assert node.running == 2


def test_a_refusal_names_its_rule() -> None:
    rule = FlowRule(topic="orders", count=5)
    gate = gate_of(Engine([rule, FlowRule(topic="orders", count=9)]))

    while gate.enter(at(0)) == 0:
        pass

    assert gate.refused_by is rule
    refusal = FlowRefused(rule)
    assert "topic 'orders' at most 5 per second, reject" in str(refusal)
    assert refusal.code is ResponseCode.SYSTEM_BUSY


def test_a_breaker_hears_of_calls_and_stops_them() -> None:
    gate = gate_of(Engine([], [BreakerRule(topic="orders", measure="error_ratio", limit=0.5, recovery_s=10)]))

    for _ in range(5):
        assert gate.enter(at(0)) == 0
        gate.leave(at(0), at(1), failed=True)

    assert gate.enter(at(2)) == REFUSED
    assert gate.enter(at(10_001)) == 0, "the probe"
    assert gate.enter(at(10_001)) == REFUSED
    gate.leave(at(10_001), at(10_002))
    assert gate.enter(at(10_003)) == 0


def test_a_probe_that_a_second_breaker_refuses_is_taken_back() -> None:
    short = BreakerRule(topic="orders", measure="error_ratio", limit=0.5, recovery_s=5)
    long = BreakerRule(topic="orders", measure="error_ratio", limit=0.5, recovery_s=10)
    gate = gate_of(Engine([], [short, long]))
    for _ in range(5):
        gate.enter(at(0))
        gate.leave(at(0), at(1), failed=True)

    assert gate.enter(at(6000)) == REFUSED

    assert gate.refused_by is long
    assert [breaker.state for _, breaker in gate.resources[0].breakers] == [BreakerState.OPEN, BreakerState.OPEN]
    assert gate.enter(at(10_001)) == 0


MANY = 1e9
EVERY_BEHAVIOUR = {
    "reject": FlowRule(topic="orders", count=MANY),
    "reject, refusing": FlowRule(topic="orders", count=2),
    "concurrency": FlowRule(topic="orders", count=5, grade="concurrency"),
    "uniform rate": FlowRule(topic="orders", count=MANY, behaviour="uniform_rate"),
    "uniform rate, refusing": FlowRule(topic="orders", count=3, behaviour="uniform_rate"),
    "warm-up": FlowRule(topic="orders", count=MANY, behaviour="warm_up"),
    "warm-up, refusing": FlowRule(topic="orders", count=9, behaviour="warm_up"),
    "warm-up with uniform rate": FlowRule(topic="orders", count=MANY, behaviour="warm_up_uniform_rate"),
    "warm-up with uniform rate, refusing": FlowRule(topic="orders", count=9, behaviour="warm_up_uniform_rate"),
}


def call(engine: Engine, now_ns: int) -> None:
    gate = engine.gate("billing", "orders", "10.0.0.1@7", "SEND_MESSAGE_V2")
    assert gate is not None
    if gate.enter(now_ns) == 0:
        gate.leave(now_ns, now_ns)


@pytest.mark.parametrize("behaviour", EVERY_BEHAVIOUR)
def test_a_check_keeps_no_memory(behaviour: str) -> None:
    engine = Engine([EVERY_BEHAVIOUR[behaviour]], [BreakerRule(topic="orders")], SystemRule(qps=MANY, cpu=1))
    moments = iter(range(at(0), at(101_000), NS_PER_MS))

    def calls(count: int) -> int:
        before = sys.getallocatedblocks()
        for now_ns in islice(moments, count):
            call(engine, now_ns)
        return sys.getallocatedblocks() - before

    calls(1000)
    gc.disable()
    try:
        growth = calls(100_000)
    finally:
        gc.enable()

    # A few for the numbers that the figures have grown to; one for each check would be a hundred thousand.
    assert growth < 50


@pytest.mark.parametrize("behaviour", EVERY_BEHAVIOUR)
def test_a_check_needs_room_for_a_few_numbers_only(behaviour: str) -> None:
    engine = Engine([EVERY_BEHAVIOUR[behaviour]])
    for number in range(1000):
        call(engine, at(number))
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(1000, 6000):
            call(engine, at(number))
        tracemalloc.reset_peak()
        kept, _ = tracemalloc.get_traced_memory()
        for number in range(6000, 11_000):
            call(engine, at(number))
        kept_later, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    # The key of the look-up, the time in two units, a sum: gone again before the next check. Threads of clients that
    # other tests have left take some room as well; a number for each check would be eight times this.
    assert kept_later - kept < 20_000
    assert peak - kept < 20_000


# --- new rules while it runs ---------------------------------------------------------------


def test_a_rule_that_stays_keeps_its_figures_and_a_changed_one_starts_anew() -> None:
    kept, dropped = FlowRule(topic="orders", count=2), FlowRule(topic="refunds", count=2)
    engine = Engine([kept, dropped])
    for topic in ("orders", "refunds"):
        assert [gate_of(engine, topic=topic).enter(at(0)) for _ in range(3)] == [0, 0, REFUSED]

    engine.load([FlowRule(topic="refunds", count=3), kept], [])

    assert gate_of(engine, topic="orders").enter(at(0)) == REFUSED
    assert [gate_of(engine, topic="refunds").enter(at(0)) for _ in range(2)] == [0, REFUSED]


def test_a_queue_goes_on_when_other_rules_change() -> None:
    uniform = FlowRule(topic="orders", count=5, behaviour="uniform_rate")
    engine = Engine([uniform])
    assert [gate_of(engine).enter(at(0)) for _ in range(2)] == [0, 200 * NS_PER_MS]

    engine.load([FlowRule(topic="orders", count=100), uniform], [])

    assert gate_of(engine).enter(at(0)) == 400 * NS_PER_MS


def test_without_rules_calls_are_free_and_running_ones_end_where_they_began() -> None:
    engine = Engine([FlowRule(topic="orders", count=1, grade="concurrency")])
    gate = gate_of(engine)
    gate.enter(at(0))

    engine.load([], [])
    gate.leave(at(0), at(5))

    assert engine.gate("billing", "orders") is None
    assert engine.resources == ()
    assert gate.resources[0].node.running == 0


# --- around any piece of work --------------------------------------------------------------


@pytest.mark.anyio
async def test_work_is_spread_refused_and_counted() -> None:
    now_ns, slept = at(0), []

    async def sleep(seconds: float) -> None:
        nonlocal now_ns
        slept.append(seconds)
        now_ns += round(seconds * 1e9)

    engine = Engine(
        [FlowRule(resource="billing:orders", count=5, behaviour="uniform_rate", max_queueing_ms=5000)],
        [BreakerRule(resource="billing:orders", measure="error_count", limit=0, least_calls=4)],
    )
    for _ in range(3):
        async with passing(engine, "billing", "orders", clock_ns=lambda: now_ns, sleep=sleep):
            pass
    with pytest.raises(LookupError):
        async with passing(engine, "billing", "orders", clock_ns=lambda: now_ns, sleep=sleep):
            raise LookupError
    with pytest.raises(FlowRefused, match="breaks above 0 errors"):
        async with passing(engine, "billing", "orders", clock_ns=lambda: now_ns, sleep=sleep):
            pytest.fail("the breaker is open")
    async with passing(engine, "audit", "orders", clock_ns=lambda: now_ns, sleep=sleep):
        slept.append(-1.0)

    assert slept == [0.2, 0.2, 0.2, 0.2, -1.0]
