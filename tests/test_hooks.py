"""Every hook is documented, and every hook is heard by a plugin that implements it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import anyio
import anyio.to_thread
import attrs
import pytest
from click.testing import CliRunner

from tests.kernel.enabling import enabled
from tests.kernel.pulling import pull, until
from tests.plugins.peer import peer
from verniermq.cli.hookreference import updated
from verniermq.client import TransactionProducer, TransactionState
from verniermq.client import hookspecs as client_hookspecs
from verniermq.kernel import (
    Appended,
    Broker,
    ClientContext,
    ClientRegistry,
    Command,
    Connection,
    ConsumerOffsets,
    Context,
    Declaration,
    DispatchEvent,
    FaultStrategy,
    GroupConfig,
    GroupTable,
    Message,
    MessageFilter,
    MessageQueue,
    PendingMessage,
    Registry,
    RequestCode,
    ResponseCode,
    Role,
    Store,
    StoredMessage,
    Subscription,
    TopicConfig,
    TopicTable,
    decode_records,
    hookimpl,
    hookspecs,
    setting,
)
from verniermq.kernel.config import load
from verniermq.kernel.hookspec import HookKind, kind_of, specifications_in
from verniermq.kernel.host import discovery
from verniermq.kernel.host.builtin import BROKER_PLUGINS
from verniermq.kernel.host.reload import SettingsWatcher
from verniermq.kernel.requests import Access, Caller
from verniermq.kernel.traffic import Consuming, EndedTransaction, Sending
from verniermq.plugins.admin.status import runtime_info
from verniermq.plugins.ha.coordinator import coordinator_for
from verniermq.plugins.ha.metadata import table_copied
from verniermq.plugins.http.server import other_pages
from verniermq.plugins.namesrv.registrar import master_found
from verniermq.plugins.pop.reader import pop_order
from verniermq.plugins.retention import log_trimmed
from verniermq.plugins.retry.sendback import group_is_ordered
from verniermq.testing import ManualClock, running_broker

PAGE = Path(__file__).parents[1] / "docs" / "hooks.md"
BROUGHT = {
    specification.__name__: specification
    for name in BROKER_PLUGINS.builtin
    for specification in discovery.load(discovery.built_in(name, BROKER_PLUGINS)).declaration.hookspecs
}
SPECIFICATIONS: dict[str, Callable[..., Any]] = {
    **specifications_in(hookspecs),
    **specifications_in(client_hookspecs),
    **BROUGHT,
}
HOOKS = list(SPECIFICATIONS)
OWN_CODE = 9100
QUEUE = MessageQueue("orders", "broker-a", 0)


@attrs.frozen
class Config:
    colour: str = setting("red", "A setting to change.")


class Heard:
    """Writes down what it was called with."""

    def __init__(self) -> None:
        self.heard: dict[str, list[Any]] = {}

    def note(self, hook: str, *arguments: Any) -> None:
        self.heard.setdefault(hook, []).append(arguments[0] if len(arguments) == 1 else arguments)


class Plugin(Heard):
    """Implements every hook of a broker."""

    declaration: ClassVar = Declaration(api=1, config=Config, summary="Hears everything.", requests=(OWN_CODE,))

    def __init__(self, config: Config, broker: Context) -> None:
        super().__init__()
        self.broker = broker
        self.note("made", config)

    # --- a broker comes up

    def setup(self, registry: Registry) -> None:
        self.note("setup", registry)
        registry.topic(TopicConfig("kept_by_the_plugin", 2, 2))
        registry.tags_coder("coded", lambda properties, store_timestamp: 4711)
        registry.handler(OWN_CODE, lambda request, connection: request.reply(ext={"hello": request.text("name")}))

    @hookimpl
    def store_opened(self) -> None:
        self.note("store_opened", "kept_by_the_plugin" in self.broker.topics)

    @hookimpl
    async def broker_started(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.note("broker_started", self.broker.address)

    @hookimpl
    def role_changed(self, role: Role) -> None:
        self.note("role_changed", role)

    @hookimpl
    def settings_changed(self, settings: Any) -> None:
        self.note("settings_changed", settings)

    # --- a peer

    @hookimpl
    def before_access(self, caller: Caller, wanted: Iterable[Access]) -> None:
        self.note("before_access", caller.request, [(one.kind, one.name) for one in wanted])

    @hookimpl
    def client_joined(self, kind: str, group: str, client_id: str, connection: Connection) -> None:
        self.note("client_joined", kind, group, client_id)

    @hookimpl
    def client_left(self, kind: str, group: str, client_id: str, connection: Connection) -> None:
        self.note("client_left", kind, group, client_id)

    @hookimpl
    def offset_committed(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.note("offset_committed", group, topic, queue_id, offset)

    @hookimpl
    def before_request(self, request: Command, connection: Connection) -> None:
        self.note("before_request", request.code)

    @hookimpl
    def request_served(
        self, request: Command, connection: Connection, answer: Command | None, error: Exception | None, elapsed_ns: int
    ) -> None:
        assert elapsed_ns > 0
        self.note("request_served", request.code, None if answer is None else answer.code, error and str(error))

    @hookimpl
    def connection_closed(self, connection: Connection) -> None:
        self.note("connection_closed", connection)

    @hookimpl
    def members_changed(self, group: str) -> None:
        self.note("members_changed", group)

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
    def allocate_queues(
        self, strategy: str, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue] | None:
        self.note("allocate_queues", strategy, group, client_id)
        return list(queues)

    @hookimpl
    def messages_pulled(self, group: str, topic: str, queue_id: int, count: int, size: int) -> None:
        self.note("messages_pulled", group, topic, queue_id, count)

    @hookimpl
    def offset_moved(self, group: str, topic: str, queue_id: int, asked: int, given: int) -> None:
        self.note("offset_moved", group, topic, queue_id, asked, given)

    # --- the end

    @hookimpl
    async def broker_leaving(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.note("broker_leaving")

    @hookimpl
    async def broker_stopping(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.note("broker_stopping")

    # --- the files of a stopped broker

    @hookimpl
    def check_files(self, path: Path, mend: bool) -> Iterable[str]:
        self.note("check_files", path.name, mend)
        return ["it was seen"]

    # --- brought by plugins

    @hookimpl(optionalhook=True)
    def group_is_ordered(self, group: str) -> bool | None:
        self.note("group_is_ordered", group)
        return True

    @hookimpl(optionalhook=True)
    def pop_order(self, topic: TopicConfig, group: GroupConfig) -> tuple[Sequence[int], bool] | None:
        self.note("pop_order", topic.name, group.name)
        return (1, 0), True

    @hookimpl(optionalhook=True)
    def queue_mappings(self) -> Mapping[str, Mapping[str, Any]] | None:
        self.note("queue_mappings")
        return None

    @hookimpl(optionalhook=True)
    async def topics_told(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.note("topics_told")

    @hookimpl(optionalhook=True)
    def master_found(self, master: str, ha_address: str) -> None:
        self.note("master_found", master, ha_address)

    @hookimpl(optionalhook=True)
    def coordinator_for(self, cluster: str, broker: str, ttl: float) -> Any:
        self.note("coordinator_for", cluster, broker, ttl)
        return None

    @hookimpl(optionalhook=True)
    def table_copied(self, code: int, table: Mapping[str, Any]) -> None:
        self.note("table_copied", code, table)

    @hookimpl(optionalhook=True)
    def runtime_info(self) -> Mapping[str, str]:
        self.note("runtime_info")
        return {"heard": str(len(self.heard))}

    @hookimpl(optionalhook=True)
    def other_pages(self) -> Any:
        self.note("other_pages")
        return self.note

    @hookimpl(optionalhook=True)
    def log_trimmed(self, min_offset: int) -> None:
        self.note("log_trimmed", min_offset)


class ClientPlugin(Heard):
    """Implements every hook of a client."""

    declaration: ClassVar = Declaration(api=1, config=Config, summary="Hears everything.")

    def __init__(self, config: Config, client: ClientContext) -> None:
        super().__init__()
        self.client = client

    @hookimpl
    async def client_started(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.note("client_started", self.client.group)

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
    def before_consume(self, consuming: Consuming) -> None:
        self.note("before_consume", consuming)

    @hookimpl
    def after_consume(self, consuming: Consuming) -> None:
        self.note("after_consume", consuming)

    @hookimpl
    def client_stopping(self) -> None:
        self.note("client_stopping", self.client.client_id)


# --- one life of a broker, with everything in it ------------------------------------------


@attrs.define
class Life:
    """What the plugin heard, and what the client was answered."""

    heard: dict[str, list[Any]]
    answers: dict[str, Any]


ACTIVE = ("schedule", "retry", "admin", "retention", "pop", "namesrv", "topics", "ha", "http")
"""Those that bring hooks, what they need, and who deletes a topic."""
LISTEN = {"plugins__http__listen": "127.0.0.1:0"}


async def live(folder: Path) -> Life:
    clock = ManualClock()
    answers: dict[str, Any] = {}
    async with running_broker(folder / "store", clock=clock, **enabled(*ACTIVE, x=Plugin), **LISTEN) as broker:
        plugin: Plugin = broker.host.active["x"].instance
        async with peer(broker.address) as client:
            answers["send"] = await client.send("coded", b"hello")
            await until(lambda: "messages_appended" in plugin.heard)
            answers["pull"] = await pull(client, "coded", subscription="anything")
            await pull(client, "coded", offset=7)
            answers["own"] = await client.connection.request(Command.request(OWN_CODE, {"name": "Ada"}))
            answers["refused"] = await client.send("coded", b"hello", queue=99)
            made = {
                "topic": "made",
                "readQueueNums": 1,
                "writeQueueNums": 1,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
            }
            await client.ask_well(RequestCode.UPDATE_AND_CREATE_TOPIC, defaultTopic="TBW102", **made)
            await client.heartbeat("readers", ["coded"])
            where = {"consumerGroup": "readers", "topic": "coded", "queueId": 0}
            await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **where, commitOffset=1)
            await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="coded")
            answers["topics"] = {topic.name for topic in broker.topics}
        await until(lambda: "connection_closed" in plugin.heard and "client_left" in plugin.heard)
        _change_settings(folder, broker)
        _ask(broker, answers)
        await broker.leave()
    answers["check_files"] = list(broker.host.ask_all(hookspecs.check_files, folder / "store", False))
    return Life({**await _be_a_client(), **plugin.heard}, answers)


def _change_settings(folder: Path, broker: Broker) -> None:
    """As an edit of ``broker.toml`` does it."""
    file = folder / "broker.toml"
    file.write_text('[plugins.x]\ncolour = "blue"\n')

    def read() -> Any:
        return load(file, _dotted(enabled(*ACTIVE, x=Plugin) | LISTEN), environ={})

    SettingsWatcher(broker.host, broker.configuration, read).reload()


def _ask(broker: Broker, answers: dict[str, Any]) -> None:
    """What plugins ask of each other through the host."""
    broker.host.announce(master_found, "10.0.0.5:10911", "10.0.0.5:10912")
    broker.host.announce(table_copied, RequestCode.GET_ALL_DELAY_OFFSET, {"offsetTable": {}})
    broker.host.announce(log_trimmed, 1024)
    answers["coordinator_for"] = broker.host.ask(coordinator_for, "cluster", "broker", 3.0)
    answers["runtime_info"] = {key for info in broker.host.ask_all(runtime_info) for key in info}
    answers["other_pages"] = broker.host.ask(other_pages)
    answers["pop_order"] = broker.host.ask(pop_order, TopicConfig("orders"), GroupConfig("readers"))
    answers["group_is_ordered"] = broker.host.ask(group_is_ordered, "readers")
    answers["allocate_queues"] = broker.host.ask(hookspecs.allocate_queues, "AVG", "readers", "me", [QUEUE], ["me"])


async def _be_a_client() -> dict[str, list[Any]]:
    """As a producer and a consumer do it."""
    settings = {
        key.removeprefix("plugins__").replace("__", "."): value for key, value in enabled(x=ClientPlugin).items()
    }
    async with running_broker() as broker:
        producer = TransactionProducer(
            "producers", checker=lambda message: TransactionState.COMMIT, namesrv=broker.name_servers[0],
            plugins=settings,
        )  # fmt: skip
        async with producer, producer.transaction(Message("orders", b"hello")):
            pass
    host = producer.host
    host.ask(client_hookspecs.allocate_queues, "AVG", "readers", "me", [QUEUE], ["me"])
    host.ask(client_hookspecs.fault_strategy, "latency")
    consuming = Consuming("readers", "me", QUEUE, [])
    for hook in (client_hookspecs.before_consume, client_hookspecs.after_consume):
        await host.announce_and_wait(hook, consuming)
    heard: dict[str, list[Any]] = host.active["x"].instance.heard
    return heard


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
    (message,) = decode_records(life.answers["pull"].body)  # tags_coder and compile_filter agree on 4711
    assert message.properties["seen"] == "yes"  # before_append
    assert life.answers["own"].ext == {"hello": "Ada"}  # registry.handler
    assert "kept_by_the_plugin" in life.answers["topics"]  # registry.topic
    assert life.answers["pop_order"] == ((1, 0), True)
    assert life.answers["group_is_ordered"] is True
    assert life.answers["allocate_queues"] == [QUEUE]
    assert "heard" in life.answers["runtime_info"]
    assert callable(life.answers["other_pages"])


def test_hooks_get_what_they_say_they_get(life: Life) -> None:
    heard = life.heard
    assert heard["settings_changed"] == [Config(colour="blue")]
    assert [role.is_master for role in heard["role_changed"]] == [True]
    assert heard["master_found"] == [("10.0.0.5:10911", "10.0.0.5:10912")]
    assert heard["coordinator_for"] == [("cluster", "broker", 3.0)]
    assert heard["table_copied"] == [(RequestCode.GET_ALL_DELAY_OFFSET, {"offsetTable": {}})]
    assert RequestCode.SEND_MESSAGE_V2 in heard["before_request"]
    assert heard["before_access"][0] == ("SEND_MESSAGE_V2 (310)", [("topic", "coded")])
    assert len(heard["before_access"]) == len(heard["before_request"])
    assert heard["members_changed"] == ["readers", "readers"]  # it came, it went
    assert heard["client_joined"] == heard["client_left"] == [("consumer", "readers", "127.0.0.1@test")]
    assert heard["offset_committed"] == [("readers", "coded", 0, 1)]
    assert (["coded"], []) in heard["topics_changed"]
    assert ([], ["coded"]) in heard["topics_changed"]
    assert heard["messages_appended"] == [[b"hello"]]
    assert heard["request_served"][0] == (RequestCode.SEND_MESSAGE_V2, ResponseCode.FLUSH_SLAVE_TIMEOUT, None)
    assert (RequestCode.SEND_MESSAGE_V2, None, life.answers["refused"].remark) in heard["request_served"]
    assert [code for code, _, _ in heard["request_served"]] == heard["before_request"]
    assert heard["messages_dispatched"][0] == ["coded"]
    assert heard["messages_pulled"] == [("readers", "coded", 0, 1)]
    assert heard["offset_moved"] == [("readers", "coded", 0, 7, 1)]
    assert heard["log_trimmed"] == [1024]
    assert heard["pop_order"] == [("orders", "readers")]
    assert heard["check_files"] == [("store", False)]
    assert [subscription.expression for subscription in heard["compile_filter"]] == ["anything"]
    assert heard["allocate_queues"] == [("AVG", "readers", "me")]
    assert heard["store_opened"] == [True]  # the plugin's topics are there
    assert heard["client_started"] == ["producers"]


def test_hooks_are_heard_in_the_order_of_their_page(life: Life) -> None:
    in_clients = set(specifications_in(client_hookspecs))
    begin = ["made", "setup", "store_opened", "role_changed", "broker_started", "before_access", "before_request"]
    kernels = [hook for hook in life.heard if hook not in in_clients and hook not in BROUGHT]
    assert kernels[: len(begin)] == begin


# --- the page ------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_says_what_it_is(hook: str) -> None:
    specification = SPECIFICATIONS[hook]
    signature = inspect.signature(specification)

    assert len((specification.__doc__ or "").split()) >= 5
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in signature.parameters.values())
    assert f"#### `{hook}`" in PAGE.read_text()


@pytest.mark.parametrize("hook", HOOKS)
def test_the_kind_of_a_hook_agrees_with_its_name_and_its_answer(hook: str) -> None:
    kind, answer = kind_of(SPECIFICATIONS[hook]), inspect.signature(SPECIFICATIONS[hook]).return_annotation

    assert isinstance(kind, HookKind)
    assert (kind.shape == "change") == hook.startswith("before_")
    assert kind.may_wait == (answer == "Awaitable[None] | None")
    if kind.shape == "question":
        assert "None" in answer.split(" | ")
        assert not kind.may_wait
    elif not kind.may_wait:
        assert answer == "None"
    assert kind.answered == (kind.shape != "announcement")
    assert not kind.at_start or kind.shape == "announcement"


def test_the_reference_is_what_the_specifications_say() -> None:
    page = PAGE.read_text()
    assert page == updated(page), "run: python -m verniermq.cli.hookreference"


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


SETUP = """
from verniermq.kernel import NoConfig, Registry, TopicConfig

