"""Background work of plugins: kept running, started again after a growing pause, ended with its plugin."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from typing import Any, ClassVar

import anyio
import anyio.lowlevel
import pytest

from tests.kernel.enabling import enabled
from tests.kernel.pulling import until
from tests.plugins.peer import peer
from verniermq.kernel import MATCH_ALL, Context, Declaration, PendingMessage, Registry, ResponseCode, Role, hookimpl
from verniermq.kernel.handlers.longpoll import HeldPull
from verniermq.kernel.role import Roles
from verniermq.testing import ManualClock, running_broker


class Plugin:
    declaration: ClassVar = Declaration(api=1, summary="Has background work.", patience=1)

    def __init__(self, config: Any, broker: Context) -> None:
        self.clock = broker.clock
        self.starts: list[float] = []
        self.runs_for = 0.0
        self.ended = anyio.Event()

    def setup(self, registry: Registry) -> None:
        registry.service("work", self._work)

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


class Crowded(Plugin):
    async def _work(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write)

    async def _write(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_service_that_the_disk_refuses_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with running_broker(clock=clock, **enabled(x=Crowded)):
        await clock.advance(0.5)

    (line,) = [record for record in caplog.records if "service failed" in record.getMessage()]
    assert line.getMessage().endswith("restart_in_s=1: [Errno 28] No space left on device")
    assert line.exc_info is None


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
        with anyio.fail_after(30):
            await broker.host.active["x"].instance.ended.wait()


# --- the broker's own ---------------------------------------------------------------------


async def test_a_task_of_a_plugin_that_raises_ends_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    async def stumble(why: str) -> None:
        raise LookupError(why)

    async with running_broker() as broker, peer(broker.address) as client:
        broker.task_group.start_soon(stumble, "a row is gone")
        await client.sent("orders", b"still here")
        await until(lambda: broker.task_group.failures == 1)

        assert await client.bodies("orders") == [b"still here"]
    assert "LookupError: a row is gone" in caplog.text


async def test_a_held_pull_that_cannot_be_answered_ends_only_itself() -> None:
    clock = ManualClock()
    answered: list[int] = []

    def stumble() -> None:
        raise LookupError("its queue is gone")

    async with running_broker(clock=clock, plugins__enable=[]) as broker:
        for number, resume in enumerate([stumble, lambda: answered.append(1), stumble, lambda: answered.append(2)]):
            deadline = clock.monotonic() + 1 + number
            broker.held_pulls.hold(HeldPull("orders", 0, 0, MATCH_ALL, deadline, None, resume))
        await clock.advance(20)

        assert answered == [1, 2]


async def test_what_cannot_be_synced_is_not_taken_until_it_can(caplog: pytest.LogCaptureFixture) -> None:
    """The store's work stumbles over something that is not the disk's refusal; nothing is acknowledged meanwhile."""

    def stumble(descriptor: int) -> None:
        raise RuntimeError("no thread is to be had")

    clock = ManualClock()
    async with running_broker(clock=clock, plugins__enable=[], store__flush="sync") as broker:
        refusals = broker.store._refusals
        async with peer(broker.address) as client:
            await client.sent("orders", b"nought")  # its topic is saved, and waits for nothing any more
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", stumble)
            patch.setattr(os, "fdatasync", stumble)
            async with peer(broker.address) as client, anyio.create_task_group() as tasks:
                tasks.start_soon(client.send, "orders", b"one")
                await until(lambda: refusals)
                answer = await client.send("orders", b"two")
                tasks.cancel_scope.cancel()
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "its work in the background failed" in answer.remark

        await clock.advance(1)
        await until(lambda: not refusals)
        async with peer(broker.address) as client:
            await client.sent("orders", b"three")
    assert "the broker's own work failed work=store restart_in_s=1" in caplog.text


async def test_a_service_of_masters_runs_while_the_broker_is_one() -> None:
    roles = Roles()
    life: list[str] = []

    async def work() -> None:
        life.append("begun")
        try:
            await anyio.sleep_forever()
        finally:
            life.append("ended")

    async with anyio.create_task_group() as tasks:
        roles.change(Role(1))
        tasks.start_soon(roles.while_master, work)
        await anyio.wait_all_tasks_blocked()
        assert life == []
        roles.change(Role(0, term=2))
        await anyio.wait_all_tasks_blocked()
        assert life == ["begun"]
        roles.change(Role(0, term=2, ha_address="10.0.0.5:10912"))
        await anyio.wait_all_tasks_blocked()
        assert life == ["begun"]
        roles.change(Role(1, term=3))
        await anyio.wait_all_tasks_blocked()
        assert life == ["begun", "ended"]
        roles.change(Role(0, term=4))
        await anyio.wait_all_tasks_blocked()
        assert life == ["begun", "ended", "begun"]
        tasks.cancel_scope.cancel()


async def test_a_service_of_masters_that_returns_has_ended() -> None:
    async def work() -> None:
        await anyio.lowlevel.checkpoint()

    await Roles().while_master(work)


async def test_what_a_service_of_masters_raises_comes_through() -> None:
    async def work() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await Roles().while_master(work)
