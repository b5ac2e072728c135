"""Plugins in clients: named in the constructor or in a TOML table, loaded by the same host as a broker's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.client.place import Place, numbered, until
from verniermq.client import Message, Producer, PushConsumer, ReceivedMessage
from verniermq.client.errors import ClientError
from verniermq.kernel import ConfigError, PluginError, RequestRefused
from verniermq.testing import broker_process

pytestmark = pytest.mark.anyio

PLUGIN = """
from collections.abc import Sequence
from typing import ClassVar
import anyio, attrs
from verniermq.kernel import (
    ClientContext, Consuming, Declaration, MessageQueue, RequestRefused, Sending, hookimpl, setting,
)

@attrs.frozen
class Config:
    mark: str = setting("marked", "What messages are marked with.")

@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(api=1, config=Config, summary="Marks and refuses.")
    config: Config
    client: ClientContext

    @hookimpl
    async def before_send(self, sending: Sending) -> None:
        await anyio.sleep(0)
        if sending.message.body == b"refuse me":
            raise RequestRefused("refused by a plugin")
        sending.message.properties["mark"] = self.config.mark

    @hookimpl
    def before_consume(self, consuming: Consuming) -> None:
        if consuming.messages[0].reconsume_times == 0 and consuming.messages[0].body == b"not yet":
            raise RequestRefused("not now")

    @hookimpl
    def allocate_queues(self, strategy: str, queues: Sequence[MessageQueue]) -> list[MessageQueue] | None:
        return list(queues[:1]) if strategy == "only_the_first" else None
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "marker.py"
    path.write_text(PLUGIN)
    return path


async def test_a_plugin_named_in_the_constructor_changes_and_refuses_sends(place: Place, plugin: Path) -> None:
    topic = await place.topic("plugged")

    async with Producer("senders", namesrv=place.namesrv, plugins=[str(plugin)]) as producer:
        await producer.send(Message(topic, b"x"))
        await (await producer.submit(Message(topic, b"y")))
        with pytest.raises(RequestRefused, match="refused by a plugin"):
            await producer.send(Message(topic, b"refuse me"))

    assert {message.properties["mark"] for message in await place.stored(topic)} == {"marked"}
    assert len(await place.stored(topic)) == 2


async def test_a_table_configures_the_plugins(place: Place, plugin: Path, tmp_path: Path) -> None:
    topic = await place.topic("table")
    toml = tmp_path / "client.toml"
    toml.write_text(f'[plugins]\nenable = ["default", "{plugin}"]\n[plugins.marker]\nmark = "from the file"\n')

    async with Producer("senders", namesrv=place.namesrv, plugins=toml) as producer:
        await producer.send(Message(topic, b"x"))
    async with Producer(
        "senders", namesrv=place.namesrv, plugins={"enable": [str(plugin)], "marker": {"mark": "from the call"}}
    ) as producer:
        await producer.send(Message(topic, b"y"))

    marks = {message.body: message.properties["mark"] for message in await place.stored(topic)}
    assert marks == {b"x": "from the file", b"y": "from the call"}


async def test_a_wrong_table_is_refused_at_the_start(place: Place, plugin: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'mark'"):
        await Producer("p", namesrv=place.namesrv, plugins={"enable": [str(plugin)], "marker": {"marc": "x"}}).start()
    with pytest.raises(PluginError, match="no built-in plugin"):
        await Producer("p", namesrv=place.namesrv, plugins=["nonsense"]).start()
    with pytest.raises(ClientError, match="did you mean 'latency'"):
        await Producer("p", namesrv=place.namesrv, fault="latenzy").start()


async def test_a_strategy_of_a_plugin_shares_the_queues(place: Place, plugin: Path) -> None:
    topic = await place.topic("shared", queues=4)
    consumer = PushConsumer(
        place.name("group"), namesrv=place.namesrv, allocate="only_the_first", plugins=[str(plugin)]
    )
    consumer.subscribe(topic)
    consumer.on_message(print)

    async with consumer:
        assigned = {queue.queue_id for queue in consumer.assignment}

    assert assigned == {0}


async def test_a_delivery_that_a_plugin_refuses_comes_again(place: Place, plugin: Path) -> None:
    topic = await place.topic("refused")
    consumer = PushConsumer(place.name("group"), namesrv=place.namesrv, start="first", plugins=[str(plugin)])
    consumer.subscribe(topic)
    seen: list[tuple[bytes, int]] = []

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))

    await place.send(topic, [b"not yet", b"now"])
    async with consumer:
        await until(lambda: (b"now", 0) in seen)
        await place.pass_time(11)
        await until(lambda: len(seen) == 2)

    assert (b"not yet", 1) in seen


