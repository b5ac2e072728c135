"""Rules as ``broker.toml`` has them, and as people read them."""

from __future__ import annotations

import pytest

from verniermq.kernel import ConfigError
from verniermq.kernel.config.structure import structure
from verniermq.plugins.flow import Config
from verniermq.plugins.flow.engine import Engine
from verniermq.plugins.flow.report import figures, rules
from verniermq.plugins.flow.rules import BreakerRule, FlowRule, SystemRule
from verniermq.plugins.flow.shaper import NS_PER_MS

T0 = 1_700_000_000_000


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
    gate = engine.gate("billing", "orders")
    assert gate is not None
    for _ in range(3):
        gate.enter(T0 * NS_PER_MS)

    assert rules(engine) == [
        "system qps at most 100, cpu at most 0.9",
        "topic 'orders' at most 2 per second, reject",
        "topic 'orders' breaks above 3 errors, for 10 s",
    ]
    (shown,) = figures(engine, T0)
    assert str(shown) == ("passed=2 blocked=1 pass_qps=2 block_qps=1 running=2 average_rt_ms=0.0 breakers=closed")


def test_limit_app_names_the_group_of_a_topic() -> None:
    rule = FlowRule(topic="orders", limit_app="billing", count=5)
    assert rule.concerns("resource", "billing:orders")
    assert not rule.concerns("resource", "audit:orders")
    assert not rule.concerns("topic", "orders")
    assert FlowRule(topic="orders", limit_app="default", count=5).concerns("topic", "orders")
    assert FlowRule(topic="orders", limit_app="web-*", count=5).concerns("resource", "web-7:orders")
    with pytest.raises(ValueError, match="goes with topic; this rule names client"):
        FlowRule(client="10.*", limit_app="billing", count=5)
    with pytest.raises(ValueError, match='"other" is not known here'):
        FlowRule(topic="orders", limit_app="other", count=5)
