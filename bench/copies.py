"""What copies cost: a master alone, with one synchronous slave, Apache's SYNC_MASTER with its slave; and catching up.

``python bench/copies.py --apache`` drives each in turns with 4 × 64 sends on the way. The first two of ours take the
plain way, so that the difference is the copy's. The third has what is compiled: its master takes the plain way too,
since answers wait, and its slave finds records by compiled code. A slave that has nothing is started beside a master
that has ``--megabytes`` of log.
"""

from __future__ import annotations

import datetime
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import attrs
import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from cluster import CONNECTIONS, WINDOW, pids, running_cluster
from load import drive
from rich.console import Console
from rich.table import Table
from send import frames
from sidebyside.brokers import ITS_OWN
from sidebyside.machine import cpu_seconds

from tests.campaign.results import commit, machine
from tests.interop.apache import ApacheBroker
from tests.interop.wire import create_topic
from verniermq.kernel import Command, RequestCode, connect
from verniermq.kernel.loop import backend_options
from verniermq.testing import broker_process

RESULTS = Path(__file__).parent / "results" / "copies.json"
WARM_UP_SECONDS = 10.0
"""Of a virtual machine, before it is measured."""


@attrs.frozen
class Figure:
    rate: float
    cost: float
    """Microseconds of the master's CPU a message."""
    slave: float
    """Of its slave's."""


async def measure(address: str, master: list[int], slave: list[int], size: int, seconds: float) -> Figure:
    load = frames(CONNECTIONS, size, False)
    before = [cpu_seconds(pids) for pids in (master, slave)]
    rate = await drive(address, load, window=WINDOW, seconds=seconds, warm_up=0.0)
    spent = [cpu_seconds(pids) - found for pids, found in zip((master, slave), before, strict=True)]
    return Figure(rate, *(each / (rate * seconds) * 1e6 for each in spent))


def run(address: str, master: list[int], slave: list[int], size: int, seconds: float) -> Figure:
    return anyio.run(measure, address, master, slave, size, seconds, backend_options=backend_options())


def ours(replicas: int, size: int, seconds: float, path: str = "plain") -> Figure:
    with running_cluster(1, replicas, path=path) as cluster:
        address, brokers = cluster["brokers"][0]["address"], (pids(cluster), pids(cluster, "slave"))
        run(address, *brokers, size, WARM_UP_SECONDS / 5)
        return run(address, *brokers, size, seconds)


@contextmanager
def apache_pair() -> Iterator[tuple[ApacheBroker, ApacheBroker]]:
    with tempfile.TemporaryDirectory(prefix="apache-") as folder:
        (Path(folder) / "master").mkdir()
        (Path(folder) / "slave").mkdir()
        sync = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
        with ApacheBroker(Path(folder) / "master", properties=sync, scale=ITS_OWN) as master:
            slave = ApacheBroker(
                Path(folder) / "slave", properties={"brokerRole": "SLAVE", "brokerId": "1"}, scale=ITS_OWN
            )
            slave.namesrv = master.namesrv
            slave.start()
            try:
                create_topic(master.broker, master.namesrv, "bench", 8)
                time.sleep(WARM_UP_SECONDS)  # its slave reports within five seconds of its connection
                yield master, slave
            finally:
                slave.close()


def apache(size: int, seconds: float) -> Figure:
    with apache_pair() as (master, slave):
        brokers = (master.pids[1:], slave.pids)
        run(master.broker, *brokers, size, WARM_UP_SECONDS)
        return run(master.broker, *brokers, size, seconds)


# --- catching up ---------------------------------------------------------------------------


