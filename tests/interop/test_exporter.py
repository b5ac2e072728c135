"""The reads of ``rocketmq-exporter``, made with the library that it uses, and the figures that they give."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from verniermq.client import Message
from verniermq.client.sync import Producer

from .toolchains import java_command, server_classpath
from .verniermq_process import VernierMQBroker
from .wire import create_topic, request

pytestmark = pytest.mark.timeout(240)

TOPIC, GROUP, COUNT = "measured", "readers", 30
UPDATE_CONSUMER_OFFSET = 15


def test_the_exporter_finds_every_figure_that_it_reads(tmp_path: Path) -> None:
    with VernierMQBroker(tmp_path) as broker:
        create_topic(broker.broker, broker.namesrv, TOPIC, queues=1)
        with Producer("senders", namesrv=broker.namesrv) as producer:
            for number in range(COUNT):
                producer.send(Message(TOPIC, f"message {number}".encode()))
        place = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "commitOffset": 10}
        request(broker.broker, UPDATE_CONSUMER_OFFSET, place)

        reads = Path(__file__).parent / "server" / "ExporterReads.java"
        options = ("-Xmx256m", "-cp", server_classpath(), str(reads), broker.namesrv, TOPIC, GROUP)
        done = subprocess.run(
            java_command(*options, home=tmp_path), capture_output=True, text=True, timeout=200, cwd=tmp_path
        )

    lines = [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]
    figures = {line[0]: line[1] for line in lines}
    assert done.returncode == 0, done.stdout + done.stderr
    assert (figures["topicIsListed"], figures["groupIsListed"]) == ("true", "true")
    assert (figures["messages"], figures["consumed"], figures["behind"]) == (str(COUNT), "10", str(COUNT - 10))
    assert int(figures["runtime.msgPutTotalTodayNow"]) >= COUNT
    assert int(figures["runtime.commitLogMaxOffset"]) > 0
    assert float(figures["runtime.commitLogDiskRatio"]) > 0
    for name in ("putMessageTimesTotal", "putMessageSizeTotal", "putMessageAverageSize", "putLatency99", "getTotalTps"):
        assert f"runtime.{name}" in figures
