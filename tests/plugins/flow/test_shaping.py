"""Sentinel's numbers, in time that the test moves."""

from __future__ import annotations

from math import floor, inf, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verniermq.plugins.flow.shaper import (
    NS_PER_MS,
    REFUSED,
    Concurrency,
    Reject,
    Shaper,
    UniformRate,
    WarmUp,
    WarmUpUniformRate,
)
from verniermq.plugins.flow.window import StatisticNode
from verniermq.testing import check_shaper

T0 = 1_700_000_000_000  # ms; a whole second


def ask(shaper: Shaper, node: StatisticNode, at_ms: float, count: int = 1) -> float | None:
    """How many ms the call waits, ``None`` if it is refused; what passes is counted, as the gate does."""
    now_ns = int((T0 + at_ms) * NS_PER_MS)
    wait = shaper.check(node, now_ns, count)
    if wait == REFUSED:
        return None
    node.begin(now_ns // NS_PER_MS, count)
    return wait / NS_PER_MS


# --- the window ----------------------------------------------------------------------------


def test_the_window_forgets_half_a_second_at_a_time() -> None:
    node = StatisticNode()

    node.begin(T0 + 100, 3)
    node.begin(T0 + 700, 4)

    assert [node.pass_qps(T0 + at) for at in (999, 1000, 1499, 1500, 2000)] == [7, 4, 4, 0, 0]


def test_a_bucket_of_a_second_ago_is_not_counted_again() -> None:
    node = StatisticNode()

    node.begin(T0, 5)

    assert node.pass_qps(T0 + 1000) == 0
    assert node.pass_qps(T0 + 1_000_000) == 0


def test_the_previous_second_is_a_whole_second() -> None:
    node = StatisticNode()

    node.begin(T0 + 100, 2)
    node.begin(T0 + 900, 3)
    node.begin(T0 + 1100, 7)

    assert node.previous_pass(T0 + 1999) == 5
    assert node.previous_pass(T0 + 2000) == 7
    assert node.previous_pass(T0 + 3000) == 0


def test_a_clock_that_was_set_back_keeps_counting() -> None:
    node = StatisticNode()

    node.begin(T0 + 5000, 2)
    node.begin(T0 + 100, 1)

    assert node.pass_qps(T0 + 200) == 3
    assert node.pass_qps(T0 + 5400) == 3


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 3)), max_size=60), st.integers(0, 2500))
def test_the_kept_sum_is_the_sum_over_two_buckets(steps: list[tuple[int, int]], look_after: int) -> None:
    node, now, events = StatisticNode(), T0, []
    for gap, count in steps:
        now += gap
        node.begin(now, count)
        events.append((now, count))
    now += look_after

    live_from = now - now % 500 - 500
    assert node.pass_qps(now) == sum(count for at, count in events if at >= live_from)
    previous = now // 1000 - 1
    assert node.previous_pass(now) == sum(count for at, count in events if at // 1000 == previous)


# --- reject, concurrency -------------------------------------------------------------------


def test_reject_lets_the_count_pass_in_a_window() -> None:
    shaper, node = Reject(5), StatisticNode()

    assert [ask(shaper, node, 10) for _ in range(7)] == [0, 0, 0, 0, 0, None, None]
    assert ask(shaper, node, 999) is None
    assert [ask(shaper, node, 1000) for _ in range(6)] == [0, 0, 0, 0, 0, None]


def test_reject_takes_or_refuses_several_as_one() -> None:
    shaper, node = Reject(5), StatisticNode()

    assert ask(shaper, node, 0, 3) == 0
    assert ask(shaper, node, 0, 3) is None
    assert ask(shaper, node, 0, 2) == 0


def test_a_count_of_zero_lets_nothing_pass() -> None:
    assert ask(Reject(0), StatisticNode(), 0) is None
    assert ask(UniformRate(0, 500), StatisticNode(), 0) is None
    assert ask(Concurrency(0), StatisticNode(), 0) is None


def test_concurrency_counts_what_runs() -> None:
    shaper, node = Concurrency(2), StatisticNode()

    assert [ask(shaper, node, 0) for _ in range(3)] == [0, 0, None]
    node.end(T0 + 5, 5, 1, False)
    assert ask(shaper, node, 60_000) == 0
    assert ask(shaper, node, 60_000) is None


# --- uniform rate --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "in_nanoseconds", "cost"),
    [
        (5, False, 200),
        (100, False, 10),
        (1000, False, 1),
        (3, True, 333_333_333),
        (2000, True, 500_000),
        (0.2, True, 5_000_000_000),
    ],
)
def test_a_rate_has_its_distance(rate: float, in_nanoseconds: bool, cost: int) -> None:
    shaper = UniformRate(rate, 500)

    assert shaper.in_nanoseconds is in_nanoseconds
    assert shaper.cost(1) == cost


