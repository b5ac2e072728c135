"""Two brokers of one name and what they choose their master through: whoever is killed, the other one goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from .apache import mqadmin
from .controller import ApacheController
from .hastatus import ha_status, is_led
from .processes import LOOPBACK, ServerProcess, free_ports
from .secured import secured_etcd
from .test_failover import SCRIPT as ETCD
from .zookeeper import ZooKeeperServer

pytestmark = pytest.mark.timeout(600)

PATIENCE = 120.0
NAME = "pair"
SETTINGS = """\
[broker]
name = "{name}"
port = {port}
namesrv = ["{namesrv}"]

[plugins]
enable = ["default", "ha", {enable}]
disable = ["flow"]

[plugins.ha]
mode = "failover"
replica = {number}
replicas = 2
{coordinator}
"""


@attrs.define(eq=False)
class Pair:
    """Replicas 1 and 2, and a name server that is neither."""

    folder: Path
    enable: str
    coordinator: str
    namesrv: str = attrs.field(factory=lambda: f"{LOOPBACK}:{free_ports()}")
    brokers: dict[int, ServerProcess] = attrs.field(factory=dict)
    _names: ServerProcess | None = None

    def start_namesrv(self) -> None:
        command = [sys.executable, "-m", "verniermq.cli", "namesrv", "--port", self.namesrv.rsplit(":", 1)[1]]
        self._names = ServerProcess("namesrv", command, self.folder / "namesrv.log", cwd=self.folder)

    def start(self, number: int) -> None:
        config = self.folder / f"replica-{number}.toml"
        if not config.exists():
            port = free_ports(1, -2)
            config.write_text(
                SETTINGS.format(
                    name=NAME, port=port, namesrv=self.namesrv, enable=self.enable, number=number,
                    coordinator=self.coordinator,
                )
            )  # fmt: skip
        command = [sys.executable, "-m", "verniermq.cli", "broker", "--config", str(config)]
        command += ["--store", str(self.folder / f"store-{number}")]
        self.brokers[number] = ServerProcess("broker", command, self.folder / f"replica-{number}.log", cwd=self.folder)

    def run(self, *words: str) -> str:
        command = [sys.executable, "-m", "verniermq.cli", *words, "--namesrv", self.namesrv]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout if not done.returncode else ""

    def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while True:
            status = ha_status(self.namesrv)
            if condition(status):
                found: dict[str, Any] = status
                return found
            logs = "\n".join(path.read_text()[-1500:] for path in sorted(self.folder.glob("replica-*.log")))
            assert time.monotonic() < deadline, f"{status}\n{logs}"
            time.sleep(0.3)

    def close(self) -> None:
        for process in (*self.brokers.values(), self._names):
            if process is not None:
                process.kill()


@contextmanager
def running_pair(folder: Path, coordinator: str, enable: str = "") -> Iterator[Pair]:
    pair = Pair(folder, enable, coordinator)
    try:
        pair.start_namesrv()
        for number in (1, 2):
            pair.start(number)
        yield pair
    finally:
        pair.close()


def both_in_sync(status: dict[str, Any]) -> bool:
    return [one["inSync"] for one in status["replicas"]] == [True, True] and is_led(status)


def check_pair(pair: Pair) -> dict[str, Any]:
    """Kill the master; the other one has all, and the killed one follows it. What the replicas look like then."""
    before = pair.until(both_in_sync)
    for text in ("one", "two"):
        assert pair.run("send", "orders", text)
    killed = int(before["master"])
    pair.brokers[killed].kill()
    pair.until(lambda status: status["term"] > before["term"] and status["master"] == 3 - killed and is_led(status))
    assert pair.run("send", "orders", "three")
    pair.start(killed)
    after = pair.until(both_in_sync)

    # And back, as planned.
    assert f"replica {killed} is the master" in pair.run("ha", "switch", NAME, "--to", str(killed), "--yes")
    after = pair.until(lambda status: both_in_sync(status) and status["master"] == killed)
    told = pair.run("tail", "orders", "--from-start", "--no-wait")
    assert [told.count(text) for text in ("one", "two", "three")] == [1, 1, 1]
    return after


def test_a_pair_elects_through_zookeeper(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path) as server:
        settings = f'[plugins.zookeeper]\nservers = ["{server.address}"]'
        with running_pair(tmp_path, settings, '"zookeeper"') as pair:
            check_pair(pair)


def test_a_pair_elects_through_apaches_controller_and_mqadmin_sees_it(tmp_path: Path) -> None:
    with (
        ApacheController(tmp_path) as controller,
        running_pair(tmp_path, f'controller = ["{controller.address}"]') as pair,
    ):
        status = check_pair(pair)

        home = tmp_path / "home"
        home.mkdir()
        shown = mqadmin(pair.namesrv, "getSyncStateSet", "-a", controller.address, "-b", NAME, home=home).stdout
        assert f"#MasterBrokerId\t{status['master']}" in shown
        assert f"#MasterEpoch\t{status['term']}" in shown
        assert shown.count("InSyncReplica:") == 2, shown
        epochs = mqadmin(pair.namesrv, "getBrokerEpoch", "-b", NAME, home=home).stdout
        assert epochs.count(f"EpochEntry{{epoch={status['term']}, startOffset=") == 2, epochs
        master = next(one for one in status["replicas"] if one["role"] == "master")
        copies = mqadmin(pair.namesrv, "haStatus", "-b", master["address"], home=home).stdout
        assert "#InSyncSlaveNum" in copies, copies
        clusters = mqadmin(pair.namesrv, "clusterList", home=home).stdout
        rows = [line.split() for line in clusters.splitlines() if NAME in line]
        ids = sorted(row[2] for row in rows)
        assert ids == sorted(["0", str(3 - int(status["master"]))]), clusters


def test_a_replica_that_lost_power_does_not_count_at_a_controller_before_it_has_caught_up(tmp_path: Path) -> None:
    with (
        ApacheController(tmp_path) as controller,
        running_pair(tmp_path, f'controller = ["{controller.address}"]') as pair,
    ):
        before = pair.until(both_in_sync)
        other = 3 - int(before["master"])
        lose_power(pair, other)
        pair.start(other)
        pair.until(both_in_sync)  # it caught up
        assert json.loads((tmp_path / f"store-{other}" / "replica.json").read_text())["boot"] != "another"

        # Nobody knows what both lost: an operator says whose log counts.
        lose_power(pair, other)
        lose_power(pair, 3 - other)
        pair.start(other)
        log = tmp_path / f"replica-{other}.log"
        pair.until(lambda status: "lost power and may lack what it acknowledged" in log.read_text())
        assert not is_led(pair.until(lambda status: status["replicas"]))
        assert "counts alone now" in pair.run("ha", "force", NAME, "--replica", str(other), "--accept-loss")
        pair.until(lambda status: is_led(status) and status["master"] == other)


def lose_power(pair: Pair, number: int) -> None:
    """Kill a replica, and let its store look like one of a machine that has been started again since."""
    pair.brokers[number].kill()
    path = pair.folder / f"store-{number}" / "replica.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot": "another"}))


def test_a_pair_elects_through_an_etcd_with_tls_and_a_password(tmp_path: Path) -> None:
    subprocess.run([str(ETCD)], check=True, timeout=300)
    with secured_etcd(tmp_path) as etcd:
        settings = (
            f'etcd = ["{etcd.url}"]\netcd_user = "mq"\netcd_password = "secret"\n'
            f'etcd_ca = "{etcd.ca}"\netcd_certificate = "{etcd.certificate}"'
        )
        with running_pair(tmp_path, settings) as pair:
            check_pair(pair)
