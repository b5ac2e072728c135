"""The end of a request: announced once, with its answer or its error, however it came about."""

from __future__ import annotations

from typing import Any, ClassVar

import anyio
import attrs
import pytest

from tests.kernel.enabling import enabled
from tests.kernel.pulling import Waiting, until
from tests.plugins.peer import peer
from verniermq.kernel import (
    Broker,
    Busy,
    Command,
    Connection,
    Context,
    Declaration,
    NoConfig,
    NoPermission,
    Registry,
    RequestCode,
    ResponseCode,
    hookimpl,
    hookspecs,
)
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

PLAIN, LATER, FAILING, FAILING_LATER, WAITING, UNKNOWN = range(9300, 9306)


@attrs.define(eq=False)
class Plugin:
    """Serves requests in every way there is, and writes down how they ended."""

    declaration: ClassVar = Declaration(
        api=1, summary="Serves and observes.", requests=(PLAIN, LATER, FAILING, FAILING_LATER, WAITING)
    )
    config: NoConfig
    broker: Context
    seen: list[int] = attrs.field(factory=list, init=False)
    served: list[tuple[int, int | None, str]] = attrs.field(factory=list, init=False)
    elapsed: list[int] = attrs.field(factory=list, init=False)
    go_on: anyio.Event = attrs.field(factory=anyio.Event, init=False)

    def setup(self, registry: Registry) -> None:
        registry.handler(PLAIN, self.plain)
        registry.handler(LATER, self.later)
        registry.handler(FAILING, self.failing)
        registry.handler(FAILING_LATER, self.failing_later)
        registry.handler(WAITING, self.waiting)

    def plain(self, request: Command, connection: Connection) -> Command:
        return request.reply(ResponseCode.SUCCESS)

    async def later(self, request: Command, connection: Connection) -> Command:
        await anyio.lowlevel.checkpoint()
        return request.reply(ResponseCode.FLUSH_DISK_TIMEOUT)

    def failing(self, request: Command, connection: Connection) -> Command:
        raise ZeroDivisionError("stumbled")

    async def failing_later(self, request: Command, connection: Connection) -> Command:
        await anyio.lowlevel.checkpoint()
        raise ZeroDivisionError("stumbled")

    async def waiting(self, request: Command, connection: Connection) -> Command:
        await self.go_on.wait()
        return request.reply()

    @hookimpl
    def before_request(self, request: Command) -> None:
        self.seen.append(request.code)

    @hookimpl
    def request_served(
        self, request: Command, answer: Command | None, error: Exception | None, elapsed_ns: int
    ) -> None:
        self.served.append((request.code, None if answer is None else answer.code, type(error).__name__))
        self.elapsed.append(elapsed_ns)


@attrs.define(eq=False)
class Guard:
    """Refuses requests that say so, at once or a moment later."""

    declaration: ClassVar = Declaration(api=1, summary="Refuses.")
    config: NoConfig
    broker: Context

    @hookimpl
    def before_request(self, request: Command) -> Any:
        if "refuse" in request.ext:
            raise NoPermission("not you")
        return self._later() if "refuse-later" in request.ext else None

    async def _later(self) -> None:
        await anyio.lowlevel.checkpoint()
        raise NoPermission("not you")


def plugin_of(broker: Broker) -> Plugin:
    plugin = broker.host.active["x"].instance
    assert isinstance(plugin, Plugin)
    return plugin


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        (PLAIN, (PLAIN, ResponseCode.SUCCESS, "NoneType")),
        (LATER, (LATER, ResponseCode.FLUSH_DISK_TIMEOUT, "NoneType")),
        (FAILING, (FAILING, None, "PluginFailed")),
        (FAILING_LATER, (FAILING_LATER, None, "PluginFailed")),
        (UNKNOWN, (UNKNOWN, None, "RequestRefused")),
    ],
    ids=["plain", "async", "failing", "failing later", "unknown"],
)
@pytest.mark.parametrize("oneway", [False, True], ids=["answered", "one way"])
async def test_a_request_is_announced_once_with_its_answer_or_its_error(code: int, ended: Any, oneway: bool) -> None:
    async with running_broker(**enabled(x=Plugin)) as broker, peer(broker.address) as client:
        plugin = plugin_of(broker)
        if oneway:
            client.connection.oneway(Command.request(code))
        else:
            await client.connection.request(Command.request(code))
        await until(lambda: plugin.served)
        await client.connection.request(Command.request(PLAIN))

        assert plugin.served == [ended, (PLAIN, ResponseCode.SUCCESS, "NoneType")]
        assert plugin.seen == [code, PLAIN]
        assert all(elapsed > 0 for elapsed in plugin.elapsed)


@pytest.mark.parametrize("order", [("x", "guard"), ("guard", "x")], ids=["seen first", "refused first"])
@pytest.mark.parametrize("how", ["refuse", "refuse-later"])
async def test_a_request_that_a_guard_refuses_is_announced_with_the_refusal(how: str, order: tuple[str, ...]) -> None:
    settings = enabled(x=Plugin, guard=Guard) | {"plugins__enable": list(order)}
    async with running_broker(**settings) as broker, peer(broker.address) as client:
        answer = await client.connection.request(Command.request(PLAIN, {how: "1"}))
        plugin = plugin_of(broker)

        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not you")
        assert plugin.served == [(PLAIN, None, "NoPermission")]
        assert plugin.seen == ([PLAIN] if order[0] == "x" else [])


