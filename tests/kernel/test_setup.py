"""What a plugin brings to its broker: topics, handlers, tables, services, tags coders, registered in ``setup``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import anyio
import attrs
import orjson
import pytest

from tests.kernel.enabling import enabled
from tests.kernel.pulling import pull, until
from tests.plugins.peer import peer, served
from verniermq.kernel import (
    Command,
    Connection,
    Context,
    Declaration,
    Document,
    MessageFilter,
    NoConfig,
    PendingMessage,
    PluginError,
    Registry,
    RequestCode,
    ResponseCode,
    Subscription,
    TopicConfig,
    decode_records,
    hookimpl,
)
from verniermq.kernel.host import discovery
from verniermq.kernel.host.builtin import BROKER_PLUGINS
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

OWN_CODE = 9200


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(api=1, summary="Brings something.", requests=(OWN_CODE,))
    config: NoConfig
    broker: Context
    heard: list[Any] = attrs.field(factory=list, init=False)

    def setup(self, registry: Registry) -> None: ...


# --- topics ----------------------------------------------------------------------------------


class Topics(Plugin):
    def setup(self, registry: Registry) -> None:
        registry.topic(TopicConfig("open_to_all", 3, 3))
        registry.topic(TopicConfig("mine", 2, 2), closed=True)
        registry.close_topic("made_later")

    @hookimpl
    def store_opened(self) -> None:
        self.heard = [topic for topic in ("open_to_all", "mine", "made_later") if topic in self.broker.topics]


async def test_topics_are_created_and_closed_ones_refuse_producers(tmp_path: Path) -> None:
    async with served(tmp_path, **enabled(x=Topics)) as (broker, client):
        codes = {name: (await client.send(name)).code for name in ("open_to_all", "mine", "made_later")}

        assert broker.host.active["x"].instance.heard == ["open_to_all", "mine"]
        assert broker.topics.get("open_to_all").write_queues == 3
        assert codes == {
            "open_to_all": ResponseCode.SUCCESS,
            "mine": ResponseCode.NO_PERMISSION,
            "made_later": ResponseCode.NO_PERMISSION,
        }
        assert "made_later" not in broker.topics, "a topic that is only closed is not created by who may not send to it"


async def test_a_closed_topic_is_open_to_the_plugin_itself(tmp_path: Path) -> None:
    async with served(tmp_path, **enabled(x=Topics)) as (broker, client):
        plugin: Topics = broker.host.active["x"].instance
        await plugin.broker.put(PendingMessage("mine", 1, b"note", {}))

        assert await client.bodies("mine", 1) == [b"note"]


async def test_a_topic_that_was_altered_stays_as_it_was_altered(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **enabled(x=Topics)) as broker:
        broker.topics.put(TopicConfig("open_to_all", 8, 8))
    async with running_broker(tmp_path, **enabled(x=Topics)) as broker:
        assert broker.topics.get("open_to_all").write_queues == 8


# --- handlers --------------------------------------------------------------------------------


class Serving(Plugin):
    """Serves a code of its own and one of the kernel's."""

    declaration: ClassVar = Declaration(
        api=1, summary="Serves.", requests=(OWN_CODE, RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET)
    )

    def setup(self, registry: Registry) -> None:
        registry.handler(OWN_CODE, self.serve)
        registry.handler(RequestCode.GET_MAX_OFFSET, self.serve_later)

    def serve(self, request: Command, connection: Connection) -> Command:
        return request.reply(ext={"by": self.declaration.summary})

    async def serve_later(self, request: Command, connection: Connection) -> Command:
        await anyio.lowlevel.checkpoint()
        return self.serve(request, connection)


class ServingToo(Serving):
    declaration: ClassVar = Declaration(api=1, summary="Serves too.", requests=(OWN_CODE,))

    def setup(self, registry: Registry) -> None:
        registry.handler(OWN_CODE, self.serve)


