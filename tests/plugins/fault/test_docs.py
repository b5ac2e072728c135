"""What the documentation page says is so; its picture is checked beside the simulation."""

from __future__ import annotations

import pytest

from tests.plugins.documented import example, settings
from verniermq.kernel import NoConfig
from verniermq.kernel.config.structure import structure
from verniermq.kernel.testing import check_fault_strategy, running_broker
from verniermq.plugins.fault import Config
from verniermq.plugins.fault.flag import Flag, FlagWithReset


def test_the_documented_settings_are_the_defaults() -> None:
    assert structure(Config, settings("fault"), "plugins.fault") == Config()


def test_the_documented_strategy_keeps_the_contract() -> None:
    names = example("fault")

    check_fault_strategy(names["Grudge"])
    plugin = names["Plugin"](NoConfig())
    assert isinstance(plugin.fault_strategy("grudge"), names["Grudge"])
    assert plugin.fault_strategy("latency") is None


@pytest.mark.anyio
async def test_a_host_makes_the_strategy_with_its_settings() -> None:
    settings_of = {"plugins__enable": ["default", "verniermq.plugins.fault:Plugin"], "plugins__fault__flag__slow_ms": 5}

    async with running_broker(**settings_of) as broker:
        strategy = broker.host.ask("fault_strategy", "flag")

    assert isinstance(strategy, FlagWithReset)
    assert strategy.settings == Flag(slow_ms=5)
