"""The broker's settings under RocketMQ's names: shown, changed while it runs, refused by name."""

from __future__ import annotations

import tomllib
from pathlib import Path

import orjson
import pytest

from tests.plugins.peer import Peer, served
from verniermq.kernel import Command, RequestCode, ResponseCode
from verniermq.plugins.admin.settings import SETTINGS
from verniermq.plugins.admin.switches import NO_COLD_DATA_CONTROL
from verniermq.testing import ManualClock

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[3]


async def shown(client: Peer) -> dict[str, str]:
    text = (await client.ask_well(RequestCode.GET_BROKER_CONFIG)).body.decode()
    return dict(line.split("=", 1) for line in text.splitlines())


async def update(client: Peer, **settings: str) -> Command:
    body = "".join(f"{name}={value}\n" for name, value in settings.items())
    return await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body.encode())


async def test_settings_are_shown_as_rocketmq_writes_them(tmp_path: Path) -> None:
    async with served(tmp_path, store__flush="sync", plugins__txn__timeout="7s") as (broker, client):
        settings = await shown(client)

    assert settings["flushDiskType"] == "SYNC_FLUSH"
    assert settings["transactionTimeOut"] == "7000"
    assert settings["fileReservedTime"] == "72"
    assert settings["messageDelayLevel"] == "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    assert settings["mappedFileSizeCommitLog"] == str(broker.configuration.store.segment_size)
    assert settings["enablePropertyFilter"] == "true"
    assert settings["aclEnable"] == "false"
    assert set(SETTINGS) <= set(settings)


async def test_a_plugin_that_is_not_active_has_no_settings(tmp_path: Path) -> None:
    async with served(tmp_path, plugins__disable=["txn"]) as (_, client):
        assert "transactionTimeOut" not in await shown(client)
        refused = await update(client, transactionTimeOut="5")
        assert refused.code == ResponseCode.INVALID_PARAMETER


def test_every_name_stands_for_a_setting_that_there_is() -> None:
    document = tomllib.loads((ROOT / "broker.toml").read_text())
    for name, (setting, _) in SETTINGS.items():
        table = document
        for part in setting.split("."):
            assert part in table, f"{name} stands for {setting}, which broker.toml does not have"
            table = table[part]


async def test_whether_sends_and_consumers_create_may_change(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        assert (await update(client, autoCreateTopicEnable="false", autoCreateSubscriptionGroup="false")).code == 0
        assert (await client.send("new")).code == ResponseCode.TOPIC_NOT_EXIST
        await client.heartbeat("new")
        assert broker.groups.find("new") is None
        settings = await shown(client)
        assert settings["autoCreateTopicEnable"] == settings["autoCreateSubscriptionGroup"] == "false"

        assert (await update(client, autoCreateTopicEnable="true", autoCreateSubscriptionGroup="true")).code == 0
        await client.sent("new")
        await client.heartbeat("new")
        assert broker.groups.find("new") is not None


async def test_a_broker_that_began_without_creating_topics_can_be_told_to(tmp_path: Path) -> None:
    async with served(tmp_path, topics__auto_create=False) as (broker, client):
        assert "TBW102" not in broker.topics
        await update(client, autoCreateTopicEnable="true")
        await client.sent("new")


async def test_settings_of_plugins_change_and_take_effect(tmp_path: Path) -> None:
    clock = ManualClock()
    async with served(tmp_path, clock) as (broker, client):
        assert (await update(client, transactionCheckMax="3", fileReservedTime="48", deleteWhen="05;17")).code == 0
        assert broker.host.active["txn"].instance.config.check_max == 3
        assert broker.host.active["retention"].instance.config.max_age == 48 * 3600
        assert (await shown(client))["deleteWhen"] == "05;17"

        assert (await update(client, rejectTransactionMessage="true")).code == 0
        refused = await client.send("orders", flags=4, TRAN_MSG="true", PGROUP="P")
        assert refused.code == ResponseCode.NO_PERMISSION


async def test_the_order_of_pops_may_change(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        wished = {
            "priorityOrderAsc": "false", "popFromRetryProbabilityForPriority": "7",
            "popFromRetryProbability": "30", "useSeparateRetryQueue": "true",
        }  # fmt: skip
        assert (await update(client, **wished)).code == ResponseCode.SUCCESS

        settings = await shown(client)
        assert {name: settings[name] for name in wished} == wished
        active = broker.host.active
        assert active["priority"].instance.config.highest_first is False
        assert active["pop"].instance.config.separate_retry_queues is True


@pytest.mark.parametrize(
    ("name", "value", "code", "why"),
    [
        ("brokerName", "other", 16, "brokerName cannot change while the broker runs; change name in [broker]"),
        ("flushDiskType", "SYNC_FLUSH", 16, "change flush in [store] of broker.toml, and restart"),
        ("listenPort", "1", 16, "listenPort cannot change while the broker runs"),
        ("messageDelayLevel", "1s", 16, "change levels in [plugins.schedule]"),
        ("autoCreateTopicEnabled", "true", 29, "did you mean 'autoCreateTopicEnable'?"),
        ("autoCreateTopicEnable", "yes", 29, "expected true or false"),
        ("transactionCheckMax", "many", 29, "expected a whole number"),
        ("transactionCheckMax", "0", 29, "check_max = 0"),
        ("transactionCheckInterval", "9" * 400, 29, "expected milliseconds, a whole number"),
        ("deleteWhen", "25", 29, "hours from 00 to 23"),
    ],
)
async def test_what_cannot_change_is_refused_by_name(
    tmp_path: Path, name: str, value: str, code: int, why: str
) -> None:
    async with served(tmp_path) as (_, client):
        before = await shown(client)
        refused = await update(client, transactionTimeOut="1000", **{name: value})

        assert (refused.code, await shown(client)) == (code, before), refused.remark
        assert why in refused.remark


@pytest.mark.parametrize("body", [b"", b"# nothing", b"name", b"\xff=1"])
async def test_a_body_that_names_no_setting_is_refused(tmp_path: Path, body: bytes) -> None:
    async with served(tmp_path) as (_, client):
        assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body)).code == ResponseCode.INVALID_PARAMETER


