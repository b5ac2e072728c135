"""From rules to gates, and a call's way through one."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from verniermq.kernel import ResponseCode
from verniermq.kernel.config.structure import structure
from verniermq.kernel.errors import ConfigError
from verniermq.plugins.flow import Config
from verniermq.plugins.flow.breaker import State
from verniermq.plugins.flow.engine import Engine
from verniermq.plugins.flow.entry import passing
from verniermq.plugins.flow.gate import FlowRefused, Gate
from verniermq.plugins.flow.report import figures, rules
from verniermq.plugins.flow.rules import BreakerRule, FlowRule, SystemRule
from verniermq.plugins.flow.shaping import NS_PER_MS, REFUSED
from verniermq.plugins.flow.system import UNKNOWN, Machine, SystemProtection

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


def test_idle_resources_make_room_and_busy_ones_stay() -> None:
    engine = Engine([FlowRule(topic="*", count=1, grade="concurrency")], max_resources=10)
    gate_of(engine, topic="busy").enter(at(0))

    for number in range(50):
        gate = gate_of(engine, topic=f"made-up-{number}")
        gate.enter(at(0))
        gate.leave(at(0), at(0))

    assert len(engine.resources) <= 11
    assert gate_of(engine, topic="busy").enter(at(0)) == REFUSED


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
    assert [breaker.state for _, breaker in gate.resources[0].breakers] == [State.OPEN, State.OPEN]
    assert gate.enter(at(10_001)) == 0


def test_a_check_keeps_no_memory() -> None:
    engine = Engine(
        [
            FlowRule(topic="orders", count=1e9),
            FlowRule(topic="orders", count=1e9, behaviour="uniform_rate"),
            FlowRule(topic="orders", count=1e9, behaviour="warm_up"),
            FlowRule(topic="orders", count=5, grade="concurrency"),
        ],
        [BreakerRule(topic="orders")],
    )

    def calls(count: int) -> int:
        before = sys.getallocatedblocks()
        for number in range(count):
            gate = engine.gate("billing", "orders", "10.0.0.1@7", "SEND_MESSAGE_V2")
            assert gate is not None
            gate.enter(at(number))
            gate.leave(at(number), at(number))
        return sys.getallocatedblocks() - before

    calls(100)
    gc.disable()
    try:
        growth = calls(10_000)
    finally:
        gc.enable()

    # A few for the numbers that the figures have grown to; one per call would be ten thousand.
    assert growth < 100


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


# --- rules as text -------------------------------------------------------------------------


def test_rules_are_read_from_tables() -> None:
    config = structure(
        Config,
        {
            "rules": [{"resource": "billing:orders", "count": 5, "behaviour": "uniform_rate", "max_queueing_ms": 5000}],
            "breakers": [{"topic": "orders", "max_rt_ms": 200, "limit": 0.5}],
            "system": {"cpu": 0.9},
        },
        "plugins.flow",
    )

    assert config.rules == (
        FlowRule(resource="billing:orders", count=5, behaviour="uniform_rate", max_queueing_ms=5000),
    )
    assert config.breakers == (BreakerRule(topic="orders", max_rt_ms=200, limit=0.5),)
    assert config.system == SystemRule(cpu=0.9)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"count": 5}, "exactly one of resource, topic, client, request; this one names nothing"),
        ({"topic": "a", "client": "b", "count": 5}, "names topic and client"),
        ({"resource": "orders", "count": 5}, "expected group:topic"),
        ({"topic": "a", "count": 5, "grade": "concurrency", "behaviour": "warm_up"}, "can only be rejected"),
        ({"topic": "a", "count": 0, "behaviour": "warm_up"}, "needs a count above 0"),
        ({"topic": "a"}, "count"),
        ({"topic": "a", "count": -1}, "count"),
        ({"topic": "a", "count": 5, "behavior": "reject"}, "did you mean 'behaviour'"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(rule: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        structure(Config, {"rules": [rule]}, "plugins.flow")


def test_a_ratio_above_one_and_a_share_above_one_are_refused() -> None:
    with pytest.raises(ValueError, match="a ratio is at most 1"):
        BreakerRule(topic="a", measure="error_ratio", limit=5)
    with pytest.raises(ConfigError, match="cpu = 90"):
        structure(Config, {"system": {"cpu": 90}}, "plugins.flow")


def test_rules_and_figures_can_be_read() -> None:
    engine = Engine(
        [FlowRule(topic="orders", count=2)],
        [BreakerRule(topic="orders", measure="error_count", limit=3)],
        SystemRule(qps=100, cpu=0.9),
    )
    for _ in range(3):
        gate_of(engine).enter(at(0))

    assert rules(engine) == [
        "system qps at most 100, cpu at most 0.9",
        "topic 'orders' at most 2 per second, reject",
        "topic 'orders' breaks above 3 errors, for 10 s",
    ]
    (shown,) = figures(engine, T0)
    assert str(shown) == (
        "passed=2 blocked=1 pass_qps=2 block_qps=1 running=2 average_rt_ms=0.0 breakers=closed"
    )


# --- the whole system ----------------------------------------------------------------------


def calls(system: SystemProtection, count: int, rt_ms: int, at_ms: int = 0) -> None:
    for _ in range(count):
        system.node.begin(T0 + at_ms, 1)
        system.node.end(T0 + at_ms, rt_ms, 1, False)


def test_each_limit_of_the_system_refuses() -> None:
    rate = SystemProtection(SystemRule(qps=3))
    calls(rate, 2, 1)
    assert rate.refusal(T0, 1) is None
    assert rate.refusal(T0, 2) == "qps"

    concurrency = SystemProtection(SystemRule(concurrency=2))
    for _ in range(2):
        concurrency.node.begin(T0, 1)
    assert concurrency.refusal(T0, 1) is None, "as in Sentinel: refused when more than the limit run already"
    concurrency.node.begin(T0, 1)
    assert concurrency.refusal(T0, 1) == "concurrency"

    average = SystemProtection(SystemRule(average_rt_ms=20))
    calls(average, 3, 20)
    assert average.refusal(T0, 1) is None
    calls(average, 1, 21)
    assert average.refusal(T0, 1) == "average_rt_ms"
    assert average.refusal(T0 + 1000, 1) is None, "the window has moved on"

    cpu = SystemProtection(SystemRule(cpu=0.9))
    assert cpu.refusal(T0, 1) is None, "nothing was sampled yet"
    cpu.observe(UNKNOWN, 0.9)
    assert cpu.refusal(T0, 1) is None
    cpu.observe(UNKNOWN, 0.91)
    assert cpu.refusal(T0, 1) == "cpu"


def test_a_high_load_refuses_only_when_calls_queue_up() -> None:
    system = SystemProtection(SystemRule(load=4))
    system.observe(load=9.0, cpu=UNKNOWN)
    # Best half second: 50 done, so 100 a second; shortest RT 30 ms: the pipe holds 3.
    calls(system, 50, 30)

    running = []
    for _ in range(4):
        system.node.begin(T0, 1)
        running.append(system.refusal(T0, 1))

    assert running == [None, None, None, "load"]
    system.observe(load=4.0, cpu=UNKNOWN)
    assert system.refusal(T0, 1) is None


def test_one_running_call_is_never_too_many_for_a_high_load() -> None:
    system = SystemProtection(SystemRule(load=0))
    system.observe(load=9.0, cpu=UNKNOWN)

    system.node.begin(T0, 1)

    assert system.refusal(T0, 1) is None


def test_the_system_counts_every_gate() -> None:
    engine = Engine([FlowRule(topic="orders", count=100)], system=SystemRule(qps=3))

    assert [gate_of(engine, topic=topic).enter(at(0)) for topic in ("orders", "a", "b", "c")] == [0, 0, 0, REFUSED]
    assert str(gate_of(engine, topic="c").refused_by) == "system qps at most 3"
    assert engine.gate("", "", inbound=False) is None


def test_cpu_is_the_share_between_two_samples(tmp_path: Path) -> None:
    figures_file = tmp_path / "stat"
    machine = Machine(figures_file)

    assert machine.sample()[1] == UNKNOWN, "no such file"
    figures_file.write_text("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3\n")
    assert machine.sample()[1] == UNKNOWN, "the first sample has nothing to compare with"
    figures_file.write_text("cpu  160 0 70 810 60 0 0 0 0 0\n")
    assert machine.sample()[1] == 0.8
    assert machine.sample()[1] == UNKNOWN, "no time has passed"
    figures_file.write_text("nonsense")
    assert machine.sample()[1] == UNKNOWN


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
