"""``make spark-cluster``: a stand-alone cluster whose master, workers, driver and broker are on hosts of their own.

Each is in a network namespace. What is done, and looked at afterwards:

- an export of each format goes on while messages come, tasks are speculative, and executors are killed with
  ``kill -9``: its tables have every acknowledged message once;
- a sink whose first task is slow, so that Spark runs it twice: the topic has every row once;
- a Spark Connect server with VernierMQ installed, and a client without: a table, a stream and a sink.

The executors of the first two have VernierMQ's dependencies and not VernierMQ: the package travels along.
The result is a line of ``bench/results/spark-cluster.jsonl``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import click
import pyspark

from tests.arrow.producing import Producing
from tests.campaign import tables
from tests.campaign.host import Host
from tests.campaign.namespaces import Network, enter
from tests.campaign.outcome import Outcome
from tests.campaign.results import commit
from tests.interop.spark.environments import ROOT, python_with_dependencies, wheel
from tests.interop.spark.test_cluster import wait_for
from verniermq.contrib.arrow.wire import Wire
from verniermq.contrib.spark.java import find_java
from verniermq.kernel import RequestCode
from verniermq.testing import BrokerProcess

RECORD = ROOT / "bench" / "results" / "spark-cluster.jsonl"
HOME = Path(pyspark.__file__).parent
FOLDER = Path(__file__).parent
MASTER_PORT = 7077
CONNECT_PORT = 15002
CONNECT_CLIENT = ("grpcio-status", "googleapis-common-protos", "pandas")
"""What ``pyspark[connect]`` needs beyond ours."""
SPECULATION = {
    "spark.speculation": "true", "spark.speculation.interval": "100ms", "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5", "spark.speculation.minTaskRuntime": "1s",
}  # fmt: skip
PATIENCE = 400.0
PARTS = ("export", "sink", "connect")


@attrs.frozen
class Cluster:
    """Five hosts."""

    folder: Path
    bare: Path
    """A Python without VernierMQ."""
    hosts: dict[str, Host]

    @property
    def master(self) -> str:
        return f"spark://{self.hosts['master'].address}:{MASTER_PORT}"

    def environment(self, host: str, python: Path) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "JAVA_HOME": str(find_java()),
            "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": self.hosts[host].address, "PYSPARK_PYTHON": str(python),
            "SPARK_WORKER_DIR": str(self.folder / f"work-{host}"), "SPARK_DAEMON_MEMORY": "640m",
        }  # fmt: skip

    @contextmanager
    def process(
        self, host: str, name: str, *command: str | Path, python: Path | None = None
    ) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """A process on a host, with its output in a file."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*self.hosts[host].within, *map(str, command)],
                stdout=output,
                stderr=output,
                env=self.environment(host, python or self.bare),
                cwd=ROOT,
                start_new_session=True,
            )
        try:
            yield process, log
        finally:
            for pid in tables.family(process.pid):
                tables._kill(pid)
            process.wait()

    @contextmanager
    def daemon(self, host: str, kind: str, *arguments: str) -> Iterator[Path]:
        name = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        where = ("--host", self.hosts[host].address, "--webui-port", "0")
        with self.process(host, host, HOME / "bin" / "spark-class", name, *where, *arguments) as (_, log):
            yield log

    def run(self, host: str, name: str, *command: str | Path, python: Path | None = None) -> dict[str, Any]:
        """Run a program to its end; what it says behind RESULT."""
        with self.process(host, name, *command, python=python) as (process, log):
            code = process.wait(PATIENCE)
        text = log.read_text()
        if code or "RESULT " not in text:
            raise click.ClickException(f"{name} ended with {code}:\n{text[-4000:]}")
        told: dict[str, Any] = json.loads(text.partition("RESULT ")[2].splitlines()[0])
        return told


