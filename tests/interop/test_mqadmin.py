"""Apache's own ``mqadmin`` against VernierMQ: its everyday commands, each run for real and its output read."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from verniermq.client import Message
from verniermq.client.sync import Producer

from .apache import LOGGING_NOISE
from .drivers import Driver
from .toolchains import driver_command, java_command, server_classpath
from .verniermq_process import VernierMQBroker
from .wire import request

TOPIC = "admin"
CLUSTER = ("-c", "DefaultCluster")


class MqAdmin:
    """``mqadmin`` with a broker to look at, on which a consumer is online and 30 messages were sent."""

    def __init__(self, folder: Path, broker: VernierMQBroker, first_id: str) -> None:
        self.broker = broker
        self.first_id = first_id
        loop = Path(__file__).parent / "server" / "AdminLoop.java"
        options = ("-Xmx256m", f"-Drocketmq.home.dir={folder}", "-cp", server_classpath(), str(loop))
        self._process = subprocess.Popen(
            java_command(*options, home=folder),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
        )  # fmt: skip

    def __call__(self, *arguments: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join([*arguments, "-n", self.broker.namesrv]) + "\n")
        self._process.stdin.flush()
        lines: list[str] = []
        while True:
            line = self._process.stdout.readline()
            assert line, f"mqadmin ended: {''.join(lines)}"
            if line == "--- done ---\n":
                return LOGGING_NOISE.sub("", "".join(lines))
            lines.append(line)

    def close(self) -> None:
        self._process.communicate(timeout=30)


@pytest.fixture(scope="module")
def mqadmin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    folder = tmp_path_factory.mktemp("mqadmin")
    driver = Driver("java5", driver_command("java5"), folder)
    with VernierMQBroker(folder) as broker:
        common = {"namesrv": broker.namesrv, "topic": TOPIC}
        sent = driver.run("produce", **common, group="producers", count=30, start=0).events("sent")
        consumer = driver.start("consume", **common, group="consumers", expect=31, start=0, timeout=300)
        while len(consumer.events("received")) < 30:
            time.sleep(0.1)
        time.sleep(6)  # the Java consumer commits its offsets every 5 s
        admin = MqAdmin(folder, broker, str(sent[0]["msgId"]))
        yield admin
        admin.close()
        driver.close()


def rows(printed: str, start: str) -> list[list[str]]:
    """The lines of a table that begin with a word, cut at their blanks."""
    return [line.split() for line in printed.splitlines() if line.startswith(start)]


def test_cluster_list(mqadmin: MqAdmin) -> None:
    (row,) = rows(mqadmin("clusterList"), "DefaultCluster")
    assert row[:5] == ["DefaultCluster", "broker-a", "0", mqadmin.broker.broker, "V5_3_3"]
    (totals,) = rows(mqadmin("clusterList", "-m"), "DefaultCluster")
    assert int(totals[4]) >= 30


def test_topic_list(mqadmin: MqAdmin) -> None:
    listed = mqadmin("topicList").split()
    assert {TOPIC, "%RETRY%consumers", "TBW102"} <= set(listed)


def test_topics_with_their_groups(mqadmin: MqAdmin) -> None:
    assert ["DefaultCluster", TOPIC, "consumers"] in rows(mqadmin("topicList", "-c"), "DefaultCluster")
    assert mqadmin("topicClusterList", "-t", TOPIC).split() == ["DefaultCluster"]


def test_topic_route(mqadmin: MqAdmin) -> None:
    printed = mqadmin("topicRoute", "-t", TOPIC)
    assert f'"{mqadmin.broker.broker}"' in printed
    assert '"writeQueueNums":4' in printed


def test_topic_status(mqadmin: MqAdmin) -> None:
    table = rows(mqadmin("topicStatus", "-t", TOPIC), "broker-a")
    assert [row[1] for row in table] == ["0", "1", "2", "3"]
    assert sum(int(row[3]) for row in table) >= 30


def test_update_and_delete_topic(mqadmin: MqAdmin) -> None:
    assert "success" in mqadmin("updateTopic", *CLUSTER, "-t", "made", "-r", "3", "-w", "3")
    assert '"readQueueNums":3' in mqadmin("topicRoute", "-t", "made")
    assert "from NameServer success" in mqadmin("deleteTopic", *CLUSTER, "-t", "made")
    assert "made" not in mqadmin("topicList").split()


def test_permissions_of_a_topic_and_of_a_broker(mqadmin: MqAdmin) -> None:
    assert "success" in mqadmin("updateTopic", *CLUSTER, "-t", "guarded")
    assert "perm from 6 to 4" in mqadmin("updateTopicPerm", *CLUSTER, "-t", "guarded", "-p", "4")
    assert '"perm":4' in mqadmin("topicRoute", "-t", "guarded")
    assert re.search(r"wipe write perm of broker\[broker-a\].* OK, \d+", mqadmin("wipeWritePerm", "-b", "broker-a"))
    assert '"perm":4' in mqadmin("topicRoute", "-t", TOPIC)
    assert re.search(r"add write perm of broker\[broker-a\].* OK, \d+", mqadmin("addWritePerm", "-b", "broker-a"))
    assert '"perm":6' in mqadmin("topicRoute", "-t", TOPIC)


def test_who_would_get_which_queue(mqadmin: MqAdmin) -> None:
    printed = mqadmin("allocateMQ", "-t", TOPIC, "-i", "10.0.0.1,10.0.0.2")
    assert sorted(re.findall(r'"queueId":(\d)', printed)) == ["0", "1", "2", "3"]


def test_update_and_delete_subscription_group(mqadmin: MqAdmin) -> None:
    assert "groupName=made" in mqadmin("updateSubGroup", *CLUSTER, "-g", "made", "-r", "3")
    assert "success" in mqadmin("deleteSubGroup", *CLUSTER, "-g", "made")


def test_consumer_progress(mqadmin: MqAdmin) -> None:
    printed = mqadmin("consumerProgress", "-g", "consumers")
    assert len(rows(printed, TOPIC)) == 4
    assert re.search(r"Consume Diff Total: \d+", printed)
    (row,) = rows(mqadmin("consumerProgress"), "consumers")
    assert row[3:5] == ["PUSH", "CLUSTERING"]


def test_consumer_connection_and_status(mqadmin: MqAdmin) -> None:
    printed = mqadmin("consumerConnection", "-g", "consumers")
    assert "CONSUME_PASSIVELY" in printed
    assert f"{TOPIC} " in printed
    assert "Same subscription in the same group of consumer" in mqadmin("consumerStatus", "-g", "consumers")


def test_settings_of_a_group(mqadmin: MqAdmin) -> None:
    printed = mqadmin("getConsumerConfig", "-g", "consumers")
    assert re.search(r"groupName\s+=\s+consumers\n", printed)
    assert re.search(r"retryMaxTimes\s+=\s+16\n", printed)


def test_producer_connection(mqadmin: MqAdmin) -> None:
    with Producer("online", namesrv=mqadmin.broker.namesrv) as producer:
        producer.send(Message("elsewhere", b"here I am"))
        (row,) = rows(mqadmin("producerConnection", "-g", "online", "-t", "elsewhere"), "0001")
        everyone = mqadmin("producer", "-b", mqadmin.broker.broker)
    assert row[2].startswith("127.0.0.1:")
    assert "producer group (online)" in everyone


def test_producer_connection_of_a_group_that_is_gone(mqadmin: MqAdmin) -> None:
    printed = mqadmin("producerConnection", "-g", "producers", "-t", TOPIC)
    assert "producer group 'producers' has nobody online" in printed


def test_broker_status_and_config(mqadmin: MqAdmin) -> None:
    status = mqadmin("brokerStatus", "-b", mqadmin.broker.broker)
    assert re.search(r"msgPutTotalTodayNow\s*: \d+", status)
    assert re.search(r"brokerName\s*=\s*broker-a", mqadmin("getBrokerConfig", "-b", mqadmin.broker.broker))
    assert "#MasterAddr" in mqadmin("haStatus", "-b", mqadmin.broker.broker)


def test_what_a_broker_will_not_do_is_answered_with_the_reason(mqadmin: MqAdmin) -> None:
    broker = mqadmin.broker.broker
    refused = mqadmin("updateBrokerConfig", "-b", broker, "-k", "listenPort", "-v", "1")
    assert "listenPort cannot change while the broker runs" in refused
    assert "there is only F here" in mqadmin("switchTimerEngine", "-b", broker, "-e", "R")
    assert "no queues in RocksDB" in mqadmin("checkRocksdbCqWriteProgress", *CLUSTER, "-t", TOPIC)


def test_topics_of_the_clusters_and_the_brokers_name(mqadmin: MqAdmin) -> None:
    assert len(rows(mqadmin("topicStatus", "-t", "DefaultCluster"), "broker-a")) == 16
    assert mqadmin("sendMsgStatus", "-b", "broker-a", "-s", "10", "-c", "2").count("SEND_OK") == 2
    assert {"DefaultCluster", "broker-a"} <= set(mqadmin("topicList").split())


@contextmanager
def running_for_ever(mqadmin: MqAdmin, folder: Path, *arguments: str) -> Iterator[IO[str]]:
    """A command that does not end has a process of its own."""
    main = ("-cp", server_classpath(), "org.apache.rocketmq.tools.command.MQAdminStartup")
    process = subprocess.Popen(
        java_command(
            "-Xmx128m", f"-Drocketmq.home.dir={folder}", *main, *arguments, "-n", mqadmin.broker.namesrv, home=folder
        ),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.kill()
        process.communicate()


def test_how_long_sends_take_in_all_clusters(mqadmin: MqAdmin, tmp_path: Path) -> None:
    with running_for_ever(mqadmin, tmp_path, "clusterRT", "-c", "DefaultCluster", "-a", "2", "-i", "1") as printed:
        row = next(line.split() for line in printed if line.startswith("DefaultCluster"))
    assert row[1] == "broker-a"


PULL_MESSAGE = 11
PULL_OFFSET_MOVED = 21


def test_monitoring_reports_who_is_behind_and_whose_place_is_gone(mqadmin: MqAdmin, tmp_path: Path) -> None:
    pulled = {
        "consumerGroup": "latecomers", "topic": TOPIC, "queueId": 0, "queueOffset": 4711, "maxMsgNums": 1, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
    }  # fmt: skip

    def reported() -> str:
        """It prints nothing: whatever it has to say is in the logs below the user's home."""
        logs = "".join(file.read_text(errors="replace") for file in tmp_path.rglob("*.log"))
        return "\n".join(line for line in logs.splitlines() if "[MONITOR]" in line)

    with running_for_ever(mqadmin, tmp_path, "startMonitoring"):
        moved = request(mqadmin.broker.broker, PULL_MESSAGE, pulled)
        assert moved.code == PULL_OFFSET_MOVED
        until = time.monotonic() + 100  # the first round begins after 20 s
        while not ("endRound" in reported() and "reportDeleteMsgsEvent" in reported()):
            assert time.monotonic() < until, reported()
            time.sleep(0.2)
        assert re.search(r"reportUndoneMsgs.*consumerGroup=consumers, topic=admin, undoneMsgsTotal=\d", reported())
        assert re.search(r"reportDeleteMsgsEvent.*consumerGroup=latecomers", reported())


