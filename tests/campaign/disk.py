"""Full disks: somebody else takes the rest of a small disk, to the last block, while all kinds of messages are sent.

A disk is a tmpfs, or an ext4 in a file; to mount either takes root. What was acknowledged has to survive, also when the
broker is killed or started while nothing is free; and it takes messages again as soon as there is room.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import attrs

from tests.campaign import workers
from tests.campaign.kill import settings
from tests.campaign.outcome import Kind, Outcome, Skipped
from tests.plugins.txn import peers
from verniermq.kernel import RemotingError
from verniermq.testing import BrokerProcess
from verniermq.testing.broker import BrokerProcessFailed

SIZES = {"tmpfs": 48 << 20, "ext4 4096": 96 << 20, "ext4 1024": 96 << 20}
PATIENCE = 60.0


@contextmanager
def small_disk(folder: Path, kind: str) -> Iterator[Path]:
    """An empty file system.

    Raises:
        Skipped: this machine does not allow it.
    """
    if os.geteuid() != 0:
        raise Skipped("mounting a small disk takes root")
    place, image = folder / "disk", folder / "image"
    place.mkdir()
    if kind == "tmpfs":
        commands = [["mount", "-t", "tmpfs", "-o", f"size={SIZES[kind]}", "none", str(place)]]
    else:
        with image.open("wb") as file:
            file.truncate(SIZES[kind])
        commands = [
            ["mkfs.ext4", "-q", "-b", kind.split()[1], str(image)], ["mount", "-o", "loop", str(image), str(place)],
        ]  # fmt: skip
    for command in commands:
        if shutil.which(command[0]) is None:
            raise Skipped(f"this machine has no {command[0]}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Skipped(f"{' '.join(command)}: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


def fill(path: Path) -> None:
    """Take all the room that is left, to the last block."""
    with path.open("ab", buffering=0) as file:
        size = 1 << 20
        while size >= 512:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2


@attrs.define(eq=False)
class Tenant:
    """A broker on a disk that others fill."""

    process: BrokerProcess
    ballast: Path
    workers: list[workers.Worker]
    outcome: Outcome

    async def work(self, seconds: float) -> None:
        """Let the workers work; none of them may lose its connection."""
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as tasks:
                for worker in self.workers:
                    tasks.start_soon(self._work, worker)

    async def _work(self, worker: workers.Worker) -> None:
        try:
            async with peers.peer(self.process.broker, worker.name) as peer:
                await worker.work(peer)
        except* (RemotingError, OSError) as errors:
            self.outcome.fail("wrong", f"{worker.name} was left alone: {errors.exceptions[0]!r}")

    async def work_until_taken(self) -> None:
        """There is room again: sends have to be taken, without a restart."""
        sender = self.workers[0]
        before = len(sender.acknowledged)
        with anyio.move_on_after(PATIENCE):
            while len(sender.acknowledged) == before:
                await self.work(0.3)
        self.outcome.expect(len(sender.acknowledged) > before, "wrong", "there is room, and sends are still refused")

    async def start(self) -> bool:
        """Start again; on a full disk that may be refused, in one line."""
        try:
            await anyio.to_thread.run_sync(self.process.start)
        except BrokerProcessFailed as error:
            self.outcome.notes["starts refused"] += 1
            self.outcome.expect("Traceback" not in str(error), "wrong", f"a start on a full disk: {error}"[:1500])
            return False
        return True


async def crowd(seed: int, folder: Path, kind: str | None = None) -> Outcome:
    chance = random.Random(seed)
    kind = kind or chance.choice(sorted(SIZES))
    outcome = Outcome()
    with small_disk(folder, kind) as disk:
        make = {"seed": seed, "outcome": outcome}
        everyone: list[workers.Worker] = [
            workers.Sender("plain", **make, pause=0.002),
            workers.BatchSender("batch", **make, pause=0.005),
            workers.LevelSender("levels", **make, pause=0.01),
            workers.TimedSender("timed", **make, pause=0.01),
            workers.TopicMaker("topic", **make, pause=0.05),
        ]
        (disk / "store").mkdir()
        (folder / "store").symlink_to(disk / "store")  # its log is beside it, where there is room
        process = BrokerProcess(folder / "store", settings(chance, is_kept=True))
        tenant = Tenant(process, disk / "ballast", everyone, outcome)
        process.start()
        try:
            for _ in range(chance.randrange(1, 4)):
                await tenant.work(chance.uniform(0.2, 0.8))
                await anyio.to_thread.run_sync(fill, tenant.ballast)
                await tenant.work(chance.uniform(0.3, 1.5))
                ending = chance.choice(("none", "kill", "stop", "kill and start full"))
                if ending == "stop":
                    await _stop(process, outcome)
                elif ending != "none":
                    await anyio.to_thread.run_sync(process.kill)
                has_started = ending == "none" or (ending == "kill and start full" and await tenant.start())
                tenant.ballast.unlink()
                if not has_started:
                    await anyio.to_thread.run_sync(process.start)
                await tenant.work_until_taken()
                for worker in everyone:
                    async with peers.peer(process.broker, f"{worker.name}-check") as peer:
                        await worker.check(peer)
            await anyio.to_thread.run_sync(process.kill)
            await anyio.to_thread.run_sync(process.start)
            for worker in everyone:
                async with peers.peer(process.broker, f"{worker.name}-end") as peer:
                    await worker.finish(peer, process.advance)
            await anyio.to_thread.run_sync(process.stop)
        except BrokerProcessFailed as error:
            outcome.fail("wrong", f"seed {seed} on {kind}: {error}"[:1500])
        finally:
            process.kill()
        outcome.notes[kind] += 1
    return outcome


async def _stop(process: BrokerProcess, outcome: Outcome) -> None:
    """An orderly stop on a full disk: it may say that not all could be written, but it ends."""
    try:
        await anyio.to_thread.run_sync(process.stop)
    except BrokerProcessFailed as error:
        outcome.notes["stops with an error"] += 1
        outcome.expect("did not stop" not in str(error), "wrong", str(error)[:1500])
        process.kill()


def run(seed: int, folder: Path) -> Outcome:
    return anyio.run(crowd, seed, folder)


KIND = Kind(
    "disk",
    "messages",
    "A full disk refuses sends, loses nothing that was acknowledged, and is forgotten when there is room.",
    run,
)
