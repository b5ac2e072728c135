"""Three replicas, an etcd, producers and readers, and a nemesis: what was acknowledged must be there, once and for all.

Every process is real. A history is kept of what producers were told and what readers saw, and checked at the end:

- what was acknowledged is in the queues of every replica;
- a queue offset names the same message for all readers, of all brokers, at all times;
- what one producer sent to one queue lies in the order in which it was acknowledged;
- the logs of all replicas are equal, byte for byte.
"""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import attrs
import orjson

from tests.campaign.etcd import EtcdCluster
from tests.campaign.outcome import Kind, Outcome
from verniermq.kernel import Command, RemotingError, RequestCode, ResponseCode, decode_records
from verniermq.plugins.ha import identity
from verniermq.plugins.ha.coordinator import CoordinatorTrouble, Snapshot
from verniermq.plugins.ha.etcd import Etcd
from verniermq.protocol.peers import Peers
from verniermq.testing import BrokerProcess
from verniermq.testing.ports import held_port

TOPIC = "orders"
QUEUES = 4
PATIENCE = 90.0
STRIKES = (12, 20)
"""Least and most blows of one life; each of them is a round."""
PAUSES, PAUSE_WEIGHTS = ((0.5, 4.0), (4.0, 15.0), (15.0, 60.0)), (16, 3, 1)
"""For how long a process is stopped (SIGSTOP), in seconds, and how often."""


@attrs.define(eq=False)
class Sent:
    """One send, and what its producer was told."""

    body: str
    queue: int
    outcome: str = "unknown"
    """``ok``, ``12`` (stored, not confirmed), ``refused`` or ``unknown``."""
    offset: int = -1


@attrs.define(eq=False)
class Group:
    """The replicas of one broker, as processes."""

    folder: Path
    etcd: EtcdCluster
    names: BrokerProcess
    count: int = 3
    replicas: dict[int, BrokerProcess] = attrs.field(factory=dict)
    stopped: set[int] = attrs.field(factory=set)
    """Those that got SIGSTOP."""

    def make(self, chance: random.Random) -> None:
        flush = chance.choice(("async", "async", "sync"))
        for number in range(1, self.count + 1):
            settings = {
                "plugins.enable": '["default", "ha"]', "broker.name": "a", "plugins.ha.mode": "failover",
                "plugins.ha.replica": number, "plugins.ha.replicas": self.count, "plugins.ha.ttl": "2s",
                "plugins.ha.etcd": str(self.etcd.urls).replace("'", '"'), "plugins.ha.metadata_interval": "500ms",
                "broker.namesrv": f'["{self.names.namesrv}"]', "store.segment_size": "1MiB",
                "store.max_message_size": "64KiB", "store.flush": flush, "log.level": "info",
            }  # fmt: skip
            process = self.replicas[number] = BrokerProcess(self.folder / str(number), [])
            settings["plugins.ha.port"] = held_port(process)
            process.arguments.extend(f"--set={key}={value}" for key, value in settings.items())

    def start(self, number: int) -> None:
        self.replicas[number].start()

    def is_running(self, number: int) -> bool:
        return self.replicas[number]._process is not None

    def kill(self, number: int) -> None:
        self.resume(number)
        self.replicas[number].kill()

    def pause(self, number: int) -> None:
        os.kill(self.replicas[number].pid, signal.SIGSTOP)
        self.stopped.add(number)

    def resume(self, number: int) -> None:
        if number in self.stopped:
            self.stopped.discard(number)
            os.kill(self.replicas[number].pid, signal.SIGCONT)

    def start_as_another(self, number: int, life: str) -> None:
        """As after a power cut that took nothing: it may not be taken for the one that was there before."""
        path = self.replicas[number].store / identity.NAME
        path.write_bytes(orjson.dumps({"replica": number, "store": life}))
        self.start(number)


