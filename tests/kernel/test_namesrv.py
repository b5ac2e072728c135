"""The name server: every request it serves, who is forgotten when, and brokers that register with it."""

from __future__ import annotations

import base64
import logging
import tomllib
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from click.testing import CliRunner

from tests.kernel.pulling import until
from tests.plugins.documented import blocks
from tests.plugins.peer import Peer, peer
from verniermq.kernel import (
    Broker,
    Command,
    ConfigError,
    NoPermission,
    RequestCode,
    RequestRefused,
    ResponseCode,
    TopicConfig,
    connect,
)
from verniermq.kernel.config import load
from verniermq.kernel.config.structure import structure
from verniermq.kernel.remoting.signature import digest
from verniermq.plugins.namesrv import Config
from verniermq.plugins.namesrv.admission import SIGNATURE, TIME, BrokerAdmission, sign
from verniermq.plugins.namesrv.command import namesrv
from verniermq.plugins.namesrv.keyvalues import MOST_ENTRIES, KeyValueTable
from verniermq.plugins.namesrv.registrar import Registrar
from verniermq.plugins.namesrv.server import NameServer
from verniermq.testing import ManualClock, running_broker

EXAMPLE = bytes.fromhex(
    "78 da 63 60 60 b0 a8 56 4a ce 2f cd 2b 49 2d 52 b2 32 d0 51 2a 2e 49 2c 49 0d 4b 2d 2a ce cc cf"
    "03 0b 94 64 e6 a6 02 05 73 0b 94 ac 0c cd 0d 10 a0 96 81 81 81 11 88 45 43 14 4c 80 d0 4c 21 d8"
    "d3 cf dd c7 35 3e c4 d1 5d a1 1a 24 c9 14 1d 0b 24 19 00 4e 3c 18 0d"
)
"""A compressed registration of one topic, T, with 4 queues, as an Apache broker sends it."""

TOPIC_FIELDS: dict[str, object] = {
    "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0, "order": "false",
}  # fmt: skip

VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 1700000000000}


@asynccontextmanager
async def name_server(
    clock: ManualClock | None = None, brokers: Sequence[str] = (), secret: str = ""
) -> AsyncIterator[tuple[NameServer, Peer]]:
    clock = clock or ManualClock()
    server = NameServer(clock, peers=BrokerAdmission(brokers, secret, clock.now_ms))
    await server.start("127.0.0.1", 0)
    async with peer(f"127.0.0.1:{server.port}") as client:
        yield server, client
    await server.stop()


def plain(*topics: str, perm: int = 6, **more: Any) -> bytes:
    configs = {
        topic: {"topicName": topic, "readQueueNums": 4, "writeQueueNums": 4, "perm": perm, **more} for topic in topics
    }
    return orjson.dumps({"topicConfigSerializeWrapper": {"dataVersion": VERSION, "topicConfigTable": configs}})


async def register(client: Peer, body: bytes, name: str = "b-0", **fields: object) -> Command:
    usual: dict[str, object] = {
        "brokerName": name, "brokerAddr": f"{name}.example:10911", "clusterName": "c1", "brokerId": 0,
        "haServerAddr": f"{name}.example:10912", "compressed": "false", "bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF,
    }  # fmt: skip
    return await client.ask(RequestCode.REGISTER_BROKER, body, **{**usual, **fields})


def signed(command: Command, key: str, secret: str) -> Command:
    """As a client with an account of access control does it."""
    command.ext["AccessKey"] = key
    command.ext["Signature"] = base64.b64encode(digest(secret.encode(), command.ext, command.body)).decode()
    return command


async def route(client: Peer, topic: str) -> dict[str, Any] | None:
    answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    assert answer.code == ResponseCode.SUCCESS
    found: dict[str, Any] = orjson.loads(answer.body)
    return found


async def ask_json(client: Peer, code: RequestCode, **fields: object) -> Any:
    return orjson.loads((await client.ask_well(code, **fields)).body)


# --- registering --------------------------------------------------------------------------


