"""Spark's export is killed again and again while producers go on: files and tables have every message, once.

Kills come at moments that hurt: while Spark starts, while a batch is being written, between its files and the table's
commit, just after it. The whole export is killed, or its Python alone, whose Java lives a little longer, or Java alone,
in which its tasks run, or one of the Python workers. Between them the broker is killed and starts again.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
from deltalake import DeltaTable

from tests.arrow.producing import Producing
from tests.campaign.outcome import Kind, Outcome
from verniermq.contrib.arrow.checkpoint import ExportCheckpoint
from verniermq.contrib.arrow.tables import table_format
from verniermq.contrib.arrow.tables.iceberg import open_catalog
from verniermq.contrib.arrow.wire import Wire
from verniermq.kernel import RemotingError, RequestCode, ResponseCode
from verniermq.testing import BrokerProcess, broker_process

FORMATS = ("iceberg", "delta", "parquet")
TOPICS = ("orders", "payments")
KILLS = 4
PATIENCE = 300.0
"""How long one export may take to come to the moment at which it is to be killed; it is slow on a busy machine."""
LAST_PATIENCE = 400.0
MOMENTS = ("starting", "writing", "between", "between", "written")
VICTIMS = ("all", "all", "python", "java", "worker")


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
    with out.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(
            command(out, name_server, form, "--continuous", "--every", "0.2", "--batch-rows", "2000"),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        for pid in family(process.pid):
            _kill(pid)
        process.wait()


def family(session: int) -> dict[int, str]:
    """The processes of a session, and what each is."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(state[3]) == session and state[0] != "Z":
                found[int(folder.name)] = _role((folder / "cmdline").read_bytes())
        except (OSError, IndexError):
            continue  # it ended meanwhile
    return found


def _role(line: bytes) -> str:
    for word, role in ((b"SparkSubmit", "java"), (b"pyspark", "worker")):
        if word in line:
            return role
    return "python" if b"verniermq.cli" in line else "other"


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself


def batches_written(out: Path) -> int:
    return len({path.name for path in (out / "messages").glob("topic=*/dt=*/batch=*")})


def wait_for(moment: str, process: subprocess.Popen[bytes], out: Path, chance: random.Random) -> bool:
    """Wait for one of the moments that hurt; whether it came."""
    if moment == "starting":
        time.sleep(chance.uniform(0.5, 8))
        return True
    before = batches_written(out)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        if moment == "writing":
            has_come = any((out / "messages").glob(".spark-staging-*"))
        else:
            has_come = batches_written(out) > before
        if has_come:
            if moment != "between":
                time.sleep(chance.uniform(0, 0.4))
            return True
        time.sleep(0.002)
    return False


def kill_one(victim: str, process: subprocess.Popen[bytes], chance: random.Random) -> bool:
    """Kill one part of an export; whether there was one of this kind. What is left of it is killed a little later."""
    if victim == "all":
        return True
    found = [pid for pid, role in family(process.pid).items() if role == victim]
    if found:
        _kill(chance.choice(found))
        time.sleep(chance.uniform(0, 1.5))
    return bool(found)


def rows_of(out: Path, form: str, topics: Sequence[str] = TOPICS) -> pa.Table:
    """What a reader of each format finds."""
    columns = ["body", "queueId", "queueOffset"]
    if form == "parquet":
        return pyarrow.dataset.dataset(out / "messages", partitioning="hive").to_table(columns=[*columns, "topic"])
    tables = []
    for topic in topics:
        if form == "delta":
            rows = DeltaTable(out / "messages" / f"topic={topic}").to_pyarrow_table(columns=columns)
        else:
            rows = open_catalog(out).load_table(("mq", topic)).scan(selected_fields=tuple(columns)).to_arrow()
        tables.append(rows.select(columns).append_column("topic", pa.array([topic] * rows.num_rows)))
    return pa.concat_tables(tables, promote_options="permissive")


def state_of(out: Path, form: str) -> str:
    """How far the newest batch came, after a kill."""
    if not (out / "_checkpoint" / "offsets").is_dir():
        return "killed before the first batch"
    half = ExportCheckpoint(out / "_checkpoint").cut_short()
    if half is None:
        return "killed between batches"
    if not any((out / "messages").glob(f"topic=*/dt=*/batch={half.name}")):
        return "killed before the files"
    table = table_format(form, out)
    held = [topic for topic in TOPICS if table.holds(topic, half)]
    if form == "parquet" or not held:
        return "killed with files, without a commit"
    return "killed with a part of the commits" if len(held) < len(TOPICS) else "killed with all commits, not noted"


def live(seed: int, folder: Path, form: str = "", kills: int = KILLS, broker_kills: int = 1) -> Outcome:
    """Some lives of an export into one folder, and a last one that may end; then everything is looked at."""
    chance = random.Random(seed)
    form = form or FORMATS[seed % len(FORMATS)]
    outcome = Outcome()
    out = folder / "out"
    out.mkdir()
    broker_rounds = set(chance.sample(range(kills), min(kills, broker_kills)))
    with broker_process(folder / "store", '--set=plugins.enable=["default", "spark"]') as broker:
        with Producing(broker.broker) as producing:
            for topic in TOPICS:
                producing.create(topic)
        producers = [Producer(broker, topic) for topic in TOPICS]
        for producer in producers:
            producer.start()
        for number in range(kills):
            victim, moment = chance.choice(VICTIMS), chance.choice(MOMENTS)
            with exporting(out, broker.namesrv, form) as process:
                if number in broker_rounds:
                    time.sleep(chance.uniform(2, 8))
                    broker.kill()
                    broker.start()
                    outcome.notes["kills of the broker"] += 1
                came = wait_for(moment, process, out, chance)
                outcome.expect(came, "stalled", f"the export did not come to {moment!r}: {_last(out)}")
                outcome.notes[f"kills of {victim}"] += kill_one(victim, process, chance)
            outcome.notes[state_of(out, form)] += 1
        for producer in producers:
            producer.stop()
        done = subprocess.run(
            command(out, broker.namesrv, form),
            capture_output=True,
            text=True,
            check=False,
            timeout=LAST_PATIENCE,
        )
    outcome.expect(done.returncode == 0, "wrong", f"the last export failed: {(done.stdout + done.stderr)[-2000:]}")
    _compare(rows_of(out, form), {body for producer in producers for body in producer.acknowledged}, form, outcome)
    return outcome


def _compare(table: pa.Table, acknowledged: set[bytes], form: str, outcome: Outcome) -> None:
    exported = Counter(table.column("body").to_pylist())
    outcome.checked = len(acknowledged)
    missing = acknowledged - exported.keys()
    outcome.expect(not missing, "lost", f"{form}: {len(missing)} acknowledged messages are missing")
    repeated = [body for body, count in exported.items() if count > 1]
    outcome.expect(not repeated, "wrong", f"{form}: {len(repeated)} messages are there more than once: {repeated[:3]}")
    places = table.select(["topic", "queueId", "queueOffset"]).to_pylist()
    outcome.expect(
        len({tuple(place.values()) for place in places}) == len(places), "wrong", f"{form}: a place is there twice"
    )


def _last(out: Path) -> str:
    return out.with_suffix(".log").read_text()[-1000:]


KIND = Kind(
    "tables",
    "messages",
    "what was acknowledged is in the files and tables of Spark's export once, however its parts are killed",
    live,
)