def test_five_a_second_are_one_each_200_ms_and_later_ones_are_refused() -> None:
    shaper, node = UniformRate(5, 500), StatisticNode()

    assert [ask(shaper, node, 0) for _ in range(5)] == [0, 200, 400, None, None]
    assert ask(shaper, node, 100) == 500
    assert ask(shaper, node, 100) is None


def test_with_5000_ms_of_queueing_25_wait_and_the_27th_is_refused() -> None:
    shaper, node = UniformRate(5, 5000), StatisticNode()

    waits = [ask(shaper, node, 0) for _ in range(30)]

    assert waits[:26] == [200.0 * number for number in range(26)]
    assert waits[26:] == [None] * 4


def test_after_a_pause_there_is_no_burst() -> None:
    shaper, node = UniformRate(5, 500), StatisticNode()

    assert ask(shaper, node, 0) == 0
    assert ask(shaper, node, 10_000) == 0
    assert ask(shaper, node, 10_000) == 200


def test_a_refused_call_takes_no_place() -> None:
    shaper, node = UniformRate(5, 200), StatisticNode()

    assert [ask(shaper, node, 0) for _ in range(4)] == [0, 200, None, None]
    assert ask(shaper, node, 200) == 200


def test_several_at_once_take_several_places() -> None:
    shaper, node = UniformRate(5, 5000), StatisticNode()

    assert ask(shaper, node, 0, 3) == 0
    assert ask(shaper, node, 0, 2) == 400
    assert ask(shaper, node, 0, 1) == 600
    assert ask(shaper, node, 0, 0) == 0


def test_three_a_second_do_not_drift() -> None:
    shaper, node = UniformRate(3, 2000), StatisticNode()

    waits = [ask(shaper, node, 0) for _ in range(7)]

    assert waits == [number * 333_333_333 / NS_PER_MS for number in range(7)]


# --- warm-up -------------------------------------------------------------------------------


def test_the_line_of_warm_up_has_the_documented_numbers() -> None:
    shaper = WarmUp(100, 10)
    assert (shaper.warning, shaper.most, shaper.slope) == (500, 1000, 0.00004)

    allowed = {}
    for tokens in (1000, 750, 500, 499):
        shaper.tokens = tokens
        allowed[tokens] = shaper.allowed()

    assert allowed == pytest.approx({1000: 100 / 3, 750: 50, 500: 100, 499: 100})


def test_a_cold_system_lets_a_third_pass_and_warms_up_while_it_is_used() -> None:
    shaper, node = WarmUp(100, 10), StatisticNode()

    passed = [
        sum(ask(shaper, node, second * 1000 + step * 5) is not None for step in range(200)) for second in range(20)
    ]

    assert passed[0] == 33
    assert passed == sorted(passed), "it only gets faster while it is used"
    assert passed[-1] == 100


def test_a_warm_system_that_is_left_alone_cools_down() -> None:
    shaper, node = WarmUp(100, 10), StatisticNode()
    for second in range(20):
        for step in range(200):
            ask(shaper, node, second * 1000 + step * 5)
    assert shaper.tokens < shaper.warning

    ask(shaper, node, 60_000)

    assert shaper.tokens == shaper.most


def test_at_a_third_of_the_rate_the_system_stays_as_cold_as_it_is() -> None:
    shaper, node = WarmUp(100, 10), StatisticNode()
    ask(shaper, node, 0)
    node.begin(T0 + 500, 32)

    shaper.refill(T0 + 1000, node)

    # 33 = int(100) // 3 passed: no tokens are added above the line, and 33 are taken away.
    assert shaper.tokens == 1000 - 33


def test_below_a_third_of_the_rate_tokens_are_added_before_they_are_taken() -> None:
    shaper, node = WarmUp(100, 10), StatisticNode()
    ask(shaper, node, 0)
    node.begin(T0 + 500, 31)

    shaper.refill(T0 + 1000, node)

    assert shaper.tokens == 1000 - 32


def test_a_rate_too_small_to_warm_up_is_just_a_rate() -> None:
    shaper, node = WarmUp(0.5, 1), StatisticNode()

    assert shaper.slope == 0
    assert ask(shaper, node, 0) is None, "half a call a second is less than one in any window"
    assert ask(WarmUp(1, 1), StatisticNode(), 0) == 0


