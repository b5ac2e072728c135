"""Background work of plugins: kept running, started again after a growing pause, ended with its plugin."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, ClassVar

import anyio
import pytest

from tests.kernel.enabling import enabled
from tests.plugins.peer import peer
from verniermq.kernel import Broker, Declaration, ManualClock, PendingMessage, Service, hookimpl
from verniermq.kernel.testing import running_broker


class Plugin:
    declaration: ClassVar = Declaration(api=1, summary="Has background work.", patience=1)

    def __init__(self, config: Any) -> None:
        self.starts: list[float] = []
        self.runs_for = 0.0
        self.ended = anyio.Event()

    @hookimpl
    def broker_created(self, broker: Broker) -> None:
        self.clock = broker.clock

    @hookimpl
    def services(self) -> Iterable[Service]:
        yield Service("work", self._work)

    async def _work(self) -> None:
        self.starts.append(self.clock.now())
        await self.clock.sleep(self.runs_for)
        raise OSError("the far end hung up")


class Steady(Plugin):
    async def _work(self) -> None:
        self.starts.append(self.clock.now())
        try:
            await anyio.sleep_forever()
        finally:
            self.ended.set()

    @hookimpl
    def before_append(self, message: PendingMessage) -> None:
        raise ValueError("stumbled")


class Finished(Plugin):
    async def _work(self) -> None:
        self.starts.append(self.clock.now())


async def test_a_service_that_raises_is_started_again_after_a_growing_pause(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with running_broker(clock=clock, **enabled(x=Plugin)) as broker:
        await clock.advance(1 + 2 + 4 + 8 + 16 + 30 + 30)
        plugin = broker.host.active["x"]
        starts = plugin.instance.starts

        assert [later - earlier for earlier, later in pairwise(starts)] == [1, 2, 4, 8, 16, 30, 30]
        assert plugin.service_failures == plugin.failures == 8
        assert plugin.state == "active"
    assert "service failed plugin=x service=work failures=1 restart_in_s=1" in caplog.text


async def test_after_a_good_while_the_pause_begins_anew() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock, **enabled(x=Plugin)) as broker:
        await clock.advance(1 + 2 + 4)
        plugin: Plugin = broker.host.active["x"].instance
        plugin.runs_for = 100.0
        await clock.advance(8 + 100 + 1)

        assert plugin.starts[-1] - plugin.starts[-2] == 100 + 1


async def test_a_service_that_returns_has_ended() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock, **enabled(x=Finished)) as broker:
        await clock.advance(100)
        assert len(broker.host.active["x"].instance.starts) == 1


async def test_a_service_ends_with_the_broker() -> None:
    async with running_broker(**enabled(x=Steady)) as broker:
        plugin: Steady = broker.host.active["x"].instance
        assert not plugin.ended.is_set()
    assert plugin.ended.is_set()


async def test_a_service_ends_when_its_plugin_is_switched_off() -> None:
    async with running_broker(**enabled(x=Steady)) as broker, peer(broker.address) as client:
        await client.sent("orders")

        assert broker.host.active["x"].state == "switched off"
        with anyio.fail_after(5):
            await broker.host.active["x"].instance.ended.wait()