async def log_end(address: str) -> int:
    connection = await connect(address)
    try:
        answer = await connection.request(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
        return int(json.loads(answer.body)["table"]["commitLogMaxOffset"])
    finally:
        connection.close()


async def fill(address: str, size: int) -> int:
    while (end := await log_end(address)) < size:
        await drive(address, frames(CONNECTIONS, 4000, False), window=WINDOW, seconds=1.0, warm_up=0.0)
    return end


async def wait_for(address: str, end: int) -> None:
    while await log_end(address) < end:  # noqa: ASYNC110 - another process has no event
        await anyio.sleep(0.1)  # each question makes it do work that is not copying


def catching_up(megabytes: int) -> tuple[float, float, float]:
    """MB a second, and seconds of CPU for a gigabyte, of the master and of the slave."""
    enabled = ("--set=plugins.enable=default,ha", "--set=store.segment_size=1GiB")
    with (
        tempfile.TemporaryDirectory(prefix="copies-") as folder,
        broker_process(Path(folder) / "master", *enabled) as master,
    ):
        end = anyio.run(fill, master.broker, megabytes * 1_000_000, backend_options=backend_options())
        options = (
            *enabled, "--set=plugins.ha.role=slave", "--set=broker.id=1", f"--set=broker.namesrv={master.namesrv}",
        )  # fmt: skip
        with broker_process(Path(folder) / "slave", *options) as slave:
            began = time.perf_counter()
            before = [cpu_seconds([broker.pid]) for broker in (master, slave)]  # to start costs a second, and no copy
            anyio.run(wait_for, slave.broker, end)
            took = time.perf_counter() - began
            cost = [
                (cpu_seconds([broker.pid]) - spent) * 1e9 / end
                for broker, spent in zip((master, slave), before, strict=True)
            ]
            return end / 1e6 / took, cost[0], cost[1]


@click.command(help=__doc__)
@click.option("--size", default=300, show_default=True, help="Bytes of a message's body.")
@click.option("--seconds", default=5.0, show_default=True, help="How long each measurement takes.")
@click.option("--rounds", default=3, show_default=True, help="How often; the middle one counts.")
@click.option("--megabytes", default=1000, show_default=True, help="How much a slave catches up with; 0 leaves it out.")
@click.option("--apache", "with_apache", is_flag=True, help="Apache's pair too, which needs Java and Maven.")
@click.option("--write", is_flag=True, help="Write bench/results/copies.json.")
def main(size: int, seconds: float, rounds: int, megabytes: int, with_apache: bool, write: bool) -> None:
    kinds: dict[str, Any] = {
        "alone": lambda: ours(1, size, seconds),
        "with one synchronous slave": lambda: ours(2, size, seconds),
        "the same, with what is compiled": lambda: ours(2, size, seconds, "compiled"),
    }
    if with_apache:
        kinds["Apache SYNC_MASTER, inSyncReplicas 2"] = lambda: apache(size, seconds)
    found: dict[str, list[Figure]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, kind in kinds.items():
            found[name].append(kind())
    table = Table("master", "messages/s", "its CPU", "its slave's", title=f"sends of {size} bytes, CPU of a message")
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"), "commit": commit(),
        "machine": machine(), "size": size, "rounds": rounds,
    }  # fmt: skip
    for name, figures in found.items():
        rate, cost, slave_cost = (
            median(getattr(figure, part) for figure in figures) for part in ("rate", "cost", "slave")
        )
        record[name] = {
            "messages_per_second": round(rate),
            "cpu_us": round(cost, 2),
            "slave_cpu_us": round(slave_cost, 2),
        }
        table.add_row(name, f"{rate:,.0f}", f"{cost:.1f} µs", f"{slave_cost:.1f} µs")
    Console().print(table)
    if megabytes:
        speed, master, slave = catching_up(megabytes)
        print(f"an empty slave catches up at {speed:,.0f} MB/s; a GB costs the master {master:.2f} s, it {slave:.2f} s")
        record["catching up"] = {
            "megabytes_per_second": round(speed), "master_cpu_s_per_gb": round(master, 2),
            "slave_cpu_s_per_gb": round(slave, 2),
        }  # fmt: skip
    if write:
        RESULTS.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
