"""Exactly once under ``kill -9``: an export without Spark and the broker are killed while a producer goes on."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.arrow.conftest import WITH_PLUGIN
from tests.arrow.producing import Producing
from tests.arrow.test_export import bodies_in
from verniermq.contrib.arrow.wire import Wire
from verniermq.kernel import RemotingError, RequestCode, ResponseCode
from verniermq.testing import BrokerProcess, broker_process

KILLS = 5
TOPICS = ("orders", "payments")
PATIENCE = 60.0


class Producer(threading.Thread):
    """Sends numbered messages to both topics as long as it may, and remembers those that were acknowledged."""

    def __init__(self, process: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        self._address = process.broker
        self._enough = threading.Event()

    def run(self) -> None:
        wire = Wire(self._address)
        number = 0
        while not self._enough.wait(0.002):
            number += 1
            topic = TOPICS[number % 2]
            fields = {
                "a": "p", "b": topic, "c": "TBW102", "d": "2", "e": str(number % 4 // 2), "f": "0",
                "g": str(int(time.time() * 1000)), "h": "0", "i": "", "j": "0",
            }  # fmt: skip
            body = b"message %d" % number
            try:
                if wire.ask(RequestCode.SEND_MESSAGE_V2, fields, body).code == ResponseCode.SUCCESS:
                    self.acknowledged[topic].add(body)
            except RemotingError:
                self._enough.wait(0.05)
        wire.close()

    def stop(self) -> None:
        self._enough.set()
        self.join()


def command(out: Path, broker: BrokerProcess, form: str, *more: str) -> list[str]:
    topics = [word for topic in TOPICS for word in ("--topic", topic)]
    export = [sys.executable, "-m", "verniermq.cli", "export", str(out), "--namesrv", broker.namesrv]
    return [*export, "--format", form, "--no-tables", *topics, *more]


def wait_for_a_batch(process: subprocess.Popen[bytes], out: Path) -> None:
    """Until it has begun another batch; when it is killed then, something is half done."""
    offsets = out / "_checkpoint" / "offsets"
    before = len(list(offsets.glob("*")))
    deadline = time.monotonic() + PATIENCE
    while len(list(offsets.glob("*"))) <= before:
        assert process.poll() is None, "the export ended by itself"
        assert time.monotonic() < deadline, "no batch began"
        time.sleep(0.001)


@pytest.mark.parametrize("form", ["parquet", "iceberg", "delta"])
def test_every_acknowledged_message_is_exported_exactly_once(tmp_path: Path, form: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # shown when the test fails
    chance = random.Random(seed)
    out = tmp_path / "out"
    with broker_process(tmp_path / "store", WITH_PLUGIN) as broker:
        with Producing(broker.broker) as producing:
            for topic in TOPICS:
                producing.create(topic)
        producer = Producer(broker)
        producer.start()
        for number in range(KILLS):
            more = ("--continuous", "--every", "0.01", "--batch-rows", "200")
            process = subprocess.Popen(command(out, broker, form, *more), stdout=subprocess.DEVNULL)
            try:
                wait_for_a_batch(process, out)
                if number == KILLS // 2:
                    broker.kill()
                    broker.start()
                time.sleep(chance.uniform(0, 0.15))
            finally:
                process.kill()
                process.wait()
        producer.stop()
        done = subprocess.run(command(out, broker, form), capture_output=True, text=True, check=False, timeout=PATIENCE)

    assert done.returncode == 0, done.stdout + done.stderr
    for topic in TOPICS:
        exported = Counter(bodies_in(out, form, topic))
        assert len(producer.acknowledged[topic]) > 10
        assert producer.acknowledged[topic] - exported.keys() == set(), "acknowledged messages are missing"
        assert {body: count for body, count in exported.items() if count > 1} == {}