def test_epochs(mqadmin: MqAdmin) -> None:
    broker = ("-b", mqadmin.broker.broker)
    assert "epoch=0, startOffset=0" in mqadmin("getBrokerEpoch", "-b", "broker-a")
    assert "success" in mqadmin("resetMasterFlushOffset", *broker, "-o", "0")


def test_settings_of_a_broker_change_while_it_runs(mqadmin: MqAdmin) -> None:
    broker = mqadmin.broker.broker
    assert "success" in mqadmin("updateBrokerConfig", "-b", broker, "-k", "transactionCheckMax", "-v", "9")
    assert re.search(r"transactionCheckMax\s*=\s*9\n", mqadmin("getBrokerConfig", "-b", broker))


def test_settings_of_a_name_server(mqadmin: MqAdmin) -> None:
    assert re.search(r"enableTopicList\s*=\s*true", mqadmin("getNamesrvConfig"))
    assert "success" in mqadmin("updateNamesrvConfig", "-k", "enableTopicList", "-v", "true")


def test_entries_of_a_queue(mqadmin: MqAdmin) -> None:
    printed = mqadmin("queryCq", "-t", TOPIC, "-q", "0", "-i", "0", "-c", "2", "-b", mqadmin.broker.broker)
    assert len(re.findall(r"physicSize=\d+", printed)) == 2


