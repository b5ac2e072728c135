"""The states of a circuit breaker, transition by transition."""

from __future__ import annotations

import pytest

from verniermq.plugins.flow.breaker import Breaker, BreakerState

T0 = 1_700_000_000_000


def slow(limit: float = 0.5, **settings: int) -> Breaker:
    return Breaker("slow_ratio", limit, recovery_ms=10_000, max_rt_ms=200, **settings)


def play(breaker: Breaker, times_ms: list[int], at_ms: int = 0) -> None:
    for rt_ms in times_ms:
        breaker.completed(T0 + at_ms, rt_ms, failed=False)


def fail(breaker: Breaker, outcomes: str, at_ms: int = 0) -> None:
    """``x`` failed, ``.`` went well."""
    for outcome in outcomes:
        breaker.completed(T0 + at_ms, 1, failed=outcome == "x")


@pytest.mark.parametrize(
    ("limit", "times_ms", "state"),
    [
        (0.5, [201] * 4, BreakerState.CLOSED),  # fewer than 5 calls
        (0.5, [201] * 5, BreakerState.OPEN),
        (0.5, [200] * 9, BreakerState.CLOSED),  # slow means longer
        (0.5, [1, 1, 1, 201, 201, 201], BreakerState.CLOSED),  # half of them is not more than half
        (0.5, [1, 1, 1, 201, 201, 201, 201], BreakerState.OPEN),
        (1.0, [201] * 5, BreakerState.OPEN),  # all of them, the one case where equal is enough
        (1.0, [1, 201, 201, 201, 201, 201], BreakerState.CLOSED),
        (0.0, [1, 1, 1, 1, 201], BreakerState.OPEN),
    ],
)
def test_too_many_slow_calls_open_it(limit: float, times_ms: list[int], state: BreakerState) -> None:
    breaker = slow(limit)

    play(breaker, times_ms)

    assert breaker.state is state


@pytest.mark.parametrize(
    ("measure", "limit", "outcomes", "state"),
    [
        ("error_ratio", 0.5, "xxxx", BreakerState.CLOSED),
        ("error_ratio", 0.5, ".x.x.x", BreakerState.CLOSED),
        ("error_ratio", 0.5, ".x.x.xx", BreakerState.OPEN),
        ("error_ratio", 1.0, "xxxxxxx", BreakerState.CLOSED),  # more than all cannot be
        ("error_count", 3, "xxx...", BreakerState.CLOSED),
        ("error_count", 3, "xxxx", BreakerState.CLOSED),  # too few calls
        ("error_count", 3, "xxxx.", BreakerState.OPEN),
    ],
)
def test_too_many_failures_open_it(measure: str, limit: float, outcomes: str, state: BreakerState) -> None:
    breaker = Breaker(measure, limit, recovery_ms=10_000)  # type: ignore[arg-type]

    fail(breaker, outcomes)

    assert breaker.state is state


def test_figures_start_again_with_each_interval() -> None:
    breaker = slow()

    play(breaker, [201] * 4, at_ms=999)
    play(breaker, [201] * 4, at_ms=1000)
    assert breaker.state is BreakerState.CLOSED
    play(breaker, [201], at_ms=1999)
    assert breaker.state is BreakerState.OPEN


def test_an_open_breaker_lets_one_probe_pass_after_the_recovery_time() -> None:
    breaker = slow()
    play(breaker, [201] * 5)

    assert not breaker.try_pass(T0 + 9999)
    assert breaker.state is BreakerState.OPEN
    assert breaker.try_pass(T0 + 10_000)
    assert breaker.state is BreakerState.HALF_OPEN
    assert not breaker.try_pass(T0 + 10_001), "others wait for the probe"


def test_a_good_probe_closes_it_and_clears_its_figures() -> None:
    breaker = slow()
    play(breaker, [201] * 5)
    breaker.try_pass(T0 + 10_000)

    play(breaker, [200], at_ms=10_200)

    assert breaker.state is BreakerState.CLOSED
    play(breaker, [201] * 4, at_ms=10_300)
    assert breaker.state is BreakerState.CLOSED, "the probe was not counted: these are four calls"
    play(breaker, [201], at_ms=10_400)
    assert breaker.state is BreakerState.OPEN


def test_a_bad_probe_opens_it_for_another_recovery_time() -> None:
    breaker = slow()
    play(breaker, [201] * 5)
    breaker.try_pass(T0 + 10_000)

    play(breaker, [201], at_ms=10_300)

    assert breaker.state is BreakerState.OPEN
    assert not breaker.try_pass(T0 + 20_299)
    assert breaker.try_pass(T0 + 20_300)


def test_a_probe_that_somebody_else_refuses_may_be_tried_again_at_once() -> None:
    breaker = slow()
    play(breaker, [201] * 5)
    breaker.try_pass(T0 + 10_000)

    breaker.probe_refused()

    assert breaker.state is BreakerState.OPEN
    assert breaker.try_pass(T0 + 10_001)


def test_what_ends_while_it_is_open_changes_nothing() -> None:
    breaker = slow()
    play(breaker, [201] * 5)

    play(breaker, [1] * 50, at_ms=100)

    assert breaker.state is BreakerState.OPEN
    assert breaker.try_pass(T0 + 10_000)
