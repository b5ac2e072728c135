"""What the documentation page says is so; its picture is checked beside the simulation."""

from __future__ import annotations

from tests.plugins.contracts_fault import check_fault_strategy
from tests.plugins.documented import example, settings
from verniermq.kernel import NoConfig
from verniermq.kernel.config.structure import structure
from verniermq.plugins.fault import Config


def test_the_documented_settings_are_the_defaults() -> None:
    assert structure(Config, settings("fault"), "plugins.fault") == Config()


def test_the_documented_strategy_keeps_the_contract() -> None:
    names = example("fault")

    check_fault_strategy(names["Grudge"])
    plugin = names["Plugin"](NoConfig())
    assert isinstance(plugin.fault_strategy("grudge"), names["Grudge"])
    assert plugin.fault_strategy("latency") is None