def test_cold_calls_are_further_apart_than_warm_ones() -> None:
    shaper, node = WarmUpUniformRate(100, 10, 500), StatisticNode()

    assert [ask(shaper, node, 0) for _ in range(3)] == [0, 30, 60]
    shaper.tokens = 0
    assert ask(shaper, node, 60) == 10


def test_warm_up_with_uniform_rate_refuses_too_long_a_wait() -> None:
    shaper, node = WarmUpUniformRate(100, 10, 100), StatisticNode()

    assert [ask(shaper, node, 0) for _ in range(6)] == [0, 30, 60, 90, None, None]
    assert ask(shaper, node, 20) == 100


class PlainWarmUp:
    """Sentinel's two warm-up controllers, formula by formula at each call, with nothing kept but what they keep."""

    def __init__(self, count: float, period_s: int, max_queueing_ms: int | None) -> None:
        self.count, self.max_queueing_ms = count, max_queueing_ms
        self.warning = int(period_s * count) // 2
        self.maximum = self.warning + int(2 * period_s * count / 4)
        width = self.maximum - self.warning
        self.slope = 2.0 / count / width if width else 0.0
        self.stored, self.filled_ms, self.latest_ms = 0, 0, -1
        self.passed: list[tuple[int, int]] = []

    def ask(self, now_ms: int, count: int) -> float | None:
        second = now_ms // 1000 * 1000
        if second > self.filled_ms:
            before = sum(number for at, number in self.passed if second - 1000 <= at < second)
            stored = self.stored
            if stored < self.warning or (stored > self.warning and before < int(self.count) // 3):
                stored = int(stored + (second - self.filled_ms) * self.count / 1000)
            self.stored, self.filled_ms = max(0, min(stored, self.maximum) - before), second
        rate = self.count
        if self.stored >= self.warning:
            rate = nextafter(1.0 / ((self.stored - self.warning) * self.slope + 1.0 / self.count), inf)
        if self.max_queueing_ms is None:
            window = now_ms // 500 * 500 - 500
            wait = 0 if sum(number for at, number in self.passed if at >= window) + count <= rate else None
        else:
            expected = self.latest_ms + floor(1.0 * count / rate * 1000 + 0.5)
            wait = max(expected - now_ms, 0)
            if wait > self.max_queueing_ms:
                wait = None
            else:
                self.latest_ms = max(expected, now_ms)
        if wait is not None:
            self.passed.append((now_ms, count))
        return wait


STEPS = st.lists(
    st.tuples(st.one_of(st.integers(0, 40), st.integers(0, 1500), st.integers(0, 30_000)), st.integers(1, 4)),
    max_size=120,
)
RATES = st.one_of(st.integers(1, 300), st.floats(0.3, 300, allow_nan=False))


@given(STEPS, RATES, st.integers(1, 12), st.one_of(st.none(), st.integers(0, 3000)), st.integers(0, 1500))
def test_what_is_kept_for_a_second_answers_as_the_plain_formulas_do(
    steps: list[tuple[int, int]], rate: float, period_s: int, max_queueing_ms: int | None, start: int
) -> None:
    plain, node = PlainWarmUp(rate, period_s, max_queueing_ms), StatisticNode()
    shaper: Shaper = (
        WarmUp(rate, period_s) if max_queueing_ms is None else WarmUpUniformRate(rate, period_s, max_queueing_ms)
    )
    at_ms = start
    for gap, count in steps:
        at_ms += gap
        assert ask(shaper, node, at_ms, count) == plain.ask(T0 + at_ms, count)


# --- the contract --------------------------------------------------------------------------


def test_every_shaper_keeps_the_contract() -> None:
    check_shaper(lambda: Reject(20), 20, make_node=StatisticNode)
    check_shaper(lambda: UniformRate(20, 400), 20, make_node=StatisticNode, max_queueing_ms=400)
    check_shaper(lambda: UniformRate(30, 400), 30, make_node=StatisticNode, max_queueing_ms=400)
    check_shaper(lambda: WarmUp(20, 5), 20, make_node=StatisticNode)
    check_shaper(lambda: WarmUpUniformRate(20, 5, 400), 20, make_node=StatisticNode, max_queueing_ms=400)


def test_the_contract_notices_a_shaper_without_a_limit_and_one_that_hides_its_waits() -> None:
    with pytest.raises(AssertionError, match="passed in"):
        check_shaper(lambda: Reject(1e9), 20, make_node=StatisticNode)

    class Hidden(UniformRate):
        queues = False

    with pytest.raises(AssertionError, match="must say so"):
        check_shaper(lambda: Hidden(20, 400), 20, make_node=StatisticNode, max_queueing_ms=400)
