"""Three real brokers and real producers in a bad few seconds: how many sends each strategy tried on each broker.

    broker-a   well all the time
    broker-b   slow from second 1 to 4: its answers take half a second
    broker-c   dead from second 2 to 5: connections break and are refused

The brokers stand behind relays, which make them slow and dead for their clients, as a bad network would. One producer
per strategy sends every 20 ms, all five at the same time. ``python -m tests.plugins.fault.measured`` draws what
it measured into docs/plugins/fault-measured.svg.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import ClassVar, Final

import anyio
import attrs

from tests.plugins.fault.simulation import BROKERS, STRATEGIES, Tries, draw
from verniermq.client import Admin, Message, Producer
from verniermq.kernel import Broker, ClientContext, Declaration, FaultStrategy, MessageQueue, VernierMQError, hookimpl
from verniermq.plugins.fault import Config, make_strategy
from verniermq.testing import running_broker
from verniermq.testing.ports import held_port

SLOW: Final = (1.0, 4.0)
DEAD: Final = (2.0, 5.0)
DURATION: Final = 8.0
SEND_EVERY: Final = 0.02
SLOW_BY: Final = 0.5
STEP: Final = 0.1

SETTINGS: Final = {
    # As the defaults, with shorter times: the whole misery lasts four seconds.
    "latency": {"steps_ms": [50, 100, 400, 1000], "rests_ms": [0, 0, 300, 1000], "failure_counts_as_ms": 1000},
    "timeout": {"avoid_ms": 1500, "clean_every_ms": 100, "slow_ms": 300},
    "flag": {"reset_every_ms": 1000, "slow_ms": 300},
    "fewest_failures": {"halve_every_ms": 700, "slow_ms": 300},
}


class Relay:
    """Stands between clients and a broker: passes everything on, late if it is slow, not at all if it is dead."""

    def __init__(self) -> None:
        self.port = held_port(self)
        self.delay = 0.0
        self._target = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, target: int | None = None) -> None:
        """Listen, on the same port as before."""
        self._target = target or self._target
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def lead_to(self, target: int) -> None:
        self._target = target

    def die(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, broker_writer}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._pump, reader, broker_writer, False)
            tasks.start_soon(self._pump, broker_reader, writer, True)
        self._writers -= {writer, broker_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        """Bytes in, bytes out; answers of a slow broker come late, each by the same time, in their order."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while data := await reader.read(65536):
                if answers and self.delay:
                    loop.call_later(self.delay, writer.write, data)
                else:
                    writer.write(data)
        writer.close()


@attrs.define
class Cluster:
    namesrv: str
    brokers: dict[str, Broker]
    relays: dict[str, Relay]


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    """Three brokers under one name server, each behind its relay."""
    async with AsyncExitStack() as stack:
        brokers: dict[str, Broker] = {}
        relays: dict[str, Relay] = {}
        namesrv: list[str] = []
        for name in BROKERS:
            relay = relays[name] = Relay()
            await relay.start()
            stack.callback(relay.die)
            broker = brokers[name] = await stack.enter_async_context(
                running_broker(
                    broker__name=name, broker__advertise=f"127.0.0.1:{relay.port}", broker__namesrv=namesrv[:1]
                )
            )
            relay.lead_to(broker.server.addresses[0][1])
            namesrv += broker.name_servers
        async with Admin(namesrv=namesrv[0]) as admin:
            await admin.create_topic("orders", queues=4)
        yield Cluster(namesrv[0], brokers, relays)


class Recording:
    """A strategy that writes down where and when it was asked to send."""

    def __init__(self, strategy: FaultStrategy) -> None:
        self._strategy = strategy
        self.tries: list[tuple[float, str]] = []

    def choose(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        queue = self._strategy.choose(queues, last_broker)
        self.tries.append((time.monotonic(), queue.broker_name))
        return queue

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, reachable: bool = True) -> None:
        self._strategy.record(broker_name, latency_ms, failed=failed, reachable=reachable)


@attrs.define(eq=False)
class Plugin:
    """Makes the strategies of ``fault``, by the names ``recorded latency`` and so on."""

    declaration: ClassVar = Declaration(api=1, config=Config, summary="Fault strategies that can be looked at.")
    config: Config
    client: ClientContext
    made: Recording | None = attrs.field(default=None, init=False)

    @hookimpl
    def fault_strategy(self, name: str) -> FaultStrategy | None:
        strategy = make_strategy(name.removeprefix("recorded "), self.config)
        if not name.startswith("recorded ") or strategy is None:
            return None
        self.made = Recording(strategy)
        return self.made


