"""The name server: every request it serves, who is forgotten when, and brokers that register with it."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from tests.kernel.pulling import until
from tests.plugins.peer import Peer, peer
from verniermq.kernel import Broker, Command, ManualClock, RequestCode, RequestRefused, ResponseCode
from verniermq.kernel.testing import running_broker
from verniermq.plugins.namesrv.server import NameServer

EXAMPLE = bytes.fromhex(
    "78 da 63 60 60 b0 a8 56 4a ce 2f cd 2b 49 2d 52 b2 32 d0 51 2a 2e 49 2c 49 0d 4b 2d 2a ce cc cf"
    "03 0b 94 64 e6 a6 02 05 73 0b 94 ac 0c cd 0d 10 a0 96 81 81 81 11 88 45 43 14 4c 80 d0 4c 21 d8"
    "d3 cf dd c7 35 3e c4 d1 5d a1 1a 24 c9 14 1d 0b 24 19 00 4e 3c 18 0d"
)
"""A compressed registration of one topic, T, with 4 queues, as an Apache broker sends it."""

VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 1700000000000}


@asynccontextmanager
async def name_server(clock: ManualClock | None = None) -> AsyncIterator[tuple[NameServer, Peer]]:
    server = NameServer(clock or ManualClock())
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


async def test_a_name_server_s_port_in_use_keeps_the_broker_from_starting() -> None:
    async with name_server() as (server, _):
        with pytest.raises(RequestRefused, match=f"plugin 'namesrv'.*127.0.0.1:{server.port}: the port is in use"):
            async with running_broker(namesrv__port=server.port):
                pass


async def test_a_name_server_that_listens_everywhere_hands_out_an_address_one_can_reach() -> None:
    async with running_broker(namesrv__host="0.0.0.0") as broker:
        assert not broker.name_servers[0].startswith("0.0.0.0")
        async with peer(broker.name_servers[0]) as client:
            assert await route(client, "TBW102") is not None


async def test_without_the_plugin_the_broker_says_that_it_has_no_name_server() -> None:
    async with running_broker(plugins__disable=["namesrv"]) as broker:
        assert isinstance(broker, Broker)
        assert broker.name_servers == []
