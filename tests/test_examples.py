"""Every program in ``examples/`` runs against a real broker and prints what it is meant to show.

The one with Spark runs in ``tests/spark``, where a Spark is running already.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from verniermq.testing import BrokerProcess, broker_process

EXAMPLES = Path(__file__).parents[1] / "examples"
WITH_PLUGIN = EXAMPLES / "plugin_in_a_file"

OUTPUT = {
    "send_and_receive.py": (
        "Ada: SEND_OK\nGrace: SEND_OK\nEdsger: SEND_OK\n['hello, Ada', 'hello, Edsger', 'hello, Grace']\n"
    ),
    "delayed.py": "now: in time\nby level 1: in time\nafter 2.5 s: in time\n",
    "transactions.py": "order 2: card declined\nshipped: order 1\n",
    "orderly.py": "created after 0 failures\npaid after 1 failures\nshipped after 0 failures\n",
    "request_reply.py": "12 squared is 144\n",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with broker_process(None, "--config", str(WITH_PLUGIN / "broker.toml")) as process:
        yield process


def run(program: Path, broker: BrokerProcess) -> str:
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True, text=True, check=False, env={**os.environ, "VERNIERMQ_NAMESRV": broker.namesrv},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", OUTPUT)
def test_an_example_prints_what_it_shows(name: str, broker: BrokerProcess) -> None:
    assert run(EXAMPLES / name, broker) == OUTPUT[name]


def test_the_plugin_in_a_file_takes_one_message_and_refuses_the_other(broker: BrokerProcess) -> None:
    taken, refused = run(WITH_PLUGIN / "try_it.py", broker).splitlines()

    assert taken == "250: SEND_OK"
    assert "property 'price' is '5000', expected 0 to 1000" in refused


def test_the_test_suite_passes(tmp_path: Path) -> None:
    suite = EXAMPLES / "test_suite"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(suite)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


XDIST = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(4))
def test_where(verniermq_broker, number):
    worker = os.environ["PYTEST_XDIST_WORKER"]
    pathlib.Path(__file__).with_name(f"{worker}-{number}").write_text(verniermq_broker.namesrv)
"""


def test_each_worker_of_xdist_has_a_broker_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_where.py").write_text(XDIST)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "load", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    of_worker: dict[str, set[str]] = {}
    for path in tmp_path.glob("gw*"):
        of_worker.setdefault(path.name.partition("-")[0], set()).add(path.read_text())
    assert all(len(brokers) == 1 for brokers in of_worker.values()), "one for all tests of a worker"
    assert len(set.union(*of_worker.values())) == len(of_worker), "and none for two workers"


def test_every_example_is_listed_and_short() -> None:
    index = (EXAMPLES / "README.md").read_text()

    for path in EXAMPLES.iterdir():
        if path.name not in ("README.md", "__pycache__"):
            assert f"[{path.name}]({path.name})" in index
    for program in EXAMPLES.rglob("*.py"):
        assert len(program.read_text().splitlines()) <= 60, program
    tried = {*OUTPUT, "spark_table.py"}
    assert {program.name for program in EXAMPLES.glob("*.py")} == tried
