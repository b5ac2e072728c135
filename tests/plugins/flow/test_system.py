"""The protection of the whole system, and the samples that it lives on."""

from __future__ import annotations

from pathlib import Path

from verniermq.plugins.flow.engine import Engine
from verniermq.plugins.flow.gate import Gate
from verniermq.plugins.flow.rules import FlowRule, SystemRule
from verniermq.plugins.flow.shaper import NS_PER_MS, REFUSED
from verniermq.plugins.flow.system import UNKNOWN, Machine, SystemProtection

T0 = 1_700_000_000_000


def gate_of(engine: Engine, topic: str) -> Gate:
    gate = engine.gate("billing", topic)
    assert gate is not None
    return gate


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

    assert [gate_of(engine, topic).enter(T0 * NS_PER_MS) for topic in ("orders", "a", "b", "c")] == [0, 0, 0, REFUSED]
    assert str(gate_of(engine, "c").refused_by) == "system qps at most 3"
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
