"""What administrators ask a broker, over a real socket; ``tests/interop/test_mqadmin.py`` has Apache's tool ask it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from tests.kernel.pulling import INCLUDED, SUSPEND, pull
from tests.plugins.peer import Peer, peer, served
from tests.work import WorkPerTurn
from verniermq.kernel import (
    Command,
    Connection,
    ConsumerOffsets,
    GroupConfig,
    RequestCode,
    ResponseCode,
    TopicConfig,
    connect,
    parse_fastjson,
)
from verniermq.plugins.admin.progress import ROWS_PER_STEP, ProgressRequests
from verniermq.plugins.admin.reset import QUEUES_PER_STEP, ResetRequests
from verniermq.testing import ManualClock

pytestmark = pytest.mark.anyio


async def asked(client: Peer, code: RequestCode, **fields: object) -> Any:
    """The body of an answer, read as RocketMQ's tools read it."""
    return parse_fastjson((await client.ask_well(code, **fields)).body)


def by_queue(table: dict[Any, Any]) -> dict[int, Any]:
    """A map with queues for keys, by the queue's number."""
    return {dict(key)["queueId"]: value for key, value in table.items()}


async def test_the_figures_of_a_broker_count_what_went_in_and_out(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        for _ in range(5):
            await client.sent("orders")
        await client.pull("orders")

        table = (await asked(client, RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
        assert table["msgPutTotalTodayNow"] == "5"
        assert table["msgGetTotalTodayNow"] == "5"
        assert table["commitLogMaxOffset"] == str(broker.store.end)
        assert float(table["putTps"].split()[0]) > 0
        assert all(isinstance(value, str) for value in table.values())


async def test_rates_are_taken_over_the_last_minute(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        for _ in range(60):
            await client.sent("orders")
        await clock.advance(60)
        shown = await asked(client, RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="orders")
        assert shown["statsMinute"]["sum"] == 60
        assert shown["statsMinute"]["tps"] == pytest.approx(1.0)

        await clock.advance(70)
        later = await asked(client, RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="orders")
        unknown = await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="none")
        assert later["statsMinute"]["sum"] == 0
        assert later["statsDay"]["sum"] == 60
        assert unknown.code == ResponseCode.SYSTEM_ERROR


async def test_progress_tells_how_far_a_group_is_behind(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        for queue in (0, 0, 0, 1):
            await client.sent("orders", queue=queue)
        await client.ask_well(
            RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="readers", topic="orders", queueId=0, commitOffset=2
        )

        stats = await asked(client, RequestCode.GET_CONSUME_STATS, consumerGroup="readers")
        topic = await asked(client, RequestCode.GET_TOPIC_STATS_INFO, topic="orders")
        everything = await asked(client, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
        nobody = await asked(client, RequestCode.GET_CONSUME_STATS, consumerGroup="strangers")
        queues = by_queue(stats["offsetTable"])
        first = broker.store.queue("orders", 0)
        assert first is not None
        assert {key: queues[0][key] for key in ("brokerOffset", "consumerOffset")} == {
            "brokerOffset": 3, "consumerOffset": 2,
        }  # fmt: skip
        assert queues[1]["brokerOffset"] == 1
        assert queues[0]["lastTimestamp"] > 0
        assert [row["maxOffset"] for row in by_queue(topic["offsetTable"]).values()] == [3, 1, 0, 0]
        assert everything["totalDiff"] == 2
        assert nobody["offsetTable"] == {}


async def test_who_is_connected_and_what_they_subscribe_to(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        await client.sent("orders")
        await client.heartbeat("readers", ["orders"])
        producer = orjson.dumps({"clientID": client.client_id, "producerDataSet": [{"groupName": "senders"}]})
        await client.ask_well(RequestCode.HEART_BEAT, producer)

        consumers = await asked(client, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="readers")
        producers = await asked(client, RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="senders")
        groups = await asked(client, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="orders")
        topics = await asked(client, RequestCode.QUERY_TOPICS_BY_CONSUMER, group="readers")
        gone = await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="strangers")
        assert [one["clientId"] for one in consumers["connectionSet"]] == [client.client_id]
        assert "orders" in consumers["subscriptionTable"]
        assert [one["clientId"] for one in producers["connectionSet"]] == [client.client_id]
        assert groups["groupList"] == ["readers"]
        assert "orders" in topics["topicList"]
        assert gone.code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_a_reset_moves_a_group_at_once_even_while_it_waits(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client), peer(broker.address, "other") as admin:
        for _ in range(4):
            await client.sent("orders")
        answers: list[Command] = []

        async def wait() -> None:
            answers.append(await pull(client, offset=4, sysFlag=INCLUDED | SUSPEND))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            while len(broker.held_pulls) == 0:  # noqa: ASYNC110 - the request travels over a socket
                await anyio.sleep(0.001)
            reset = await asked(
                admin, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                topic="orders", group="readers", timestamp=0, isForce="true", queueId=0, offset=1,
            )  # fmt: skip

        assert by_queue(reset["offsetTable"]) == {0: 1}
        assert answers[0].code == ResponseCode.PULL_OFFSET_MOVED
        assert answers[0].ext["nextBeginOffset"] == "1"
        assert broker.offsets.committed("readers", "orders", 0) == 1


async def test_a_reset_goes_by_time_exactly_and_refuses_what_is_not_there(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (_, client):
        await client.sent("orders")
        await clock.advance(10)
        middle = clock.now_ms()
        await client.sent("orders")
        common = {"topic": "orders", "group": "readers", "isForce": "true", "queueId": 0}

        by_time = await asked(client, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **common, timestamp=middle)
        to_end = await asked(client, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **common, timestamp=-1)
        beyond = await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **common, timestamp=0, offset=3)
        assert by_queue(by_time["offsetTable"]) == {0: 1}
        assert by_queue(to_end["offsetTable"]) == {0: 2}
        assert "expected 0 to 2" in beyond.remark


async def test_a_question_to_a_consumer_is_passed_on_and_its_answer_comes_back(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, admin):

        def running_info(request: Command, connection: Connection) -> Command:
            return request.reply(body=b'{"mqTable":{{"queueId":0}:{}}}')

        connection = await connect(broker.address, {RequestCode.GET_CONSUMER_RUNNING_INFO: running_info})
        await Peer(connection, "consumer-1").heartbeat("readers", ["orders"])

        answer = await admin.ask_well(
            RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="readers", clientId="consumer-1"
        )
        absent = await admin.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="readers", clientId="x")
        connection.close()

        assert answer.body == b'{"mqTable":{{"queueId":0}:{}}}'
        assert "'x' of group 'readers' is not online" in absent.remark


async def test_offsets_of_one_group_can_be_given_to_another(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        await client.sent("orders")
        broker.offsets.commit("readers", "orders", 0, 1)

        await client.ask_well(RequestCode.CLONE_GROUP_OFFSET, srcGroup="readers", destGroup="copies", topic="orders")

        assert broker.offsets.committed("copies", "orders", 0) == 1


async def test_settings_are_shown_and_not_changed_over_the_wire(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        shown = await client.ask_well(RequestCode.GET_BROKER_CONFIG)
        refused = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerName=x")

        assert b"brokerName=broker-a\n" in shown.body
        assert refused.code == ResponseCode.NO_PERMISSION


# --- large tables --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "wide"}),
        (RequestCode.GET_CONSUME_STATS, {"topic": "wide", "consumerGroup": "readers"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "wide", "group": "readers"}),
    ],
)
async def test_the_figures_of_a_topic_with_many_queues_let_others_have_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: RequestCode, fields: dict[str, str]
) -> None:
    looks = WorkPerTurn().watch(monkeypatch, ProgressRequests, "_bounds")
    async with served(tmp_path) as (broker, client):
        broker.topics.put(TopicConfig("wide", 500, 500))
        broker.groups.put(GroupConfig("readers"))
        broker.offsets.commit("readers", "wide", 0, 0)

        await client.ask_well(code, **fields)

    assert looks.total == 500
    assert looks.most <= ROWS_PER_STEP


async def test_a_reset_of_many_queues_lets_others_have_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = WorkPerTurn().watch(monkeypatch, ResetRequests, "_target")
    moved = WorkPerTurn().watch(monkeypatch, ConsumerOffsets, "reset")
    async with served(tmp_path) as (broker, client):
        broker.topics.put(TopicConfig("wide", 200, 200))

        await client.ask_well(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="wide", group="readers", timestamp=0)

        assert len(broker.offsets.queues("readers", "wide")) == 200
    assert (found.total, moved.total) == (200, 200)
    assert max(found.most, moved.most) <= QUEUES_PER_STEP


async def test_an_answer_that_no_frame_can_hold_is_given_up_early(tmp_path: Path) -> None:
    frames = {"remoting__max_header_size": "32KiB", "remoting__max_frame_size": "64KiB"}
    async with served(tmp_path, store__max_message_size="1KiB", **frames) as (broker, client):
        broker.topics.put(TopicConfig("wide", 4000, 4000))

        answer = await client.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="wide")

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "raise max_frame_size in [remoting]" in answer.remark


async def test_a_deleted_topic_is_counted_no_more(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        await client.sent("orders")
        await asked(client, RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="orders")
        await client.ask_well(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")

        gone = await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="orders")
        assert gone.code == ResponseCode.SYSTEM_ERROR


async def test_a_consumer_that_goes_away_when_it_is_asked_is_said_to_be_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(request: Command, connection: Connection) -> None:
        connection.close()

    async with served(tmp_path) as (broker, client):
        await client.sent("orders")
        leaving = {RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: leave}
        await Peer(await connect(broker.address, leaving), "leaver").heartbeat("billing", ["orders"])

        answer = await client.ask(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="orders", group="billing", clientAddr=""
        )

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark.startswith("consumer 'leaver': the connection to ")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_lists_of_a_broker(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        await client.sent("orders")
        await client.heartbeat("readers", ["orders"])
        producer = orjson.dumps({"clientID": client.client_id, "producerDataSet": [{"groupName": "senders"}]})
        await client.ask_well(RequestCode.HEART_BEAT, producer)
        broker.offsets.commit("readers", "orders", 0, 1)

        offsets = await asked(client, RequestCode.GET_ALL_CONSUMER_OFFSET)
        producers = await asked(client, RequestCode.GET_ALL_PRODUCER_INFO)
        subscription = await asked(client, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="readers", topic="orders")
        nobody = await asked(client, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="nobody", topic="orders")
        assert offsets["offsetTable"]["orders@readers"] == {"0": 1}
        assert [one["clientId"] for one in producers["data"]["senders"]] == [client.client_id]
        assert subscription["subscriptionData"]["topic"] == "orders"
        assert "subscriptionData" not in nobody


async def test_a_broker_alone_has_no_slaves_and_nothing_to_clean(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        await client.sent("orders")
        status = await asked(client, RequestCode.GET_BROKER_HA_STATUS)
        assert (status["master"], status["inSyncSlaveNums"], status["haConnectionInfo"]) == (True, 0, [])
        assert status["masterCommitLogMaxOffset"] == broker.store.end
        await client.ask_well(RequestCode.CLEAN_UNUSED_TOPIC)
        assert await client.bodies("orders") == [b"hello"]
