"""What more brokers on one machine bring: ``verniermq cluster up`` with 1, 2, … of them, each driven by a client.

``python bench/cluster.py --most 2`` drives every broker at once, each by a process of its own that keeps 4 × 64 sends
on the way, and prints messages a second beside the CPU time that a message cost the brokers. On a machine whose
processors are shared with the clients, the second column says more: while it stays the same, a processor more is a
broker more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import click
from load import drive
from rich.console import Console
from rich.table import Table
from send import frames
from sidebyside.machine import cpu_seconds

from verniermq.kernel.loop import backend_options

CONNECTIONS, WINDOW = 4, 64
STOP_SECONDS = 60.0


@contextmanager
def running_cluster(brokers: int, replicas: int = 1, *settings: str, path: str = "") -> Iterator[dict[str, Any]]:
    """What ``verniermq cluster up --json`` says of it; ``path`` is ``plain`` to keep brokers from the compiled one."""
    environment = os.environ | ({"VERNIERMQ_PURE": "1"} if path == "plain" else {})
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        command = [sys.executable, "-m", "verniermq.cli", "cluster", "up", "--json", "--data", folder]
        options = [f"--brokers={brokers}", f"--replicas={replicas}", "--port=0", "--namesrv-port=0"]
        chosen = [f"--set={one}" for one in ("plugins.retention.disk_refuse_at=100", *settings)]
        process = subprocess.Popen([*command, *options, *chosen], stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)


def pids(cluster: dict[str, Any], role: str = "master") -> list[int]:
    return [broker["pid"] for broker in cluster["brokers"] if broker["role"] == role]


async def drive_one(address: str, size: int, seconds: float) -> float:
    return await drive(address, frames(CONNECTIONS, size, False), window=WINDOW, seconds=seconds, warm_up=0.0)


def drive_all(cluster: dict[str, Any], size: int, seconds: float) -> tuple[float, float]:
    """Messages a second of all masters together, and microseconds of theirs for each."""
    masters = [broker["address"] for broker in cluster["brokers"] if broker["role"] == "master"]
    command = [sys.executable, __file__, "--size", str(size), "--seconds", str(seconds), "--drive"]
    before = cpu_seconds(pids(cluster))
    clients = [subprocess.Popen([*command, address], stdout=subprocess.PIPE, text=True) for address in masters]
    rate = sum([float(client.communicate()[0]) for client in clients])
    return rate, (cpu_seconds(pids(cluster)) - before) / (rate * seconds) * 1e6


@click.command(help=__doc__)
@click.option("--most", default=2, show_default=True, help="How many brokers at most.")
@click.option("--size", default=300, show_default=True, help="Bytes of a message's body.")
@click.option("--seconds", default=6.0, show_default=True, help="How long each measurement takes.")
@click.option("--drive", "address", hidden=True)
def main(most: int, size: int, seconds: float, address: str | None) -> None:
    if address is not None:
        print(anyio.run(drive_one, address, size, seconds, backend_options=backend_options()))
        return
    title = f"sends of {size} bytes, {os.cpu_count()} processors"
    table = Table("brokers", "messages/s", "CPU of a message", title=title)
    for brokers in range(1, most + 1):
        with running_cluster(brokers) as cluster:
            drive_all(cluster, size, 1.0)
            rate, cost = drive_all(cluster, size, seconds)
        table.add_row(str(brokers), f"{rate:,.0f}", f"{cost:.1f} µs")
    Console().print(table)


if __name__ == "__main__":
    main()
