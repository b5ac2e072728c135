"""Three replicas, an etcd, producers and readers, and processes that are killed and stopped.

Every process is real. ``history.py`` says what must be so at the end; ``network.py`` strikes at the network, the disks
and the power too, where the machine allows it.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import attrs

from tests.campaign.etcd import EtcdCluster, EtcdServer
from tests.campaign.history import QUEUES, History, check, check_files
from tests.campaign.outcome import Kind, Outcome
from tests.campaign.replicas import Group
from verniermq.plugins.ha.coordinator import CoordinatorTrouble
from verniermq.plugins.ha.election import State
from verniermq.plugins.ha.etcd import Etcd
from verniermq.testing import BrokerProcess
from verniermq.testing.broker import BrokerProcessFailed

STRIKES = (12, 20)
"""Least and most blows of one life; each of them is a round."""
PAUSES, PAUSE_WEIGHTS = ((0.5, 4.0), (4.0, 15.0), (15.0, 60.0)), (16, 3, 1)
"""For how long a process is stopped (SIGSTOP), in seconds, and how often."""
START_SECONDS = 60.0

Blow = Callable[[], Awaitable[None]]


@attrs.define(eq=False)
class Nemesis:
    """Strikes once in a while, and mends what it broke."""

    group: Group
    etcd: Etcd
    chance: random.Random
    outcome: Outcome

    async def state(self) -> State | None:
        try:
            return (await self.etcd.read()).state
        except CoordinatorTrouble:
            return None

    async def master(self) -> int:
        state = await self.state()
        return self.chance.choice(list(self.group.replicas)) if state is None else state.master

    async def other(self) -> int:
        master = await self.master()
        return self.chance.choice([number for number in self.group.replicas if number != master])

    def blows(self) -> dict[str, tuple[int, Blow]]:
        """How often, among all, and what."""
        return {
            "kill master": (4, self.kill_master),
            "kill other": (2, self.kill_other),
            "kill two": (2, self.kill_two),
            "kill all": (2, self.kill_all),
            "pause master": (2, self.pause_master),
            "pause other": (2, self.pause_other),
            "new life": (2, self.new_life),
            "kill etcd": (1, self.kill_etcd),
            "kill leader of etcd": (1, self.kill_leader),
            "pause etcd": (2, self.pause_etcd),
        }

    async def strike(self, kind: str = "") -> None:
        """Any, unless one is named."""
        blows = self.blows()
        kind = kind or self.chance.choices(list(blows), [often for often, _ in blows.values()])[0]
        self.outcome.notes[kind] += 1
        self.outcome.rounds += 1
        await blows[kind][1]()
        await anyio.sleep(self.chance.uniform(0.1, 1.5))

    # --- brokers ---------------------------------------------------------------------------

    async def kill_master(self) -> None:
        await self.kill([await self.master()])

    async def kill_other(self) -> None:
        await self.kill([await self.other()])

    async def kill_two(self) -> None:
        await self.kill([await self.master(), await self.other()])

    async def kill_all(self) -> None:
        await self.kill(list(self.group.replicas))

    async def new_life(self) -> None:
        await self.kill([await self.master()], self.start_as_another)

    async def kill(self, numbers: Sequence[int], start: Callable[[int], None] | None = None) -> None:
        numbers = list(dict.fromkeys(numbers))
        for number in numbers:
            self.group.kill(number)
        await anyio.sleep(self.chance.uniform(0.0, 2.0))
        for number in self.chance.sample(numbers, len(numbers)):
            await self._start(start or self.group.start, number)

    async def _start(self, start: Callable[[int], None], number: int) -> None:
        """Again after a moment where a disk is full."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return await anyio.to_thread.run_sync(start, number)
            except (BrokerProcessFailed, OSError):
                if time.monotonic() > deadline:
                    raise
                self.outcome.notes["starts that failed"] += 1
                await anyio.sleep(0.5)

    def start_as_another(self, number: int) -> None:
        self.group.start_as_another(number, f"life{self.chance.randrange(1 << 30)}")

    async def pause_master(self) -> None:
        await self.pause(await self.master())

    async def pause_other(self) -> None:
        await self.pause(await self.other())

    async def pause(self, number: int) -> None:
        self.group.pause(number)
        await anyio.sleep(self.chance.uniform(*self.chance.choices(PAUSES, PAUSE_WEIGHTS)[0]))
        self.group.resume(number)

    # --- etcd ------------------------------------------------------------------------------

    async def kill_etcd(self) -> None:
        await self._kill_server(self.chance.choice(self.group.etcd.servers))

    async def kill_leader(self) -> None:
        leader = await anyio.to_thread.run_sync(self.group.etcd.leader)
        await self._kill_server(leader or self.group.etcd.servers[0])

    async def _kill_server(self, server: EtcdServer) -> None:
        server.kill()
        await anyio.sleep(self.chance.uniform(0.0, 2.0))
        server.start(self.group.etcd.cluster)

    async def pause_etcd(self) -> None:
        process = self.chance.choice(self.group.etcd.servers).process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await anyio.sleep(self.chance.uniform(0.5, 4.0))
        process.send_signal(signal.SIGCONT)

    def mend(self) -> None:
        """Nothing to: each blow mends what it broke."""


async def suffer(group: Group, nemesis: Nemesis, history: History, kinds: Sequence[str]) -> None:
    """One life: all start, clients send and read, blows come, and what is left is checked."""
    outcome = history.outcome
    for number in group.replicas:
        await anyio.to_thread.run_sync(group.start, number)
    async with anyio.create_task_group() as tasks:
        for queue in range(QUEUES):
            tasks.start_soon(history.produce, f"p{queue}", queue, 0.01)
        tasks.start_soon(history.produce, "q0", 0, 0.02)
        for number in group.replicas:
            tasks.start_soon(history.read, group, number)
        await anyio.sleep(2)
        for kind in kinds:
            await nemesis.strike(kind)
        nemesis.mend()
        await anyio.to_thread.run_sync(group.etcd.wait)
        await anyio.sleep(2)
        history.over = True
    await check(group, nemesis.etcd, history)
    longest = "longest pause between acknowledgements, ms"
    outcome.notes[longest] = max(outcome.notes[longest], round(history.longest_gap * 1000))
    if not outcome.failures:
        for process in group.replicas.values():
            await anyio.to_thread.run_sync(process.stop)
        check_files(group, history)


async def live(seed: int, folder: Path, strikes: int | None = None, servers: int | None = None) -> Outcome:
    chance = random.Random(seed)
    outcome = Outcome(rounds=0)
    names = BrokerProcess(folder / "names", ["--set=broker.name=names"])
    with EtcdCluster(folder, servers or chance.choice((1, 3))) as cluster:
        group = Group(folder, cluster, names)
        try:
            await anyio.to_thread.run_sync(names.start)
            group.make(chance)
            history = History(outcome, names.namesrv)
            nemesis = Nemesis(group, Etcd(cluster.urls, "DefaultCluster", "a"), chance, outcome)
            await suffer(group, nemesis, history, [""] * (strikes or chance.randint(*STRIKES)))
        finally:
            group.end()
            names.kill()
    for text in group.complaints():
        outcome.fail("wrong", text)
    return outcome


def run(seed: int, folder: Path) -> Outcome:
    return anyio.run(live, seed, folder)


KIND = Kind(
    "failover",
    "reads",
    "Whichever replicas and etcd are killed or paused, what was acknowledged or read stays, the same everywhere.",
    run,
    "failover.jsonl",
)