async def test_the_last_plugin_with_a_handler_for_a_request_serves_it() -> None:
    async with running_broker(**enabled(x=Serving, y=ServingToo)) as broker, peer(broker.address) as client:
        own = await client.connection.request(Command.request(OWN_CODE))
        of_the_kernel = await client.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0)

    assert own.ext == {"by": "Serves too."}
    assert of_the_kernel.ext == {"by": "Serves."}


class Undeclared(Plugin):
    def setup(self, registry: Registry) -> None:
        registry.handler(RequestCode.QUERY_MESSAGE, lambda request, connection: request.reply())


class Twice(Plugin):
    def setup(self, registry: Registry) -> None:
        for _ in range(2):
            registry.handler(OWN_CODE, lambda request, connection: request.reply())


@pytest.mark.parametrize(
    ("plugin_class", "complaint"),
    [
        (Undeclared, r"it serves request QUERY_MESSAGE \(12\), which its declaration does not name in requests"),
        (Twice, "it registers two handlers for request code 9200"),
    ],
)
async def test_a_handler_that_does_not_fit_keeps_the_broker_from_starting(plugin_class: type, complaint: str) -> None:
    with pytest.raises(PluginError, match=f"plugin 'x' cannot be set up: PluginError: {complaint}") as raised:
        async with running_broker(**enabled(x=plugin_class)):
            pass
    assert raised.value.plugin == "x"


@pytest.mark.parametrize("content", [{"users": {"a": 1}}, {"users": [1]}, {"users": {"a": {"policies": {"b": 1}}}}])
async def test_a_table_that_its_plugin_cannot_use_is_named_at_the_start(tmp_path: Path, content: object) -> None:
    table = tmp_path / "config" / "acl.json"
    table.parent.mkdir()
    table.write_bytes(orjson.dumps(content))
    table.chmod(0o600)

    with pytest.raises(PluginError, match=r"acl\.json: plugin 'acl' cannot use what it holds.*mend the file") as raised:
        async with running_broker(
            tmp_path, plugins__enable=["acl"], plugins__acl__accounts={"a": {"secret": "12345678"}}
        ):
            pass
    assert raised.value.plugin == "acl"


def _with_needs(name: str) -> dict[str, None]:
    """A plugin behind those that it needs, and what these need."""
    needs = discovery.load(discovery.built_in(name, BROKER_PLUGINS)).declaration.needs
    return {found: None for need in needs for found in _with_needs(need)} | {name: None}


NEEDED: dict[str, dict[str, Any]] = {
    "acl": {"plugins__acl__accounts": {"a": {"secret": "12345678"}}},
    "console": {"plugins__console__listen": "127.0.0.1:0"},
    "grpc": {"plugins__grpc__port": 0},
    "http": {"plugins__http__listen": "127.0.0.1:0"},
    "metrics": {"plugins__metrics__listen": "127.0.0.1:0"},
}
"""What a plugin needs to be told; ports above all, since somebody else on the machine may have its own one."""


@pytest.mark.parametrize("name", BROKER_PLUGINS.builtin)
async def test_a_built_in_plugin_registers_exactly_the_requests_that_it_declares(name: str) -> None:
    declared = discovery.load(discovery.built_in(name, BROKER_PLUGINS)).declaration
    enabled = [*_with_needs(name)]
    settings = {key: value for one in enabled for key, value in NEEDED.get(one, {}).items()}
    async with running_broker(plugins__enable=enabled, **settings) as broker:
        registries = [registry for registry in broker._registries if registry.plugin.name == name]
        registered = {code for registry in registries for code in registry.handlers}

    assert registered == set(declared.requests)
    assert len(declared.requests) == len(set(declared.requests))


# --- tables ----------------------------------------------------------------------------------


class Counting(Plugin):
    """Counts its starts in a table."""

    document: Document

    def setup(self, registry: Registry) -> None:
        self.count = -1
        self.document = registry.table("starts", load=self.load, save=self.save)

    def load(self, content: Mapping[str, Any]) -> None:
        self.heard.append("loaded")
        self.count = content.get("count", 0)

    def save(self) -> Mapping[str, Any]:
        return {"count": self.count}

    @hookimpl
    def store_opened(self) -> None:
        self.heard.append("store_opened")
        self.count += 1
        self.document.touch()


