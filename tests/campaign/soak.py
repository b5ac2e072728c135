"""Soak: all kinds of messages for a while, clients that come and go; memory, descriptors and threads stay flat."""

from __future__ import annotations

import os
import random
import statistics
import time
from pathlib import Path

import anyio
import anyio.to_thread
import attrs

from tests.campaign import workers
from tests.campaign.kill import settings
from tests.campaign.neighbour import resident_mib
from tests.campaign.outcome import Kind, Outcome
from tests.plugins.txn import peers
from verniermq.testing import BrokerProcess

SECONDS = 90.0
MOST_MIB = 10.0
"""Growth from the third quarter to the last."""
LARGE_FILES = (
    "--set=store.segment_size=256MiB", "--set=store.queue_entries=300000", "--set=plugins.query.slots=10000",
    "--set=plugins.query.entries=1000000", "--set=plugins.schedule.timer_file_size=16MiB",
)  # fmt: skip
"""A new file is a descriptor more, and no leak: none is filled here."""
MOST_HANDLES = 12
"""The same for descriptors and threads; a segment or an index file may have been begun."""


@attrs.frozen
class Sample:
    mib: float
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Sample:
        process = f"/proc/{pid}"
        return cls(resident_mib(pid), len(os.listdir(f"{process}/fd")), len(os.listdir(f"{process}/task")))


def growth(samples: list[Sample], name: str) -> float:
    """From the median of the third quarter to that of the last."""
    quarter = max(len(samples) // 4, 1)
    values = [float(getattr(sample, name)) for sample in samples]
    return statistics.median(values[-quarter:]) - statistics.median(values[-2 * quarter : -quarter])


async def _come_and_go(process: BrokerProcess, worker: workers.Worker, until: float) -> None:
    """A client that connects anew every second."""
    while time.monotonic() < until:
        async with peers.peer(process.broker, worker.name) as client:
            with anyio.move_on_after(1.0):
                await worker.work(client)


async def soak(
    seed: int, folder: Path, seconds: float = SECONDS, most_mib: float = MOST_MIB, most_handles: float = MOST_HANDLES
) -> Outcome:
    chance = random.Random(seed)
    outcome = Outcome()
    make = {"seed": seed, "outcome": outcome}
    everyone: list[workers.Worker] = [
        workers.Sender("plain", **make, pause=0.01),
        workers.BatchSender("batch", **make, pause=0.05),
        workers.LevelSender("levels", **make, pause=0.02),
        workers.TimedSender("timed", **make, pause=0.02),
        workers.Transactor("halves", **make, pause=0.02),
        workers.Retrier("retried", **make, pause=0.05),
        workers.Popper("popped", **make, pause=0.02),
    ]
    process = BrokerProcess(folder / "store", [*settings(chance, is_kept=True), *LARGE_FILES])
    process.start()
    samples: list[Sample] = []
    until = time.monotonic() + seconds
    try:
        async with anyio.create_task_group() as tasks:
            for worker in everyone:
                tasks.start_soon(_come_and_go, process, worker, until)
            while time.monotonic() < until:
                samples.append(Sample.of(process.pid))
                await anyio.sleep(0.25)
        outcome.checked = sum(worker.sent for worker in everyone)
        for name, most in (("mib", most_mib), ("descriptors", most_handles), ("threads", most_handles)):
            grown = growth(samples, name)
            outcome.expect(
                grown <= most, "wrong", f"seed {seed}: {name} grew by {grown:.1f} in a quarter of {seconds} s"
            )
        await anyio.to_thread.run_sync(process.stop)
    finally:
        process.kill()
    outcome.notes["seconds"] = round(seconds)
    return outcome


def run(seed: int, folder: Path) -> Outcome:
    return anyio.run(soak, seed, folder)


KIND = Kind(
    "soak",
    "messages",
    "Memory, descriptors and threads stay flat while clients come and go.",
    run,
)
