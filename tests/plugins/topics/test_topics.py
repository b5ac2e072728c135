"""Topics and groups by request: created, changed, looked at, deleted, and found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import pytest

from tests.plugins.peer import Peer, peer
from tests.work import WorkPerTurn
from verniermq.kernel import Command, GroupConfig, GroupTable, RequestCode, ResponseCode, TopicConfig, TopicTable
from verniermq.plugins.topics.topics import CHANGES_PER_STEP
from verniermq.testing import broker_process, running_broker


async def put_topic(client: Peer, topic: str = "orders", **fields: object) -> Command:
    usual: dict[str, object] = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    return await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **{**usual, **fields})


def table(folder: Path, name: str) -> Any:
    return orjson.loads((folder / "config" / f"{name}.json").read_bytes())


async def test_a_topic_is_created_and_changed_and_written_before_the_answer(tmp_path: Path) -> None:
    async with running_broker(tmp_path, plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        assert (await put_topic(client, order="true", attributes="+message.type=FIFO,+queue.type=SimpleCQ")).code == 0
        first = table(tmp_path, "topics")
        assert first["topicConfigTable"]["orders"] == {
            "attributes": {"message.type": "FIFO", "queue.type": "SimpleCQ"}, "order": True, "perm": 6,
            "readQueueNums": 3, "topicFilterType": "SINGLE_TAG", "topicName": "orders", "topicSysFlag": 0,
            "writeQueueNums": 2,
        }  # fmt: skip
        assert (await put_topic(client, readQueueNums=5, attributes="-queue.type")).code == 0
        second = table(tmp_path, "topics")
        assert second["topicConfigTable"]["orders"]["attributes"] == {"message.type": "FIFO"}
        assert second["topicConfigTable"]["orders"]["readQueueNums"] == 5
        assert second["dataVersion"]["counter"] == first["dataVersion"]["counter"] + 1

        await put_topic(client, readQueueNums=5)
        assert broker.topics.version.as_json() == second["dataVersion"], "nothing changed, and the version did"


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "a b"}, {"topic": ""}, {"topic": "TBW102"}, {"topic": "rmq_sys_mine"}, {"readQueueNums": -1},
        {"writeQueueNums": 65537}, {"perm": 8}, {"perm": -1}, {"perm": "x"}, {"topicFilterType": "NO_TAG"},
        {"topicSysFlag": 2**40}, {"attributes": "x=1"}, {"attributes": "+=1"}, {"attributes": "?x"},
    ],
)  # fmt: skip
async def test_a_topic_that_may_not_be_is_refused(fields: dict[str, object]) -> None:
    async with running_broker(plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        before = list(broker.topics)
        assert (await put_topic(client, **{"topic": "orders", **fields})).code == ResponseCode.INVALID_PARAMETER
        assert list(broker.topics) == before


async def test_many_topics_at_once_all_or_none() -> None:
    async with running_broker(plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        good = [{"topicName": f"t{n}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for n in range(3)]
        bad = [*good, {"topicName": "a b", "readQueueNums": 1}]
        code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
        assert (await client.ask(code, orjson.dumps({"topicConfigList": bad}))).code == ResponseCode.INVALID_PARAMETER
        assert "t0" not in broker.topics
        await client.ask_well(code, orjson.dumps({"topicConfigList": good}))
        assert broker.topics.get("t2") == TopicConfig("t2", 1, 1)


async def test_topics_are_listed() -> None:
    async with running_broker(plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        await put_topic(client)
        listed = await client.ask_well(RequestCode.GET_ALL_TOPIC_CONFIG, topicSeq=0, maxTopicNum=2000)
        everything = orjson.loads(listed.body)
        one = orjson.loads((await client.ask_well(RequestCode.GET_TOPIC_CONFIG, topic="orders")).body)
        none = await client.ask(RequestCode.GET_TOPIC_CONFIG, topic="nowhere")
        system = orjson.loads((await client.ask_well(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).body)

    assert set(everything["topicConfigTable"]) == {"TBW102", "DefaultCluster", "broker-a", "orders"}
    assert listed.ext["totalTopicNum"] == "4", "Java asks for pages until it has so many"
    assert everything["topicQueueMappingInfoMap"] == {}
    assert one["topicName"] == "orders"
    assert none.code == ResponseCode.TOPIC_NOT_EXIST
    assert system["topicList"] == ["TBW102", "DefaultCluster", "broker-a"]


async def test_a_cluster_and_a_broker_have_topics_of_their_names() -> None:
    settings = {"broker__cluster": "north", "broker__name": "n1", "plugins__enable": ["topics"]}
    async with running_broker(**settings) as broker, peer(broker.address) as client:
        assert broker.topics.get("north") == TopicConfig("north", 16, 16, 7)
        assert broker.topics.get("n1") == TopicConfig("n1", 1, 1, 7)
        await client.sent("n1", b"measured")
        assert await client.bodies("n1") == [b"measured"]
        await client.ask_well(
            RequestCode.SEND_MESSAGE_V2, a="producers", b="made", c="north", d=3, e=0, f=0, g=0, h=0, i="", j=0
        )
        assert broker.topics.get("made") == TopicConfig("made", 3, 3, 6)
        for name in ("north", "n1"):
            assert (await put_topic(client, name)).code == ResponseCode.INVALID_PARAMETER
            assert (await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)).code == 29


async def test_no_topic_is_made_after_the_clusters_where_sends_create_none() -> None:
    async with (
        running_broker(topics__auto_create=False, plugins__enable=["topics"]) as broker,
        peer(broker.address) as client,
    ):
        send = {"a": "p", "b": "made", "c": "DefaultCluster", "d": 3, "e": 0, "f": 0, "g": 0, "h": 0, "i": "", "j": 0}
        assert (await client.ask(RequestCode.SEND_MESSAGE_V2, **send)).code == ResponseCode.TOPIC_NOT_EXIST
        assert "made" not in broker.topics


async def test_a_name_that_no_topic_may_have_has_none() -> None:
    async with running_broker(broker__name="room@n.1", plugins__enable=["topics"]) as broker:
        assert "room@n.1" not in broker.topics


async def test_a_deleted_topic_takes_its_messages_and_offsets_along_and_may_begin_anew(tmp_path: Path) -> None:
    async with running_broker(tmp_path, plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        await client.sent("orders", b"old")
        await client.sent("orders", b"old")
        await client.ask_well(
            RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="readers", topic="orders", queueId=0, commitOffset=2
        )
        await client.ask_well(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
        await client.ask_well(RequestCode.DELETE_TOPIC_IN_BROKER, topic="never_was")

        assert "orders" not in table(tmp_path, "topics")["topicConfigTable"]
        assert not (tmp_path / "consumequeue" / "orders").exists()
        assert broker.offsets.committed("readers", "orders", 0) is None
        assert (await client.sent("orders", b"new"))["queueOffset"] == "0"
        assert await client.bodies("orders") == [b"new"]


@pytest.mark.parametrize("name", ["", "TBW102", "rmq_sys_x", "..", "../../outside", "a/b", "."])
async def test_what_may_not_be_deleted_is_not(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").mkdir()
    async with running_broker(tmp_path / "store", plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        answer = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)

        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert (tmp_path / "outside").is_dir()


# --- groups -------------------------------------------------------------------------------


async def test_groups_are_created_changed_listed_and_deleted(tmp_path: Path) -> None:
    async with running_broker(tmp_path, plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        put, mine = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "mine", "retryMaxTimes": 3}
        await client.ask_well(put, orjson.dumps({**mine, "somethingNewer": {"a": 1}}))
        written = table(tmp_path, "subscriptionGroup")["subscriptionGroupTable"]["mine"]
        assert (written["retryMaxTimes"], written["consumeEnable"]) == (3, True)
        assert written["somethingNewer"] == {"a": 1}, "what an Apache broker wrote is kept"

        await client.ask_well(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            orjson.dumps({"groupConfigList": [{"groupName": "b"}, {"groupName": "c"}]}),
        )
        answer = await client.ask_well(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        assert answer.ext["totalGroupNum"] == "3"
        assert set(orjson.loads(answer.body)["subscriptionGroupTable"]) == {"mine", "b", "c"}
        answer = await client.ask_well(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="mine")
        assert orjson.loads(answer.body) == written

        broker.offsets.commit("b", "orders", 0, 5)
        broker.offsets.commit("c", "orders", 0, 5)
        await client.ask_well(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="b")
        await client.ask_well(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="c", cleanOffset="true")
        assert set(table(tmp_path, "subscriptionGroup")["subscriptionGroupTable"]) == {"mine"}
        assert broker.offsets.committed("b", "orders", 0) == 5
        assert broker.offsets.committed("c", "orders", 0) is None
        gone = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="b")
        assert gone.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    "body", [{}, {"groupName": 1}, {"groupName": ""}, {"groupName": "a b"}, {"groupName": "x" * 121},
             {"groupName": "a", "retryMaxTimes": "3"}, {"groupName": "a", "groupRetryPolicy": [1]}],
)  # fmt: skip
async def test_a_group_that_may_not_be_is_refused(body: dict[str, Any]) -> None:
    async with running_broker(plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        answer = await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, orjson.dumps(body))

        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert broker.groups.names() == []


# --- found again --------------------------------------------------------------------------


async def test_topics_groups_and_messages_are_found_again_after_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path, plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        await put_topic(client, attributes="+message.type=DELAY")
        await client.ask_well(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, orjson.dumps({"groupName": "mine"}))
        for number in range(20):
            await client.sent("orders", str(number).encode(), queue=number % 3, KEYS=f"k{number}")
        topics = {topic.name: topic for topic in broker.topics}
        before = [await client.pull("orders", queue) for queue in range(3)]

    async with running_broker(tmp_path, plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        assert {topic.name: topic for topic in broker.topics} == topics
        assert "mine" in broker.groups
        assert [await client.pull("orders", queue) for queue in range(3)] == before
        assert (await client.sent("orders", queue=0))["queueOffset"] == "7"


async def test_a_topic_whose_table_was_lost_in_a_crash_is_adopted(tmp_path: Path) -> None:
    with broker_process(tmp_path / "store") as process:
        async with peer(process.broker) as client:
            await client.sent("orders", b"hello", queue=2)
        process.kill()
        for path in (tmp_path / "store" / "config").glob("topics.json*"):
            path.unlink()
        process.start()
        async with peer(process.broker) as client:
            assert await client.bodies("orders", queue=2) == [b"hello"]
            answer = await client.ask_well(RequestCode.GET_TOPIC_CONFIG, topic="orders")
            assert orjson.loads(answer.body)["readQueueNums"] == 8  # what the template has: no producer knows more


# --- many ---------------------------------------------------------------------------------


async def test_a_list_of_many_topics_or_groups_lets_others_have_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = WorkPerTurn().watch(monkeypatch, TopicTable, "put")
    groups = WorkPerTurn().watch(monkeypatch, GroupTable, "put")
    async with running_broker(plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        names = [f"name-{number}" for number in range(200)]
        body = orjson.dumps({"topicConfigList": [{"topicName": name} for name in names]})
        await client.ask_well(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)
        body = orjson.dumps({"groupConfigList": [{"groupName": name} for name in names]})
        await client.ask_well(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body)

        assert names[-1] in broker.topics
        assert names[-1] in broker.groups

    assert (topics.total, groups.total) == (200, 200)
    assert max(topics.most, groups.most) <= CHANGES_PER_STEP


async def test_topics_and_groups_are_encoded_when_they_change_and_not_when_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_broker(plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        for number in range(50):
            broker.topics.put(TopicConfig(f"topic-{number}"))
            broker.groups.put(GroupConfig(f"group-{number}"))
        await broker.topics_document.saved()
        await broker.groups_document.saved()
        encoded = WorkPerTurn().watch(monkeypatch, TopicConfig, "as_json").watch(monkeypatch, GroupConfig, "as_json")

        await put_topic(client, "one-more")
        for _ in range(3):
            found = await client.ask_well(RequestCode.GET_ALL_TOPIC_CONFIG)
            await client.ask_well(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)

    assert orjson.loads(found.body)["topicConfigTable"]["topic-7"] == TopicConfig("topic-7").as_json()
    assert encoded.total == 2, "the new one, and the one that this test compares with"


# --- limits -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "limit"), [("auto_create_limit", 5), ("auto_create_per_peer", 2), ("max_topics", 5)]
)
async def test_sends_create_topics_up_to_a_limit_that_the_refusal_names(setting: str, limit: int) -> None:
    async with (
        running_broker(plugins__enable=["topics"], **{f"topics__{setting}": limit}) as broker,
        peer(broker.address) as client,
    ):
        await client.sent("one")
        await client.sent("two")
        refused = await client.send("three")

        assert refused.code == ResponseCode.NO_PERMISSION
        assert f"{limit}, as many as there may be; raise {setting} in [topics]" in refused.remark
        await client.sent("one")
        created = await put_topic(client, "three")
        assert (created.code == 0) == (setting != "max_topics")


async def test_a_broker_that_comes_back_with_more_topics_than_it_may_have_serves_them(tmp_path: Path) -> None:
    async with running_broker(tmp_path, plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        for name in ("one", "two", "three"):
            await client.sent(name)
    limits = {"topics__max_topics": 1, "topics__max_queues": 1, "topics__max_queues_per_topic": 1}
    async with running_broker(tmp_path, plugins__enable=["topics"], **limits) as broker, peer(broker.address) as client:
        await client.sent("three", queue=2)
        assert (await put_topic(client, "three", readQueueNums=2, writeQueueNums=2)).code == 0, "it may shrink"
        assert (await put_topic(client, "four", readQueueNums=1, writeQueueNums=1)).code == ResponseCode.NO_PERMISSION


async def test_queues_have_limits_for_each_topic_and_for_all_together() -> None:
    limits = {"topics__max_queues_per_topic": 10, "topics__max_queues": 20 + 17, "topics__default_queues": 4}
    async with running_broker(plugins__enable=["topics"], **limits) as broker, peer(broker.address) as client:
        wide = await put_topic(client, "wide", readQueueNums=11)
        assert wide.code == ResponseCode.INVALID_PARAMETER
        assert "11 queues, the limit is 10; raise max_queues_per_topic in [topics]" in wide.remark

        assert (await put_topic(client, "wide", readQueueNums=10)).code == 0
        many = await put_topic(client, "many", readQueueNums=7)
        assert many.code == ResponseCode.NO_PERMISSION
        assert "raise max_queues in [topics]" in many.remark
        await client.ask_well(RequestCode.DELETE_TOPIC_IN_BROKER, topic="wide")
        assert (await put_topic(client, "many", readQueueNums=7)).code == 0


@pytest.mark.parametrize(
    ("setting", "limit"), [("auto_create_limit", 2), ("auto_create_per_peer", 2), ("max_groups", 2)]
)
async def test_consumers_create_groups_up_to_a_limit_that_the_refusal_names(setting: str, limit: int) -> None:
    async with (
        running_broker(plugins__enable=["topics"], **{f"groups__{setting}": limit}) as broker,
        peer(broker.address) as client,
    ):
        await client.heartbeat("one")
        await client.heartbeat("two")
        body = orjson.dumps({"clientID": "me", "consumerDataSet": [{"groupName": "three"}]})
        refused = await client.ask(RequestCode.HEART_BEAT, body)

        assert refused.code == ResponseCode.NO_PERMISSION
        assert f"{limit}, as many as there may be; raise {setting} in [groups]" in refused.remark
        await client.heartbeat("two")
        created = await client.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, orjson.dumps({"groupName": "three"})
        )
        assert (created.code == 0) == (setting != "max_groups")


async def test_a_change_that_comes_while_a_long_list_is_changed_is_kept() -> None:
    row: dict[str, Any] = {"readQueueNums": 3, "writeQueueNums": 2, "perm": 6}
    rows = [row | {"topicName": f"filler-{number}"} for number in range(2000)]
    rows.append(row | {"topicName": "orders", "attributes": {"+message.type": "NORMAL"}})
    body = orjson.dumps({"topicConfigList": rows})
    async with running_broker() as broker, peer(broker.address) as client, peer(broker.address) as other:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.ask_well, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)
            while "filler-0" not in broker.topics:
                await anyio.lowlevel.checkpoint()
            assert (await put_topic(other, attributes="+queue.type=SimpleCQ")).code == 0

        assert broker.topics.get("orders").attributes == {"message.type": "NORMAL", "queue.type": "SimpleCQ"}