# --- queues, and switches that switch nothing ----------------------------------------------


async def test_entries_of_a_consume_queue_are_shown(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        for _ in range(5):
            await client.sent("orders", TAGS="a")

        async def query(**fields: object) -> dict[str, object]:
            wished = {"topic": "orders", "queueId": 0, "index": 1, "count": 3, **fields}
            found: dict[str, object] = orjson.loads(
                (await client.ask_well(RequestCode.QUERY_CONSUME_QUEUE, **wished)).body
            )
            return found

        found = await query()
        queue = broker.store.queue("orders", 0)
        assert queue is not None
        assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 5)
        assert [
            (entry["physicOffset"], entry["physicSize"], entry["tagsCode"])
            for entry in found["queueData"]  # type: ignore[attr-defined]
        ] == queue.entries(1, 3)
        assert (await query(index=9))["queueData"] == []
        assert (await query(consumerGroup="none"))["filterData"] == "none@orders is not online!"
        nowhere = await client.ask(RequestCode.QUERY_CONSUME_QUEUE, topic="orders", queueId=3, index=0, count=1)
        assert "no queue 3 of topic 'orders'" in nowhere.remark


async def test_switches_that_switch_nothing_say_so(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        assert (await client.ask_well(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG)).remark == NO_COLD_DATA_CONTROL
        assert (await client.ask_well(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG)).remark == NO_COLD_DATA_CONTROL
        info = orjson.loads((await client.ask_well(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)).body)
        assert info["runtimeTable"] == {}
        assert "no mode of reading ahead" in (await client.ask_well(RequestCode.SET_COMMITLOG_READ_MODE)).remark
        assert "JSON already" in (await client.ask_well(RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON)).remark
        checked = orjson.loads((await client.ask_well(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS)).body)
        assert "no queues in RocksDB" in checked["checkResult"]


async def test_the_timers_have_one_engine(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, client):
        await client.ask_well(RequestCode.SWITCH_TIMER_ENGINE, E_T="F")
        refused = await client.ask(RequestCode.SWITCH_TIMER_ENGINE, E_T="R")
        assert refused.code == ResponseCode.INVALID_PARAMETER


async def test_a_broker_whose_master_nobody_elects_has_one_epoch(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, client):
        await client.sent("orders")
        told = orjson.loads((await client.ask_well(RequestCode.GET_BROKER_EPOCH_CACHE)).body)
        assert told["epochList"] == [{"epoch": 0, "startOffset": 0, "endOffset": broker.store.end}]
        await client.ask_well(RequestCode.RESET_MASTER_FLUSH_OFFSET, masterFlushOffset=0)
    slave = {"plugins__enable": ["default", "ha"], "plugins__ha__role": "slave", "broker__namesrv": ["127.0.0.1:1"]}
    async with served(tmp_path / "slave", broker__id=1, **slave) as (_, client):
        refused = await client.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET, masterFlushOffset=0)
        assert refused.code == ResponseCode.NO_PERMISSION