async def test_consistent_hashing_is_configured_by_its_table(place: Place) -> None:
    topic = await place.topic("hashed", queues=8)
    group = place.name("group")
    members = []
    for _ in range(2):
        consumer = PushConsumer(
            group,
            namesrv=place.namesrv,
            start="first",
            allocate="CONSISTENT_HASH",
            plugins={"allocate": {"virtual_nodes": 40}},
        )
        consumer.subscribe(topic)
        consumer.on_message(lambda message: None)
        members.append(consumer)

    async with members[0], members[1]:
        await until(
            lambda: (
                not members[0].assignment & members[1].assignment
                and len(members[0].assignment | members[1].assignment) == 8
            )
        )
        await place.send(topic, numbered(8))


RULE = {"resource": "g:t", "count": 5, "behaviour": "uniform_rate", "max_queueing_ms": 5000}


def _subscribed(place: Place, topic: str, **options: Any) -> PushConsumer:
    consumer = PushConsumer(place.name("group"), namesrv=place.namesrv, start="first", **options)
    consumer.subscribe(topic)
    consumer.on_message(lambda message: None)
    return consumer


async def test_settings_of_a_plugin_that_is_not_enabled_are_refused_with_the_line_that_enables_it(
    place: Place, tmp_path: Path
) -> None:
    topic = await place.topic("idle")
    toml = tmp_path / "client.toml"
    toml.write_text('[plugins]\nenable = ["trace"]\n[[plugins.flow.rules]]\nresource = "g:t"\ncount = 5\n')

    with pytest.raises(ConfigError, match=re.escape("[plugins.flow] has settings of a plugin that is not enabled")):
        await _subscribed(place, topic, plugins={"flow": {"rules": [RULE]}}).start()
    with pytest.raises(
        ConfigError, match=re.escape("plugins=: ") + ".*" + re.escape('write enable = ["default", "flow"]')
    ):
        await _subscribed(place, topic, plugins={"flow": {"rules": [RULE]}}).start()
    with pytest.raises(ConfigError, match=re.escape('write enable = ["trace", "flow"]')):
        await _subscribed(place, topic, plugins=toml).start()
    with pytest.raises(ConfigError, match='fault="latency"'):
        await Producer("p", namesrv=place.namesrv, plugins={"fault": {}}).start()


async def test_a_file_that_producers_and_consumers_share_may_configure_what_each_of_them_needs(
    place: Place, tmp_path: Path
) -> None:
    topic = await place.topic("shared-file")
    toml = tmp_path / "client.toml"
    toml.write_text("[plugins.allocate]\nvirtual_nodes = 20\n[plugins.fault]\n")

    async with Producer("p", namesrv=place.namesrv, plugins=toml), _subscribed(place, topic, plugins=toml) as consumer:
        assert len(consumer.assignment) == 4


async def test_a_plugin_that_is_added_takes_nothing_away(place: Place) -> None:
    topic = await place.topic("added")

    async with _subscribed(place, topic, plugins={"enable": ["flow"], "flow": {"rules": [RULE]}}) as consumer:
        assert len(consumer.assignment) == 4
        assert list(consumer.host.active) == ["allocate", "flow"]
    with pytest.raises(ClientError, match="the plugin 'allocate' does not run in this consumer"):
        await _subscribed(place, topic, plugins={"disable": ["allocate"]}).start()


@pytest.mark.parametrize(
    ("rooms", "options"),
    [
        ({"rooms": {"here": {"brokers": ["IDC1-*"], "clients": ["10.1.*"]}}}, {"client_ip": "10.1.0.7"}),
        ({"room_separator": "-"}, {"client_ip": "IDC1-client"}),
    ],
)
async def test_consumers_share_the_queues_of_their_own_machine_room(rooms: Any, options: Any) -> None:
    with broker_process(None, "--set=broker.name=IDC1-broker-a") as process:
        place = Place(process.namesrv, process.broker)
        topic = await place.topic("rooms")
        near = _subscribed(place, topic, allocate="MACHINE_ROOM_NEARBY-AVG", plugins={"allocate": rooms}, **options)

        async with near:
            assert {queue.broker_name for queue in near.assignment} == {"IDC1-broker-a"}
            assert near.client_id.startswith(options["client_ip"] + "@")


async def test_a_client_that_no_room_knows_is_told_so_at_the_start(place: Place) -> None:
    topic = await place.topic("roomless")
    rooms = {"rooms": {"here": {"brokers": ["*"], "clients": ["10.1.*"]}}}
    lost = _subscribed(
        place, topic, allocate="machine_room_nearby", plugins={"allocate": rooms}, client_ip="10.9.0.1", instance="x"
    )

    with pytest.raises(ClientError, match=re.escape("no machine room is known for client '10.9.0.1@x'")):
        await lost.start()
