"""Announcements on a message's path, heard by plain and by async plugins."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from tests.kernel.enabling import enabled
from tests.kernel.pulling import until
from tests.plugins.peer import peer
from tests.work import WorkPerTurn
from verniermq.kernel import Appended, Context, Declaration, DispatchEvent, PendingMessage, gathered, hookimpl
from verniermq.kernel.host import feed
from verniermq.kernel.host.feed import BATCHES_WAITING
from verniermq.testing import broker_process, running_broker


class Plugin:
    declaration: ClassVar = Declaration(api=1, summary="Listens.")

    def __init__(self, config: Any, broker: Context) -> None:
        self.offsets: list[int] = []
        self.bodies: list[bytes] = []
        self.go_on = anyio.Event()
        self.at_stop: list[int] = []

    @hookimpl
    def broker_stopping(self) -> None:
        self.at_stop = list(self.offsets)


class Plain(Plugin):
    @hookimpl
    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        self.offsets += [event.queue_offset for event in events]

    @hookimpl
    def messages_appended(self, batch: Sequence[tuple[PendingMessage, Appended]]) -> None:
        self.bodies += [bytes(message.body) for message, _ in batch]


class Waiting(Plugin):
    """Takes a batch only when it may, and a moment for each."""

    @hookimpl
    async def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        await self.go_on.wait()
        await anyio.lowlevel.checkpoint()
        self.offsets += [event.queue_offset for event in events]

    @hookimpl
    async def messages_appended(self, batch: Sequence[tuple[PendingMessage, Appended]]) -> None:
        await anyio.lowlevel.checkpoint()
        self.bodies += [bytes(message.body) for message, _ in batch]


class Returning(Plugin):
    """A plain function that returns something to wait for."""

    @hookimpl
    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> Awaitable[None]:
        return self._take([event.queue_offset for event in events])

    async def _take(self, offsets: list[int]) -> None:
        await anyio.lowlevel.checkpoint()
        self.offsets += offsets


class Stumbling(Plugin):
    declaration: ClassVar = Declaration(api=1, summary="Listens badly.", patience=2)

    @hookimpl
    async def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        await anyio.lowlevel.checkpoint()
        raise ValueError("stumbled")


async def test_plain_and_async_listeners_hear_everything_in_order() -> None:
    async with (
        running_broker(**enabled(plain=Plain, waiting=Waiting, returning=Returning)) as broker,
        peer(broker.address) as client,
    ):
        plugins = {name: active.instance for name, active in broker.host.active.items()}
        for number in range(50):
            await client.sent("orders", str(number).encode())

        assert plugins["plain"].offsets == list(range(50))
        assert plugins["waiting"].offsets == []
        plugins["waiting"].go_on.set()
    assert plugins["waiting"].offsets == plugins["returning"].offsets == list(range(50))
    bodies = [str(number).encode() for number in range(50)]
    assert plugins["plain"].bodies == plugins["waiting"].bodies == bodies


async def test_a_broker_that_stops_lets_async_listeners_hear_the_rest_first() -> None:
    async with running_broker(**enabled(x=Waiting)) as broker, peer(broker.address) as client:
        plugin: Waiting = broker.host.active["x"].instance
        for _ in range(5):
            await client.sent("orders")
        plugin.go_on.set()
    assert plugin.at_stop == [0, 1, 2, 3, 4]


async def test_a_listener_that_falls_behind_misses_a_batch_and_holds_up_nobody() -> None:
    async with running_broker(**enabled(x=Waiting)) as broker, peer(broker.address) as client:
        await client.sent("orders")  # the plugin begins with this one and waits
        for _ in range(BATCHES_WAITING + 2):
            broker.store.append(PendingMessage("orders", 1, b"", {}))
            broker.store.dispatch()
        call = broker.host.active["x"].calls["messages_dispatched"]

        assert 2 <= call.failures <= 3  # one more where the plugin had not yet begun
        assert broker.store.max_offset("orders", 1) == BATCHES_WAITING + 2
        broker.host.active["x"].instance.go_on.set()


async def test_an_async_listener_that_keeps_failing_is_switched_off() -> None:
    async with running_broker(**enabled(x=Stumbling)) as broker, peer(broker.address) as client:
        for _ in range(5):
            await client.sent("orders")
        plugin = broker.host.active["x"]
        await until(lambda: plugin.state != "active")

        assert plugin.failures == 2
        assert len(await client.bodies("orders")) == 5


async def test_async_listeners_hear_of_what_recovery_finds(tmp_path: Path) -> None:
    with broker_process(tmp_path / "store", "--no-plugins") as process:
        async with peer(process.broker) as client:
            for _ in range(7):
                await client.sent("orders")
        process.kill()
        async with running_broker(tmp_path / "store", **enabled(plain=Plain, x=Prompt)) as broker:
            plugins = {name: active.instance for name, active in broker.host.active.items()}
            assert plugins["plain"].offsets == plugins["x"].offsets == [0, 1, 2, 3, 4, 5, 6]
        process.start()


class Prompt(Plugin):
    @hookimpl
    async def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        await anyio.lowlevel.checkpoint()
        self.offsets += [event.queue_offset for event in events]


class Unhurried(Plugin):
    def __init__(self, config: Any, broker: Context) -> None:
        super().__init__(config, broker)
        self.calls = 0

    @hookimpl
    @gathered
    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        self.calls += 1
        self.offsets += [event.queue_offset for event in events]


async def test_a_listener_in_no_hurry_hears_of_many_turns_at_once_and_of_all_when_asked() -> None:
    async with running_broker(**enabled(x=Unhurried)) as broker, peer(broker.address) as client:
        plugin: Unhurried = broker.host.active["x"].instance
        for _ in range(20):
            await client.sent("orders")
        broker.catch_up()

        assert plugin.offsets == list(range(20))
        assert plugin.calls < 20
        await client.sent("orders")
        await until(lambda: plugin.offsets[-1] == 20)
        await client.sent("orders")
    assert plugin.at_stop == list(range(22))


async def test_a_large_batch_reaches_a_listener_in_no_hurry_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_GATHERED", 16)
    heard = WorkPerTurn()
    async with running_broker(**enabled(x=Unhurried)) as broker:
        plugin: Unhurried = broker.host.active["x"].instance
        monkeypatch.setattr(plugin, "offsets", Noting(heard))
        broker.store.append_batch([PendingMessage("orders", 0, b"", {}) for _ in range(60)])
        await until(lambda: len(plugin.offsets) == 60)

    assert plugin.offsets == list(range(60))
    assert heard.most <= 16


class Noting(list[int]):
    """Notes each item that is added to it."""

    def __init__(self, work: WorkPerTurn) -> None:
        super().__init__()
        self._work = work

    def __iadd__(self, items: Iterable[int]) -> Noting:  # type: ignore[misc, override]
        for item in items:
            self._work.note()
            self.append(item)
        return self