@pytest.mark.parametrize("body", [EXAMPLE, plain("T")], ids=["compressed", "plain"])
async def test_a_registration_makes_a_route(body: bytes) -> None:
    async with name_server() as (_, client):
        assert zlib.crc32(EXAMPLE) & 0x7FFFFFFF == 1688114881
        answer = await register(client, body, compressed="true" if body is EXAMPLE else "false")

        assert answer.code == ResponseCode.SUCCESS
        assert await route(client, "T") == {
            "brokerDatas": [
                {
                    "brokerAddrs": {"0": "b-0.example:10911"}, "brokerName": "b-0", "cluster": "c1",
                    "enableActingMaster": False,
                }
            ],
            "filterServerTable": {},
            "queueDatas": [
                {"brokerName": "b-0", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
            ],
        }  # fmt: skip


async def test_an_unknown_topic_says_why() -> None:
    async with name_server() as (_, client):
        nobody = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
        await register(client, plain("U"))
        other = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")

    assert nobody.code == other.code == ResponseCode.TOPIC_NOT_EXIST
    assert "no broker has registered here" in nobody.remark
    assert "no broker here has it (b-0)" in other.remark


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"[]", b"7", b"[" * 100_000, zlib.compress(b"\0\0\0\x09{}"), zlib.compress(b"\xff\xff\xff\xff"),
        b"no zlib",
        plain("T", readQueueNums=-1), plain("T", readQueueNums="x"), plain("T", readQueueNums=10**18),
        plain("T", perm=99), plain("T", readQueueNums=None), plain("T", topicName=5), plain("T", attributes=[1]),
        orjson.dumps({"topicConfigSerializeWrapper": {"dataVersion": 5, "topicConfigTable": {}}}),
        orjson.dumps({"topicConfigSerializeWrapper": [1]}),
        zlib.compress(b"\0\0\0\x02{}\0\0\0\x01\0\0\0\x28T " + b"9" * 30 + b" 4 6 SI"),
        b'{"topicConfigSerializeWrapper":{"dataVersion":{},"topicConfigTable":{"\\ud800":{}}}}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("compressed", ["true", "false"])
async def test_a_registration_that_is_none_changes_nothing(
    body: bytes, compressed: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with name_server() as (server, client):
        answer = await register(client, body, compressed=compressed)

        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert server.table.topics() == []
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_registration_with_a_wrong_checksum_is_refused() -> None:
    async with name_server() as (_, client):
        assert (await register(client, plain("T"), bodyCrc32=1)).code != ResponseCode.SUCCESS
        assert (await register(client, plain("T"), bodyCrc32=0)).code == ResponseCode.SUCCESS


async def test_a_slave_is_told_its_master_and_does_not_change_the_topics() -> None:
    async with name_server() as (_, client):
        await register(client, plain("T"))
        slave = await register(client, plain("T", "U", perm=4), brokerId=1, brokerAddr="slave.example:10911")
        found = await route(client, "T")
        group = await ask_json(client, RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="c1", brokerName="b-0")

        assert slave.ext == {"masterAddr": "b-0.example:10911", "haServerAddr": "b-0.example:10912"}
        assert found is not None
        assert found["brokerDatas"][0]["brokerAddrs"] == {"0": "b-0.example:10911", "1": "slave.example:10911"}
        assert found["queueDatas"][0]["perm"] == 6
        assert await route(client, "U") is None
        assert group["brokerMemberGroup"]["brokerAddrs"] == {"0": "b-0.example:10911", "1": "slave.example:10911"}


async def test_no_slave_acts_for_a_master_that_is_gone() -> None:
    """Whatever it asks for: it keeps its id, by which no client sends to it, and the queues stay as they were."""
    slave = {"brokerId": 1, "brokerAddr": "slave.example:10911", "enableActingMaster": "true"}
    async with name_server() as (_, client):
        await register(client, plain("T"), enableActingMaster="true")
        await register(client, plain("T"), **slave)
        identity = {"brokerName": "b-0", "brokerAddr": "b-0.example:10911", "clusterName": "c1", "brokerId": 0}
        await client.ask_well(RequestCode.UNREGISTER_BROKER, **identity)
        again = await register(client, plain("T"), **slave)
        found = await route(client, "T")

        assert again.ext == {}
        assert found is not None
        assert found["brokerDatas"] == [
            {
                "brokerAddrs": {"1": "slave.example:10911"}, "brokerName": "b-0", "cluster": "c1",
                "enableActingMaster": False,
            }
        ]  # fmt: skip
        assert found["queueDatas"][0]["perm"] == 6


async def test_an_address_has_one_id_only() -> None:
    async with name_server() as (_, client):
        await register(client, plain("T"), brokerId=1)
        await register(client, plain("T"), brokerId=0)
        found = await route(client, "T")

        assert found is not None
        assert found["brokerDatas"][0]["brokerAddrs"] == {"0": "b-0.example:10911"}


async def test_the_data_version_tells_a_broker_whether_to_register() -> None:
    identity = {"brokerName": "b-0", "brokerAddr": "b-0.example:10911", "clusterName": "c1", "brokerId": 0}
    async with name_server() as (_, client):
        unknown = await client.ask_well(RequestCode.QUERY_DATA_VERSION, orjson.dumps(VERSION), **identity)
        await register(client, plain("T"))
        same = await client.ask_well(RequestCode.QUERY_DATA_VERSION, orjson.dumps(VERSION), **identity)
        later = orjson.dumps({**VERSION, "counter": 1})
        newer = await client.ask_well(RequestCode.QUERY_DATA_VERSION, later, **identity)
        broken = await client.ask(RequestCode.QUERY_DATA_VERSION, b"{", **identity)

    assert [answer.ext["changed"] for answer in (unknown, same, newer)] == ["true", "false", "true"]
    assert orjson.loads(newer.body) == VERSION
    assert broken.code == ResponseCode.INVALID_PARAMETER


# --- going --------------------------------------------------------------------------------


async def test_a_broker_that_says_goodbye_is_forgotten_unless_another_took_its_place() -> None:
    async with name_server() as (_, client):
        await register(client, plain("T"))
        goodbye: dict[str, object] = {"brokerName": "b-0", "clusterName": "c1", "brokerId": 0}
        await client.ask_well(RequestCode.UNREGISTER_BROKER, **goodbye, brokerAddr="old.example:10911")
        assert await route(client, "T") is not None
        await client.ask_well(RequestCode.UNREGISTER_BROKER, **goodbye, brokerAddr="b-0.example:10911")
        assert await route(client, "T") is None


async def test_a_broker_whose_connection_closes_is_forgotten_at_once() -> None:
    async with name_server() as (server, client):
        async with peer(f"127.0.0.1:{server.port}") as broker:
            await register(broker, plain("T"))
            assert await route(client, "T") is not None
        await until(lambda: server.table.topics() == [])
        assert await route(client, "T") is None


async def test_a_silent_broker_is_forgotten_and_one_that_gives_signs_of_life_is_not() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, peer(broker.name_servers[0]) as client:
        await register(client, plain("T"), name="silent")
        await register(client, plain("T"), name="lively")
        await register(client, plain("T"), name="quick", heartbeatTimeoutMillis=10_000)
        await clock.advance(16)
        assert _names(await route(client, "T")) == {"silent", "lively"}
        await clock.advance(100)
        await client.ask_well(
            RequestCode.BROKER_HEARTBEAT, brokerName="lively", brokerAddr="lively.example:10911", clusterName="c1"
        )
        await clock.advance(10)
        assert _names(await route(client, "T")) == {"lively"}
        await clock.advance(130)
        assert await route(client, "T") is None
        assert _names(await route(client, "TBW102")) == {"broker-a"}, "the broker it lives in never expires"


def _names(found: dict[str, Any] | None) -> set[str]:
    assert found is not None
    return {data["brokerName"] for data in found["brokerDatas"]}


# --- lists, permissions, keys and values --------------------------------------------------


async def test_lists() -> None:
    async with name_server() as (_, client):
        await register(client, plain("T"), name="one")
        await register(client, plain("T", "U"), name="two", clusterName="c2")

        info = await ask_json(client, RequestCode.GET_BROKER_CLUSTER_INFO)
        assert info["clusterAddrTable"] == {"c1": ["one"], "c2": ["two"]}
        assert info["brokerAddrTable"]["two"]["brokerAddrs"] == {"0": "two.example:10911"}
        everything = await ask_json(client, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert sorted(everything["topicList"]) == ["T", "U"]
        assert await ask_json(client, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="c1") == {"topicList": ["T"]}
        assert await ask_json(client, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="c3") == {"topicList": []}
        system = await ask_json(client, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        assert system == {"topicList": ["c1", "c2", "one", "two"], "brokerAddr": "one.example:10911"}
        for code in (
            RequestCode.GET_UNIT_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        ):
            assert await ask_json(client, code) == {"topicList": []}


async def test_a_topic_may_be_forgotten_everywhere_or_in_one_cluster() -> None:
    async with name_server() as (_, client):
        await register(client, plain("T", "U"), name="one")
        await register(client, plain("T", "U"), name="two", clusterName="c2")
        await client.ask_well(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T")
        await client.ask_well(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="U", clusterName="c2")
        await client.ask_well(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="never_was")

        assert await route(client, "T") is None
        assert _names(await route(client, "U")) == {"one"}


async def test_the_right_to_write_is_taken_and_given_back() -> None:
    async with name_server() as (_, client):
        await register(client, plain("T", "U"))
        wiped = await client.ask_well(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="b-0")
        closed = await route(client, "T")
        added = await client.ask_well(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="b-0")
        opened = await route(client, "T")

    assert (wiped.ext, added.ext) == ({"wipeTopicCount": "2"}, {"addTopicCount": "2"})
    assert closed is not None
    assert opened is not None
    assert (closed["queueDatas"][0]["perm"], opened["queueDatas"][0]["perm"]) == (4, 6)


async def test_what_was_taken_is_not_given_back_by_a_registration_that_says_nothing_new() -> None:
    newer = plain("T", "U").replace(orjson.dumps(VERSION), orjson.dumps({**VERSION, "counter": 99}))
    async with name_server() as (_, client):
        await register(client, plain("T"))
        await client.ask_well(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="b-0")
        await register(client, plain("T", "U"))
        same, unknown = await route(client, "T"), await route(client, "U")
        await register(client, newer)
        changed = await route(client, "T")

    assert same is not None
    assert unknown is not None
    assert changed is not None
    assert [found["queueDatas"][0]["perm"] for found in (same, unknown, changed)] == [4, 6, 6]


async def test_keys_and_values() -> None:
    async with name_server() as (_, client):
        await register(client, plain("T"))
        where = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
        assert (await client.ask(RequestCode.GET_KV_CONFIG, **where)).code == ResponseCode.QUERY_NOT_FOUND
        none = await client.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="x")
        assert none.code == ResponseCode.QUERY_NOT_FOUND
        await client.ask_well(RequestCode.PUT_KV_CONFIG, **where, value="b-0:4")
        assert (await client.ask_well(RequestCode.GET_KV_CONFIG, **where)).ext == {"value": "b-0:4"}
        table = await ask_json(client, RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="ORDER_TOPIC_CONFIG")
        assert table == {"table": {"T": "b-0:4"}}
        found = await route(client, "T")
        assert found is not None
        assert found["orderTopicConf"] == "b-0:4"
        assert orjson.loads((await register(client, plain("T"))).body) == {"table": {"T": "b-0:4"}}
        await client.ask_well(RequestCode.DELETE_KV_CONFIG, **where)
        assert (await client.ask(RequestCode.GET_KV_CONFIG, **where)).code == ResponseCode.QUERY_NOT_FOUND


# --- brokers ------------------------------------------------------------------------------


async def test_the_embedded_name_server_knows_its_broker_s_topics_at_once() -> None:
    async with (
        running_broker(clock=ManualClock()) as broker,
        peer(broker.address) as client,
        peer(broker.name_servers[0]) as asking,
    ):
        assert await route(asking, "orders") is None
        await client.sent("orders")
        found = await route(asking, "orders")
        assert found is not None
        assert found["brokerDatas"][0]["brokerAddrs"] == {"0": broker.address}
        await client.ask_well(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
        assert await route(asking, "orders") is None


async def _wait_for_route(asking: Peer, topic: str, names: set[str]) -> dict[str, Any]:
    while True:
        found = await route(asking, topic)
        if found is not None and _names(found) == names:
            return found


async def test_brokers_of_a_cluster_meet_under_one_embedded_name_server() -> None:
    async with running_broker(broker__name="one", topics__default_queues=4) as one:
        asking_for = one.name_servers[0]
        async with (
            running_broker(broker__name="two", broker__namesrv=[asking_for], clock=ManualClock()) as two,
            peer(asking_for) as asking,
        ):
            assert two.name_servers == [asking_for]
            await _wait_for_route(asking, "TBW102", {"one", "two"})
            for broker in (one, two):
                async with peer(broker.address) as client:
                    await client.sent("orders")
            found = await _wait_for_route(asking, "orders", {"one", "two"})
            addresses = {data["brokerName"]: data["brokerAddrs"]["0"] for data in found["brokerDatas"]}
            assert addresses == {"one": one.address, "two": two.address}
            info = await ask_json(asking, RequestCode.GET_BROKER_CLUSTER_INFO)
            assert info["clusterAddrTable"] == {"DefaultCluster": ["one", "two"]}
        async with peer(asking_for) as asking:
            assert _names(await route(asking, "orders")) == {"one"}, "it said goodbye"


async def test_a_broker_registers_with_every_outside_name_server_and_again_when_one_comes_back() -> None:
    clock = ManualClock()
    async with name_server() as (first, asking_first), name_server() as (second, asking_second):
        addresses = [f"127.0.0.1:{first.port}", f"127.0.0.1:{second.port}", "127.0.0.1:1"]
        async with running_broker(clock=clock, broker__namesrv=addresses) as broker, peer(broker.address) as client:
            await client.sent("orders")
            for asking in (asking_first, asking_second):
                await _wait_for_route(asking, "orders", {"broker-a"})
            first.table.unregister("broker-a", 0, broker.address)  # it lost its memory
            assert await route(asking_first, "orders") is None
            await clock.advance(31)
            await _wait_for_route(asking_first, "orders", {"broker-a"})
        for asking in (asking_first, asking_second):
            assert await route(asking, "orders") is None


async def test_whoever_creates_a_topic_is_answered_once_the_name_servers_know_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also behind a registration that is under way; else a consumer that starts at once misses this broker for 30 s."""
    may_register = anyio.Event()
    asked: list[set[str]] = []
    register = Registrar.register

    async def held_up(registrar: Registrar, topics: Sequence[TopicConfig]) -> None:
        asked.append({topic.name for topic in topics})
        await may_register.wait()
        await register(registrar, topics)

    async with name_server() as (server, asking):
        there = {"broker__namesrv": [f"127.0.0.1:{server.port}"]}
        async with running_broker(**there) as broker, peer(broker.address) as client:
            plugin: Any = broker.host.active["namesrv"].instance
            await until(lambda: plugin._why_unknown() is None)
            answered: list[str] = []

            async def create(topic: str) -> None:
                async with peer(broker.address) as operator:
                    await operator.ask_well(RequestCode.UPDATE_AND_CREATE_TOPIC, **TOPIC_FIELDS, topic=topic)
                answered.append(topic)

            monkeypatch.setattr(Registrar, "register", held_up)
            monkeypatch.setattr("verniermq.plugins.namesrv.TELL_SECONDS", 60)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(create, "first")
                await until(lambda: asked == [{"first"}])
                tasks.start_soon(create, "second")
                await until(lambda: broker.topics.find("second") is not None)
                await client.sent("other")  # and others are served meanwhile
                assert answered == []
                may_register.set()
            assert await route(asking, "first") is not None
            assert await route(asking, "second") is not None


async def test_a_name_server_out_of_reach_holds_up_nobody_who_creates_a_topic() -> None:
    async with (
        running_broker(broker__namesrv=["127.0.0.1:1"], clock=ManualClock()) as broker,
        peer(broker.address) as client,
    ):
        with anyio.fail_after(30):
            await client.ask_well(RequestCode.UPDATE_AND_CREATE_TOPIC, **TOPIC_FIELDS, topic="orders")


async def test_a_name_server_s_port_in_use_keeps_the_broker_from_starting() -> None:
    async with name_server() as (server, _):
        with pytest.raises(RequestRefused, match=f"plugin 'namesrv'.*127.0.0.1:{server.port}: the port is in use"):
            async with running_broker(plugins__namesrv__port=server.port):
                pass


async def test_a_name_server_that_listens_everywhere_hands_out_an_address_one_can_reach() -> None:
    async with running_broker(plugins__namesrv__host="0.0.0.0") as broker:
        assert not broker.name_servers[0].startswith("0.0.0.0")
        async with peer(broker.name_servers[0]) as client:
            assert await route(client, "TBW102") is not None


async def test_without_the_plugin_the_broker_says_that_it_has_no_name_server() -> None:
    async with running_broker(plugins__disable=["namesrv"]) as broker:
        assert isinstance(broker, Broker)
        assert broker.name_servers == []


# --- who may register ---------------------------------------------------------------------

SECRET = "a secret of ours"


async def test_nobody_can_remove_or_replace_the_broker_that_carries_the_name_server() -> None:
    """A stranger says goodbye for it, registers as it, and as another id at its address."""
    async with running_broker() as broker, peer(broker.address) as client, peer(broker.name_servers[0]) as stranger:
        await client.sent("orders")
        before = await route(stranger, "orders")
        goodbye = await stranger.ask(
            RequestCode.UNREGISTER_BROKER, brokerName="broker-a", brokerAddr=broker.address, brokerId=0,
            clusterName="DefaultCluster",
        )  # fmt: skip
        fake = await register(stranger, plain("orders"), "broker-a")
        at_its_address = await register(stranger, plain("orders"), "broker-a", brokerId=1, brokerAddr=broker.address)
        lowest = await register(stranger, plain("orders"), "broker-a", brokerId=-1)

        assert [goodbye.code, fake.code, at_its_address.code] == [ResponseCode.NO_PERMISSION] * 3
        assert "broker 'broker-a' with id 0 carries this name server and stays in it" in goodbye.remark
        assert f"at {broker.address} carries this name server, and nobody else can register as it" in fake.remark
        assert "field 'brokerId' is -1" in lowest.remark
        assert await route(stranger, "orders") == before

        slave = await register(stranger, plain("other"), "broker-a", brokerId=1)
        assert slave.ext["masterAddr"] == broker.address, "another id of its name is welcome from this machine"


async def test_a_route_of_the_broker_that_carries_the_name_server_cannot_be_dropped_by_others() -> None:
    async with running_broker() as broker, peer(broker.address) as client, peer(broker.name_servers[0]) as stranger:
        await client.sent("orders")
        await register(stranger, plain("orders"), "b-1")
        await stranger.ask_well(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="orders")
        assert _names(await route(stranger, "orders")) == {"broker-a"}
        await stranger.ask_well(
            RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="orders", clusterName=broker.configuration.broker.cluster
        )
        assert _names(await route(stranger, "orders")) == {"broker-a"}


async def test_an_entry_that_got_lost_all_the_same_is_there_again_and_nothing_else_changes() -> None:
    clock = ManualClock()
    async with running_broker(clock=clock) as broker, peer(broker.address) as client:
        await client.sent("orders")
        await client.sent("payments")
        table = broker.host.active["namesrv"].instance.embedded.table
        table.set_write_permission("broker-a", may_write=False)
        del table._brokers["broker-a"]
        table.drop_topic("orders")
        await clock.advance(31)

        found = table.route("orders")
        assert found is not None
        assert found["brokerDatas"][0]["brokerAddrs"] == {"0": broker.address}
        assert table.route("payments")["queueDatas"][0]["perm"] == 4, "what an operator took away stays away"


@pytest.mark.parametrize("settings", [{"brokers": ["10.9.8.7", "fd00::/8"]}, {"secret": SECRET}])
async def test_with_addresses_or_a_secret_set_only_those_are_taken(settings: dict[str, Any]) -> None:
    async with name_server(**settings) as (server, client):
        refused = [
            await register(client, plain("T")),
            await client.ask(RequestCode.UNREGISTER_BROKER, brokerName="b", brokerAddr="a:1", brokerId=0),
            await client.ask(RequestCode.BROKER_HEARTBEAT, brokerName="b", brokerAddr="a:1"),
            await client.ask(RequestCode.QUERY_DATA_VERSION, brokerName="b", brokerAddr="a:1"),
        ]

        assert [answer.code for answer in refused] == [ResponseCode.NO_PERMISSION] * 4
        assert "REGISTER_BROKER (103) from 127.0.0.1 is not taken" in refused[0].remark
        assert "or the same secret on both sides, in [plugins.namesrv]" in refused[0].remark
        assert SECRET not in refused[0].remark
        assert server.table.broker_names() == []


@pytest.mark.parametrize("network", ["127.0.0.1", "127.0.0.0/8", "::ffff:0:0/96 127.0.0.1"])
async def test_a_broker_of_an_address_that_is_set_is_taken(network: str) -> None:
    async with name_server(brokers=network.split(" ")) as (server, client):
        assert (await register(client, plain("T"))).code == ResponseCode.SUCCESS
        assert server.table.broker_names() == ["b-0"]


@pytest.mark.parametrize("far", ["10.0.0.5", "192.168.1.1", "2001:db8::1", "::ffff:10.0.0.5", "0.0.0.0"])
def test_without_either_only_this_machine_is_taken(far: str) -> None:
    peers = BrokerAdmission((), "", ManualClock().now_ms)
    registration = Command.request(RequestCode.REGISTER_BROKER)

    for near in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert not peers.know(registration, near), "taken, though nobody knows it"
    with pytest.raises(NoPermission, match=r"is not taken: this name server takes brokers of this machine only"):
        peers.know(registration, far)


async def test_whom_a_name_server_takes_is_said_at_its_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running_broker():
        pass
    async with running_broker(plugins__namesrv__brokers=["10.0.0.0/8"], plugins__namesrv__secret=SECRET):
        pass

    assert "it takes brokers of this machine only; for another one put its address into brokers" in caplog.text
    assert "it takes brokers from 10.0.0.0/8 and brokers that know the secret" in caplog.text
    assert SECRET not in caplog.text


def signed_registration(secret: str, now_ms: int) -> Command:
    body = plain("T")
    ext = {
        "brokerName": "b-0", "brokerAddr": "b-0.example:10911", "clusterName": "c1", "brokerId": "0",
        "compressed": "false", "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
    }  # fmt: skip
    command = Command.request(RequestCode.REGISTER_BROKER, ext, body)
    sign(command, secret, now_ms)
    return command


async def test_a_signature_is_of_this_request_by_this_secret_at_this_time() -> None:
    clock = ManualClock()
    async with name_server(clock, secret=SECRET) as (server, client):

        async def answer(command: Command) -> tuple[int, str]:
            answered = await client.connection.request(command)
            return answered.code, answered.remark

        now = clock.now_ms()
        wrong = signed_registration("another secret", now)
        moved = signed_registration(SECRET, now)
        moved.ext["brokerAddr"] = "evil.example:10911"
        other = signed_registration(SECRET, now)
        other.body = plain("U")
        unregister = signed_registration(SECRET, now)
        unregister.code = RequestCode.UNREGISTER_BROKER
        for command in (wrong, moved, other, unregister):
            code, remark = await answer(command)
            assert code == ResponseCode.NO_PERMISSION
            assert "is wrong; give both sides the same secret" in remark
        for seconds in (-301, 301):
            code, remark = await answer(signed_registration(SECRET, now + seconds * 1000))
            assert code == ResponseCode.NO_PERMISSION
            assert f"was signed {-seconds} s ago by this machine's clock" in remark
        for field in ("", "x"):
            without = signed_registration(SECRET, now)
            without.ext[TIME], without.ext[SIGNATURE] = field, "é"
            assert (await answer(without))[0] == ResponseCode.NO_PERMISSION
        assert server.table.broker_names() == []

        assert (await answer(signed_registration(SECRET, now)))[0] == ResponseCode.SUCCESS


async def test_a_broker_with_the_secret_registers_and_says_goodbye_and_never_sends_the_secret() -> None:
    clock = ManualClock()
    async with name_server(clock, secret=SECRET) as (server, asking):
        address = f"127.0.0.1:{server.port}"
        async with running_broker(clock=clock, broker__namesrv=[address], plugins__namesrv__secret=SECRET) as broker:
            found = await _wait_for_route(asking, "TBW102", {"broker-a"})
            assert found["brokerDatas"][0]["brokerAddrs"] == {"0": broker.address}
            assert SECRET not in repr(broker.configuration)
        assert await route(asking, "TBW102") is None
    command = signed_registration(SECRET, 0)
    assert SECRET.encode() not in command.encode()


async def test_the_higher_term_wins_and_an_earlier_one_is_told_so() -> None:
    def of_term(term: int) -> bytes:
        data = {"dataVersion": {**VERSION, "stateVersion": term}, "topicConfigTable": {"T": {"topicName": "T"}}}
        return orjson.dumps({"topicConfigSerializeWrapper": data})

    async with name_server() as (server, client):
        for term, address in ((3, "one:1"), (3, "two:1"), (5, "three:1")):
            answer = await register(client, of_term(term), brokerAddr=address)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        stale = await register(client, of_term(4), brokerAddr="two:1")
        again = await register(client, of_term(2), brokerAddr="three:1")

        assert stale.code == ResponseCode.SYSTEM_ERROR
        assert "broker 'b-0' with id 0 is at three:1, of term 5 (stateVersion)" in stale.remark
        assert "the one at two:1, of term 4, was replaced by it" in stale.remark
        assert again.code == ResponseCode.SUCCESS, "the same process may begin anew"
        assert server.table.members("b-0")[0].address == "three:1"


async def test_a_broker_registers_again_at_once_when_its_connection_breaks() -> None:
    async with name_server() as (server, asking):
        address = f"127.0.0.1:{server.port}"
        async with running_broker(clock=(clock := ManualClock()), broker__namesrv=[address]):
            await _wait_for_route(asking, "TBW102", {"broker-a"})
            await clock.advance(2)
            first = server.table.members("broker-a")[0].connection
            assert first is not None
            first.abort()
            await first.wait_closed()
            await _wait_for_route(asking, "TBW102", {"broker-a"})

            assert server.table.members("broker-a")[0].connection is not first


ACCOUNTS = {
    "shop": {"secret": "s-long-secret", "default_topic": "PUB|SUB"},
    "root": {"secret": "r-long-secret", "admin": True},
}
CHANGES: dict[RequestCode, dict[str, str]] = {
    RequestCode.DELETE_TOPIC_IN_NAMESRV: {"topic": "orders"},
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: {"brokerName": "broker-a"},
    RequestCode.ADD_WRITE_PERM_OF_BROKER: {"brokerName": "broker-a"},
    RequestCode.PUT_KV_CONFIG: {"namespace": "n", "key": "k", "value": "v"},
    RequestCode.DELETE_KV_CONFIG: {"namespace": "n", "key": "k"},
}


@pytest.mark.parametrize("code", CHANGES, ids=lambda code: code.name)
async def test_with_access_control_a_change_takes_an_administrator(code: RequestCode) -> None:
    settings: dict[str, Any] = {"plugins__enable": ["default", "acl"], "plugins__acl__accounts": ACCOUNTS}
    async with running_broker(**settings) as broker, peer(broker.name_servers[0]) as client:
        unsigned = await client.ask(code, **CHANGES[code])
        by = {}
        for key, account in ACCOUNTS.items():
            command = Command.request(code, dict(CHANGES[code]))
            by[key] = await client.connection.request(signed(command, key, str(account["secret"])))
        found = await route(client, "TBW102")

    assert unsigned.code == by["shop"].code == ResponseCode.NO_PERMISSION
    assert "takes an administrator, and account 'shop' is none" in by["shop"].remark
    assert by["root"].code == ResponseCode.SUCCESS, by["root"].remark
    assert found is not None, "to ask takes nothing"


async def test_with_access_control_brokers_are_taken_by_address_secret_or_account() -> None:
    settings: dict[str, Any] = {"plugins__enable": ["default", "acl"], "plugins__acl__accounts": ACCOUNTS}
    async with running_broker(**settings) as broker, peer(broker.name_servers[0]) as client:
        near = await register(client, plain("T"))
        assert near.code == ResponseCode.NO_PERMISSION, "this machine is no account"
        assert "REGISTER_BROKER (103) from 127.0.0.1" in near.remark
    async with (
        running_broker(**settings, plugins__namesrv__brokers=["127.0.0.1"]) as broker,
        peer(broker.name_servers[0]) as client,
    ):
        assert (await register(client, plain("T"))).code == ResponseCode.SUCCESS
    async with running_broker(**settings, plugins__namesrv__secret=SECRET) as broker:
        secret = {"broker__name": "two", "broker__namesrv": broker.name_servers, "plugins__namesrv__secret": SECRET}
        async with running_broker(**secret), peer(broker.name_servers[0]) as asking:
            await _wait_for_route(asking, "TBW102", {"broker-a", "two"})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("brokers = ['10.0.0.0/99']", "addresses and networks, such as"),
        ("secret = 'short'", "8 characters or more"),
    ],
)
def test_settings_that_mean_nothing_are_refused(table: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        structure(Config, tomllib.loads(table), "plugins.namesrv", "broker.toml", {})
    assert "short'" not in str(refused.value)


def test_the_page_shows_settings_that_can_be_used(tmp_path: Path) -> None:
    shown = blocks("namesrv", "toml")
    assert len(shown) == 4
    for number, text in enumerate(shown):
        (tmp_path / f"{number}.toml").write_text(text)
        settings = load(tmp_path / f"{number}.toml", environ={}).plugin("namesrv", Config)
        assert (settings == Config()) == (number == 0), "the first block shows the defaults"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--allow", "everybody"], "'everybody' does not appear to be an IPv4 or IPv6 network"),
        (["--secret-file", "secret"], "secret: the secret has 5 characters; 8 or more"),
    ],
)
def test_the_command_refuses_what_would_let_in_nobody_or_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text("short\n")

    result = CliRunner().invoke(namesrv, ["--port", "0", *options])

    assert result.exit_code == 1
    assert said in result.output


async def test_the_key_value_table_is_bounded_and_has_room_again_after_a_deletion() -> None:
    async with running_broker() as broker:
        connection = await connect(broker.name_servers[0])

        async def put(key: str, value: str, namespace: str = "n") -> Command:
            fields = {"namespace": namespace, "key": key, "value": value}
            return await connection.request(Command.request(RequestCode.PUT_KV_CONFIG, fields), 30)

        taken = 0
        while (refused := await put(f"large-{taken}", "v" * 60_000)).code == ResponseCode.SUCCESS:
            taken += 1
            assert taken < 100
        fields = {"namespace": "n", "key": "large-0"}
        await connection.request(Command.request(RequestCode.DELETE_KV_CONFIG, fields), 30)
        again = await put("large-again", "v" * 60_000)
        connection.close()

    assert taken == 4 * 1024 * 1024 // 60_009
    assert "the key-value table has no room for 'large-69' in namespace 'n'" in refused.remark
    assert again.code == ResponseCode.SUCCESS


def test_the_key_value_table_counts_its_entries() -> None:
    table = KeyValueTable()
    for number in range(MOST_ENTRIES):
        table.put("n", str(number), "")
    table.put("n", "0", "replaced")
    with pytest.raises(NoPermission, match="no room for 'one more'"):
        table.put("n", "one more", "")
    table.delete("n", "1")
    table.delete("n", "1")
    table.put("n", "one more", "")
    assert (table.get("n", "0"), table.get("n", "1"), table.namespace("m")) == ("replaced", None, None)


# --- settings, and topics told by others ---------------------------------------------------


async def test_a_name_servers_switches_can_be_seen_and_changed() -> None:
    async with name_server() as (_, client):

        async def change(text: str) -> Command:
            return await client.ask(RequestCode.UPDATE_NAMESRV_CONFIG, text.encode())

        shown = (await client.ask_well(RequestCode.GET_NAMESRV_CONFIG)).body.decode().splitlines()
        assert {"enableAllTopicList=true", "orderMessageEnable=true", "supportActingMaster=false"} <= set(shown)

        assert (await change("enableAllTopicList=false\nenableTopicList=false\n")).code == 0
        refused = await client.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        by_cluster = await client.ask(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="x")
        assert (refused.code, by_cluster.code) == (ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION)
        assert "updateNamesrvConfig -k enableAllTopicList -v true" in refused.remark
        assert (await change("enableAllTopicList=true")).code == 0
        await client.ask_well(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)

        assert "cannot change" in (await change("orderMessageEnable=false\nclusterTest=true")).remark
        assert "did you mean 'orderMessageEnable'" in (await change("orderMessageEnabled=true")).remark
        assert "expected true or false" in (await change("orderMessageEnable=1")).remark
        assert "orderMessageEnable=true" in (await client.ask_well(RequestCode.GET_NAMESRV_CONFIG)).body.decode()


async def test_orders_of_topics_can_be_kept_back() -> None:
    async with name_server() as (_, client):
        await client.ask_well(RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T", value="b:4")
        await register(client, plain("T"))
        told = orjson.loads((await client.ask_well(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).body)
        assert told["orderTopicConf"] == "b:4"
        await client.ask_well(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=false")
        told = orjson.loads((await client.ask_well(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).body)
        assert "orderTopicConf" not in told


async def test_a_topic_can_be_registered_by_somebody_else() -> None:
    async with name_server() as (server, client):
        await register(client, plain("T"))
        (name,) = server.table.broker_names()
        queues = [
            {"brokerName": name, "readQueueNums": 3, "writeQueueNums": 2, "perm": 6, "topicSysFlag": 0},
            {"brokerName": "nobody", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6, "topicSysFlag": 0},
        ]
        body = orjson.dumps({"brokerDatas": [], "queueDatas": queues})
        await client.ask_well(RequestCode.REGISTER_TOPIC_IN_NAMESRV, body, topic="told")
        await client.ask_well(RequestCode.REGISTER_TOPIC_IN_NAMESRV, body, topic="T")

        route = orjson.loads((await client.ask_well(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="told")).body)
        assert [(data["brokerName"], data["readQueueNums"]) for data in route["queueDatas"]] == [(name, 3)]
        known = orjson.loads((await client.ask_well(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).body)
        assert known["queueDatas"][0]["readQueueNums"] == 4, "what the broker said of it stays"
        for bad in (b"", b"{}", b'{"queueDatas":[{}]}', b'{"queueDatas":[{"brokerName":"x","readQueueNums":-1}]}'):
            refused = await client.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, bad, topic="bad")
            assert refused.code == ResponseCode.INVALID_PARAMETER
