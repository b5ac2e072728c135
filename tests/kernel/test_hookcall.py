"""What becomes of a plugin that raises: open and closed, once and again and again, and never a changed message."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from typing import Any, ClassVar

import anyio
import pytest

from tests.kernel.enabling import enabled
from tests.kernel.pulling import Waiting, pull, until
from tests.plugins.peer import peer
from verniermq.kernel import (
    Broker,
    Command,
    Connection,
    Context,
    Declaration,
    MessageFilter,
    NoPermission,
    PendingMessage,
    PluginError,
    Registry,
    RequestCode,
    RequestRefused,
    ResponseCode,
    Subscription,
    TopicNotFound,
    concerns,
    hookimpl,
)
from verniermq.kernel.host.hookcall import HookCall
from verniermq.testing import running_broker

OPEN: Declaration = Declaration(api=1, summary="Fails open.", patience=3)
CLOSED: Declaration = Declaration(api=1, summary="Fails closed.", on_failure="closed", patience=3)
STOPPING: Declaration = Declaration(
    api=1, summary="Stops the broker.", on_failure="closed", when_it_keeps_failing="stop", patience=3
)


class Plugin:
    declaration: ClassVar = OPEN

    def __init__(self, config: Any, broker: Context) -> None:
        self.heard: list[Any] = []


class Half(Plugin):
    """Changes a message, and stumbles over one whose body says so."""

    @hookimpl
    def before_append(self, message: PendingMessage) -> None:
        message.set_property("half", "changed")
        message.topic = "elsewhere"
        message.body = b"gone"
        if "stumble" in message.properties:
            raise ValueError("stumbled")
        message.topic, message.body = "orders", b"changed"


class HalfClosed(Half):
    declaration: ClassVar = CLOSED


class HalfStopping(Half):
    declaration: ClassVar = STOPPING


class Deaf(Half):
    """Stumbles over what it is told, which no peer waits for."""

    declaration: ClassVar = CLOSED

    @hookimpl
    def members_changed(self, group: str) -> None:
        raise ValueError("deaf")


class DeafStopping(Deaf):
    declaration: ClassVar = STOPPING


class Stamp(Plugin):
    @hookimpl
    def before_append(self, message: PendingMessage) -> None:
        message.set_property("stamped", "yes")


class SlowHalf(Plugin):
    """The same with ``async def``: waits until told, then changes the message or stumbles."""

    def __init__(self, config: Any, broker: Context) -> None:
        super().__init__(config, broker)
        self.go_on = anyio.Event()

    @hookimpl
    async def before_append(self, message: PendingMessage) -> None:
        message.set_property("half", "changed")
        if "stumble" in message.properties:
            raise ValueError("stumbled")
        if "wait" in message.properties:
            await self.go_on.wait()
        message.body = b"changed"


class Refuser(Plugin):
    @hookimpl
    def before_append(self, message: PendingMessage) -> None:
        raise NoPermission("no messages on a Sunday")


def call_of(broker: Broker, plugin: str, hook: str) -> HookCall:
    return broker.host.active[plugin].calls[hook]


# --- a message ----------------------------------------------------------------------------


async def test_a_plugin_that_fails_open_leaves_the_message_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    async with running_broker(**enabled(x=Half)) as broker, peer(broker.address) as client:
        await client.sent("orders", b"hello", stumble=1)
        await client.sent("orders", b"hello")
        stumbled, changed = await client.pull("orders")
        call = call_of(broker, "x", "before_append")

    assert stumbled.body == b"hello"
    assert "half" not in stumbled.properties
    assert changed.body == b"changed"
    assert changed.properties["half"] == "changed"
    assert (call.calls, call.failures, call.failures_in_a_row) == (2, 1, 0)
    assert call.nanoseconds > 0
    record = next(record for record in caplog.records if record.levelno == logging.ERROR)
    assert "plugin failed plugin=x hook=before_append" in record.getMessage()
    assert record.exc_info is not None


async def test_a_plugin_that_fails_closed_refuses_the_message_by_name() -> None:
    async with running_broker(**enabled(x=HalfClosed)) as broker, peer(broker.address) as client:
        answer = await client.send("orders", stumble=1)

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "plugin 'x' failed in before_append: ValueError: stumbled" in answer.remark
        assert broker.store.max_offset("orders", 0) == broker.store.max_offset("elsewhere", 0) == 0


async def test_a_plugin_that_keeps_failing_is_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    async with running_broker(**enabled(x=Half, y=Stamp)) as broker, peer(broker.address) as client:
        for _ in range(4):
            await client.sent("orders", b"hello", stumble=1)
        messages = await client.pull("orders")
        plugin = broker.host.active["x"]

    assert plugin.state == "switched off"
    assert plugin.failures == 3
    assert "plugin 'x' failed 3 times in a row in before_append: stumbled" in plugin.reason
    assert [message.body for message in messages] == [b"hello"] * 4
    assert sum("switched off" in record.getMessage() for record in caplog.records) == 1


async def test_no_other_plugin_is_passed_over_in_the_moment_one_is_switched_off() -> None:
    async with running_broker(**enabled(x=Half, y=Stamp)) as broker, peer(broker.address) as client:
        for _ in range(4):
            await client.sent("orders", stumble=1)

        assert [m.properties.get("stamped") for m in await client.pull("orders")] == ["yes"] * 4


async def test_failures_between_which_it_works_do_not_count_together() -> None:
    async with running_broker(**enabled(x=Half)) as broker, peer(broker.address) as client:
        for _ in range(5):
            await client.sent("orders", stumble=1)
            await client.sent("orders")

        assert broker.host.active["x"].state == "active"
        assert broker.host.active["x"].failures == 5


async def test_a_closed_plugin_that_is_switched_off_lets_nothing_through() -> None:
    async with running_broker(**enabled(x=Deaf)) as broker, peer(broker.address) as client:
        for number in range(3):
            await client.heartbeat(f"group-{number}")
        answer = await client.send("orders")

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "plugin 'x'" in answer.remark
        assert "switched off" in answer.remark
        assert broker.store.max_offset("orders", 0) == 0


async def test_a_plugin_may_declare_that_the_broker_stops_instead(caplog: pytest.LogCaptureFixture) -> None:
    async with running_broker(**enabled(x=DeafStopping)) as broker, peer(broker.address) as client:
        for number in range(5):
            await client.heartbeat(f"group-{number}")

        assert broker.stop_requested.is_set()
        assert "plugin 'x' failed 3 times in a row" in broker.stop_reason
    assert sum(record.levelno == logging.CRITICAL for record in caplog.records) == 1


@pytest.mark.parametrize("kind", [HalfClosed, HalfStopping])
async def test_what_a_peer_sends_neither_stops_the_broker_nor_switches_a_closed_plugin_off(kind: type[Half]) -> None:
    async with running_broker(**enabled(x=kind)) as broker, peer(broker.address) as client:
        answers = [await client.send("orders", stumble=1) for _ in range(10)]
        others = await client.send("orders")

        assert {answer.code for answer in answers} == {ResponseCode.SYSTEM_ERROR}
        assert all("plugin 'x' failed in before_append" in answer.remark for answer in answers)
        assert others.code == ResponseCode.SUCCESS
        assert not broker.stop_requested.is_set()
        assert broker.host.active["x"].state == "active"
        assert broker.host.active["x"].failures == 10


async def test_a_refusal_is_an_answer_and_no_failure() -> None:
    async with running_broker(**enabled(x=Refuser)) as broker, peer(broker.address) as client:
        answers = [await client.send("orders") for _ in range(5)]

        assert {(answer.code, answer.remark) for answer in answers} == {(16, "no messages on a Sunday")}
        assert broker.host.active["x"].failures == 0
        assert broker.host.active["x"].state == "active"


# --- async --------------------------------------------------------------------------------


async def test_an_async_plugin_makes_its_message_wait_and_no_other() -> None:
    async with running_broker(**enabled(x=SlowHalf)) as broker, peer(broker.address) as client:
        plugin: SlowHalf = broker.host.active["x"].instance
        waiting: list[Mapping[str, str]] = []

        async def send_waiting() -> None:
            waiting.append(await client.sent("orders", b"waiting", wait=1))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_waiting)
            await client.sent("orders", b"meanwhile")
            assert waiting == []
            plugin.go_on.set()

        assert len(waiting) == 1


async def test_a_failure_on_one_message_does_not_undo_what_was_done_to_another() -> None:
    async with running_broker(**enabled(x=SlowHalf)) as broker, peer(broker.address) as client:
        plugin: SlowHalf = broker.host.active["x"].instance

        async def send_waiting() -> None:
            await client.sent("orders", b"first", wait=1)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_waiting)
            await client.sent("orders", b"second", stumble=1)
            plugin.go_on.set()
        stumbled, waited = await client.pull("orders")

    assert (stumbled.body, stumbled.properties.get("half")) == (b"second", None)
    assert (waited.body, waited.properties.get("half")) == (b"changed", "changed")


class SlowAndQuick(Plugin):
    """A plain function that sometimes returns something to wait for."""

    @hookimpl
    def before_append(self, message: PendingMessage) -> Awaitable[None] | None:
        return self._later(message) if "wait" in message.properties else None

    async def _later(self, message: PendingMessage) -> None:
        await anyio.lowlevel.checkpoint()
        message.body = b"later"


async def test_those_after_an_async_plugin_are_asked_after_it() -> None:
    async with running_broker(**enabled(x=SlowAndQuick, y=Stamp)) as broker, peer(broker.address) as client:
        await client.sent("orders", b"now")
        await client.sent("orders", b"now", wait=1)
        messages = await client.pull("orders")

    assert [message.body for message in messages] == [b"now", b"later"]
    assert [message.properties["stamped"] for message in messages] == ["yes", "yes"]


class Gate(Plugin):
    """Refuses or delays requests by their remark."""

    declaration: ClassVar = CLOSED

    @hookimpl
    async def before_request(self, request: Command, connection: Connection) -> None:
        self.heard.append(request.code)
        await anyio.lowlevel.checkpoint()
        if "refuse" in request.ext:
            raise NoPermission("not you")
        if "stumble" in request.ext:
            raise KeyError("stumbled")


async def test_an_async_guard_refuses_waits_and_fails_closed() -> None:
    async with running_broker(**enabled(x=Gate)) as broker, peer(broker.address) as client:
        fields = {"topic": "orders", "queueId": 0}
        good = await client.ask(RequestCode.GET_MAX_OFFSET, **fields)
        refused = await client.ask(RequestCode.GET_MAX_OFFSET, **fields, refuse=1)
        failed = await client.ask(RequestCode.GET_MAX_OFFSET, **fields, stumble=1)

        assert [good.code, refused.code, failed.code] == [0, ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR]
        assert "plugin 'x' failed in before_request: KeyError" in failed.remark
        assert broker.host.active["x"].instance.heard == [RequestCode.GET_MAX_OFFSET] * 3


# --- who is asked at all ------------------------------------------------------------------


class OnlyMarked(Plugin):
    @hookimpl
    @concerns(properties=("marked",), topic_prefixes=("audit_",))
    def before_append(self, message: PendingMessage) -> None:
        self.heard.append((message.topic, bytes(message.body)))


async def test_a_plugin_sees_only_the_messages_that_concern_it() -> None:
    async with running_broker(**enabled(x=OnlyMarked)) as broker, peer(broker.address) as client:
        await client.sent("orders", b"plain")
        await client.sent("orders", b"marked", marked=1)
        await client.sent("audit_orders", b"by topic")

        assert broker.host.active["x"].instance.heard == [("orders", b"marked"), ("audit_orders", b"by topic")]


# --- announcements ------------------------------------------------------------------------


class Grumbler(Plugin):
    """Raises whatever it is told; closed, and with the class that would be an answer elsewhere."""

    declaration: ClassVar = CLOSED

    @hookimpl
    def request_served(self, request: Command) -> None:
        raise TopicNotFound("something of mine")

    @hookimpl
    def topics_changed(self, changed: Any, deleted: Any) -> None:
        raise RequestRefused("I do not like them")

    @hookimpl
    def messages_dispatched(self, events: Any) -> None:
        raise RuntimeError("too many")


async def test_nobody_is_refused_by_a_plugin_that_only_listens() -> None:
    async with running_broker(**enabled(x=Grumbler)) as broker, peer(broker.address) as client:
        await client.sent("orders", b"hello")
        failures = {hook: call.failures for hook, call in broker.host.active["x"].calls.items()}

        assert failures == {"request_served": 1, "topics_changed": 1, "messages_dispatched": 1}
        assert await client.bodies("orders") == [b"hello"]


# --- requests and filters of a plugin -----------------------------------------------------


class Serving(Plugin):
    """Serves a request code of its own, badly."""

    declaration: ClassVar = Declaration(api=1, summary="Serves badly.", patience=3, requests=(9001, 9002))

    def setup(self, registry: Registry) -> None:
        registry.handler(9001, self._serve)
        registry.handler(9002, self._serve_later)

    def _serve(self, request: Command, connection: Connection) -> Command:
        if "stumble" in request.ext:
            raise ZeroDivisionError("stumbled")
        return request.reply(ext={"served": "yes"})

    async def _serve_later(self, request: Command, connection: Connection) -> Command:
        await anyio.lowlevel.checkpoint()
        return self._serve(request, connection)

    @hookimpl
    def before_append(self, message: PendingMessage) -> None:
        raise ValueError("stumbled")


@pytest.mark.parametrize("code", [9001, 9002])
async def test_a_handler_that_raises_is_named_and_counted_and_goes_on_serving(code: int) -> None:
    async with running_broker(**enabled(x=Serving)) as broker, peer(broker.address) as client:
        for number in range(1, 6):
            answer = await client.connection.request(Command.request(code, {"stumble": "1"}))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert f"plugin 'x' failed in code {code}: ZeroDivisionError: stumbled" in answer.remark
            assert broker.host.active["x"].failures == number

        assert (await client.connection.request(Command.request(code))).ext == {"served": "yes"}


async def test_a_plugin_that_was_switched_off_serves_no_requests_and_says_why() -> None:
    async with running_broker(**enabled(x=Serving)) as broker, peer(broker.address) as client:
        for _ in range(3):
            await client.sent("orders")
        answer = await client.connection.request(Command.request(9001))

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "plugin 'x' failed 3 times in a row in before_append" in answer.remark


class Moody(Plugin):
    """Understands expressions of the type MOOD; its filter raises for messages that say so."""

    @hookimpl
    def compile_filter(self, subscription: Subscription) -> MessageFilter | None:
        if subscription.expression_type != "MOOD":
            return None
        if subscription.expression == "nonsense":
            return "all of them"  # type: ignore[return-value]
        return MessageFilter(test=self._test)

    def _test(self, properties: Mapping[str, str]) -> bool:
        if "stumble" in properties:
            raise LookupError("stumbled")
        return properties.get("mood") == "good"


class MoodyClosed(Moody):
    declaration: ClassVar = CLOSED


async def test_a_filter_that_fails_open_lets_the_message_pass_rather_than_lose_it() -> None:
    async with running_broker(**enabled(x=Moody)) as broker, peer(broker.address) as client:
        for properties in ({"mood": "good"}, {"mood": "bad"}, {"stumble": "1"}):
            await client.sent("orders", **properties)
        answer = await pull(client, expressionType="MOOD", subscription="good")

        assert answer.ext["nextBeginOffset"] == "3"
        assert answer.body.count(b"mood\x01good") == 1
        assert answer.body.count(b"mood\x01bad") == 0
        assert answer.body.count(b"stumble\x01") == 1
        assert broker.host.active["x"].failures == 1


async def test_a_filter_that_fails_closed_refuses_the_pull() -> None:
    async with running_broker(**enabled(x=MoodyClosed)) as broker, peer(broker.address) as client:
        await client.sent("orders", stumble=1)
        answer = await pull(client, expressionType="MOOD", subscription="good")

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "plugin 'x' failed in compile_filter: LookupError: stumbled" in answer.remark


async def test_an_answer_that_is_no_filter_counts_as_a_failure() -> None:
    async with running_broker(**enabled(x=Moody)) as broker, peer(broker.address) as client:
        await client.sent("orders")
        answer = await pull(client, expressionType="MOOD", subscription="nonsense")

        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert broker.host.active["x"].failures == 1


async def test_a_waiting_pull_whose_filter_fails_is_told_and_nobody_else_notices() -> None:
    async with running_broker(**enabled(x=MoodyClosed)) as broker, peer(broker.address) as client:
        await client.sent("orders", mood="good")
        waiting = Waiting()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting.run, client, "orders", 1, {"expressionType": "MOOD", "subscription": "good"})
            await until(lambda: len(broker.held_pulls))
            await client.sent("orders", stumble=1)

        assert waiting.answer is not None
        assert waiting.answer.code == ResponseCode.SYSTEM_ERROR
        assert len(await client.pull("orders")) == 2


# --- at the start -------------------------------------------------------------------------


class BadStart(Plugin):
    @hookimpl
    def store_opened(self) -> None:
        raise OSError("cannot read my rules")


class BadStartClosed(BadStart):
    declaration: ClassVar = CLOSED


async def test_a_plugin_that_fails_open_at_the_start_does_not_keep_the_broker_from_it() -> None:
    async with running_broker(**enabled(x=BadStart)) as broker, peer(broker.address) as client:
        await client.sent("orders")
        assert broker.host.active["x"].failures == 1


async def test_a_plugin_that_fails_closed_at_the_start_keeps_the_broker_from_it() -> None:
    with pytest.raises(RequestRefused, match="plugin 'x' failed in store_opened: OSError: cannot read my rules"):
        async with running_broker(**enabled(x=BadStartClosed)):
            pass


class BadStarted(Plugin):
    @hookimpl
    async def broker_started(self) -> None:
        await anyio.lowlevel.checkpoint()
        raise OSError("nobody there")


class BadStartedClosed(BadStarted):
    declaration: ClassVar = CLOSED


async def test_the_same_holds_when_the_broker_has_started() -> None:
    async with running_broker(**enabled(x=BadStarted)) as broker:
        assert broker.host.active["x"].failures == 1
    with pytest.raises(RequestRefused, match="plugin 'x' failed in broker_started: OSError: nobody there"):
        async with running_broker(**enabled(x=BadStartedClosed)):
            pass


class BadMade(Plugin):
    def __init__(self, config: Any, broker: Context) -> None:
        raise OSError("the file of rules is gone")


class BadSetup(Plugin):
    def setup(self, registry: Registry) -> None:
        raise OSError("the file of rules is gone")


@pytest.mark.parametrize(("plugin_class", "what"), [(BadMade, "made"), (BadSetup, "set up")])
async def test_a_plugin_that_cannot_be_made_or_set_up_keeps_the_broker_from_starting(
    plugin_class: type, what: str
) -> None:
    with pytest.raises(PluginError, match=f"plugin 'x' cannot be {what}: OSError: the file of rules") as raised:
        async with running_broker(**enabled(x=plugin_class)):
            pass
    assert raised.value.plugin == "x"
