"""How long a broker name is without a master: ``kill -9``, a stop of the process (SIGSTOP), and a planned switch.

Three brokers, an etcd and a name server, each a process of this machine, and a producer that sends all the time::

    python bench/failover.py --rounds 5

The producer asks the name server for the master before each send, as fast as it can, so what is measured is the
brokers' time and not a client's. Needs etcd (``tests/interop/etcd.sh``).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import anyio
import anyio.to_thread

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.campaign.etcd import EtcdCluster
from tests.campaign.history import History
from tests.campaign.outcome import Outcome
from tests.campaign.replicas import Group
from verniermq.kernel import Command, RequestCode
from verniermq.plugins.ha.coordinator import Snapshot
from verniermq.plugins.ha.etcd import Etcd
from verniermq.protocol.peers import Peers
from verniermq.testing import BrokerProcess


async def settled(etcd: Etcd, group: Group) -> Snapshot:
    """Wait until all are in sync, and one leads."""
    while True:
        found = await etcd.read()
        state = found.state
        master = None if state is None else found.live.get(state.master)
        if (
            state is not None
            and master is not None
            and master.leads == state.term
            and len(state.in_sync) == group.count
        ):
            return found
        await anyio.sleep(0.2)


async def new_master(etcd: Etcd, term: int, began: float) -> float:
    while True:
        found = await etcd.read()
        if found.state is not None and found.state.term > term:
            return time.monotonic() - began
        await anyio.sleep(0.005)


async def first_ok(history: History, after: float) -> float:
    while history.last_ok < after:  # noqa: ASYNC110 - the history has no event for it
        await anyio.sleep(0.002)
    return history.last_ok - after


async def measure(rounds: int, folder: Path) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {"kill -9": [], "SIGSTOP": [], "planned switch": []}
    names = BrokerProcess(folder / "names", ["--set=broker.name=names"])
    with EtcdCluster(folder, 1) as cluster:
        etcd = Etcd(cluster.urls, "DefaultCluster", "a")
        group = Group(folder, cluster, names)
        try:
            await anyio.to_thread.run_sync(names.start)
            group.make(random.Random(1))
            for number in group.replicas:
                await anyio.to_thread.run_sync(group.start, number)
            history = History(Outcome(), names.namesrv)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(history.produce, "p", 0, 0.005)
                for _ in range(rounds):
                    for event, times in found.items():
                        times.append(await strike(event, etcd, group, history))
                history.over = True
            failed = sum(sent.outcome != "ok" for sent in history.sent)
            print(f"{len(history.sent)} sends, {failed} of them not acknowledged at the first try")
        finally:
            group.end()
            names.kill()
    return found


async def strike(event: str, etcd: Etcd, group: Group, history: History) -> tuple[float, float]:
    before = await settled(etcd, group)
    assert before.state is not None
    master, term = before.state.master, before.state.term
    await anyio.sleep(1)
    began = time.monotonic()
    if event == "kill -9":
        group.kill(master)
    elif event == "SIGSTOP":
        group.pause(master)
    else:
        to = next(number for number in group.replicas if number != master)
        async with Peers(timeout=15.0) as servers:
            request = Command.request(RequestCode.SWITCH_MASTER, {"replica": str(to)})
            await servers.ask(group.replicas[master].broker, request)
    elected = await new_master(etcd, term, began)
    ok = await first_ok(history, began + (0 if event == "planned switch" else 0.01))
    if event == "kill -9":
        await anyio.to_thread.run_sync(group.start, master)
    group.resume(master)
    return elected, ok


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how long a broker name is without a master.")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = anyio.run(measure, options.rounds, Path(folder))
    print(f"{'event':<16}{'new master, s':>24}{'first OK, s':>24}")
    for event, times in found.items():
        texts = [
            f"{statistics.median(column):.2f} ({min(column):.2f}-{max(column):.2f})"
            for column in zip(*times, strict=True)
        ]
        print(f"{event:<16}{texts[0]:>24}{texts[1]:>24}")


if __name__ == "__main__":
    main()
