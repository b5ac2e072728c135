"""The same replicas on hosts of their own: the network is cut, disks fill up, power fails, and all of that at once.

Each broker and each server of etcd is in a network namespace; clients reach all of them, at all times, so that a
master that is cut off from the others is still asked to take messages.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import attrs
import orjson

from tests.campaign import synced
from tests.campaign.etcd import EtcdCluster
from tests.campaign.failover import STRIKES, Blow, Nemesis, suffer
from tests.campaign.history import History
from tests.campaign.namespaces import BRIDGE, HOSTS, Network, enter
from tests.campaign.outcome import Failure, Kind, Outcome
from tests.campaign.replicas import Group
from verniermq.plugins.ha.etcd import Etcd
from verniermq.plugins.ha.identity import incarnation
from verniermq.testing import BrokerProcess

DISK = 64 << 20
"""Bytes of a replica's disk."""
CUT_SECONDS = (0.5, 7.0)
"""A lease lasts two seconds, and a silent connection is given up after a few."""


@attrs.define(eq=False)
class NetworkNemesis(Nemesis):
    network: Network
    dark: set[int] = attrs.field(factory=set)
    """Replicas that lost power and are not back in the set: with asynchronous flush, no other may lose it now."""

    def blows(self) -> dict[str, tuple[int, Blow]]:
        return {
            **super().blows(),
            "cut master off": (4, self.cut_master_off),
            "cut master off from replicas": (3, self.part_master),
            "cut another off": (2, self.cut_other_off),
            "cut two hosts apart": (3, self.part_two),
            "one way, two hosts": (3, self.deafen_one),
            "one way, all to master": (2, self.deafen_master),
            "one way, master to all": (2, self.mute_master),
            "cut leader of etcd off": (2, self.cut_leader_off),
            "fill a disk": (3, self.fill_disk),
            "power cut": (4, self.cut_power),
            "all at once": (4, self.all_at_once),
        }

    # --- the network -----------------------------------------------------------------------

    async def _cut(self) -> None:
        await anyio.sleep(self.chance.uniform(*CUT_SECONDS))
        self.network.heal()

    def _others(self, name: str, kinds: str = "re") -> list[str]:
        return [other for other in self.network.hosts if other != name and other[0] in kinds]

    async def cut_master_off(self) -> None:
        name = f"r{await self.master()}"
        self.network.part([name], self._others(name))
        await self._cut()

    async def cut_other_off(self) -> None:
        name = f"r{await self.other()}"
        self.network.part([name], self._others(name))
        await self._cut()

    async def part_master(self) -> None:
        name = f"r{await self.master()}"
        self.network.part([name], self._others(name, "r"))
        await self._cut()

    async def part_two(self) -> None:
        one, two = self.chance.sample(list(self.network.hosts), 2)
        self.network.part([one], [two])
        await self._cut()

    async def deafen_one(self) -> None:
        one, two = self.chance.sample(list(self.network.hosts), 2)
        self.network.deafen(one, two)
        await self._cut()

    async def deafen_master(self) -> None:
        name = f"r{await self.master()}"
        self.network.deafen(name, *self._others(name))
        await self._cut()

    async def mute_master(self) -> None:
        name = f"r{await self.master()}"
        for other in self._others(name):
            self.network.deafen(other, name)
        await self._cut()

    async def cut_leader_off(self) -> None:
        leader = await anyio.to_thread.run_sync(self.group.etcd.leader)
        name = (leader or self.group.etcd.servers[0]).name
        self.network.part([name], self._others(name))
        await self._cut()

    # --- disks and power -------------------------------------------------------------------

    async def fill_disk(self) -> None:
        number = self.chance.choice(list(self.group.replicas))
        filler = self.group.replicas[number].store / "filler"
        free = os.statvfs(filler.parent)
        size = free.f_bavail * free.f_frsize - self.chance.randrange(8192)
        with filler.open("wb") as file:
            while size > 0:
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                    break
                except OSError:  # the broker was quicker
                    size -= 1 << 16
        await anyio.sleep(self.chance.uniform(0.5, 5.0))
        filler.unlink()

    async def cut_power(self) -> None:
        """Of one, since acknowledged messages may be in memories only; of any, if they are on the master's disk."""
        numbers = self.chance.sample(list(self.group.replicas), self.chance.randint(1, self.group.count))
        if self.group.flush == "async":
            state = await self.state()
            names = {} if state is None else dict(state.in_sync)
            self.dark = {number for number in self.dark if self._life(number) != names.get(number)}
            if self.dark or state is None:
                self.outcome.notes["power cuts that had to wait"] += 1
                return
            numbers = numbers[:1]
            self.dark.update(numbers)
        await self.kill(numbers, self._start_without_tail)

    def _life(self, number: int) -> str:
        """The incarnation that it has now."""
        return incarnation(self.group.replicas[number].store, number)

    def _start_without_tail(self, number: int) -> None:
        self.outcome.notes["bytes that power cuts took"] += synced.cut_power(
            self.group.replicas[number].store, self.chance
        )
        self.start_as_another(number)

    async def all_at_once(self) -> None:
        """A broker, the network, an etcd and a disk."""
        chance = self.chance
        async with anyio.create_task_group() as tasks:
            for blow in (
                chance.choice((self.kill_master, self.pause_master, self.cut_power, self.kill_all)),
                chance.choice((self.cut_master_off, self.deafen_master, self.part_two)),
                chance.choice((self.kill_leader, self.pause_etcd)),
                self.fill_disk,
            ):
                tasks.start_soon(blow)

    def mend(self) -> None:
        self.network.heal()