class Plugin:
    declaration = Declaration(api=1, summary="Brings everything.", requests=(9100, 9101))

    def __init__(self, config, broker):
        self.heard = []

    def setup(self, registry):
{blocks}
        self.registry = registry

    def serve(self, request, connection):
        return request.reply(ext={{"visits": "1"}})

    async def serve_later(self, request, connection):
        return self.serve(request, connection)

    async def upload(self):
        self.heard.append("upload")

    def load(self, content):
        self.heard.append("load")

    def save(self):
        return {{}}

    def finish(self):
        self.heard.append("finish")

    def by_room(self):
        yield ("kitchen",), 3.0

    def visits_page(self, query):
        return {{"visits": 1}}
"""


def test_every_method_of_the_registry_is_shown_and_what_is_shown_works(tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## Setup: ")[2].partition("\n## ")[0]
    blocks = "\n".join(_blocks(section, "python"))
    source = "from verniermq.kernel import Declaration\n" + SETUP.format(blocks=textwrap.indent(blocks, " " * 8))
    (tmp_path / "visits.py").write_text(source)
    methods = {name for name, member in vars(Registry).items() if inspect.isfunction(member) and name[0] != "_"}

    async def run() -> tuple[list[int], list[str]]:
        enable = [str(tmp_path / "visits.py")]
        async with running_broker(tmp_path / "store", plugins__enable=enable) as broker, peer(broker.address) as client:
            plugin = broker.host.active["visits"].instance
            requests = [Command.request(9100), Command.request(9101)]
            codes = [(await client.connection.request(request)).code for request in requests]
            codes += [(await client.send(topic)).code for topic in ("visits", "visits_given_up")]
        return codes, plugin.heard

    codes, heard = anyio.run(run)
    assert codes == [0, 0, ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION]
    assert heard == ["load", "upload", "finish"]
    assert methods - {"load_tables"} == set(re.findall(r"registry\.(\w+)\(", blocks))


def test_the_request_and_the_command_on_the_page_work(tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## Requests")[2].partition("\n## ")[0]
    names: dict[str, Any] = {"__name__": "visits"}
    exec("\n".join(_blocks(section, "python")), names)
    asked: list[Any] = []

    def serve(request: Command, connection: Connection) -> Command:
        asked.append(names["CountVisits"].of(request))
        return request.reply(ext={"visits": "3"})

    async def run() -> Any:
        async with running_broker(tmp_path) as broker:
            broker.handlers[9100] = serve
            return await anyio.to_thread.run_sync(CliRunner().invoke, names["visits"], [broker.address, "kitchen"])

    shown = anyio.run(run)
    assert (shown.exit_code, shown.output) == (0, "3\n")
    assert [(one.group, one.topic, one.days) for one in asked] == [("cli", "kitchen", 1)]


def test_every_piece_of_python_on_the_page_is_python() -> None:
    manual = PAGE.read_text().partition("## Reference")[0]
    for block in _blocks(manual, "python"):
        compile(block, "hooks.md", "exec")


def test_the_plugin_and_the_test_on_the_page_work(tmp_path: Path) -> None:
    page = PAGE.read_text()
    plugin = _blocks(page.partition("## A whole plugin")[2], "python")[0]
    test = _blocks(page.partition("## Testing")[2], "python")[0]
    (tmp_path / "large_orders.py").write_text(plugin)
    (tmp_path / "test_large_orders.py").write_text(test)
    (tmp_path / "conftest.py").write_text(
        "import pytest\n\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True
    )

    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout


def test_everything_that_the_context_has_is_on_the_page() -> None:
    manual = PAGE.read_text().partition("## Reference")[0].partition("## The constructor")[2]
    for owner in (Context, ClientContext):
        for name in dir(owner):
            assert name[0] == "_" or re.search(rf"\b{name}\b", manual), name
    for name in ("store", "topics", "groups", "offsets", "clients", "held_pulls", "hooks", "tls", "clock"):
        assert re.search(rf"`[^`]*\b{name}\b", manual), name
    for field in attrs.fields(Declaration):
        assert f"{field.name}=" in manual or f"`{field.name}`" in manual, field.name


OBJECTS = (PendingMessage, Appended, DispatchEvent, StoredMessage, Command, Connection, TopicConfig, GroupConfig)


@pytest.mark.parametrize("owner", OBJECTS, ids=lambda owner: owner.__name__)
def test_the_manual_names_only_what_objects_have(owner: type) -> None:
    section = PAGE.read_text().partition("## The objects it meets")[2].partition("\n## ")[0]
    row = next(line for line in section.splitlines() if line.startswith(f"| `{owner.__name__}`"))
    named = re.findall(r"`([a-z_]+)(?=[`(])", row.partition("|")[2].partition("|")[2])
    has = {name for one in owner.__mro__ for name in (*dir(one), *getattr(one, "__annotations__", ()))}
    has |= set(re.findall(r"self\.([a-z_]+)\b", inspect.getsource(owner)))
    assert named
    assert [name for name in named if name not in has] == []


@pytest.mark.parametrize(
    ("prefix", "owner"),
    [("topics", TopicTable), ("groups", GroupTable), ("offsets", ConsumerOffsets), ("clients", ClientRegistry)],
)
def test_the_manual_names_only_what_tables_have(prefix: str, owner: type) -> None:
    section = PAGE.read_text().partition("## The objects it meets")[2].partition("\n## ")[0]
    named = set(re.findall(rf"`{prefix}\.([a-z_]+)", section))
    has = {*dir(owner), *re.findall(r"self\.([a-z_]+)\b", inspect.getsource(owner))}
    assert named
    assert named <= has


def test_the_manual_names_only_what_the_store_has() -> None:
    section = PAGE.read_text().partition("| of `broker.store` |")[2].partition("| of the tables |")[0]
    rows = [line.partition("|")[2].partition("|")[0] for line in section.splitlines()[2:] if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"`([a-z_]+)(?=[`(])", row)}
    assert {"append", "queue", "matches", "end"} <= named
    assert named <= set(dir(Store))


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def _block(page: str, language: str) -> str:
    return page.partition(f"```{language}\n")[2].partition("```")[0]
