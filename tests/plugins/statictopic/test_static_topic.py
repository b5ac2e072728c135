"""Static topics over two brokers: sent to, moved, and read on from where they were."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import orjson
import pytest

from tests.plugins.peer import Peer, peer
from verniermq.kernel import (
    FROM_SERVER,
    Broker,
    Command,
    RequestCode,
    ResponseCode,
    TopicConfig,
    decode_records,
    parse_fastjson,
)
from verniermq.plugins.statictopic.mapping import MappedQueue, TopicMapping
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio

TOPIC, GROUP = "static", "readers"
A, B = MappedQueue(0, 0, "broker-a", 0), MappedQueue(1, 0, "broker-b", 1000)


@attrs.frozen
class Place:
    """A broker, and a client of it."""

    broker: Broker
    client: Peer

    async def put(self, *chain: MappedQueue, epoch: int = 1, queues: int = 1, force: bool = False) -> Command:
        """Logical queue 0, and one that lies in queue 1 of broker-a."""
        chains = {0: chain, 1: (MappedQueue(0, 1, "broker-a", 0),)} if self.broker.name == "broker-a" else {0: chain}
        mapping = TopicMapping(TOPIC, 2, self.broker.name, epoch, chains=chains)
        return await self.client.ask(
            RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, orjson.dumps(mapping.as_json()), topic=TOPIC,
            defaultTopic="TBW102", readQueueNums=queues, writeQueueNums=queues, perm=6, topicFilterType="SINGLE_TAG",
            topicSysFlag=0, order="false", force=str(force).lower(),
        )  # fmt: skip

    async def pull(self, offset: int, queue: int = 0, **fields: object) -> Command:
        usual: dict[str, object] = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": queue, "queueOffset": offset, "maxMsgNums": 32,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        }  # fmt: skip
        return await self.client.ask(RequestCode.PULL_MESSAGE, **{**usual, **fields})

    async def offset(self, code: RequestCode, queue: int = 0, **fields: object) -> int:
        fields = {"topic": TOPIC, "queueId": queue, **fields}
        return int((await self.client.ask_well(code, **fields)).ext["offset"])


@asynccontextmanager
async def place(store: Path, name: str, namesrv: list[str]) -> AsyncIterator[Place]:
    async with (
        running_broker(store, broker__name=name, broker__namesrv=namesrv) as broker,
        peer(broker.address) as client,
    ):
        yield Place(broker, client)


@asynccontextmanager
async def two(folder: Path) -> AsyncIterator[tuple[Place, Place]]:
    """broker-a, which carries the name server, and broker-b; logical queue 0 begins on broker-a."""
    async with place(folder / "a", "broker-a", []) as a, place(folder / "b", "broker-b", a.broker.name_servers) as b:
        with anyio.fail_after(30):
            while len((await route(a, "TBW102"))["brokerDatas"]) < 2:  # noqa: ASYNC110 - broker-b tells the name server
                await anyio.sleep(0.01)
        assert (await a.put(A, queues=2)).code == 0
        yield a, b


async def route(place: Place, topic: str = TOPIC) -> dict[str, dict[str, dict[str, object]]]:
    async with peer(place.broker.name_servers[0]) as client:
        answer = await client.ask_well(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
    found: dict[str, dict[str, dict[str, object]]] = orjson.loads(answer.body)
    return found


async def moved(a: Place, b: Place) -> None:
    """Move logical queue 0 from broker-a to broker-b, in the steps of ``mqadmin remappingStaticTopic``."""
    undecided = attrs.evolve(B, logic_offset=-1)
    for step, chain in ((b, (A, undecided)), (a, (A, undecided)), (b, (A, B))):
        answer = await step.put(*chain, epoch=2, queues=2 if step is a else 1)
        assert answer.code == 0, answer.remark


# --- one broker ----------------------------------------------------------------------------


async def test_a_logical_queue_is_sent_to_and_read_by_its_own_number(tmp_path: Path) -> None:
    async with place(tmp_path, "broker-a", []) as a:
        chain = attrs.evolve(A, queue_id=1, logic_offset=500)
        mapping = TopicMapping(TOPIC, 8, "broker-a", 1, chains={7: (chain,)})
        fields = {"topic": TOPIC, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
        body = orjson.dumps(mapping.as_json())
        await a.client.ask_well(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, body, **fields)

        sent = [await a.client.sent(TOPIC, body, queue=7) for body in (b"a", b"b")]
        anywhere = await a.client.sent(TOPIC, b"c", queue=-1)
        pulled = await a.pull(501, queue=7)

        assert [(answer["queueId"], answer["queueOffset"]) for answer in sent] == [("7", "500"), ("7", "501")]
        assert (anywhere["queueId"], anywhere["queueOffset"]) == ("7", "502")
        assert a.broker.store.max_offset(TOPIC, 1) == 3
        assert [message.body for message in decode_records(pulled.body)] == [b"b", b"c"]
        numbers = {name: int(pulled.ext[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset", "offsetDelta")}
        assert numbers == {"nextBeginOffset": 503, "minOffset": 500, "maxOffset": 503, "offsetDelta": 500}


async def test_a_mapping_is_on_the_disk_before_its_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, real = tmp_path / "config", os.replace
    mapped: list[bool] = []

    def replace(source: Any, target: Any) -> None:
        if Path(target).name == "topics.json" and TOPIC in Path(source).read_text():
            mapping = config / "topicQueueMapping.json"
            mapped.append(mapping.exists() and TOPIC in mapping.read_text())
        real(source, target)

    async with place(tmp_path, "broker-a", []) as a:
        monkeypatch.setattr(os, "replace", replace)
        assert (await a.put(A, queues=2)).code == 0
        in_order = list(mapped)
    monkeypatch.undo()
    topics = orjson.loads((config / "topics.json").read_bytes())
    del topics["topicConfigTable"][TOPIC]  # as a crash between the two leaves it
    for name in ("topics.json", "topics.json.bak"):
        (config / name).write_bytes(orjson.dumps(topics))
    async with place(tmp_path, "broker-a", []) as a:
        again = await a.put(A, queues=2)

    assert in_order == [True]
    assert again.code == 0, again.remark


async def test_a_queue_that_another_broker_leads_is_refused(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await moved(a, b)

        answers = [
            await a.client.send(TOPIC, b"x", queue=0),
            await a.pull(0),
            await b.client.send(TOPIC, b"x", queue=5),
        ]

        assert [answer.code for answer in answers] == [ResponseCode.NOT_LEADER_FOR_QUEUE] * 3
        assert "broker 'broker-a' does not lead logical queue 0; it is led by 'broker-b'" in (answers[0].remark or "")


async def test_a_pull_waits_for_a_message_of_the_logical_queue(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, _):
        answers: list[Command] = []

        async def pull() -> None:
            answers.append(await a.pull(0, sysFlag=6, suspendTimeoutMillis=20_000))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pull)
            with anyio.fail_after(30):
                while not a.broker.held_pulls._waiting:  # noqa: ASYNC110 - a request on its way over a socket
                    await anyio.sleep(0.001)
            await a.client.sent(TOPIC, b"late", queue=0)

        assert [message.body for message in decode_records(answers[0].body)] == [b"late"]


async def test_a_pull_at_the_end_is_answered_when_its_time_is_over(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, _):
        answer = await a.pull(0, sysFlag=6, suspendTimeoutMillis=20)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "0")


async def test_mappings_are_there_after_a_restart_and_go_with_their_topic(tmp_path: Path) -> None:
    async with place(tmp_path, "broker-a", []) as a:
        await a.put(A, queues=2)
        await a.client.sent(TOPIC, b"x", queue=0)

    async with place(tmp_path, "broker-a", []) as a:
        assert (await a.client.sent(TOPIC, b"y", queue=0))["queueOffset"] == "1"
        config = await a.client.ask_well(RequestCode.GET_TOPIC_CONFIG, topic=TOPIC, lo="true")
        plain = await a.client.ask_well(RequestCode.GET_TOPIC_CONFIG, topic=TOPIC)
        every = await a.client.ask_well(RequestCode.GET_ALL_TOPIC_CONFIG)
        mapping = (await route(a))["topicQueueMappingByBroker"]["broker-a"]
        served = dict(a.broker.handlers)
        await a.client.ask_well(RequestCode.DELETE_TOPIC_IN_BROKER, topic=TOPIC)

        assert TopicMapping.from_json(orjson.loads(config.body)["mappingDetail"]).led == {0: 0, 1: 1}
        assert "mappingDetail" not in orjson.loads(plain.body)
        assert list(orjson.loads(every.body)["topicQueueMappingDetailMap"]) == [TOPIC]
        assert (mapping["currIdMap"], mapping["totalQueues"]) == ({"0": 0, "1": 1}, 2)
        assert a.broker.handlers[RequestCode.SEND_MESSAGE_V2] is not served[RequestCode.SEND_MESSAGE_V2]

    async with place(tmp_path, "broker-a", []) as a:
        assert (await a.client.sent(TOPIC, b"z", queue=0))["queueOffset"] == "0"
        assert "topicQueueMappingByBroker" not in await route(a)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"topic": "other"}, "expected 'static' on 'broker-a'"),
        ({"bname": "broker-b"}, "expected 'static' on 'broker-a'"),
        ({"hostedQueues": {"0": [attrs.evolve(A, queue_id=2).as_json()]}}, "lies in none of its 2 queues"),
        ({"totalQueues": "many"}, "malformed"),
    ],
)
async def test_a_mapping_of_something_else_is_refused(tmp_path: Path, change: dict[str, object], why: str) -> None:
    async with place(tmp_path, "broker-a", []) as a:
        data = {**TopicMapping(TOPIC, 2, "broker-a", 1, chains={0: (A,)}).as_json(), **change}
        fields = {"topic": TOPIC, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
        answer = await a.client.ask(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, orjson.dumps(data), **fields)

        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert why in (answer.remark or "")
        assert TOPIC not in a.broker.topics


async def test_a_topic_that_is_not_static_does_not_become_so(tmp_path: Path) -> None:
    async with place(tmp_path, "broker-a", []) as a:
        await a.client.sent(TOPIC, b"x")
        answer = await a.put(A, queues=2)
        assert "exists and is no static topic" in (answer.remark or "")


async def test_all_topics_are_told_however_many_there_are(tmp_path: Path) -> None:
    async with place(tmp_path, "broker-a", []) as a:
        await a.put(A, queues=2)
        for number in range(13_000):
            a.broker.topics.put(TopicConfig(f"other-{number}", 1, 1))

        answer = await a.client.ask_well(RequestCode.GET_ALL_TOPIC_CONFIG)

        told = orjson.loads(answer.body)
        assert len(told["topicConfigTable"]) > 13_000
        assert list(told["topicQueueMappingDetailMap"]) == [TOPIC]


# --- two brokers ---------------------------------------------------------------------------


async def test_a_queue_moves_and_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        for number in range(3):
            await a.client.sent(TOPIC, f"a{number}".encode(), queue=0)

        await moved(a, b)
        sent = [await b.client.sent(TOPIC, f"b{number}".encode(), queue=0) for number in range(2)]
        bodies, offset = [], 0
        while (answer := await b.pull(offset)).code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
            offset = int(answer.ext["nextBeginOffset"])
            delta = int(answer.ext["offsetDelta"])
            bodies += [(message.body, message.queue_offset + delta) for message in decode_records(answer.body)]

        assert [answer["queueOffset"] for answer in sent] == ["1000", "1001"]
        assert bodies == [(b"a0", 0), (b"a1", 1), (b"a2", 2), (b"b0", 1000), (b"b1", 1001)]
        assert (answer.code, offset) == (ResponseCode.PULL_NOT_FOUND, 1002)


async def test_while_it_is_not_decided_where_the_new_part_begins_sends_have_no_offset(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await a.client.sent(TOPIC, b"a", queue=0)
        undecided = attrs.evolve(B, logic_offset=-1)
        await b.put(A, undecided, epoch=2)

        sent = await b.client.sent(TOPIC, b"b", queue=0)
        pulled = await b.pull(1)
        await b.put(A, B, epoch=2)

        assert sent["queueOffset"] == "-1"
        assert pulled.code == ResponseCode.PULL_NOT_FOUND
        assert [message.body for message in decode_records((await b.pull(1000)).body)] == [b"b"]


async def test_offsets_are_those_of_the_logical_queue_wherever_its_parts_are(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        for _ in range(3):
            await a.client.sent(TOPIC, b"a", queue=0)
        group = {"consumerGroup": GROUP}
        await a.client.ask_well(RequestCode.UPDATE_CONSUMER_OFFSET, topic=TOPIC, queueId=0, commitOffset=2, **group)
        await moved(a, b)
        await b.client.sent(TOPIC, b"b", queue=0)

        assert await b.offset(RequestCode.GET_MIN_OFFSET) == 0
        assert await b.offset(RequestCode.GET_MAX_OFFSET) == 1001
        assert await b.offset(RequestCode.QUERY_CONSUMER_OFFSET, **group) == 2
        assert await b.offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=0) == 0
        assert await b.offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=2**60) == 1001
        earliest = await b.client.ask_well(RequestCode.GET_EARLIEST_MSG_STORETIME, topic=TOPIC, queueId=0)
        assert int(earliest.ext["timestamp"]) > 0

        for commit, on_a, on_b in ((3, 3, None), (1001, 3, 1)):
            await b.client.ask_well(
                RequestCode.UPDATE_CONSUMER_OFFSET, topic=TOPIC, queueId=0, commitOffset=commit, **group
            )
            committed = [p.broker.offsets.committed(GROUP, TOPIC, 0) for p in (a, b)]
            assert committed == [on_a, on_b]
            assert await b.offset(RequestCode.QUERY_CONSUMER_OFFSET, **group) == commit
        await b.pull(1001, sysFlag=5, commitOffset=3)
        assert a.broker.offsets.committed(GROUP, TOPIC, 0) == 3


async def test_a_part_that_a_group_has_not_come_to_is_no_progress(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        for _ in range(3):
            await a.client.sent(TOPIC, b"a", queue=0)
        fields = {"consumerGroup": GROUP, "topic": TOPIC}
        await a.client.ask_well(RequestCode.UPDATE_CONSUMER_OFFSET, queueId=0, commitOffset=2, **fields)
        await moved(a, b)
        progress = {}
        for name, place in (("a", a), ("b", b)):
            answer = await place.client.ask_well(RequestCode.GET_CONSUME_STATS, **fields)
            table = parse_fastjson(answer.body, FROM_SERVER)["offsetTable"]
            progress[name] = {dict(key)["queueId"]: row["consumerOffset"] for key, row in table.items()}

        assert progress == {"a": {0: 2, 1: -1}, "b": {0: -1}}


async def test_a_group_that_never_committed_is_told_so(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await moved(a, b)
        fields = {"consumerGroup": "nobody", "topic": TOPIC, "queueId": 0}
        answer = await b.client.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_the_route_says_who_leads_a_queue(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await moved(a, b)
        with anyio.fail_after(30):
            while "broker-b" not in (await route(a))["topicQueueMappingByBroker"]:  # noqa: ASYNC110 - it registers
                await anyio.sleep(0.01)
            while not (await route(a))["topicQueueMappingByBroker"]["broker-b"]["currIdMap"]:  # noqa: ASYNC110
                await anyio.sleep(0.01)

        found = (await route(a))["topicQueueMappingByBroker"]

        assert {name: mapping["currIdMap"] for name, mapping in found.items()} == {
            "broker-a": {"1": 1},
            "broker-b": {"0": 0},
        }


async def test_a_part_on_a_broker_that_is_gone_is_an_error_with_its_name(tmp_path: Path) -> None:
    async with place(tmp_path / "b", "broker-b", []) as b:
        await b.put(A, B)
        answer = await b.pull(0)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "broker 'broker-a' has a part of the queue and cannot be asked" in (answer.remark or "")