def make_disk(path: Path) -> None:
    """A small one."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", str(path)], check=True)


async def live(seed: int, folder: Path, kinds: Sequence[str] = ()) -> Outcome:
    chance = random.Random(seed)
    outcome = Outcome(rounds=0)
    network = Network()
    addresses = [f"--set={name}.host={BRIDGE}" for name in ("broker", "plugins.namesrv")]
    addresses.append(f'--set=plugins.namesrv.brokers=["{HOSTS}"]')
    names = BrokerProcess(folder / "names", ["--set=broker.name=names", *addresses])
    servers = [network.add(f"e{number}") for number in range(3)]
    hosts = {number: network.add(f"r{number}") for number in (1, 2, 3)}
    for number in hosts:
        make_disk(folder / str(number))
    enabled = {"plugins.enable": f'["default", "ha", "{synced.__file__}"]'}
    with EtcdCluster(folder, 3, servers) as cluster:
        group = Group(folder, cluster, names, hosts=hosts, settings=enabled)
        try:
            await anyio.to_thread.run_sync(names.start)
            group.make(chance)
            history = History(outcome, names.namesrv)
            etcd = Etcd(cluster.urls, "DefaultCluster", "a")
            nemesis = NetworkNemesis(group, etcd, chance, outcome, network)
            await suffer(group, nemesis, history, kinds or [""] * chance.randint(*STRIKES))
        finally:
            group.end()
            names.kill()
    for text in group.complaints():
        outcome.fail("wrong", text)
    if outcome.failures:
        for number in hosts:  # their disks are gone with this process
            shutil.copytree(folder / str(number), folder / f"kept{number}")
    return outcome


def run(seed: int, folder: Path, *arguments: str) -> Outcome:
    told = orjson.loads(enter("tests.campaign.network", "--seed", str(seed), "--folder", str(folder), *arguments))
    failures = [Failure(**failure) for failure in told.pop("failures")]
    return Outcome(**{**told, "notes": Counter(told["notes"]), "failures": failures})


KIND = Kind(
    "network",
    "reads",
    "The same when the network is cut, one way or both, disks are full, power fails and takes the end of a log.",
    run,
    "failover.jsonl",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="One life of replicas, within namespaces that were made for it.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--blows", nargs="*", default=(), help="these, one after the other, and no others")
    options = parser.parse_args()
    outcome = anyio.run(live, options.seed, options.folder, options.blows)
    print(orjson.dumps(attrs.asdict(outcome)).decode())


if __name__ == "__main__":
    main()
