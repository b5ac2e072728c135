"""A broker as a whole: what it does alone, how it comes up and how it goes down."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from tests.kernel.enabling import enabled
from tests.kernel.pulling import Waiting, until
from tests.plugins.peer import Peer, peer
from verniermq.kernel import (
    Command,
    Connection,
    Context,
    Declaration,
    PeerUnreachable,
    PendingMessage,
    PluginError,
    RequestCode,
    ResponseCode,
    connect,
    hookimpl,
)
from verniermq.kernel.errors import ListenFailed, StoreLocked
from verniermq.kernel.host import discovery
from verniermq.kernel.host.builtin import BROKER_PLUGINS
from verniermq.testing import running_broker
from verniermq.testing.ports import held_port

DECLARED = {
    name: discovery.load(discovery.built_in(name, BROKER_PLUGINS)).declaration for name in BROKER_PLUGINS.builtin
}
WITH_REQUESTS = [(name, RequestCode(code)) for name, declared in DECLARED.items() for code in declared.requests]
WITH_PROPERTIES = [(name, property_) for name, declared in DECLARED.items() for property_ in declared.properties]


# --- the kernel alone ---------------------------------------------------------------------


async def test_the_kernel_alone_serves_send_and_pull() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await client.heartbeat("readers", ["orders"])
        for number in range(10):
            await client.sent("orders", str(number).encode())
        waiting = Waiting()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting.run, client, "orders", 10, {})
            await until(lambda: len(broker.held_pulls) == 1)
            await client.sent("orders", b"10")

        assert broker.host.active == {}
        assert broker.name_servers == []
        assert await client.bodies("orders") == [str(number).encode() for number in range(11)]
        assert waiting.answer is not None


@pytest.mark.parametrize(("plugin", "code"), WITH_REQUESTS)
async def test_a_request_of_a_removed_plugin_is_answered_with_its_name(plugin: str, code: RequestCode) -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        answer = await client.ask(code)

    usual = plugin in BROKER_PLUGINS.defaults
    assert answer.code == (ResponseCode.SYSTEM_ERROR if usual else ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    assert f"request {code.name} ({code.value}) needs the plugin '{plugin}', which is not active" in answer.remark


@pytest.mark.parametrize(("plugin", "name"), WITH_PROPERTIES)
async def test_a_message_for_a_removed_plugin_is_answered_with_its_name(plugin: str, name: str) -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        flags = 4 if name == "TRAN_MSG" else 0
        answer = await client.send("orders", b"special", flags=flags, **{name: "true" if flags else "1"})

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"property {name} needs the plugin '{plugin}', which is not active" in answer.remark
        assert broker.store.end == 0


async def test_removing_one_plugin_leaves_the_others() -> None:
    for name in BROKER_PLUGINS.builtin:
        try:
            async with running_broker(plugins__disable=[name]) as broker, peer(broker.address) as client:
                await client.sent("orders", b"hello")
                assert await client.bodies("orders") == [b"hello"]
        except PluginError as error:
            assert f"needs {name!r}, which is not active" in str(error)  # noqa: PT017 - allowed, not expected


async def test_a_request_that_nobody_knows_is_not_supported() -> None:
    async with running_broker() as broker, peer(broker.address) as client:
        answer = await client.connection.request(Command.request(99_999))

    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


# --- coming up ----------------------------------------------------------------------------


async def test_port_nought_takes_a_free_port_and_says_which() -> None:
    async with running_broker(plugins__enable=[]) as one, running_broker(plugins__enable=[]) as other:
        assert one.address != other.address
        for broker in (one, other):
            async with peer(broker.address) as client:
                await client.sent("orders")


async def test_two_brokers_in_one_process_keep_their_messages_apart() -> None:
    async with running_broker() as one, running_broker() as other:
        async with peer(one.address) as client:
            await client.sent("orders", b"for one")
        assert "orders" in one.topics
        assert "orders" not in other.topics


async def test_a_port_in_use_is_said_in_one_line_and_nothing_is_left_behind(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    port = held_port(request)
    async with running_broker(plugins__enable=[], broker__port=port):
        with pytest.raises(ListenFailed, match=f"cannot listen on 127.0.0.1:{port}: the port is in use"):
            async with running_broker(tmp_path, plugins__enable=[], broker__port=port):
                pass
    async with running_broker(tmp_path, plugins__enable=[], broker__port=port):
        assert (tmp_path / "abort").exists()
    assert not (tmp_path / "abort").exists()


async def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path, plugins__enable=[]):
        with pytest.raises(StoreLocked, match="a broker uses the store"):
            async with running_broker(tmp_path, plugins__enable=[]):
                pass


# --- going down ---------------------------------------------------------------------------


class Slow:
    """Takes its time for every message, and for going."""

    declaration: ClassVar = Declaration(api=1, summary="Takes its time.")
    stopped: ClassVar[list[str]] = []

    def __init__(self, config: Any, broker: Context) -> None:
        self.go_on = anyio.Event()
        self.waiting = 0

    @hookimpl
    async def before_append(self, message: PendingMessage) -> None:
        self.waiting += 1
        await self.go_on.wait()

    @hookimpl
    def broker_stopping(self) -> None:
        self.stopped.append(type(self).__name__)


class Second(Slow):
    @hookimpl
    async def before_append(self, message: PendingMessage) -> None: ...


async def test_a_broker_that_stops_answers_what_it_took_and_refuses_what_comes_then(tmp_path: Path) -> None:
    answers: dict[str, Command] = {}

    async def send(client: Peer, name: str) -> None:
        answers[name] = await client.send("orders", name.encode())

    async def send_late(client: Peer, address: str, plugin: Slow) -> None:
        with suppress(PeerUnreachable):
            while True:  # until nobody new is let in
                (await connect(address)).close()
        await send(client, "late")
        plugin.go_on.set()

    async with anyio.create_task_group() as tasks, running_broker(tmp_path, **enabled(x=Slow)) as broker:
        plugin: Slow = broker.host.active["x"].instance
        client = Peer(await connect(broker.address))
        tasks.start_soon(send, client, "taken")
        await until(lambda: plugin.waiting == 1)
        tasks.start_soon(send_late, client, broker.address, plugin)

    assert answers["taken"].code == ResponseCode.SUCCESS
    assert answers["late"].code in (ResponseCode.GO_AWAY, ResponseCode.SYSTEM_BUSY)
    async with running_broker(tmp_path, plugins__enable=[]) as broker, peer(broker.address) as client:
        assert await client.bodies("orders") == [b"taken"]


async def test_plugins_hear_of_the_stop_in_reverse_order() -> None:
    Slow.stopped.clear()
    async with running_broker(**enabled(x=Slow, y=Second)):
        pass

    assert Slow.stopped == ["Second", "Slow"]


class NeverStops:
    declaration: ClassVar = Declaration(api=1, summary="Does not want to go.")

    def __init__(self, config: Any, broker: Context) -> None: ...

    @hookimpl
    async def broker_stopping(self) -> None:
        await anyio.sleep_forever()


async def test_a_plugin_that_does_not_want_to_go_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("verniermq.kernel.host.host.GOODBYE_SECONDS", 0.05)
    Slow.stopped.clear()
    async with running_broker(**enabled(y=Second, x=NeverStops)):
        pass

    assert Slow.stopped == ["Second"], "the others hear of the stop all the same"
    assert "it took longer than 0.05 s" in caplog.text


async def test_stopping_leaves_no_connection_and_no_task() -> None:
    closed: list[Connection] = []
    async with running_broker() as broker:
        connections = [await connect(broker.address) for _ in range(20)]
        for connection in connections:
            connection.on_close.append(closed.append)
        before = len(broker.server.connections)
    await until(lambda: len(closed) == 20)
    assert before == 20
    assert broker.server.connections == set()


async def test_a_quiet_life_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running_broker() as broker, peer(broker.address) as client:
        await client.heartbeat("readers", ["orders"])
        await client.sent("orders")
        await client.pull("orders")

    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []
