"""What the documentation page says is so; its picture is checked beside the simulation."""

from __future__ import annotations

from tests.kernel.enabling import client_context
from tests.plugins.documented import example, settings
from verniermq.client import hookspecs
from verniermq.client.plugins import make_host
from verniermq.kernel import NoConfig
from verniermq.kernel.config.structure import structure
from verniermq.plugins.fault import Config
from verniermq.plugins.fault.flag import Flag, FlagWithReset
from verniermq.testing import check_fault_strategy


def test_the_documented_settings_are_the_defaults() -> None:
    assert structure(Config, settings("fault"), "plugins.fault") == Config()


def test_the_documented_strategy_keeps_the_contract() -> None:
    names = example("fault")

    check_fault_strategy(names["Grudge"])
    plugin = names["Plugin"](NoConfig(), client_context())
    assert isinstance(plugin.fault_strategy("grudge"), names["Grudge"])
    assert plugin.fault_strategy("latency") is None


def test_a_client_makes_the_strategy_with_its_settings() -> None:
    host = make_host({"enable": ["fault"], "fault.flag.slow_ms": 5}, (), client_context)
    strategy = host.ask(hookspecs.fault_strategy, "flag")

    assert isinstance(strategy, FlagWithReset)
    assert strategy.settings == Flag(slow_ms=5)
