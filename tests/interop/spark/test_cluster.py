"""A real stand-alone Spark cluster on loopback, whose Python does not have VernierMQ: the package travels along."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.arrow.producing import Producing
from tests.interop.spark.environments import python_with_dependencies
from verniermq.contrib.spark.java import find_java
from verniermq.testing import broker_process

START_SECONDS = 120.0
JOB = Path(__file__).with_name("cluster_job.py")


@contextmanager
def daemon(folder: Path, name: str, python: Path, *arguments: str) -> Iterator[Path]:
    """A process of Spark's own, with its output in a file."""
    home = Path(pyspark.__file__).parent
    log = folder / f"{name}.log"
    environment = {
        "PATH": os.environ["PATH"], "JAVA_HOME": str(find_java()), "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python),
        "SPARK_WORKER_DIR": str(folder / "work"), "SPARK_DAEMON_MEMORY": "256m",
    }  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            [home / "bin" / "spark-class", *arguments], stdout=output, stderr=output, env=environment
        )
    try:
        yield log
    finally:
        process.kill()
        process.wait()


def wait_for(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text()):
            return found[1]
        time.sleep(0.1)
    pytest.fail(f"no {pattern!r} in {log}:\n{log.read_text()}")


@pytest.mark.timeout(600)
def test_tables_streams_and_sinks_work_on_a_cluster(tmp_path: Path) -> None:
    python = python_with_dependencies(tmp_path / "python")
    master = "org.apache.spark.deploy.master.Master"
    worker = "org.apache.spark.deploy.worker.Worker"
    everywhere = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with (
        broker_process(tmp_path / "store", '--set=plugins.enable=["default", "spark"]') as broker,
        daemon(tmp_path, "master", python, master, *everywhere) as log,
    ):
        with Producing(broker.broker) as producing:
            producing.create("orders")
            producing.create("copies")
        address = wait_for(log, r"Starting Spark master at (spark://\S+)")
        with daemon(tmp_path, "worker", python, worker, *everywhere, "--cores", "2", "--memory", "1g", address) as log:
            wait_for(log, r"(Successfully registered with master)")
            done = subprocess.run(
                [sys.executable, JOB, address, broker.namesrv, tmp_path],
                capture_output=True, text=True, check=False, timeout=500,
                env={**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"},
            )  # fmt: skip

    assert "RESULT " in done.stdout, done.stderr[-4000:]
    told = json.loads(done.stdout.partition("RESULT ")[2].splitlines()[0])
    assert told == {"rows": 1000, "copies": 1000, "keys": 1000, "executors": [str(python)]}
