"""What more brokers on one machine bring: ``verniermq cluster up`` with 1, 2, … of them, each driven by a client.

``python bench/cluster.py --most 2`` drives every broker at once, each by a process of its own that keeps 4 × 64 sends
on the way, and prints messages a second beside the CPU time that a message cost the brokers, on the compiled path and
on the plain one. The processors are shared with the clients; the last column is what the brokers would take with a
processor each, by that CPU time. ``--most 4`` goes on where there are not as many processors as brokers.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import attrs
import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from load import drive
from rich.console import Console
from rich.table import Table
from send import frames
from sidebyside.machine import cpu_seconds

from tests.campaign.results import commit, machine
from verniermq.kernel.accel.lane import compiled_lane
from verniermq.kernel.loop import backend_options

RESULTS = Path(__file__).parent / "results" / "cluster.json"
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


@attrs.frozen
class Figure:
    """Of all masters together."""

    rate: float
    cost: float
    """Microseconds of theirs a message."""

    def alone(self, brokers: int) -> float:
        """Messages a second if each of them had a processor of its own, and nobody else used it."""
        return brokers * 1e6 / self.cost


async def drive_one(address: str, size: int, seconds: float) -> float:
    return await drive(address, frames(CONNECTIONS, size, False), window=WINDOW, seconds=seconds, warm_up=0.0)


def drive_all(cluster: dict[str, Any], size: int, seconds: float) -> Figure:
    masters = [broker["address"] for broker in cluster["brokers"] if broker["role"] == "master"]
    command = [sys.executable, __file__, "--size", str(size), "--seconds", str(seconds), "--drive"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    clients = [subprocess.Popen([*command, address], **pipes) for address in masters]
    for client in clients:
        client.stdout.readline()  # all have their modules: nobody drives a broker while another one still starts
    before = cpu_seconds(pids(cluster))
    for client in clients:
        client.stdin.write("\n")
        client.stdin.flush()
    rate = sum([float(client.communicate()[0]) for client in clients])
    return Figure(rate, (cpu_seconds(pids(cluster)) - before) / (rate * seconds) * 1e6)


def measure(brokers: int, size: int, seconds: float, rounds: int, path: str) -> Figure:
    with running_cluster(brokers, path=path) as cluster:
        drive_all(cluster, size, 1.0)
        figures = [drive_all(cluster, size, seconds) for _ in range(rounds)]
    return Figure(median(figure.rate for figure in figures), median(figure.cost for figure in figures))


def markdown(record: dict[str, Any]) -> str:
    """The table of RESULTS.md."""
    out = [
        f"Measured on {record['date'][:10]}: {record['machine']}. Sends of {record['size']} bytes, {CONNECTIONS} "
        f"connections with {WINDOW} on the way each for every broker, "
        f"{record['seconds']:g} s, the middle of {record['rounds']}.",
        "",
        "| path | brokers | messages/s | CPU of the broker, a message | messages/s, a processor for each broker |",
        "|---|--:|--:|--:|--:|",
    ]
    out += [
        f"| {path} | {row['brokers']} | {row['messages_per_second']:,} | {row['cpu_us']:.1f} µs "
        f"| {row['messages_per_second_a_processor_each']:,} |"
        for path in ("compiled", "plain")
        for row in record.get(path, ())
    ]
    return "\n".join([*out, ""])


@click.command(help=__doc__)
@click.option("--most", default=2, show_default=True, help="How many brokers at most.")
@click.option("--size", default=300, show_default=True, help="Bytes of a message's body.")
@click.option("--seconds", default=6.0, show_default=True, help="How long each measurement takes.")
@click.option("--rounds", default=3, show_default=True, help="How often; the middle one counts.")
@click.option("--write", is_flag=True, help="Keep it in bench/results.")
@click.option("--drive", "address", hidden=True)
def main(most: int, size: int, seconds: float, rounds: int, write: bool, address: str | None) -> None:
    if address is not None:
        print("ready", flush=True)
        sys.stdin.readline()
        print(anyio.run(drive_one, address, size, seconds, backend_options=backend_options()))
        return
    table = Table("path", "brokers", "messages/s", "CPU of a message", "messages/s, a processor each")
    table.title = f"sends of {size} bytes, {os.cpu_count()} processors"
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"), "commit": commit(),
        "machine": machine(), "size": size, "seconds": seconds, "rounds": rounds,
    }  # fmt: skip
    for path in ["plain"] if compiled_lane() is None else ["compiled", "plain"]:
        rows = record[path] = []
        for brokers in range(1, most + 1):
            figure = measure(brokers, size, seconds, rounds, path)
            alone = figure.alone(brokers)
            rows.append(
                {
                    "brokers": brokers, "messages_per_second": round(figure.rate), "cpu_us": round(figure.cost, 2),
                    "messages_per_second_a_processor_each": round(alone),
                }
            )  # fmt: skip
            table.add_row(path, str(brokers), f"{figure.rate:,.0f}", f"{figure.cost:.1f} µs", f"{alone:,.0f}")
    Console().print(table)
    if write:
        RESULTS.write_text(json.dumps(record, indent=2) + "\n")
        RESULTS.with_name("cluster-table.md").write_text(markdown(record))


if __name__ == "__main__":
    main()