def recording_producer(namesrv: str, strategy: str) -> Producer:
    plugins = {"enable": ["recorded"], "recorded.from": "tests.plugins.fault.measured:Plugin"}
    plugins |= {f"recorded.{name}": table for name, table in SETTINGS.items()}  # type: ignore[misc]
    return Producer(
        f"with-{strategy}", namesrv=namesrv, fault=f"recorded {strategy}", plugins=plugins, retries=2,
        send_timeout=30, instance=strategy,
    )  # fmt: skip


@attrs.define
class Outcome:
    """Of one strategy."""

    tries: list[tuple[float, str]]
    """Seconds since the start, and the broker."""
    sent: int = 0
    failed: int = 0

    def share(self, broker: str, begin: float, end: float) -> float:
        """The part of the tries between two moments that a broker got."""
        within = [name for moment, name in self.tries if begin <= moment < end]
        return within.count(broker) / max(1, len(within))

    def steps(self) -> dict[str, list[int]]:
        counts = {broker: [0] * round(DURATION / STEP) for broker in BROKERS}
        for moment, broker in self.tries:
            if moment < DURATION:
                counts[broker][int(moment / STEP)] += 1
        return counts


@attrs.define
class Pauses:
    """How long nothing at all went on in this process, at most: brokers look slow then that are not."""

    longest: float = 0.0

    async def watch(self) -> None:
        while True:
            before = time.monotonic()
            await anyio.sleep(SEND_EVERY)
            self.longest = max(self.longest, time.monotonic() - before - SEND_EVERY)


async def measure(pauses: Pauses) -> dict[str, Outcome]:
    """Live through it, with a producer of each strategy."""
    outcomes: dict[str, Outcome] = {}
    async with cluster() as bad, AsyncExitStack() as stack:
        producers = {}
        for name in STRATEGIES:
            producer = producers[name] = await stack.enter_async_context(recording_producer(bad.namesrv, name))
            for _ in range(12):
                await producer.send(Message("orders", b"first"))
        started = time.monotonic()
        async with anyio.create_task_group() as watching:
            watching.start_soon(pauses.watch)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_bad_times, bad)
                for name, producer in producers.items():
                    outcomes[name] = Outcome([])
                    tasks.start_soon(_produce, producer, outcomes[name], started)
            watching.cancel_scope.cancel()
        for name, producer in producers.items():
            made = producer.host.active["recorded"].instance.made
            outcomes[name].tries = [(moment - started, broker) for moment, broker in made.tries if moment >= started]
    return outcomes


async def _bad_times(bad: Cluster) -> None:
    await anyio.sleep(SLOW[0])
    bad.relays["broker-b"].delay = SLOW_BY
    await anyio.sleep(DEAD[0] - SLOW[0])
    bad.relays["broker-c"].die()
    await anyio.sleep(SLOW[1] - DEAD[0])
    bad.relays["broker-b"].delay = 0
    await anyio.sleep(DEAD[1] - SLOW[1])
    await bad.relays["broker-c"].start()


async def _produce(producer: Producer, outcome: Outcome, started: float) -> None:
    async def one() -> None:
        try:
            await producer.send(Message("orders", b"x"))
            outcome.sent += 1
        except VernierMQError:
            outcome.failed += 1

    async with anyio.create_task_group() as tasks:
        for number in range(round(DURATION / SEND_EVERY)):
            await anyio.sleep(max(0, started + number * SEND_EVERY - time.monotonic()))
            tasks.start_soon(one)


def picture(tries: Tries) -> str:
    slow, dead = (range(round(begin / STEP), round(end / STEP)) for begin, end in (SLOW, DEAD))
    marks = [f"{second} s" for second in range(round(DURATION) + 1)]
    return draw(tries, slow, dead, marks, "tries per tenth of a second")


if __name__ == "__main__":
    measured = anyio.run(measure, Pauses())
    for name, outcome in measured.items():
        print(f"{name:16} sent {outcome.sent}, failed {outcome.failed}, tries {len(outcome.tries)}")
    Path("docs/plugins/fault-measured.svg").write_text(
        picture({name: outcome.steps() for name, outcome in measured.items()}), encoding="utf-8"
    )
