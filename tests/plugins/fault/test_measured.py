"""Real producers and three real brokers, one of which becomes slow and one dies: where the sends go."""

from __future__ import annotations

import anyio
import pytest

from tests.plugins.fault.measured import DEAD, DURATION, SEND_EVERY, SLOW, Outcome, Pauses, cluster, measure, picture
from tests.plugins.fault.simulation import STRATEGIES
from verniermq.client import Message, Producer
from verniermq.plugins.fault.latency import LatencyTable

LEARNING = [name for name in STRATEGIES if name != "round_robin"]


LONGEST_PAUSE = 0.1
"""Seconds: a strategy takes a broker for slow when an answer takes 0.3 s or more."""


@pytest.fixture(scope="module")
def measured() -> tuple[dict[str, Outcome], Pauses]:
    pauses = Pauses()
    outcomes = anyio.run(measure, pauses)
    if pauses.longest > LONGEST_PAUSE:
        outcomes = anyio.run(measure, pauses := Pauses())
    return outcomes, pauses


@pytest.fixture
def outcomes(measured: tuple[dict[str, Outcome], Pauses]) -> dict[str, Outcome]:
    """What says something about the strategies, because the machine itself was quick enough."""
    outcomes, pauses = measured
    if pauses.longest > LONGEST_PAUSE:
        pytest.skip(f"this machine paused for {pauses.longest:.2f} s while brokers had 0.3 s to answer, twice")
    return outcomes


def test_no_message_is_lost_whatever_the_strategy(measured: tuple[dict[str, Outcome], Pauses]) -> None:
    for name, outcome in measured[0].items():
        assert (outcome.sent, outcome.failed) == (round(DURATION / SEND_EVERY), 0), name


def test_round_robin_goes_on_with_the_slow_one_and_retries_for_the_dead_one(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["round_robin"]

    assert outcome.share("broker-b", *SLOW) > 0.2
    assert len(outcome.tries) > outcome.sent + 10


@pytest.mark.parametrize("name", LEARNING)
def test_a_strategy_with_a_memory_spares_the_slow_and_the_dead(outcomes: dict[str, Outcome], name: str) -> None:
    indifferent, outcome = outcomes["round_robin"], outcomes[name]

    for broker, (begin, end) in (("broker-b", SLOW), ("broker-c", DEAD)):
        # The first half second is for finding out: a slow answer has to come before it can be too late.
        assert outcome.share(broker, begin + 0.5, end) < 0.7 * indifferent.share(broker, begin + 0.5, end), broker
    assert len(outcome.tries) - outcome.sent < len(indifferent.tries) - indifferent.sent


@pytest.mark.parametrize("name", STRATEGIES)
def test_all_brokers_are_used_again_when_they_are_well(outcomes: dict[str, Outcome], name: str) -> None:
    # A machine that pauses for a moment makes a broker look slow, and that one is spared for up to 1.5 s.
    for broker in ("broker-a", "broker-b", "broker-c"):
        assert outcomes[name].share(broker, DEAD[1] + 1.5, DURATION) > 0, broker


def test_the_picture_shows_every_strategy(outcomes: dict[str, Outcome]) -> None:
    drawn = picture({name: outcome.steps() for name, outcome in outcomes.items()})

    assert all(f">{name}</text>" in drawn for name in STRATEGIES)


@pytest.mark.anyio
async def test_the_detector_finds_out_that_a_broker_can_be_reached_again() -> None:
    settings = {
        "fault.latency.detect": True, "fault.latency.detect_every_ms": 20, "fault.latency.detect_broker_every_ms": 20,
    }  # fmt: skip
    async with (
        cluster() as brokers,
        Producer("billing", namesrv=brokers.namesrv, fault="latency", plugins=settings) as producer,
    ):
        table = producer._sender.strategy
        assert isinstance(table, LatencyTable)
        brokers.relays["broker-c"].die()
        with anyio.fail_after(30):
            while table.is_reachable("broker-c"):
                await producer.send(Message("orders", b"x"))
            assert not table.is_available("broker-c")
            await brokers.relays["broker-c"].start()
            while not table.is_reachable("broker-c"):  # noqa: ASYNC110 - nobody sends there now, the probe finds out
                await anyio.sleep(0.02)

        assert not table.is_available("broker-c"), "its rest goes on all the same"