async def test_a_pull_that_waits_is_announced_when_it_begins_to_wait_and_not_again() -> None:
    async with running_broker(**enabled(x=Plugin)) as broker, peer(broker.address) as client:
        plugin = plugin_of(broker)
        await client.sent("orders")
        plugin.served.clear()
        waiting = Waiting()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting.run, client, "orders", 1, {})
            await until(lambda: len(broker.held_pulls) == 1)
            assert plugin.served == [(RequestCode.PULL_MESSAGE, None, "NoneType")]
            await client.sent("orders")

        assert waiting.answer is not None
        assert [code for code, _, _ in plugin.served] == [RequestCode.PULL_MESSAGE, RequestCode.SEND_MESSAGE_V2]


@pytest.mark.parametrize("guarded", [False, True], ids=["by its handler", "by a guard"])
async def test_a_request_that_is_one_too_many_is_announced_with_that_error(guarded: bool) -> None:
    settings = enabled(x=Plugin, guard=Guard) | {"remoting__max_inflight": 2}
    async with running_broker(**settings) as broker, peer(broker.address) as client:
        plugin = plugin_of(broker)
        for _ in range(2):
            client.connection.oneway(Command.request(WAITING))
        await until(lambda: plugin.seen.count(WAITING) == 2)
        one_too_many = Command.request(PLAIN, {"refuse-later": "1"}) if guarded else Command.request(LATER)
        answer = await client.connection.request(one_too_many)

        assert answer.code == Busy("").code
        assert plugin.served == [(one_too_many.code, None, "Busy")]
        plugin.go_on.set()
        await until(lambda: len(plugin.served) == 3)
        assert plugin.served[1:] == [(WAITING, ResponseCode.SUCCESS, "NoneType")] * 2


async def test_a_request_whose_peer_goes_away_is_announced_when_it_is_done() -> None:
    async with running_broker(**enabled(x=Plugin)) as broker:
        plugin = plugin_of(broker)
        async with peer(broker.address) as client:
            client.connection.oneway(Command.request(WAITING))
            await until(lambda: plugin.seen)
        await until(lambda: not broker.server.connections)
        assert plugin.served == []
        plugin.go_on.set()
        await until(lambda: plugin.served)

    assert plugin.served == [(WAITING, ResponseCode.SUCCESS, "NoneType")]


async def test_a_request_that_a_stop_cancels_is_announced_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verniermq.kernel.broker.broker.STOP_GRACE_SECONDS", 0.01)
    async with running_broker(**enabled(x=Plugin)) as broker:
        plugin = plugin_of(broker)
        async with peer(broker.address) as client:
            client.connection.oneway(Command.request(WAITING))
            await until(lambda: plugin.seen)

    assert plugin.served == [(WAITING, None, "ConnectionLost")]


# --- off the path, and back ------------------------------------------------------------------


async def test_a_paused_implementation_is_off_the_path_until_it_is_put_back() -> None:
    async with running_broker(**enabled(x=Plugin, guard=Guard)) as broker, peer(broker.address) as client:
        plugin, host = plugin_of(broker), broker.host
        guards = host.calls(hookspecs.before_request)
        observers = host.calls(hookspecs.request_served)

        host.pause(plugin, hookspecs.before_request)
        await client.connection.request(Command.request(PLAIN))
        assert [call.plugin.name for call in guards] == ["guard"]
        assert (plugin.seen, len(plugin.served)) == ([], 1)

        host.pause(plugin, hookspecs.request_served)
        await client.connection.request(Command.request(PLAIN))
        assert observers == []
        assert (plugin.seen, len(plugin.served)) == ([], 1)

        for hook in (hookspecs.before_request, hookspecs.request_served):
            host.pause(plugin, hook, paused=False)
        await client.connection.request(Command.request(PLAIN))
        assert [call.plugin.name for call in guards] == ["x", "guard"]
        assert (plugin.seen, len(plugin.served)) == ([PLAIN], 2)


@attrs.define(eq=False)
class PausedAtFirst(Plugin):
    @hookimpl
    def store_opened(self) -> None:
        for hook in (hookspecs.before_request, hookspecs.request_served):
            self.broker.hooks.pause(self, hook)


async def test_a_plugin_may_pause_itself_before_the_first_request() -> None:
    async with running_broker(**enabled(x=PausedAtFirst)) as broker, peer(broker.address) as client:
        await client.connection.request(Command.request(PLAIN))
        plugin = plugin_of(broker)

        assert plugin.seen == plugin.served == []
        plugin.broker.hooks.pause(plugin, hookspecs.request_served, paused=False)
        await client.connection.request(Command.request(PLAIN))
        assert (plugin.seen, plugin.served) == ([], [(PLAIN, ResponseCode.SUCCESS, "NoneType")])
