"""How long a broker name is without a master: ``kill -9``, a stop of the process (SIGSTOP), and a planned switch.

Three brokers and what chooses their master, each a process of this machine: VernierMQ with three servers of etcd, and
with ``--apache`` Apache's brokers with a controller. The Python client sends a hundred messages a second to either::

    python bench/failover.py --rounds 3 --apache --write

Needs etcd (``tests/interop/etcd.sh``), and for Apache's side Java and Maven.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs

sys.path.insert(0, str(Path(__file__).parents[1]))

from sidebyside.replicas import NAME, ApacheReplicas, OurReplicas, Replicas, go_on, hang

from tests.campaign.results import commit, machine
from tests.interop.wire import create_topic
from verniermq.client import Message, Producer, SendStatus
from verniermq.kernel import RemotingError, VernierMQError
from verniermq.plugins.ha.coordinator import CoordinatorTrouble
from verniermq.protocol.peers import Peers

EVENTS = ("kill -9", "SIGSTOP", "planned switch")
RESULTS = Path(__file__).parent / "results" / "failover-times.json"
PATIENCE = 120.0
BACK_SECONDS = 45.0
"""One that went on after it hung, and is not in sync after so long, is killed and started."""


@attrs.define(eq=False)
class Sends:
    """A hundred a second, each in a task of its own: one that hangs holds up no other."""

    producer: Producer
    over: bool = False
    began: list[float] = attrs.field(factory=list)
    ok: list[tuple[float, float]] = attrs.field(factory=list)
    """When each that was acknowledged began and ended."""
    failed: list[tuple[float, str]] = attrs.field(factory=list)

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            while not self.over:
                tasks.start_soon(self._one)
                await anyio.sleep(0.01)

    async def _one(self) -> None:
        began = time.monotonic()
        try:
            result = await self.producer.send(Message("bench", b"x" * 100))
        except VernierMQError as error:
            self.failed.append((began, type(error).__name__))
            return
        if result.status is SendStatus.SEND_OK:
            self.ok.append((began, time.monotonic()))
        else:
            self.failed.append((began, result.status.name))

    def first_ok(self, after: float) -> float | None:
        """Of those that began after it."""
        return min((ended for began, ended in self.ok if began >= after), default=None)

    def failures(self, begin: float, end: float) -> int:
        return sum(begin <= began < end for began, _ in self.failed)


async def _until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            if await condition():
                return
        except (RemotingError, CoordinatorTrouble, OSError):
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {patience:g} s")
        await anyio.sleep(0.005)


async def _strike(event: str, replicas: Replicas, peers: Peers, sends: Sends) -> dict[str, float]:
    async def settled() -> bool:
        return await replicas.are_in_sync(peers) and NAME in await peers.masters()

    await _until(settled, "all in sync")
    await anyio.sleep(2)
    master = (await peers.masters())[NAME]
    pid = replicas.pid(master)
    began = time.monotonic()
    if event == "kill -9":
        replicas.kill(master)
    elif event == "SIGSTOP":
        hang(pid)
    else:
        await replicas.switch(peers, master)

    async def another() -> bool:
        return (await peers.masters()).get(NAME, master) != master

    await _until(another, f"another master after {event}")
    elected = time.monotonic() - began
    after = began if event == "planned switch" else began + 0.02

    async def acknowledged() -> bool:
        return sends.first_ok(after) is not None

    await _until(acknowledged, f"an acknowledged send after {event}")
    ok = (sends.first_ok(after) or 0.0) - began
    await anyio.sleep(4)
    failed = sends.failures(began - 3.5, time.monotonic())
    if event == "kill -9":
        await anyio.to_thread.run_sync(replicas.start, master)
    elif event == "SIGSTOP":
        go_on(pid)
        try:
            await _until(settled, "all in sync after SIGSTOP", BACK_SECONDS)
        except TimeoutError as error:
            print(f"  {error}; it is killed and started", flush=True)
            replicas.kill(master)
            await anyio.to_thread.run_sync(replicas.start, master)
    return {"master": round(elected, 3), "first_ok": round(ok, 3), "failed": failed}


async def measure(replicas: Replicas, rounds: int) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {event: [] for event in EVENTS}
    try:
        await anyio.to_thread.run_sync(replicas.open)
        async with Peers(replicas.namesrv, timeout=4.0) as peers:

            async def ready() -> bool:
                return await replicas.are_in_sync(peers) and NAME in await peers.masters()

            await _until(ready, "a first master")
            master = (await peers.masters())[NAME]
            await anyio.to_thread.run_sync(create_topic, master, replicas.namesrv, "bench", 8)
            async with Producer("bench", namesrv=replicas.namesrv) as producer:
                sends = Sends(producer)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(sends.run)
                    await anyio.sleep(5)
                    try:
                        for _ in range(rounds):
                            for event, figures in found.items():
                                figures.append(await _strike(event, replicas, peers, sends))
                                print(f"  {event}: {figures[-1]}", flush=True)
                    except TimeoutError as error:
                        print(f"  ended: {error}", flush=True)
                    sends.over = True
                print(f"  {len(sends.ok)} acknowledged; not: {dict(Counter(why for _, why in sends.failed))}")
    finally:
        await anyio.to_thread.run_sync(replicas.close)
    return found


def _text(figures: list[dict[str, float]], name: str) -> str:
    values = [figure[name] for figure in figures]
    if not values:
        return "–"
    if name == "failed":
        return str(round(sum(values)))
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how long a broker name is without a master.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--apache", action="store_true", help="Apache's brokers and controller too")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    sides: dict[str, Callable[[Path], Replicas]] = {"VernierMQ": OurReplicas}
    if options.apache:
        sides["Apache 5.5.0"] = ApacheReplicas
    found = {}
    for name, make in sides.items():
        print(name, flush=True)
        with tempfile.TemporaryDirectory(prefix="failover-") as folder:
            found[name] = anyio.run(measure, make(Path(folder)), options.rounds)
    print(f"| event | {' | | | '.join(found)} | | |\n|---|{'--:|' * 3 * len(found)}")
    print(f"| |{' new master, s | first OK, s | failed sends |' * len(found)}")
    for event in EVENTS:
        cells = [_text(side[event], name) for side in found.values() for name in ("master", "first_ok", "failed")]
        print(f"| {event} | {' | '.join(cells)} |")
    if options.write:
        when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
        record = {"date": when, "commit": commit(), "machine": machine(), "rounds": options.rounds, "figures": found}
        RESULTS.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
