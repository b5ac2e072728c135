"""Each strategy with a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import anyio
import pytest

from tests.kernel.enabling import client_context
from tests.plugins.fault.simulation import picture, sends_per_second
from verniermq.kernel import FaultStrategy, MessageQueue, PeerUnreachable
from verniermq.plugins.fault import Config, Plugin, make_strategy
from verniermq.plugins.fault.detector import probe_once
from verniermq.plugins.fault.fewest_failures import FailureCounts, FewestFailures
from verniermq.plugins.fault.flag import Flag, FlagWithReset
from verniermq.plugins.fault.latency import Latency, LatencyTable
from verniermq.plugins.fault.rotation import Rotation
from verniermq.plugins.fault.timeout import Timeout, TimeoutMap
from verniermq.testing import check_fault_strategy

QUEUES = [MessageQueue("orders", broker, number) for broker in ("a", "b", "c") for number in range(2)]


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000.0

    def __call__(self) -> float:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def brokers(strategy: FaultStrategy, sends: int = 24, last: str | None = None) -> set[str]:
    """Where that many sends go."""
    return {strategy.choose(QUEUES, last).broker_name for _ in range(sends)}


def failing(name: str) -> Callable[[Callable[[], float]], FaultStrategy]:
    def make(clock_ms: Callable[[], float]) -> FaultStrategy:
        strategy = make_strategy(name, clock_ms=clock_ms, random=Random(3))
        assert strategy is not None
        return strategy

    return make


@pytest.mark.parametrize("name", ["latency", "timeout", "flag", "fewest_failures"])
def test_a_strategy_with_a_memory_keeps_the_contract(name: str) -> None:
    check_fault_strategy(failing(name))


def test_round_robin_keeps_the_contract_without_a_memory() -> None:
    check_fault_strategy(failing("round_robin"), remembers=False)
    with pytest.raises(AssertionError, match="after broker-b failed"):
        check_fault_strategy(failing("round_robin"))


def test_the_plugin_makes_a_fresh_strategy_for_each_producer() -> None:
    plugin = Plugin(Config(), client_context())

    assert isinstance(plugin.fault_strategy("flag"), FlagWithReset)
    assert plugin.fault_strategy("flag") is not plugin.fault_strategy("flag")
    assert plugin.fault_strategy("somebody-else") is None


# --- RocketMQ's table ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("latency_ms", "rest_ms"),
    [
        (0, 0), (49, 0), (50, 0), (100, 0), (549, 0), (550, 2000), (1799, 2000), (1800, 5000), (2999, 5000),
        (3000, 6000), (5000, 10000), (14999, 10000), (15000, 30000), (999999, 30000),
    ],
)  # fmt: skip
def test_a_latency_has_its_rest(latency_ms: int, rest_ms: int) -> None:
    assert Latency().rest_after(latency_ms) == rest_ms


def test_a_failure_rests_ten_seconds_to_the_millisecond(clock: Clock) -> None:
    table = LatencyTable(Latency(), clock, Rotation(Random(1)))

    table.record("a", 3, failed=True)

    assert brokers(table) == {"b", "c"}
    clock.now_ms += 9999
    assert brokers(table) == {"b", "c"}
    clock.now_ms += 1
    assert brokers(table) == {"a", "b", "c"}


def test_a_shorter_rest_does_not_shorten_a_longer_one(clock: Clock) -> None:
    table = LatencyTable(Latency(), clock, Rotation(Random(1)))

    table.record("a", 15000, failed=False)
    clock.now_ms += 1000
    table.record("a", 550, failed=False)
    table.record("a", 3, failed=False)

    clock.now_ms += 28999
    assert not table.is_available("a")
    clock.now_ms += 1
    assert table.is_available("a")


def test_a_later_rest_extends_an_earlier_one(clock: Clock) -> None:
    table = LatencyTable(Latency(), clock, Rotation(Random(1)))

    table.record("a", 600, failed=False)
    clock.now_ms += 1500
    table.record("a", 600, failed=False)

    clock.now_ms += 1999
    assert not table.is_available("a")
    clock.now_ms += 1
    assert table.is_available("a")


def test_slow_brokers_come_before_unreachable_ones(clock: Clock) -> None:
    table = LatencyTable(Latency(detect=True), clock, Rotation(Random(1)))

    table.record("a", 20, failed=True, reachable=False)
    table.record("b", 2000, failed=False)
    table.record("c", 20, failed=True, reachable=False)

    assert brokers(table) == {"b"}
    assert brokers(table, last="b") == {"a", "b", "c"}, "when nothing fits, plain round robin"


def test_without_a_detector_no_broker_counts_as_unreachable(clock: Clock) -> None:
    table = LatencyTable(Latency(), clock, Rotation(Random(1)))

    table.record("a", 20, failed=True, reachable=False)

    assert table.is_reachable("a")
    assert not table.is_available("a")


def test_a_success_makes_a_broker_reachable_but_its_rest_goes_on(clock: Clock) -> None:
    table = LatencyTable(Latency(detect=True), clock, Rotation(Random(1)))
    table.record("a", 20, failed=True, reachable=False)

    table.record("a", 3, failed=False)

    assert table.is_reachable("a")
    assert not table.is_available("a")


def test_a_table_must_rise_and_have_a_rest_for_each_step() -> None:
    with pytest.raises(ValueError, match="must rise"):
        Latency(steps_ms=(100, 50), rests_ms=(0, 0))
    with pytest.raises(ValueError, match="each step needs one"):
        Latency(steps_ms=(50, 100), rests_ms=(0,))


# --- the detector --------------------------------------------------------------------------


async def _no_answer(address: str) -> None:
    raise PeerUnreachable(address, "refused")


async def _never(address: str) -> None:
    await anyio.sleep_forever()


async def _answer(address: str) -> str:
    return address


@pytest.mark.anyio
async def test_a_probe_that_is_answered_makes_a_broker_reachable(clock: Clock) -> None:
    table = LatencyTable(Latency(detect=True, detect_timeout_ms=1), clock, Rotation(Random(1)))
    table.record("a", 20, failed=True, reachable=False)

    await probe_once(table, {"a": "10.0.0.1:10911"}.get, _no_answer)
    assert not table.is_reachable("a")
    clock.now_ms += 2000
    await probe_once(table, {"a": "10.0.0.1:10911"}.get, _never)
    assert not table.is_reachable("a")
    clock.now_ms += 2000
    await probe_once(table, {"a": "10.0.0.1:10911"}.get, _answer)
    assert table.is_reachable("a")


def test_a_broker_is_probed_at_most_every_two_seconds(clock: Clock) -> None:
    table = LatencyTable(Latency(), clock, Rotation(Random(1)))
    table.record("a", 20, failed=True, reachable=False)

    assert table.due_for_probe() == ["a"]
    clock.now_ms += 1999
    assert table.due_for_probe() == []
    clock.now_ms += 1
    assert table.due_for_probe() == ["a"]


@pytest.mark.anyio
async def test_a_broker_without_an_address_is_forgotten(clock: Clock) -> None:
    table = LatencyTable(Latency(), clock, Rotation(Random(1)))
    table.record("gone", 20, failed=True, reachable=False)

    await probe_once(table, {}.get, _answer)

    assert table.health() == {}
    assert table.is_available("gone")


# --- the simple schemes --------------------------------------------------------------------


def test_the_cleaner_lets_a_broker_back_after_the_time_out(clock: Clock) -> None:
    strategy = TimeoutMap(Timeout(avoid_ms=5000, clean_every_ms=1000), clock, Rotation(Random(1)))
    clock.now_ms += 500
    strategy.record("a", 3, failed=True)

    clock.now_ms += 4500
    assert brokers(strategy) == {"b", "c"}, "the cleaner runs here, but the failure is 4.5 s old"
    clock.now_ms += 999
    assert brokers(strategy) == {"b", "c"}, "the failure is old enough, but the cleaner comes once a second"
    clock.now_ms += 1
    assert brokers(strategy) == {"a", "b", "c"}


def test_another_failure_starts_the_time_out_again(clock: Clock) -> None:
    strategy = TimeoutMap(Timeout(avoid_ms=5000, clean_every_ms=0), clock, Rotation(Random(1)))

    strategy.record("a", 3, failed=True)
    clock.now_ms += 4000
    strategy.record("a", 3, failed=True)

    clock.now_ms += 4999
    assert brokers(strategy) == {"b", "c"}
    clock.now_ms += 1
    assert brokers(strategy) == {"a", "b", "c"}


def test_all_flags_go_down_together_at_the_end_of_a_period(clock: Clock) -> None:
    strategy = FlagWithReset(Flag(reset_every_ms=10000), clock, Rotation(Random(1)))

    strategy.record("a", 3, failed=True)
    clock.now_ms += 9000
    strategy.record("b", 3, failed=True)
    assert brokers(strategy) == {"c"}
    clock.now_ms += 1000

    assert brokers(strategy) == {"a", "b", "c"}
    strategy.record("c", 3, failed=True)
    clock.now_ms += 25000
    assert brokers(strategy) == {"a", "b", "c"}, "a pause over several periods resets too"


def test_the_broker_with_the_fewest_failures_is_used_and_ties_take_turns(clock: Clock) -> None:
    strategy = FailureCounts(FewestFailures(halve_every_ms=0), clock, Rotation(Random(1)))

    strategy.record("a", 3, failed=True)
    assert brokers(strategy) == {"b", "c"}
    strategy.record("b", 3, failed=True)
    assert brokers(strategy) == {"c"}
    strategy.record("c", 3, failed=True)
    assert brokers(strategy) == {"a", "b", "c"}
    strategy.record("c", 3, failed=True)

    chosen = [strategy.choose(QUEUES, None) for _ in range(8)]
    assert {queue: chosen.count(queue) for queue in QUEUES[:4]} == dict.fromkeys(QUEUES[:4], 2)
    assert brokers(strategy, last="a") == {"b"}


def test_counts_are_halved_once_per_period(clock: Clock) -> None:
    strategy = FailureCounts(FewestFailures(halve_every_ms=10000), clock, Rotation(Random(1)))
    for _ in range(5):
        strategy.record("a", 3, failed=True)

    counts = []
    for _ in range(3):
        clock.now_ms += 10000
        strategy.choose(QUEUES, None)
        counts.append(strategy.failures())

    assert counts == [{"a": 2}, {"a": 1}, {}]


@pytest.mark.parametrize("name", ["timeout", "flag", "fewest_failures"])
def test_a_send_slower_than_the_limit_counts_as_failed(name: str, clock: Clock) -> None:
    strategy = failing(name)(clock)

    strategy.record("a", 1000, failed=False)
    assert brokers(strategy) == {"a", "b", "c"}
    strategy.record("a", 1001, failed=False)
    assert brokers(strategy) == {"b", "c"}


# --- three brokers, one slow and one dead --------------------------------------------------


def total(tries: list[int], seconds: range) -> int:
    return sum(tries[second] for second in seconds)


def test_round_robin_keeps_sending_to_the_slow_and_the_dead() -> None:
    tries = sends_per_second("round_robin")

    assert total(tries["broker-b"], range(21, 40)) > 100
    assert total(tries["broker-c"], range(21, 50)) > 50


@pytest.mark.parametrize(
    ("name", "slow_at_most", "dead_at_most"),
    [("latency", 120, 3), ("timeout", 12, 1), ("flag", 60, 3), ("fewest_failures", 12, 3)],
)
def test_a_strategy_spares_the_slow_and_the_dead_and_returns_to_both(
    name: str, slow_at_most: int, dead_at_most: int
) -> None:
    tries = sends_per_second(name)

    assert 0 < total(tries["broker-b"], range(10, 40)) <= slow_at_most
    assert 0 < total(tries["broker-c"], range(20, 50)) <= dead_at_most
    for broker in tries:
        assert total(tries[broker], range(60, 70)) > 50, f"{broker} is well again and gets its third"


def test_the_picture_in_the_documentation_is_this_simulation() -> None:
    documented = Path(__file__).parents[3] / "docs" / "plugins" / "fault.svg"

    assert documented.read_text(encoding="utf-8") == picture()