def test_switches_are_answered(mqadmin: MqAdmin) -> None:
    broker = ("-b", mqadmin.broker.broker)
    assert "nobody is slowed down" in mqadmin("getColdDataFlowCtrInfo", *broker)
    assert "success" in mqadmin("updateColdDataFlowCtrGroupConfig", *broker, "-g", "some", "-v", "1000")
    assert "success" in mqadmin("removeColdDataFlowCtrGroupConfig", *broker, "-g", "some")
    assert "no mode of reading ahead" in mqadmin("setCommitLogReadAheadMode", *broker, "-m", "1")
    assert "success" in mqadmin("switchTimerEngine", *broker, "-e", "F")
    assert "broker export done" in mqadmin("rocksDBConfigToJson", *CLUSTER, "-t", "topics")


def test_lists_of_topics_and_groups_and_the_mode_of_a_group(mqadmin: MqAdmin, tmp_path: Path) -> None:
    broker = ("-b", mqadmin.broker.broker)
    topics, groups = tmp_path / "topics.json", tmp_path / "groups.json"
    topics.write_text(json.dumps([{"topicName": "listed", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]))
    groups.write_text(json.dumps([{"groupName": "listed", "consumeEnable": True}]))
    assert "success" in mqadmin("updateTopicList", *broker, "-f", str(topics))
    assert "success" in mqadmin("updateSubGroupList", *broker, "-f", str(groups))
    assert '"readQueueNums":2' in mqadmin("topicRoute", "-t", "listed")
    assert "consume mode[POP]" in mqadmin("setConsumeMode", *CLUSTER, "-t", TOPIC, "-g", "pops", "-m", "POP", "-q", "8")
    assert "dryRun=false" in mqadmin("exportPopRecord", *CLUSTER)


def test_order_of_a_topic(mqadmin: MqAdmin) -> None:
    assert "success" in mqadmin("updateOrderConf", "-t", TOPIC, "-m", "put", "-v", "broker-a:4")
    assert "orderConf=[broker-a:4]" in mqadmin("updateOrderConf", "-t", TOPIC, "-m", "get")
    assert "success" in mqadmin("updateOrderConf", "-t", TOPIC, "-m", "delete")


def test_export_settings_and_figures(mqadmin: MqAdmin, tmp_path: Path) -> None:
    assert "success" in mqadmin("exportConfigs", *CLUSTER, "-f", str(tmp_path))
    assert "success" in mqadmin("exportMetrics", *CLUSTER, "-f", str(tmp_path))
    configs = json.loads((tmp_path / "configs.json").read_text())["brokerConfigs"]["broker-a"]
    assert (configs["fileReservedTime"], configs["flushDiskType"], configs["useTLS"]) == ("72", "ASYNC_FLUSH", "false")
    metrics = json.loads((tmp_path / "metrics.json").read_text())["evaluateReport"]["broker-a"]["runtimeQuota"]
    assert float(metrics["messageAverageSize"]) > 0


def test_statistics_of_everything(mqadmin: MqAdmin) -> None:
    (row,) = rows(mqadmin("statsAll", "-t", TOPIC), TOPIC)
    assert row[1] == "consumers"
    assert int(row[5]) >= 30


def test_consume_statistics_of_a_broker(mqadmin: MqAdmin) -> None:
    printed = mqadmin("brokerConsumeStats", "-b", mqadmin.broker.broker)
    assert len(rows(printed, TOPIC)) >= 4
    assert "Diff Total" in printed


def test_send_and_consume_a_message(mqadmin: MqAdmin) -> None:
    assert "SEND_OK" in mqadmin("sendMessage", "-t", TOPIC, "-p", "from mqadmin", "-k", "admin-key")
    assert "Consume ok" in mqadmin("consumeMessage", "-t", TOPIC, "-c", "3")


def test_print_messages(mqadmin: MqAdmin) -> None:
    everything = mqadmin("printMsg", "-t", TOPIC)
    assert len(re.findall(r"KEYS=key-\d+", everything)) == 30
    one_queue = mqadmin("printMsgByQueue", "-t", TOPIC, "-a", "broker-a", "-i", "0", "-p", "true")
    assert set(re.findall(r"queueId=(\d)", one_queue)) == {"0"}


def test_how_long_sends_take(mqadmin: MqAdmin) -> None:
    assert "success" in mqadmin("updateTopic", *CLUSTER, "-t", "timed")
    printed = mqadmin("checkMsgSendRT", "-t", "timed", "-a", "5", "-s", "10")
    assert [row[2] for row in rows(printed, "broker-a")] == ["true"] * 5


def test_query_by_offset(mqadmin: MqAdmin) -> None:
    printed = mqadmin("queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", "0", "-o", "0")
    assert re.search(r"Queue Offset:\s+0", printed)
    assert re.search(r"Keys:\s+\[key-\d+\]", printed)


def test_query_by_id(mqadmin: MqAdmin) -> None:
    arguments = ("-t", TOPIC, "-b", "broker-a", "-i", "0", "-o", "0")
    found = re.search(r"OffsetID:\s+([0-9A-F]{32})", mqadmin("queryMsgByOffset", *arguments))
    assert found
    printed = mqadmin("queryMsgById", "-t", TOPIC, "-i", found[1])
    assert re.search(r"Keys:\s+\[key-\d+\]", printed)
    assert re.search(r"Queue Offset:\s+0\n", printed)
    assert "consumerGroup=consumers, trackType=CONSUMED" in printed


def test_clone_offsets(mqadmin: MqAdmin) -> None:
    arguments = ("cloneGroupOffset", "-s", "consumers", "-d", "copies", "-t", TOPIC)
    assert "success" in mqadmin(*arguments)


def test_reset_offset_by_time(mqadmin: MqAdmin) -> None:
    table = rows(mqadmin("resetOffsetByTime", "-g", "consumers", "-t", TOPIC, "-s", "now"), "broker-a")
    assert len(table) == 4


def test_skip_what_has_piled_up(mqadmin: MqAdmin) -> None:
    table = rows(mqadmin("skipAccumulatedMessage", "-g", "consumers", "-t", TOPIC), "broker-a")
    assert sorted(row[1] for row in table) == ["0", "1", "2", "3"]


def test_settings_at_the_name_server(mqadmin: MqAdmin) -> None:
    assert "success" in mqadmin("updateKvConfig", "-s", "space", "-k", "colour", "-v", "green")
    assert "success" in mqadmin("deleteKvConfig", "-s", "space", "-k", "colour")


def test_export_topics_and_groups(mqadmin: MqAdmin, tmp_path: Path) -> None:
    assert "success" in mqadmin("exportMetadata", *CLUSTER, "-f", str(tmp_path))
    exported = json.loads((tmp_path / "metadata.json").read_text())
    assert exported["topicConfigTable"][TOPIC]["writeQueueNums"] == 4
    assert "consumers" in exported["subscriptionGroupTable"]


def test_query_messages_by_key_and_by_unique_key(mqadmin: MqAdmin) -> None:
    by_key = mqadmin("queryMsgByKey", "-t", TOPIC, "-k", "key-7")
    by_unique_key = mqadmin("queryMsgByUniqueKey", "-t", TOPIC, "-i", mqadmin.first_id)

    assert len([line for line in by_key.splitlines() if re.match(r"[0-9A-F]{32}", line)]) == 1, by_key
    assert re.search(r"Keys: +\[key-0\]", by_unique_key), by_unique_key


def test_delete_expired_files(mqadmin: MqAdmin) -> None:
    assert "success" in mqadmin("deleteExpiredCommitLog", *CLUSTER)
    assert "success" in mqadmin("cleanExpiredCQ", *CLUSTER)
    assert "success" in mqadmin("cleanUnusedTopic", *CLUSTER)


def test_an_attribute_takes_effect_or_is_refused_with_the_reason(mqadmin: MqAdmin) -> None:
    made = mqadmin("updateTopic", *CLUSTER, "-t", "urgent", "-a", "+message.type=PRIORITY")
    refused = mqadmin("updateTopic", *CLUSTER, "-t", "compacted", "-a", "+cleanup.policy=COMPACTION")
    mqadmin("updateSubGroup", *CLUSTER, "-g", "workers", "--attributes", "+priority.factor=90")

    assert "create topic to" in made
    assert "topics are not compacted here" in refused
    assert "priority.factor=90" in mqadmin("getConsumerConfig", "-g", "workers")