@attrs.define(eq=False)
class History:
    """What all clients did and saw."""

    outcome: Outcome
    namesrv: str
    sent: list[Sent] = attrs.field(factory=list)
    seen: dict[tuple[int, int], str] = attrs.field(factory=dict)
    """(queue, offset) → body, of any reader at any time."""
    over: bool = False
    last_ok: float = 0.0
    longest_gap: float = 0.0

    async def produce(self, name: str, queue: int, pause: float) -> None:
        """One producer for one queue: it sends the next when it knows, or gave up, about the one before."""
        number = 0
        async with Peers(self.namesrv, timeout=4.0) as servers:
            while not self.over:
                sent = Sent(f"{name}-{number:06d}", queue)
                number += 1
                self.sent.append(sent)
                try:
                    master = (await servers.masters()).get("a")
                    if master is None:
                        sent.outcome = "refused"
                    else:
                        await self._send(servers, master, sent)
                except RemotingError:
                    pass
                await anyio.sleep(pause if sent.outcome == "ok" else 0.05)

    async def _send(self, servers: Peers, master: str, sent: Sent) -> None:
        fields = {
            "a": "producers", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(sent.queue), "f": "0",
            "g": "1600000000000", "h": "0", "i": "", "j": "0",
        }  # fmt: skip
        request = Command.request(RequestCode.SEND_MESSAGE_V2, fields, sent.body.encode())
        answer = await servers.ask(master, request, fine=range(1 << 16))
        if answer.code == ResponseCode.SUCCESS:
            now = time.monotonic()
            if self.last_ok:
                self.longest_gap = max(self.longest_gap, now - self.last_ok)
            self.last_ok = now
            sent.outcome, sent.offset = "ok", int(answer.ext["queueOffset"])
        elif answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT:
            sent.outcome = "12"
        else:
            sent.outcome = "refused"

    async def read(self, group: Group, number: int) -> None:
        """Read all queues of one replica, whatever it is now, again and again."""
        positions = dict.fromkeys(range(QUEUES), 0)
        async with Peers(timeout=2.0) as servers:
            while not self.over:
                for queue in range(QUEUES):
                    try:
                        found = await pull(servers, group.replicas[number].broker, queue, positions[queue])
                    except (RemotingError, OSError):
                        break
                    for offset, body in found:
                        self.note(queue, offset, body, f"replica {number}")
                        positions[queue] = offset + 1
                    self.outcome.checked += len(found)
                await anyio.sleep(0.05)

    def note(self, queue: int, offset: int, body: str, where: str) -> None:
        known = self.seen.setdefault((queue, offset), body)
        if known != body:
            self.outcome.fail("wrong", f"queue {queue}[{offset}] was {known} and is {body} at {where}")


async def pull(servers: Peers, address: str, queue: int, offset: int) -> list[tuple[int, str]]:
    fields = {
        "consumerGroup": "readers", "topic": TOPIC, "queueId": str(queue), "queueOffset": str(offset),
        "maxMsgNums": "256", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    answer = await servers.ask(address, Command.request(RequestCode.PULL_MESSAGE, fields), fine=range(1 << 16))
    if answer.code != ResponseCode.SUCCESS:
        return []
    return [(message.queue_offset, message.body.decode()) for message in decode_records(answer.body)]


# --- what goes wrong -----------------------------------------------------------------------


@attrs.define(eq=False)
class Nemesis:
    group: Group
    etcd: Etcd
    chance: random.Random
    outcome: Outcome

    async def master(self) -> int:
        try:
            state = (await self.etcd.read()).state
        except CoordinatorTrouble:
            state = None
        return self.chance.randrange(1, self.group.count + 1) if state is None else state.master

    async def strike(self) -> None:
        chance = self.chance
        kind = chance.choice(
            ("kill master", "kill master", "pause master", "kill other", "pause other", "kill all", "kill etcd",
             "pause etcd", "new life", "kill two")
        )  # fmt: skip
        master = await self.master()
        other = chance.choice([number for number in self.group.replicas if number != master])
        self.outcome.notes[kind] += 1
        self.outcome.rounds += 1
        away = chance.uniform(0.0, 2.0)
        if kind == "kill etcd":
            server = chance.choice(self.group.etcd.servers)
            server.kill()
            await anyio.sleep(away)
            server.start(self.group.etcd.cluster)
            await anyio.to_thread.run_sync(self.group.etcd.wait)
        elif kind == "pause etcd":
            process = chance.choice(self.group.etcd.servers).process
            assert process is not None
            process.send_signal(signal.SIGSTOP)
            await anyio.sleep(away)
            process.send_signal(signal.SIGCONT)
        elif kind.startswith("pause"):
            number = master if kind == "pause master" else other
            self.group.pause(number)
            await anyio.sleep(chance.uniform(*chance.choices(PAUSES, PAUSE_WEIGHTS)[0]))
            self.group.resume(number)
        else:
            numbers = {
                "kill all": list(self.group.replicas), "kill two": [master, other], "kill other": [other],
            }.get(kind, [master])  # fmt: skip
            for number in numbers:
                self.group.kill(number)
            await anyio.sleep(away)
            for number in chance.sample(numbers, len(numbers)):
                life = f"life{chance.randrange(1 << 30)}" if kind == "new life" else ""
                start = partial(self.group.start_as_another, life=life) if life else self.group.start
                await anyio.to_thread.run_sync(start, number)
        await anyio.sleep(chance.uniform(0.1, 1.5))


# --- what must be so at the end ------------------------------------------------------------


async def check(group: Group, etcd: Etcd, history: History) -> None:
    outcome = history.outcome
    everybody = set(group.replicas)
    deadline = time.monotonic() + PATIENCE
    snapshot = await etcd.read()
    while snapshot.state is None or {number for number, _ in snapshot.state.in_sync} != everybody:
        if time.monotonic() > deadline:
            outcome.fail("wrong", f"after {PATIENCE:g} s of peace the set is {snapshot.state}")
            return
        await anyio.sleep(0.2)
        snapshot = await etcd.read()
    async with Peers(timeout=5.0) as servers:
        contents = {number: await everything(servers, group.replicas[number].broker, snapshot) for number in everybody}
    for number, content in contents.items():
        for place, body in content.items():
            history.note(*place, body, f"replica {number} at the end")
        there = set(content.values())
        lost = [sent.body for sent in history.sent if sent.outcome == "ok" and sent.body not in there]
        if lost:
            outcome.fail("lost", f"replica {number} lacks {len(lost)} that were acknowledged, such as {lost[:3]}")
        twice = len(content) - len(there)
        outcome.expect(not twice, "wrong", f"replica {number} has {twice} messages more than once")
    for place in set(history.seen) - set(contents[snapshot.state.master]):
        outcome.fail("lost", f"queue {place[0]}[{place[1]}] was read as {history.seen[place]} and is gone")
    last: dict[tuple[str, int], int] = {}
    for sent in history.sent:
        if sent.outcome == "ok":
            key = (sent.body.partition("-")[0], sent.queue)
            outcome.expect(sent.offset > last.get(key, -1), "wrong", f"{sent.body} lies before what was sent earlier")
            last[key] = sent.offset
    for outcome_name in ("ok", "12", "refused", "unknown"):
        outcome.notes[f"sends: {outcome_name}"] += sum(sent.outcome == outcome_name for sent in history.sent)


async def everything(servers: Peers, address: str, snapshot: Snapshot) -> dict[tuple[int, int], str]:
    """All that a replica has, once its queues know what the master's know."""
    assert snapshot.state is not None
    master = snapshot.live[snapshot.state.master].address
    found: dict[tuple[int, int], str] = {}
    for queue in range(QUEUES):
        fields = {"topic": TOPIC, "queueId": str(queue)}
        answer = await servers.ask(master, Command.request(RequestCode.GET_MAX_OFFSET, fields))
        end, position = int(answer.ext["offset"]), 0
        deadline = time.monotonic() + PATIENCE
        while position < end and time.monotonic() < deadline:
            read = await pull(servers, address, queue, position)
            found.update({(queue, offset): body for offset, body in read})
            position = read[-1][0] + 1 if read else position
            if not read:
                await anyio.sleep(0.1)
    return found


def compare_logs(group: Group, outcome: Outcome) -> None:
    """After all have stopped."""
    logs = {}
    for number, process in group.replicas.items():
        files = sorted((process.store / "commitlog").iterdir())
        logs[number] = b"".join(path.read_bytes() for path in files).rstrip(b"\0")
    first = logs[1]
    for number, log in logs.items():
        outcome.expect(
            log == first, "wrong", f"the log of replica {number} ({len(log)}) is not that of 1 ({len(first)})"
        )


async def live(seed: int, folder: Path, strikes: int | None = None, servers: int | None = None) -> Outcome:
    chance = random.Random(seed)
    servers = servers or chance.choice((1, 3))
    outcome = Outcome(rounds=0)
    names = BrokerProcess(folder / "names", ["--set=broker.name=names"])
    with EtcdCluster(folder, servers) as cluster:
        etcd = Etcd(cluster.urls, "DefaultCluster", "a")
        group = Group(folder, cluster, names)
        try:
            await anyio.to_thread.run_sync(names.start)
            group.make(chance)
            for number in group.replicas:
                await anyio.to_thread.run_sync(group.start, number)
            history = History(outcome, names.namesrv)
            nemesis = Nemesis(group, etcd, chance, outcome)
            async with anyio.create_task_group() as tasks:
                for queue in range(QUEUES):
                    tasks.start_soon(history.produce, f"p{queue}", queue, 0.002)
                tasks.start_soon(history.produce, "q0", 0, 0.01)
                for number in group.replicas:
                    tasks.start_soon(history.read, group, number)
                await anyio.sleep(2)
                for _ in range(strikes or chance.randint(*STRIKES)):
                    await nemesis.strike()
                await anyio.sleep(3)
                history.over = True
            await check(group, etcd, history)
            outcome.notes["longest pause between acknowledgements, ms"] = max(
                outcome.notes["longest pause between acknowledgements, ms"], round(history.longest_gap * 1000)
            )
            if not outcome.failures:
                for process in group.replicas.values():
                    await anyio.to_thread.run_sync(process.stop)
                compare_logs(group, outcome)
        finally:
            for number, process in group.replicas.items():
                group.resume(number)
                process.kill()
            names.kill()
    for number, process in group.replicas.items():
        said = process.log.read_text(errors="replace")
        found = said.find("Traceback")
        outcome.expect(found < 0, "wrong", f"a traceback in the log of replica {number}: {said[found : found + 1500]}")
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