def executors() -> list[int]:
    """All of this process namespace."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and b"CoarseGrainedExecutorBackend" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it ended meanwhile
    return found


def topics_of(form: str) -> list[str]:
    return [f"{form}_{topic}" for topic in tables.TOPICS]


def export_under_kills(cluster: Cluster, broker: BrokerProcess, form: str, seed: int, kills: int) -> Outcome:
    chance = random.Random(seed)
    outcome, out = Outcome(), cluster.folder / form
    conf = [word for pair in SPECULATION.items() for word in ("--conf", "=".join(pair))]
    topics = [word for topic in topics_of(form) for word in ("--topic", topic)]
    command = [
        sys.executable, "-m", "verniermq.cli", "spark", "export", str(out), "--namesrv", broker.namesrv,
        "--master", cluster.master, "--format", form, "--no-tables", "--batch-rows", "2000",
        "--conf", "spark.executor.memory=512m", *conf, *topics,
    ]  # fmt: skip
    producers = [tables.Producer(broker, topic) for topic in topics_of(form)]
    for producer in producers:
        producer.start()
    with cluster.process("driver", f"export-{form}", *command, "--continuous", "--every", "0.5") as (process, log):
        deadline = time.monotonic() + PATIENCE
        while tables.batches_written(out) < 2 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.1)
        if process.poll() is not None or not executors():
            raise click.ClickException(f"the export does not run: {log.read_text()[-2000:]}")
        for _ in range(kills):
            before = tables.batches_written(out)
            found = executors()
            victims = found if chance.random() < 0.25 else chance.sample(found, min(1, len(found)))
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
                outcome.notes["executors killed"] += 1
            deadline = time.monotonic() + PATIENCE
            while tables.batches_written(out) < before + 2 and time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.05)
            went_on = tables.batches_written(out) >= before + 2
            outcome.expect(went_on, "stalled", f"no batch after a kill: {log.read_text()[-1000:]}")
            time.sleep(chance.uniform(0, 1))
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
    for producer in producers:
        producer.stop()
    with cluster.process("driver", f"last-export-{form}", *command) as (process, log):
        code = process.wait(PATIENCE)
    outcome.expect(code == 0, "wrong", f"the last export ended with {code}: {log.read_text()[-1000:]}")
    acknowledged = {body for producer in producers for body in producer.acknowledged}
    tables._compare(tables.rows_of(out, form, topics_of(form)), acknowledged, form, outcome)
    outcome.notes["batches"] = tables.batches_written(out)
    return outcome


def inside(folder: Path, seed: int, kills: int, parts: Sequence[str], forms: Sequence[str]) -> dict[str, Any]:
    """What it does in namespaces of its own."""
    network = Network()
    hosts = {name: network.add(name) for name in ("broker", "master", "one", "two", "driver")}
    cluster = Cluster(folder, folder / "bare" / "bin" / "python", hosts)
    home = hosts["broker"]
    settings = [
        '--set=plugins.enable=["default", "spark"]', f"--set=broker.host={home.address}",
        f"--set=plugins.namesrv.host={home.address}",
    ]  # fmt: skip
    broker = BrokerProcess(folder / "store", settings, within=home.within)
    broker.start()
    with Producing(broker.broker) as producing:
        for topic in (*(topic for form in forms for topic in topics_of(form)), "rows", "copies"):
            producing.create(topic)
    worker = ("--cores", "2", "--memory", "1g", cluster.master)
    with cluster.daemon("master", "Master", "--port", str(MASTER_PORT)) as log:
        wait_for(log, r"(I have been elected leader)")
        with cluster.daemon("one", "Worker", *worker) as one, cluster.daemon("two", "Worker", *worker) as two:
            for log in (one, two):
                wait_for(log, r"(Successfully registered with master)")
            told: dict[str, Any] = {"failures": []}
            if "export" in parts:
                told["export"] = {}
                for number, form in enumerate(forms):
                    outcome = export_under_kills(cluster, broker, form, seed + number, kills)
                    told["export"][form] = {"checked": outcome.checked, **outcome.notes}
                    told["failures"] += [f"{failure.category}: {failure.text}" for failure in outcome.failures]
            if "sink" in parts:
                job = [sys.executable, FOLDER / "speculation_job.py", cluster.master, broker.namesrv]
                told["sink"] = sink = cluster.run("driver", "speculation", *job, json.dumps(SPECULATION))
                sink["dropped"] = dropped_rows(broker)
                if not (sink["rows"] == sink["distinct"] == sink["sent"] and sink["dropped"]):
                    told["failures"].append("wrong: the sink's rows")
            if "connect" in parts:
                told["connect"] = connect(cluster, broker)
                if set(told["connect"].values()) != {1000}:
                    told["failures"].append("wrong: what Spark Connect found")
    broker.stop()
    return told


def dropped_rows(broker: BrokerProcess) -> int:
    """Rows that a repeated task sent, and that the broker had already."""
    with Wire(broker.broker) as wire:
        answer = wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {})
    return int(json.loads(answer.body)["table"]["sparkDroppedRows"])


def connect(cluster: Cluster, broker: BrokerProcess) -> dict[str, Any]:
    """A server beside the master, and a client on another host."""
    ours = cluster.folder / "ours" / "bin" / "python"
    server = [
        HOME / "bin" / "spark-submit", "--master", cluster.master,
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--conf", f"spark.connect.grpc.binding.address={cluster.hosts['master'].address}",
        "--conf", f"spark.connect.grpc.binding.port={CONNECT_PORT}",
        "--conf", "spark.executor.memory=512m", "--conf", "spark.sql.shuffle.partitions=2", "spark-internal",
    ]  # fmt: skip
    address = f"sc://{cluster.hosts['master'].address}:{CONNECT_PORT}"
    client = cluster.folder / "client" / "bin" / "python"
    job = [client, FOLDER / "connect_job.py", address, broker.namesrv, cluster.folder / "connect"]
    with cluster.process("master", "connect", *server, python=ours) as (_, log):
        wait_for(log, r"(Spark Connect server started)")
        return cluster.run("driver", "client", *job)


def prepare(folder: Path) -> None:
    """The Pythons of the hosts."""
    python_with_dependencies(folder / "bare")
    python_with_dependencies(folder / "ours", "--no-deps", str(wheel(folder / "wheel")))
    python_with_dependencies(folder / "client", "--no-deps", *CONNECT_CLIENT)


@click.command(help=__doc__)
@click.option("--seed", type=int, default=lambda: random.randrange(1 << 32), help="Of the kills.")
@click.option("--kills", default=6, show_default=True, help="Times that executors are killed, for each format.")
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="[default: all]")
@click.option("--format", "forms", type=click.Choice(tables.FORMATS), multiple=True, help="[default: all]")
@click.option("--inside", "folder", type=click.Path(path_type=Path), hidden=True)
def main(seed: int, kills: int, parts: tuple[str, ...], forms: tuple[str, ...], folder: Path | None) -> None:
    parts, forms = parts or PARTS, forms or tables.FORMATS
    if folder is not None:
        (folder / "told.json").write_text(json.dumps(inside(folder, seed, kills, parts, forms)))
        return
    with tempfile.TemporaryDirectory(prefix="verniermq-cluster-") as name:
        prepare(Path(name))
        began = time.monotonic()
        only = [*(f"--part={part}" for part in parts), *(f"--format={form}" for form in forms)]
        enter("tests.interop.spark.on_hosts", "--inside", name, "--seed", str(seed), "--kills", str(kills), *only)
        told = json.loads((Path(name) / "told.json").read_text())
    line = {
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}", "commit": commit(), "seed": seed,
        "spark": pyspark.__version__, "seconds": round(time.monotonic() - began), **told,
    }  # fmt: skip
    click.echo(json.dumps(line))
    with RECORD.open("a") as record:
        record.write(json.dumps(line) + "\n")
    if told["failures"]:
        raise click.ClickException("it is not as it should be")


if __name__ == "__main__":
    main()
