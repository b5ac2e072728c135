"""Every hook is documented, and every hook is heard by a plugin that implements it."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import anyio
import attrs
import pytest

from tests.kernel.enabling import enabled
from tests.kernel.pulling import pull, until
from tests.plugins.peer import peer
from verniermq.client import TransactionProducer, TransactionState
from verniermq.kernel import (
    Appended,
    Broker,
    Command,
    Connection,
    Declaration,
    DispatchEvent,
    FaultStrategy,
    Handler,
    ManualClock,
    Message,
    MessageFilter,
    MessageQueue,
    PendingMessage,
    PluginHost,
    RequestCode,
    ResponseCode,
    Service,
    Subscription,
    TagsCoder,
    TopicConfig,
    decode_records,
    hookimpl,
    hookspecs,
    setting,
)
from verniermq.kernel.config import load
from verniermq.kernel.hookreference import updated
from verniermq.kernel.reload import SettingsWatcher
from verniermq.kernel.testing import running_broker
from verniermq.kernel.traffic import Consuming, EndedTransaction, HostingClient, Sending

PAGE = Path(__file__).parents[1] / "docs" / "hooks.md"
HOOKS = PluginHost.hook_names()
OWN_CODE = 9100
QUEUE = MessageQueue("orders", "broker-a", 0)


@attrs.frozen
class Config:
    colour: str = setting("red", "A setting to change.")


class Plugin:
    """Implements every hook, and writes down what it was called with."""

    declaration: ClassVar = Declaration(api=1, config=Config, summary="Hears everything.")

    def __init__(self, config: Config) -> None:
        self.heard: dict[str, list[Any]] = {}

    def note(self, hook: str, *arguments: Any) -> None:
        self.heard.setdefault(hook, []).append(arguments[0] if len(arguments) == 1 else arguments)

    # --- a broker comes up

    @hookimpl
    def broker_created(self, broker: Broker) -> None:
        self.note("broker_created", broker)

    @hookimpl
    def system_topics(self, broker: Broker) -> Iterable[TopicConfig]:
        self.note("system_topics", broker)
        return [TopicConfig("kept_by_the_plugin", 2, 2)]

    @hookimpl
    def tags_coders(self, broker: Broker) -> Mapping[str, TagsCoder]:
        self.note("tags_coders", broker)
        return {"coded": lambda properties, store_timestamp: 4711}

    @hookimpl
    def redispatch_from(self, broker: Broker) -> int | None:
        self.note("redispatch_from", broker)
        return None

    @hookimpl
    def request_handlers(self, broker: Broker) -> Mapping[int, Handler]:
        self.note("request_handlers", broker)
        return {OWN_CODE: lambda request, connection: request.reply(ext={"hello": request.text("name")})}

    @hookimpl
    def services(self, broker: Broker) -> Iterable[Service]:
        async def run() -> None:
            self.note("services", broker)

        return [Service("say once", run)]

    @hookimpl
    async def broker_started(self, broker: Broker) -> None:
        await anyio.lowlevel.checkpoint()
        self.note("broker_started", broker)

    @hookimpl
    def settings_changed(self, settings: Any) -> None:
        self.note("settings_changed", settings)

    # --- a peer

    @hookimpl
    def connection_opened(self, connection: Connection) -> None:
        self.note("connection_opened", connection)

    @hookimpl
    def before_request(self, request: Command, connection: Connection) -> None:
        self.note("before_request", request.code)

    @hookimpl
    def request_refused(self, request: Command, connection: Connection, error: Exception) -> None:
        self.note("request_refused", request.code, str(error))

    @hookimpl
    def connection_closed(self, connection: Connection) -> None:
        self.note("connection_closed", connection)

    @hookimpl
    def members_changed(self, group: str) -> None:
        self.note("members_changed", group)

    @hookimpl
    def group_is_ordered(self, group: str) -> bool | None:
        self.note("group_is_ordered", group)
        return True

    @hookimpl
    def topics_changed(self, changed: Sequence[TopicConfig], deleted: Sequence[str]) -> None:
        self.note("topics_changed", [topic.name for topic in changed], list(deleted))

    # --- a message

    @hookimpl
    def before_append(self, message: PendingMessage, connection: Connection | None) -> None:
        self.note("before_append", message.topic, connection)
        message.set_property("seen", "yes")

    @hookimpl
    def confirm_append(self, appended: Appended) -> Awaitable[ResponseCode]:
        self.note("confirm_append", appended)
        return self._confirm()

    async def _confirm(self) -> ResponseCode:
        await anyio.lowlevel.checkpoint()
        return ResponseCode.FLUSH_SLAVE_TIMEOUT

    @hookimpl
    def messages_appended(self, batch: Sequence[tuple[PendingMessage, Appended]]) -> None:
        self.note("messages_appended", [bytes(message.body) for message, _ in batch])

    @hookimpl
    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        self.note("messages_dispatched", [event.topic for event in events])

    @hookimpl
    def compile_filter(self, subscription: Subscription) -> MessageFilter | None:
        self.note("compile_filter", subscription)
        return MessageFilter(tag_codes=frozenset({4711}))

    @hookimpl
    def messages_pulled(self, group: str, topic: str, queue_id: int, count: int, size: int) -> None:
        self.note("messages_pulled", group, topic, queue_id, count)

    # --- afterwards

    @hookimpl
    def log_trimmed(self, min_offset: int) -> None:
        self.note("log_trimmed", min_offset)

    @hookimpl
    def runtime_info(self, broker: Broker) -> Mapping[str, str]:
        self.note("runtime_info", broker)
        return {"heard": str(len(self.heard))}

    @hookimpl
    async def broker_stopping(self, broker: Broker) -> None:
        await anyio.lowlevel.checkpoint()
        self.note("broker_stopping", broker)

    # --- in a client

    @hookimpl
    def allocate_queues(
        self, strategy: str, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue] | None:
        self.note("allocate_queues", strategy, group, client_id)
        return list(queues)

    @hookimpl
    def fault_strategy(self, name: str) -> FaultStrategy | None:
        self.note("fault_strategy", name)
        return None

    @hookimpl
    async def before_send(self, sending: Sending) -> None:
        await anyio.lowlevel.checkpoint()
        self.note("before_send", sending)

    @hookimpl
    def after_send(self, sending: Sending) -> None:
        self.note("after_send", sending)

    @hookimpl
    def transaction_ended(self, ended: EndedTransaction) -> None:
        self.note("transaction_ended", ended)

    @hookimpl
    async def client_started(self, client: HostingClient) -> None:
        await anyio.lowlevel.checkpoint()
        self.note("client_started", client)

    @hookimpl
    def client_stopping(self, client: HostingClient) -> None:
        self.note("client_stopping", client)

    @hookimpl
    def before_consume(self, consuming: Consuming) -> None:
        self.note("before_consume", consuming)

    @hookimpl
    def after_consume(self, consuming: Consuming) -> None:
        self.note("after_consume", consuming)


# --- one life of a broker, with everything in it ------------------------------------------


@attrs.define
class Life:
    """What the plugin heard, and what the client was answered."""

    heard: dict[str, list[Any]]
    answers: dict[str, Any]


async def live(folder: Path) -> Life:
    clock = ManualClock()
    answers: dict[str, Any] = {}
    async with running_broker(folder / "store", clock=clock, **enabled(x=Plugin)) as broker:
        plugin: Plugin = broker.host.active["x"].instance
        async with peer(broker.address) as client:
            answers["send"] = await client.send("coded", b"hello")
            await until(lambda: "messages_appended" in plugin.heard)
            answers["pull"] = await pull(client, "coded", subscription="anything")
            answers["own"] = await client.connection.request(Command.request(OWN_CODE, {"name": "Ada"}))
            answers["refused"] = await client.send("coded", b"hello", queue=99)
            await client.heartbeat("readers", ["coded"])
            await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="coded")
            answers["topics"] = {topic.name for topic in broker.topics}
        await until(lambda: "connection_closed" in plugin.heard)
        _change_settings(folder, broker)
        _trim_and_ask(broker, answers)
    await _be_a_client(plugin)
    return Life(plugin.heard, answers)


def _change_settings(folder: Path, broker: Broker) -> None:
    """As an edit of ``broker.toml`` does it."""
    file = folder / "broker.toml"
    file.write_text('[plugins.x]\ncolour = "blue"\n')

    def read() -> Any:
        return load(file, _dotted(enabled(x=Plugin)), environ={})

    SettingsWatcher(broker.host, broker.configuration, file, read).reload()


def _trim_and_ask(broker: Broker, answers: dict[str, Any]) -> None:
    """What plugins ask of each other through the host."""
    broker.host.announce("log_trimmed", 1024)
    answers["runtime_info"] = dict(broker.host.ask("runtime_info", broker))
    answers["group_is_ordered"] = broker.host.ask("group_is_ordered", "readers")


async def _be_a_client(plugin: Plugin) -> None:
    """As a producer and a consumer do it."""
    settings = {key.removeprefix("plugins__").replace("__", "."): value for key, value in enabled(x=Plugin).items()}
    async with running_broker() as broker:
        producer = TransactionProducer(
            "producers", checker=lambda message: TransactionState.COMMIT, namesrv=broker.name_servers[0],
            plugins=settings,
        )  # fmt: skip
        async with producer:
            for hook, calls in producer.host.active["x"].instance.heard.items():
                plugin.heard.setdefault(hook, []).extend(calls)
            producer.host.active["x"].instance.heard = plugin.heard
            async with producer.transaction(Message("orders", b"hello")):
                pass
    host = producer.host
    host.ask("allocate_queues", "AVG", "readers", "me", [QUEUE], ["me"])
    host.ask("fault_strategy", "latency")
    consuming = Consuming("readers", "me", QUEUE, [])
    for hook in ("before_consume", "after_consume"):
        await host.announce_and_wait(hook, consuming)


def _dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("__", "."): value for key, value in settings.items()}


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    return anyio.run(live, tmp_path_factory.mktemp("hooks"))


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_heard_by_a_plugin_that_implements_it(hook: str, life: Life) -> None:
    assert life.heard.get(hook), f"nothing in the life of a broker or a client reached {hook}"


def test_what_hooks_answer_takes_effect(life: Life) -> None:
    assert life.answers["send"].code == ResponseCode.FLUSH_SLAVE_TIMEOUT  # confirm_append
    (message,) = decode_records(life.answers["pull"].body)  # tags_coders and compile_filter agree on 4711
    assert message.properties["seen"] == "yes"  # before_append
    assert life.answers["own"].ext == {"hello": "Ada"}  # request_handlers
    assert "kept_by_the_plugin" in life.answers["topics"]  # system_topics
    assert life.answers["group_is_ordered"] is True
    assert "heard" in life.answers["runtime_info"]


def test_hooks_get_what_they_say_they_get(life: Life) -> None:
    heard = life.heard
    assert heard["settings_changed"] == [Config(colour="blue")]
    assert RequestCode.SEND_MESSAGE_V2 in heard["before_request"]
    assert heard["members_changed"] == ["readers", "readers"]  # it came, it went
    assert (["coded"], []) in heard["topics_changed"]
    assert ([], ["coded"]) in heard["topics_changed"]
    assert heard["messages_appended"] == [[b"hello"]]
    assert heard["request_refused"] == [(RequestCode.SEND_MESSAGE_V2, life.answers["refused"].remark)]
    assert heard["messages_dispatched"] == [["coded"]]
    assert heard["messages_pulled"] == [("readers", "coded", 0, 1)]
    assert heard["log_trimmed"] == [1024]
    assert [subscription.expression for subscription in heard["compile_filter"]] == ["anything"]
    assert heard["allocate_queues"] == [("AVG", "readers", "me")]
    assert heard["connection_opened"] == heard["connection_closed"]


def test_hooks_are_heard_in_the_order_of_their_page(life: Life) -> None:
    begin = ["broker_created", "tags_coders", "redispatch_from", "system_topics", "request_handlers", "broker_started"]
    order = [hook for hook in life.heard if hook in begin]
    assert order == begin


# --- the page ------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_says_what_it_is(hook: str) -> None:
    specification = getattr(hookspecs, hook)
    signature = inspect.signature(specification)

    assert len((specification.__doc__ or "").split()) >= 5
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in signature.parameters.values())
    assert f"#### `{hook}`" in PAGE.read_text()


def test_the_reference_is_what_the_specifications_say() -> None:
    page = PAGE.read_text()
    assert page == updated(page), "run: python -m verniermq.kernel.hookreference"


def test_the_plugin_on_the_page_works(tmp_path: Path) -> None:
    page = PAGE.read_text()
    source, settings = (_block(page, language) for language in ("python", "toml"))
    (tmp_path / "large_orders.py").write_text(source)
    (tmp_path / "broker.toml").write_text(settings)
    plugins = tomllib.loads(settings)["plugins"]

    async def run() -> list[Command]:
        overrides = {
            "plugins__enable": [str(tmp_path / name) if name.endswith(".py") else name for name in plugins["enable"]],
            **{f"plugins__large_orders__{key}": value for key, value in plugins["large_orders"].items()},
        }
        async with running_broker(tmp_path / "store", **overrides) as broker, peer(broker.address) as client:
            sizes = (("orders_eu", 1001), ("orders_eu", 1000), ("x", 1001))
            return [await client.send(topic, b"x" * size) for topic, size in sizes]

    large, small, other = anyio.run(run)
    assert large.code == ResponseCode.MESSAGE_ILLEGAL
    assert large.remark == "an order of 1001 bytes; at most 1000 are taken"
    assert small.code == other.code == ResponseCode.SUCCESS


def _block(page: str, language: str) -> str:
    return page.partition(f"```{language}\n")[2].partition("```")[0]
