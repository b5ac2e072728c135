"""One history: three replicas, a coordinator, a producer and readers, and what goes wrong, all decided by a seed.

What must be so at the end is what ``tests/campaign/history.py`` checks of real processes; here the disks, the network
and the time are a simulation (``world.py``), and the brokers are the real ones.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import attrs
import orjson
from anyio.abc import TaskGroup, TaskStatus

from tests.plugins.ha.gateway import Gateway
from tests.plugins.ha.replicas import failover
from tests.plugins.ha.simulated.coordinator import coordinated_by
from tests.plugins.ha.simulated.world import NODE, Loop, LoopClock, Node, run
from verniermq.kernel import (
    Broker,
    Command,
    Connection,
    RemotingError,
    RequestCode,
    RequestRefused,
    ResponseCode,
    connect,
    decode_records,
)
from verniermq.plugins.ha import identity
from verniermq.testing import running_broker

COUNT = 3
QUEUES = 2
TOPIC = "orders"
PATIENCE = 120.0
"""Seconds of the simulation until all is well again after the last blow."""
SETTINGS = {
    "plugins__enable": ["namesrv", "topics", "ha"], "store__segment_size": "16KiB", "store__max_message_size": "4KiB",
    "store__queue_entries": 100, "broker__name": "a", "broker__namesrv": ["127.0.0.1:9"], "plugins__ha__ttl": "2s",
    "plugins__ha__mode": "failover", "plugins__ha__replicas": COUNT, "plugins__ha__metadata_interval": "1s",
    "plugins__ha__switch_grace": "1s", "plugins__ha__drop_after": "3s", "log__level": "error",
}  # fmt: skip


@attrs.define(eq=False)
class Told:
    """A send, and what its producer was told."""

    body: str
    queue: int
    began: float
    ended: float = 0.0
    ok: bool = False
    offset: int = -1
    position: int = -1


@attrs.define(eq=False)
class Life:
    """A replica between a start and a kill."""

    node: Node
    folder: Path
    broker: Broker | None = None
    wanted: anyio.Event = attrs.Factory(anyio.Event)


@attrs.define(eq=False)
class Simulation:
    seed: int
    folder: Path
    loop: Loop
    etcd: Gateway
    tasks: TaskGroup
    chance: random.Random
    lives: dict[int, Life] = attrs.field(factory=dict)
    stores: dict[int, Path] = attrs.field(factory=dict)
    sent: list[Told] = attrs.field(factory=list)
    seen: dict[tuple[int, int], str] = attrs.field(factory=dict)
    leaders: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    """Term → the replica that led it, and in which of its lives."""
    problems: list[str] = attrs.field(factory=list)
    counts: Counter[str] = attrs.field(factory=Counter)
    dark: set[int] = attrs.field(factory=set)
    """Replicas that lost power and are not back in the set."""
    over: bool = False
    connections: dict[int, Connection] = attrs.field(factory=dict)
    _number: int = 0
    flush: str = "async"

    # --- replicas --------------------------------------------------------------------------

    async def start(self, number: int) -> None:
        self._number += 1
        folder = self.stores.setdefault(number, self.folder / f"{number}-0")
        life = self.lives[number] = Life(Node(f"r{number}"), folder)
        await self.tasks.start(self._live, number, life)

    async def _live(self, number: int, life: Life, *, task_status: TaskStatus[None]) -> None:
        NODE.set(life.node)
        if not (life.folder / identity.NAME).exists():
            self._name(life.folder, number)
        port = 20000 + 10 * number
        settings = {
            **SETTINGS, "broker__port": port, "plugins__namesrv__port": port + 5, "plugins__ha__port": port + 1,
            "plugins__ha__replica": number, "plugins__ha__etcd": ["http://127.0.0.1:1"], "store__flush": self.flush,
        }  # fmt: skip
        async with running_broker(life.folder, clock=LoopClock(), **settings) as broker:
            life.broker = broker
            task_status.started()
            await life.wanted.wait()

    def _name(self, folder: Path, number: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = {"replica": number, "store": f"life{self.chance.randrange(1 << 30)}"}
        (folder / identity.NAME).write_bytes(orjson.dumps(name))

    def kill(self, number: int, power: bool = False) -> None:
        """The files stay as they are in this moment; with ``power``, the end of the log that was not synced goes."""
        life = self.lives.pop(number)
        assert life.broker is not None
        self.loop.kill(life.node)
        durable = life.broker.store.durable_end
        target = self.stores[number] = self.folder / f"{number}-{self._number}"
        self._number += 1
        shutil.copytree(life.folder, target)
        life.wanted.set()
        if power:
            self._lose_tail(target, durable)
            self._name(target, number)

    def _lose_tail(self, store: Path, durable: int) -> None:
        whole = self.chance.random() < 0.6
        for path in sorted((store / "commitlog").iterdir()):
            data, start = bytearray(path.read_bytes()), int(path.name)
            first = max(durable - start, 0)
            for at in range(first // 512 * 512, len(data), 512):
                if whole or self.chance.random() < 0.5:
                    begin = max(at, first)
                    data[begin : at + 512] = bytes(max(min(at + 512, len(data)) - begin, 0))
            if first < len(data):
                path.write_bytes(data)

    def brokers(self) -> dict[int, Broker]:
        return {number: life.broker for number, life in self.lives.items() if life.broker is not None}

    def master(self) -> int:
        state = self.etcd.keys().get("state")
        return state["master"] if state else 1

    def other(self) -> int:
        master = self.master()
        return self.chance.choice([number for number in range(1, COUNT + 1) if number != master])

    # --- clients ---------------------------------------------------------------------------

    async def ask(self, number: int, request: Command) -> Command:
        """
        Raises:
            RemotingError: there is no answer.
        """
        connection = self.connections.get(number)
        if connection is None or connection.closed:
            address = f"127.0.0.1:{20000 + 10 * number}"
            connection = self.connections[number] = await connect(address, timeout=2.0, clock=self.loop.time)
        try:
            return await connection.request(request, timeout=4.0)
        except RemotingError:
            connection.abort()
            raise

    async def produce(self, queue: int) -> None:
        number, target = 0, 1
        while not self.over:
            told = Told(f"p{queue}-{number:05d}", queue, self.loop.time())
            number += 1
            self.sent.append(told)
            fields = {
                "a": "producers", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(queue), "f": "0",
                "g": "1600000000000", "h": "0", "i": "", "j": "0",
            }  # fmt: skip
            body = told.body.encode() + bytes(self.chance.choice((0, 200, 2000)))
            try:
                answer = await self.ask(target, Command.request(RequestCode.SEND_MESSAGE_V2, fields, body))
            except RemotingError:
                answer = None
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                told.ok, told.ended, told.offset = True, self.loop.time(), int(answer.ext["queueOffset"])
                told.position = int(answer.ext["msgId"][16:], 16)
            else:
                target = self.chance.randint(1, COUNT)
            await anyio.sleep(self.chance.choice((0.01, 0.1, 0.4)))

    async def read(self, number: int) -> None:
        positions = dict.fromkeys(range(QUEUES), 0)
        while not self.over:
            await anyio.sleep(0.5)
            self._look_at_leaders()
            for queue in range(QUEUES):
                try:
                    for offset, body in await self.pull(number, queue, positions[queue]):
                        self.note(queue, offset, body, number)
                        positions[queue] = offset + 1
                except RemotingError:
                    break

    async def pull(self, number: int, queue: int, offset: int) -> list[tuple[int, str]]:
        fields = {
            "consumerGroup": "readers", "topic": TOPIC, "queueId": str(queue), "queueOffset": str(offset),
            "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
            "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        answer = await self.ask(number, Command.request(RequestCode.PULL_MESSAGE, fields))
        if answer.code != ResponseCode.SUCCESS:
            return []
        return [(found.queue_offset, _text(found.body)) for found in decode_records(answer.body)]

    def note(self, queue: int, offset: int, body: str, where: int) -> None:
        known = self.seen.setdefault((queue, offset), body)
        if known != body:
            self.problems.append(f"queue {queue}[{offset}] was {known} and is {body} at replica {where}")

    def _look_at_leaders(self) -> None:
        for number, life in self.lives.items():
            leader = None if life.broker is None else failover(life.broker).members.leader
            if leader is not None and not leader.over:
                known = self.leaders.setdefault(leader.term, (number, id(life)))
                if known != (number, id(life)):
                    self.problems.append(f"term {leader.term} was led by {known[0]}, and by {number} in another life")

    # --- what goes wrong -------------------------------------------------------------------

    async def strike(self) -> None:
        blows: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "kill master": (4, lambda: self._kill([self.master()])),
            "kill another": (2, lambda: self._kill([self.other()])),
            "kill two": (2, lambda: self._kill([self.master(), self.other()])),
            "kill all": (2, lambda: self._kill(list(range(1, COUNT + 1)))),
            "power cut": (4, self._cut_power),
            "cut off": (5, self._cut_off),
            "one way": (4, self._one_way),
            "no coordinator": (2, self._no_coordinator),
            "answers lost": (3, self._lose_answers),
            "slow disk": (2, self._slow_disk),
            "planned switch": (3, self._switch),
            "all at once": (3, self._all_at_once),
        }
        kind = self.chance.choices(list(blows), [often for often, _ in blows.values()])[0]
        self.counts[kind] += 1
        await blows[kind][1]()
        await anyio.sleep(self.chance.choice((0.05, 0.5, 2.0)))

    async def _kill(self, numbers: list[int], power: bool = False) -> None:
        numbers = [number for number in dict.fromkeys(numbers) if number in self.lives]
        for number in numbers:
            self.kill(number, power)
        await self._for_a_while(2.0)
        for number in self.chance.sample(numbers, len(numbers)):
            await self.start(number)

    async def _for_a_while(self, longest: float) -> None:
        await anyio.sleep(self.chance.uniform(0.0, longest))

    async def _cut_power(self) -> None:
        """With asynchronous flush of one at a time: what is acknowledged may be in memories only."""
        numbers = self.chance.sample(range(1, COUNT + 1), self.chance.randint(1, COUNT))
        if self.flush == "async":
            names = dict(self.etcd.keys().get("state", {"in_sync": []})["in_sync"])
            self.dark = {number for number in self.dark if self._life(number) != names.get(number)}
            if self.dark:
                return
            numbers = numbers[:1]
            self.dark.update(numbers)
        await self._kill(numbers, power=True)

    def _life(self, number: int) -> str:
        return identity.incarnation(self.stores[number], number)

    def _hosts(self) -> list[str]:
        return ["etcd", *(f"r{number}" for number in range(1, COUNT + 1))]

    async def _cut_off(self) -> None:
        one = f"r{self.chance.choice((self.master(), self.master(), self.other()))}"
        others = self.chance.choice(([host for host in self._hosts() if host != one], ["etcd"], ["r1", "r2", "r3"]))
        self.loop.cuts |= {pair for other in others if other != one for pair in ((one, other), (other, one))}
        await self._for_a_while(6.0)
        self.loop.heal()

    async def _one_way(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            one, two = self.chance.sample(self._hosts(), 2)
            self.loop.cuts.add((one, two))
        await self._for_a_while(6.0)
        self.loop.heal()

    async def _no_coordinator(self) -> None:
        self.etcd.set_down(True)
        await self._for_a_while(5.0)
        self.etcd.set_down(False)

    async def _lose_answers(self) -> None:
        chance = self.chance
        self.etcd.lose_answer = lambda path: chance.random() < 0.5
        self.etcd.lose_request = lambda path: chance.random() < 0.2
        await self._for_a_while(4.0)
        self.etcd.lose_answer = self.etcd.lose_request = lambda path: False

    async def _slow_disk(self) -> None:
        host = f"r{self.chance.randint(1, COUNT)}"
        self.loop.slow[host] = self.chance.choice((0.3, 2.0))
        await self._for_a_while(5.0)
        self.loop.slow.pop(host, None)

    async def _switch(self) -> None:
        life = self.lives.get(self.master())
        if life is not None and life.broker is not None:
            switch, to = failover(life.broker).switch, self.other()

            async def work() -> None:
                NODE.set(life.node)
                try:
                    with anyio.move_on_after(10):
                        await switch(to)
                        self.counts["switched"] += 1
                except RequestRefused:
                    pass

            self.tasks.start_soon(work)
            await self._for_a_while(1.0)

    async def _all_at_once(self) -> None:
        async with anyio.create_task_group() as tasks:
            for blow in (self._cut_power, self._one_way, self._lose_answers, self._slow_disk):
                tasks.start_soon(blow)

    # --- what must be so -------------------------------------------------------------------

    def settled(self) -> bool:
        state = self.etcd.keys().get("state")
        if state is None or len(state["in_sync"]) != COUNT or len(self.lives) != COUNT:
            return False
        stores = [broker.store for broker in self.brokers().values()]
        ends = {(store.end, store.dispatched_end) for store in stores}
        return len(ends) == 1 and stores[0].end == stores[0].dispatched_end

    async def check(self) -> None:
        with anyio.move_on_after(PATIENCE):
            while not self.settled():  # noqa: ASYNC110
                await anyio.sleep(0.2)
        if not self.settled():
            ends = {n: (b.store.end, b.store.dispatched_end) for n, b in self.brokers().items()}
            self.problems.append(f"after {PATIENCE:g} s of peace: {self.etcd.keys().get('state')}, {ends}")
            return
        contents = {number: await self._everything(number) for number in self.lives}
        for number, content in contents.items():
            for (queue, offset), body in content.items():
                self.note(queue, offset, body, number)
            there = set(content.values())
            lost = [told.body for told in self.sent if told.ok and told.body not in there]
            if lost:
                self.problems.append(f"replica {number} lacks {lost[:3]}, {len(lost)} in all")
            gone = [place for place in self.seen if place not in content]
            if gone:
                self.problems.append(f"replica {number} lacks {gone[:3]}, which was read, {len(gone)} in all")
            if len(there) < len(content):
                self.problems.append(f"replica {number} has messages twice")
        logs = {self._log(broker) for broker in self.brokers().values()}
        if len(logs) > 1:
            self.problems.append("the logs differ")
        self._check_order()

    def _check_order(self) -> None:
        last: dict[int, int] = {}
        epochs = next(failover(broker).members for broker in self.brokers().values()).epochs
        newest = 0
        done = sorted((told for told in self.sent if told.ok), key=lambda told: told.ended)
        for told in self.sent:
            if not told.ok:
                continue
            if told.offset <= last.get(told.queue, -1):
                self.problems.append(f"{told.body} lies before what was sent earlier")
            last[told.queue] = told.offset
            before = [_term(epochs, other.position) for other in done if other.ended < told.began]
            newest = max(before, default=0)
            if _term(epochs, told.position) < newest:
                self.problems.append(f"{told.body} was acknowledged by an earlier term than {newest}")

    @staticmethod
    def _log(broker: Broker) -> bytes:
        return b"".join([segment.path.read_bytes() for segment in broker.store.segments()]).rstrip(b"\0")

    async def _everything(self, number: int) -> dict[tuple[int, int], str]:
        found: dict[tuple[int, int], str] = {}
        for queue in range(QUEUES):
            position = 0
            while read := await self.pull(number, queue, position):
                found.update({(queue, offset): body for offset, body in read})
                position = read[-1][0] + 1
        return found


def _term(epochs: Any, position: int) -> int:
    return max((term for term, start in epochs if start <= position), default=0)


def _text(body: bytes) -> str:
    return body.rstrip(b"\0").decode()


async def _history(seed: int, folder: Path, blows: int) -> Simulation:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    loop.set_exception_handler(lambda loop, context: None)  # of tasks that end with the world
    etcd = Gateway()
    async with anyio.create_task_group() as tasks, coordinated_by(etcd):
        NODE.set(Node("clients"))
        simulation = Simulation(seed, folder, loop, etcd, tasks, loop.chance)
        simulation.flush = loop.chance.choice(("async", "async", "sync"))
        for number in range(1, COUNT + 1):
            await simulation.start(number)
        async with anyio.create_task_group() as clients:
            for queue in range(QUEUES):
                clients.start_soon(simulation.produce, queue)
            for number in range(1, COUNT + 1):
                clients.start_soon(simulation.read, number)
            await anyio.sleep(1.0)
            for _ in range(blows):
                await simulation.strike()
            await anyio.sleep(2.0)
            simulation.over = True
        await simulation.check()
        for life in simulation.lives.values():
            life.wanted.set()
    return simulation


def history(seed: int, blows: int = 4) -> Simulation:
    """Run one, and see what it came to: :attr:`Simulation.problems` is empty if all is well."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="simulated-", dir=memory if memory.is_dir() else None) as folder:
        found: Simulation = run(lambda: _history(seed, Path(folder), blows), seed)
    return found
