"""The walk-through of docs/replication.md, with its own commands and settings."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.interop.hastatus import ha_status, is_led
from tests.interop.processes import free_ports
from tests.interop.test_failover import installed  # noqa: F401 - it installs etcd, by itself

PAGE = Path(__file__).parents[2] / "docs" / "replication.md"
PORTS = {port: str(free_ports(1, -2)) for port in ("22379", "29876", "21911", "21921", "21931")}
"""Those of the page, which somebody may be trying, and those that the test takes in their place."""
NAMESRV = f"127.0.0.1:{PORTS['29876']}"
PATIENCE = 120.0

pytestmark = pytest.mark.timeout(600)


def blocks(kind: str) -> list[str]:
    text = re.sub("|".join(PORTS), lambda found: PORTS[found[0]], PAGE.read_text())
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def words(line: str) -> list[str]:
    command = shlex.split(line)
    return [sys.executable, "-m", "verniermq.cli", *command[1:]] if command[0] == "verniermq" else command


@attrs.define(eq=False)
class Machine:
    """A folder, and what runs there."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict)

    def start(self, line: str) -> None:
        with (self.folder / "log").open("ab") as log:
            self.processes[line] = subprocess.Popen(words(line), cwd=self.folder, stdout=log, stderr=log)

    def run(self, line: str) -> str:
        result = subprocess.run(words(line), cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
        if result.returncode:
            raise RuntimeError(f"{line}: {result.stdout}{result.stderr}{(self.folder / 'log').read_text()[-3000:]}")
        return result.stdout

    def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while not condition(status := ha_status(NAMESRV)):
            assert time.monotonic() < deadline, f"{status}\n{(self.folder / 'log').read_text()[-3000:]}"
            time.sleep(0.3)
        return status


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    try:
        yield machine
    finally:
        for process in machine.processes.values():
            process.kill()
            process.wait()


def all_in_sync(status: dict[str, Any]) -> bool:
    replicas = status["replicas"]
    return len(replicas) == 3 and all(one["inSync"] for one in replicas) and is_led(status)


def test_one_broker_becomes_three_and_loses_nothing_when_its_master_is_killed(machine: Machine) -> None:
    etcd, namesrv, brokers, trying = (block.strip() for block in blocks("sh"))
    (settings,) = blocks("toml")
    for number, port in ((1, "21911"), (2, "21921"), (3, "21931")):
        text = settings.replace(PORTS["21911"], PORTS[port]).replace("store-1", f"store-{number}")
        (machine.folder / f"replica-{number}.toml").write_text(text.replace("replica = 1", f"replica = {number}"))
    status, send, switch = trying.splitlines()

    for line in (etcd, namesrv, *brokers.splitlines()):
        machine.start(line)
    machine.until(all_in_sync)
    assert "broker broker-a, term 1" in machine.run(status)
    machine.run(send)
    if machine.until(all_in_sync)["master"] == 2:
        switch = switch.replace("--to 2", "--to 3")
    machine.run(switch)
    switched = machine.until(all_in_sync)
    assert switched["term"] == 2

    killed = next(line for line in machine.processes if f"replica-{switched['master']}" in line)
    machine.processes[killed].kill()
    machine.processes[killed].wait()
    machine.until(lambda found: found["term"] == 3 and is_led(found))
    machine.run(send)
    machine.start(killed)
    machine.until(all_in_sync)
    told = machine.run(f"verniermq tail orders --from-start --no-wait --namesrv {NAMESRV}")
    assert told.count("hello") == 2
