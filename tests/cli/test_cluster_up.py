"""``verniermq cluster up``: real processes, started, used, killed and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from tests.plugins.ha.gateway import running_gateway
from verniermq.cli.clusterplan import ClusterPlan
from verniermq.client import Message, Producer, SendResult, SendStatus
from verniermq.client.admin import Admin
from verniermq.client.errors import SendFailed
from verniermq.kernel import VernierMQError
from verniermq.plugins.ha.election import State
from verniermq.plugins.ha.etcd import Etcd
from verniermq.testing import SMALL

PATIENCE = 60.0
VERNIERMQ = (sys.executable, "-m", "verniermq.cli")
SETTINGS = [f"--set={key}={value}" for key, value in SMALL.items() if not key.endswith(".port")]


@attrs.define(eq=False)
class Cluster:
    process: subprocess.Popen[str]
    facts: dict[str, Any]

    @property
    def namesrv(self) -> str:
        return str(self.facts["namesrv"])

    @property
    def pids(self) -> list[int]:
        return [broker["pid"] for broker in self.facts["brokers"]]

    def stop(self, number: int = signal.SIGINT) -> str:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=PATIENCE)
        return errors


def up(data: Path, *options: str) -> subprocess.Popen[str]:
    command = [*VERNIERMQ, "cluster", "up", "--data", str(data), "--port", "0", "--namesrv-port", "0", *SETTINGS]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def running(data: Path, *options: str) -> Iterator[Cluster]:
    process = up(data, "--json", *options)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield Cluster(process, json.loads(line))
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=PATIENCE)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def send(namesrv: str, count: int) -> list[tuple[str, SendStatus]]:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic("orders", queues=4)
    async with Producer("p", namesrv=namesrv) as producer:
        results = [await producer.send(Message("orders", b"%d" % number)) for number in range(count)]
    return [(result.queue.broker_name, result.status) for result in results]


def test_messages_are_spread_over_three_brokers_and_kept_over_a_stop(tmp_path: Path) -> None:
    with running(tmp_path / "data") as cluster:
        sent = anyio.run(send, cluster.namesrv, 24)
        shown = subprocess.run(
            [*VERNIERMQ, "cluster", "--namesrv", cluster.namesrv], capture_output=True, text=True, timeout=PATIENCE,
            env=os.environ | {"COLUMNS": "80"},
        )  # fmt: skip
        errors = cluster.stop()

        assert {name for name, _ in sent} == {"broker-a", "broker-b", "broker-c"}
        assert {status for _, status in sent} == {SendStatus.SEND_OK}
        rows = [line.split() for line in shown.stdout.splitlines() if line.strip().startswith("broker-")]
        assert [(row[0], row[1], len(row)) for row in rows] == [
            ("broker-a", "master", 8), ("broker-b", "master", 8), ("broker-c", "master", 8),
        ]  # fmt: skip
        assert "SIGINT: stopping the brokers" in errors
        assert cluster.process.returncode == 0
        assert not any(map(is_alive, cluster.pids))

    with running(tmp_path / "data") as cluster:
        command = [*VERNIERMQ, "tail", "orders", "--from-start", "--no-wait", "--json", "--namesrv", cluster.namesrv]
        read = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)

        assert {json.loads(line)["body"] for line in read.stdout.splitlines()} == {str(number) for number in range(24)}


def test_with_replicas_a_slave_has_what_was_sent_and_a_killed_broker_is_told(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--brokers", "1", "--replicas", "2") as cluster:
        master, slave = cluster.facts["brokers"]
        sent = anyio.run(send, cluster.namesrv, 5)
        os.kill(slave["pid"], signal.SIGKILL)
        wait_for(lambda: not is_alive(slave["pid"]))

        def is_told() -> bool:
            try:
                return anyio.run(send, cluster.namesrv, 1) == [("broker-a", SendStatus.SLAVE_NOT_AVAILABLE)]
            except SendFailed:
                return False  # the master had not heard of it, and waited for it as long as the client

        wait_for(is_told)
        assert cluster.process.stderr is not None
        said = cluster.process.stderr.readline()
        cluster.stop()

        assert (master["role"], slave["role"], master["id"], slave["id"]) == ("master", "slave", 0, 1)
        assert sent == [("broker-a", SendStatus.SEND_OK)] * 5
        assert said.startswith("broker-a-1 was ended by SIGKILL")
        logs = [Path(broker["store"]) / "commitlog" / "00000000000000000000" for broker in (master, slave)]
        ours, theirs = (log.read_bytes() for log in logs)
        assert ours[: len(theirs.rstrip(b"\0"))] == theirs.rstrip(b"\0")
        assert b"orders" in theirs


async def test_with_etcd_copies_elect_their_master_and_another_one_when_it_is_killed(tmp_path: Path) -> None:
    async with running_gateway() as etcd:
        process = up(tmp_path / "data", "--json", "--brokers", "1", "--replicas", "3", "--etcd", etcd.url)
        try:
            assert process.stdout is not None
            facts = json.loads(await anyio.to_thread.run_sync(process.stdout.readline))
            masters = [broker["pid"] for broker in facts["brokers"] if broker["role"] == "master"]
            sent = await send(facts["namesrv"], 3)
            async with Producer("p", namesrv=facts["namesrv"]) as producer:
                os.kill(masters[0], signal.SIGKILL)
                after = await sent_in_the_end(producer, Message("orders", b"3"))
        finally:
            process.send_signal(signal.SIGINT)
            await anyio.to_thread.run_sync(lambda: process.communicate(timeout=PATIENCE))

        assert (len(masters), len(facts["brokers"])) == (1, 3)
        assert sent == [("broker-a", SendStatus.SEND_OK)] * 3
        assert after.status is SendStatus.SEND_OK
        assert process.returncode == 0


async def test_copies_that_the_coordinator_knows_with_other_stores_are_told_and_not_waited_for_in_silence(
    tmp_path: Path,
) -> None:
    async with running_gateway() as etcd:
        before = State(7, 3, frozenset({(1, "x"), (2, "y"), (3, "z")}))
        assert await Etcd([etcd.url], "DefaultCluster", "broker-a").change(before, 0)
        process = up(tmp_path / "data", "--json", "--brokers", "1", "--replicas", "3", "--etcd", etcd.url)
        try:
            assert process.stderr is not None
            said = ""
            with anyio.fail_after(PATIENCE):
                while "the log:" not in said or "another store" not in said:
                    said += await anyio.to_thread.run_sync(process.stderr.readline)
            namesrv = said.rpartition("--namesrv ")[2].split()[0]
            command = [*VERNIERMQ, "ha", "status", "--namesrv", namesrv]
            shown = (await anyio.run_process(command)).stdout.decode()
            told = json.loads((await anyio.run_process([*command, "--json"])).stdout)
        finally:
            process.send_signal(signal.SIGINT)
            await anyio.to_thread.run_sync(lambda: process.communicate(timeout=PATIENCE))

        assert "waiting for broker-a to have a master: broker 'broker-a' has no master, and only these" in said
        assert "replica 1, 2, 3 are here with another store" in said
        assert "--set broker.cluster=NAME" in said
        assert shown.splitlines()[0] == "broker broker-a, term 7, master: none now; replica 3 was elected last"
        assert (told["master"], told["elected"]) == (0, 3)
        assert "another store" in told["problem"]
        assert {one["role"] for one in told["replicas"]} == {"slave"}
        assert process.returncode == 0


async def sent_in_the_end(producer: Producer, message: Message) -> SendResult:
    """Once there is a master again."""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                return await producer.send(message)
            except VernierMQError:
                await anyio.sleep(0.1)


def test_brokers_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--brokers", "2") as cluster:
        cluster.process.kill()

        wait_for(lambda: not any(map(is_alive, cluster.pids)))
        assert "the standard input ended: stopping" in (tmp_path / "data" / "broker-a-0.log").read_text()


def test_a_broker_that_cannot_start_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "data" / "broker-b-0" / "commitlog").mkdir(parents=True)
    (tmp_path / "data" / "broker-b-0" / "commitlog" / "00000000000000000000").write_bytes(b"too short")

    _, errors = (process := up(tmp_path / "data", "--brokers", "2")).communicate(timeout=PATIENCE)

    assert process.returncode == 2
    assert errors.startswith("verniermq: broker-b-0 ended with exit code 2; ")
    assert "00000000000000000000" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "store.flsh=sync"], "[store] has no setting 'flsh'"),
        (["--config", "nowhere.toml"], "nowhere.toml: there is no such file"),
        (["--brokers", "27"], "27 is not in the range 1<=x<=26"),
        (["--etcd", "http://127.0.0.1:2379"], "say --replicas 2 or more"),
    ],
)
def test_what_does_not_fit_is_one_line_before_anything_starts(tmp_path: Path, options: list[str], said: str) -> None:
    _, errors = (process := up(tmp_path / "data", *options)).communicate(timeout=PATIENCE)

    assert process.returncode == 2
    assert said in errors
    assert not (tmp_path / "data").exists()


def test_each_broker_has_ports_a_folder_and_numbers_of_its_own(tmp_path: Path) -> None:
    settings = ("plugins.http.listen=127.0.0.1:808{number}",)
    members = ClusterPlan(2, 2, tmp_path, 10911, None, settings, namesrv="127.0.0.1:9876").members()

    assert [(member.title, member.port, member.role) for member in members] == [
        ("broker-a-0", 10911, "master"), ("broker-a-1", 10921, "slave"),
        ("broker-b-0", 10931, "master"), ("broker-b-1", 10941, "slave"),
    ]  # fmt: skip
    assert members[2].configuration().plugin_tables["http"]["listen"] == "127.0.0.1:8083"
    assert members[3].configuration().broker.id == 1
    assert members[3].configuration().plugins.enable == ("default", "ha")