async def test_a_table_is_loaded_before_store_opened_and_saved_after_a_touch(tmp_path: Path) -> None:
    file = tmp_path / "config" / "starts.json"
    for start in (1, 2, 3):
        async with running_broker(tmp_path, **enabled(x=Counting)) as broker:
            plugin: Counting = broker.host.active["x"].instance
            await plugin.document.saved()

            assert plugin.heard == ["loaded", "store_opened"]
            assert plugin.count == start
            assert orjson.loads(file.read_bytes()) == {"count": start}


async def test_what_is_touched_last_is_saved_by_the_stop(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **enabled(x=Counting)) as broker:
        plugin: Counting = broker.host.active["x"].instance
        plugin.count = 4711
        plugin.document.touch()

    assert orjson.loads((tmp_path / "config" / "starts.json").read_bytes()) == {"count": 4711}


async def test_what_is_not_touched_is_not_written(tmp_path: Path) -> None:
    async with running_broker(tmp_path, **enabled(x=Reading)):
        pass

    assert not (tmp_path / "config" / "starts.json").exists()


class Reading(Counting):
    @hookimpl
    def store_opened(self) -> None: ...


# --- services --------------------------------------------------------------------------------


class Working(Plugin):
    """One service from setup, one that is known only when the store is open."""

    def setup(self, registry: Registry) -> None:
        self.registry = registry
        registry.service("early", self.early)

    @hookimpl
    def store_opened(self) -> None:
        self.registry.service("late", self.late)

    @hookimpl
    def broker_stopping(self) -> None:
        self.heard.append("stopping")

    async def early(self) -> None:
        await self._work("early")

    async def late(self) -> None:
        await self._work("late")

    async def _work(self, name: str) -> None:
        self.heard.append(name)
        try:
            await anyio.sleep_forever()
        finally:
            self.heard.append(f"{name} ended")


async def test_services_run_from_the_start_to_the_end() -> None:
    async with running_broker(**enabled(x=Working)) as broker:
        plugin: Working = broker.host.active["x"].instance
        await until(lambda: len(plugin.heard) == 2)

        assert sorted(plugin.heard) == ["early", "late"]
    assert plugin.heard[2] == "stopping"
    assert sorted(plugin.heard[3:]) == ["early ended", "late ended"]


# --- tags coders, and the end ----------------------------------------------------------------


class Coding(Plugin):
    """Keeps the length of a property in the queue, and finds messages by it."""

    declaration: ClassVar = Declaration(api=1, summary="Codes.", expressions=("LENGTH",))

    def setup(self, registry: Registry) -> None:
        registry.tags_coder("coded", lambda properties, store_timestamp: len(properties.get("name", "")))
        registry.on_close(lambda: self.heard.append("closed"))

    @hookimpl
    def compile_filter(self, subscription: Subscription) -> MessageFilter | None:
        if subscription.expression_type != "LENGTH":
            return None
        return MessageFilter(tag_codes=frozenset({int(subscription.expression)}))

    @hookimpl
    def broker_stopping(self) -> None:
        self.heard.append("stopping")


async def test_a_tags_coder_gives_the_number_of_its_topic_and_of_no_other(tmp_path: Path) -> None:
    async with served(tmp_path, **enabled(x=Coding)) as (_, client):
        for topic in ("coded", "other"):
            for name in ("Ada", "Grace"):
                await client.sent(topic, name.encode(), name=name)
        wanted = {"expressionType": "LENGTH", "subscription": "5"}
        (found,) = decode_records((await pull(client, "coded", **wanted)).body)
        elsewhere = await pull(client, "other", **wanted)

    assert found.body == b"Grace"
    assert elsewhere.code != ResponseCode.SUCCESS


async def test_on_close_comes_when_the_store_closes_behind_the_stop() -> None:
    async with running_broker(**enabled(x=Coding)) as broker:
        plugin: Coding = broker.host.active["x"].instance
        assert plugin.heard == []
    assert plugin.heard == ["stopping", "closed"]
