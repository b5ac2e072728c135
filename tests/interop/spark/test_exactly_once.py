"""Exactly once: an export and the broker are killed again and again while producers go on; Parquet has it all, once.

Kills come at moments that hurt: while Spark starts, while a batch is being written, just after one was. Sometimes only
the export's Python is killed, and its Java lives a little longer, as after a real ``kill -9``.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest
from deltalake import DeltaTable

from tests.arrow.producing import Producing
from verniermq.contrib.arrow.tables.iceberg import open_catalog
from verniermq.contrib.arrow.wire import Wire
from verniermq.kernel import RemotingError, RequestCode, ResponseCode
from verniermq.testing import BrokerProcess, broker_process

FORMATS = os.environ.get("FORMATS", "parquet").split(",")
"""Tables are for a run by hand, `FORMATS=iceberg,delta`: each format takes minutes."""
EXPORT_KILLS = 10
BROKER_KILLS = 3
TOPICS = ("orders", "payments")
PATIENCE = 120.0
"""How long one export may take to come to the moment at which it is to be killed."""


class Producer(threading.Thread):
    """Sends numbered messages as long as it may, and remembers those that were acknowledged."""

    def __init__(self, process: BrokerProcess, topic: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[bytes] = []
        self.attempts = 0
        self._address = process.broker
        self._topic = topic
        self._enough = threading.Event()

    def run(self) -> None:
        wire = Wire(self._address)
        while not self._enough.is_set():
            self.attempts += 1
            body = b"%s %d" % (self._topic.encode(), self.attempts)
            fields = {
                "a": "p", "b": self._topic, "c": "TBW102", "d": "2", "e": str(self.attempts % 2), "f": "0",
                "g": str(int(time.time() * 1000)), "h": "0", "i": "", "j": "0",
            }  # fmt: skip
            try:
                if wire.ask(RequestCode.SEND_MESSAGE_V2, fields, body).code == ResponseCode.SUCCESS:
                    self.acknowledged.append(body)
            except RemotingError:
                time.sleep(0.1)
            self._enough.wait(0.01)
        wire.close()

    def stop(self) -> None:
        self._enough.set()
        self.join()


def command(out: Path, name_server: str, form: str, *more: str) -> list[str]:
    topics = [word for topic in TOPICS for word in ("--topic", topic)]
    java = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    base = [sys.executable, "-m", "verniermq.cli", "spark", "export", str(out), "--namesrv", name_server]
    return [*base, "--master", "local[2]", "--conf", java, "--no-tables", "--format", form, *topics, *more]


@contextmanager
def exporting(out: Path, name_server: str, form: str) -> Iterator[subprocess.Popen[bytes]]:
    log = out.with_suffix(".log").open("ab")
    process = subprocess.Popen(
        command(out, name_server, form, "--continuous", "--every", "0.2", "--batch-rows", "2000"),
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all of it is gone already
        process.wait()
        log.close()


def rows_of(out: Path, form: str) -> pa.Table:
    """What a reader of each format finds."""
    columns = ["body", "queueId", "queueOffset"]
    if form == "parquet":
        return pyarrow.dataset.dataset(out / "messages", partitioning="hive").to_table(columns=[*columns, "topic"])
    tables = []
    for topic in TOPICS:
        if form == "delta":
            rows = DeltaTable(out / "messages" / f"topic={topic}").to_pyarrow_table(columns=columns)
        else:
            rows = open_catalog(out).load_table(("mq", topic)).scan(selected_fields=tuple(columns)).to_arrow()
        tables.append(rows.select(columns).append_column("topic", pa.array([topic] * rows.num_rows)))
    return pa.concat_tables(tables, promote_options="permissive")


def batches_written(out: Path) -> int:
    return len({path.name for path in (out / "messages").glob("topic=*/dt=*/batch=*")})


def wait_for_moment(process: subprocess.Popen[bytes], out: Path, chance: random.Random) -> str:
    """Wait for one of the moments that hurt, and say which it was."""
    moment = chance.choice(["starting", "writing", "writing", "written"])
    if moment == "starting":
        time.sleep(chance.uniform(0.5, 6))
        return moment
    before = batches_written(out)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        staging = any((out / "messages").glob(".spark-staging-*"))
        if (moment == "writing" and staging) or (moment == "written" and batches_written(out) > before):
            time.sleep(chance.uniform(0, 0.3))
            return moment
        time.sleep(0.005)
    pytest.fail(f"the export did not come to {moment}:\n{out.with_suffix('.log').read_text()[-4000:]}")


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("form", FORMATS)
def test_every_acknowledged_message_is_exported_exactly_once(tmp_path: Path, form: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # shown when the test fails
    chance = random.Random(seed)
    out = tmp_path / "out"
    out.mkdir()
    broker_rounds = set(chance.sample(range(1, EXPORT_KILLS), BROKER_KILLS))
    with broker_process(tmp_path / "store", '--set=plugins.enable=["default", "spark"]') as broker:
        with Producing(broker.broker) as producing:
            for topic in TOPICS:
                producing.create(topic)
        producers = [Producer(broker, topic) for topic in TOPICS]
        for producer in producers:
            producer.start()
        for number in range(EXPORT_KILLS):
            with exporting(out, broker.namesrv, form) as process:
                if number in broker_rounds:
                    time.sleep(chance.uniform(2, 6))
                    broker.kill()
                    broker.start()
                moment = wait_for_moment(process, out, chance)
                if chance.random() < 0.5:
                    process.kill()
                    process.wait()
                    time.sleep(chance.uniform(0, 0.2))
                print(f"kill {number} while {moment}")
        for producer in producers:
            producer.stop()
        done = subprocess.run(
            command(out, broker.namesrv, form), capture_output=True, text=True, check=False, timeout=400
        )

    assert done.returncode == 0, done.stdout + done.stderr
    table = rows_of(out, form)
    exported = Counter(table.column("body").to_pylist())
    acknowledged = {body for producer in producers for body in producer.acknowledged}
    assert len(acknowledged) > 1000
    assert acknowledged - exported.keys() == set(), "acknowledged messages are missing"
    repeated = {body: count for body, count in exported.items() if count > 1}
    assert repeated == {}, "messages were exported more than once"
    places = table.select(["topic", "queueId", "queueOffset"]).to_pylist()
    assert len({tuple(place.values()) for place in places}) == len(places)
