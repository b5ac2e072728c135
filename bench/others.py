"""VernierMQ beside other brokers that people choose from: NATS JetStream, Redis Streams and RabbitMQ.

``python bench/others.py`` starts one broker after the other, each with its own defaults and its own kind of durability,
and drives it by its own Python client from one process: messages that are sent, each acknowledged, with a window on the
way; a backlog that is received, each message acknowledged; and the time from send to receive at a steady rate. With
``--keep`` it writes ``others.json`` and ``others-table.md`` into ``bench/results/``.

A broker that is not installed is left out, and said so. ``nats-server`` comes by ``go install
github.com/nats-io/nats-server/v2@latest``, Redis and RabbitMQ by a distribution's packages ``redis-server`` and
``rabbitmq-server``, the clients by ``pip install nats-py redis pika``.

A client in Python is often what is measured: the columns with the microseconds of CPU that a message costs broker and
client tell which of the two it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import attrs
import click

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
# ruff: noqa: E402

from sidebyside.machine import cpu_seconds, description, memory

from tests.interop.processes import LOOPBACK, free_ports

WINDOW = 512
"""Messages on the way."""
STAMP = 8
"""Bytes at the beginning of a body: when it was due, in nanoseconds."""

Take = Callable[[bytes], None]


@attrs.define
class Figures:
    start: float = 0.0
    idle: float = 0.0
    loaded: float = 0.0
    sent: float = 0.0
    send_broker_cpu: float = 0.0
    send_client_cpu: float = 0.0
    received: float = 0.0
    receive_broker_cpu: float = 0.0
    receive_client_cpu: float = 0.0
    p50: float = 0.0
    p99: float = 0.0


@attrs.define
class Peer:
    """One broker in a process of its own, and a client of it."""

    title: ClassVar[str]
    client: ClassVar[str]
    durability: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    """Programs, and modules with a dot before their names."""

    folder: Path
    port: int = attrs.field(factory=free_ports)
    process: Any = None
    receives: bool = False

    @classmethod
    def missing(cls) -> list[str]:
        return [
            need.removeprefix(".")
            for need in cls.needs
            if (find_spec(need[1:]) is None if need.startswith(".") else shutil.which(need) is None)
        ]

    def launch(self) -> None:
        with (self.folder / "broker.log").open("wb") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, cwd=self.folder, env={**os.environ, **self.environment()},
                start_new_session=True,
            )  # fmt: skip

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    @property
    def pids(self) -> list[int]:
        """The process and all that it started."""
        found, waiting = [], [self.process.pid]
        while waiting:
            pid = waiting.pop()
            found.append(pid)
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                waiting += map(int, task.read_text().split())
        return found

    def stop(self) -> None:
        for pid in reversed(self.pids):
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        self.process.wait()

    # What a client does. A topic is a stream, a queue or whatever the broker calls it.

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def create(self, topic: str) -> None: ...

    async def send(self, topic: str, body: bytes) -> None:
        """Have a message on its way, waiting only while the window is full."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Wait until all are acknowledged."""
        raise NotImplementedError

    @asynccontextmanager
    async def receiving(self, topic: str, take: Take) -> AsyncIterator[None]:
        """Hand each message of a topic, from its first one on, to ``take``, and acknowledge it."""
        raise NotImplementedError
        yield

    @asynccontextmanager
    async def _beside(self, work: Callable[[], Any]) -> AsyncIterator[None]:
        """Run what receives, and have it end by itself: not every client bears to be cancelled."""
        self.receives = True
        async with asyncio.TaskGroup() as tasks:  # what fails there ends what waits here
            tasks.create_task(work())
            yield
            self.receives = False


class VernierMQ(Peer):
    title = "VernierMQ"
    client = "its own"
    durability = "in the page cache at once, on the disk within half a second"
    needs = ()

    def command(self) -> list[str]:
        self.namesrv = free_ports()
        return [
            sys.executable, "-m", "verniermq.cli", "broker", "--port", str(self.port),
            "--namesrv-port", str(self.namesrv), "--store", str(self.folder / "store"),
        ]  # fmt: skip

    async def open(self) -> None:
        from verniermq.client import Admin, Producer

        where = f"{LOOPBACK}:{self.namesrv}"
        self._admin = Admin(namesrv=where)
        await self._admin.__aenter__()
        self._producer = Producer("bench", namesrv=where, max_in_flight=WINDOW, send_timeout=30)
        await self._producer.__aenter__()

    async def close(self) -> None:
        await self._producer.__aexit__(None, None, None)
        await self._admin.__aexit__(None, None, None)

    async def create(self, topic: str) -> None:
        from verniermq.client import Message

        await self._admin.create_topic(topic, queues=8)
        await self._producer.send(Message(topic, bytes(STAMP)))

    async def send(self, topic: str, body: bytes) -> None:
        from verniermq.client import Message

        await self._producer.submit(Message(topic, body), callback=_check)

    async def flush(self) -> None:
        await self._producer.flush()

    @asynccontextmanager
    async def receiving(self, topic: str, take: Take) -> AsyncIterator[None]:
        from verniermq.client import PushConsumer

        consumer = PushConsumer(f"{topic}-readers", namesrv=f"{LOOPBACK}:{self.namesrv}", start="first")
        consumer.subscribe(topic)

        @consumer.on_message
        async def hear(message: Any) -> None:
            take(message.body)

        async with consumer:
            yield


def _check(result: object, error: BaseException | None) -> None:
    if error is not None:
        raise error


class Nats(Peer):
    title = "NATS JetStream"
    client = "nats-py"
    durability = "file storage; synced every two minutes"
    needs = ("nats-server", ".nats")

    def command(self) -> list[str]:
        return ["nats-server", "-a", LOOPBACK, "-p", str(self.port), "-js", "-sd", str(self.folder / "store")]

    async def open(self) -> None:
        import nats

        self._connection = await nats.connect(f"nats://{LOOPBACK}:{self.port}", max_reconnect_attempts=0)
        self._stream = self._connection.jetstream(publish_async_max_pending=WINDOW, timeout=30)

    async def close(self) -> None:
        await self._connection.close()

    async def create(self, topic: str) -> None:
        await self._stream.add_stream(name=topic, subjects=[topic])

    async def send(self, topic: str, body: bytes) -> None:
        await self._stream.publish_async(topic, body, wait_stall=30)

    async def flush(self) -> None:
        await self._stream.publish_async_completed()

    @asynccontextmanager
    async def receiving(self, topic: str, take: Take) -> AsyncIterator[None]:
        subscription = await self._stream.pull_subscribe(topic, durable=f"{topic}-readers")

        async def pull() -> None:
            while self.receives:
                try:
                    messages = await subscription.fetch(256, timeout=0.2)
                except TimeoutError:
                    continue
                for message in messages:
                    take(message.data)
                    await message.ack()

        async with self._beside(pull):
            yield


class Redis(Peer):
    title = "Redis Streams"
    client = "redis-py"
    durability = "append-only file; synced every second"
    needs = ("redis-server", ".redis")

    def command(self) -> list[str]:
        return [
            "redis-server", "--bind", LOOPBACK, "--port", str(self.port), "--dir", str(self.folder),
            "--appendonly", "yes", "--appendfsync", "everysec", "--save", "",
        ]  # fmt: skip

    async def open(self) -> None:
        import redis.asyncio

        self._redis = redis.asyncio.Redis(host=LOOPBACK, port=self.port, protocol=2)
        await self._redis.ping()
        self._batch: list[tuple[str, bytes]] = []
        self._under_way: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        await self._redis.aclose()

    async def create(self, topic: str) -> None:
        await self._redis.xgroup_create(topic, "readers", id="0", mkstream=True)

    async def send(self, topic: str, body: bytes) -> None:
        """Its client has one request at a time on a connection, or several as a pipeline: eight pipelines of 64."""
        self._batch.append((topic, body))
        if len(self._batch) >= WINDOW // 8:
            await self._pipeline()

    async def _pipeline(self) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for topic, body in self._batch:
            pipeline.xadd(topic, {"b": body})
        self._batch = []
        if len(self._under_way) >= 8:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.ensure_future(pipeline.execute())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def flush(self) -> None:
        if self._batch:
            await self._pipeline()
        while self._under_way:
            await asyncio.wait(self._under_way)

    @asynccontextmanager
    async def receiving(self, topic: str, take: Take) -> AsyncIterator[None]:
        async def read() -> None:
            while self.receives:
                found = await self._redis.xreadgroup("readers", "one", {topic: ">"}, count=256, block=200)
                for _, messages in found or ():
                    for _, fields in messages:
                        take(fields[b"b"])
                    await self._redis.xack(topic, "readers", *[number for number, _ in messages])

        async with self._beside(read):
            yield


class RabbitMQ(Peer):
    title = "RabbitMQ"
    client = "pika"
    durability = "durable classic queue, persistent messages, publisher confirms: on the disk before the confirm"
    needs = ("/usr/lib/rabbitmq/bin/rabbitmq-server", ".pika")

    def command(self) -> list[str]:
        return ["/usr/lib/rabbitmq/bin/rabbitmq-server"]

    def environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder), "RABBITMQ_MNESIA_BASE": str(self.folder / "store"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"), "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK, "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_ports()), "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "none"), "ERL_EPMD_PORT": str(free_ports()),
        }  # fmt: skip

    async def open(self) -> None:
        import pika
        from pika.adapters.asyncio_connection import AsyncioConnection

        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()

        def settle(setting: Callable[[Any], None], value: Any) -> None:
            if not opened.done():
                setting(value)

        AsyncioConnection(
            pika.ConnectionParameters(LOOPBACK, self.port, connection_attempts=1, heartbeat=0),
            on_open_callback=lambda connection: settle(opened.set_result, connection),
            on_open_error_callback=lambda _, error: settle(opened.set_exception, ConnectionError(repr(error))),
            on_close_callback=lambda *_: None,
            custom_ioloop=loop,
        )
        self._connection = await opened
        self._channel = await self._call(lambda done: self._connection.channel(on_open_callback=done))
        self._sent = self._confirmed = 0
        self._room = asyncio.Event()
        await self._call(lambda done: self._channel.confirm_delivery(self._confirm, callback=done))
        self._persistent = pika.BasicProperties(delivery_mode=2)

    @staticmethod
    async def _call(ask: Callable[[Callable[[Any], None]], object]) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ask(answer.set_result)
        return await answer

    def _confirm(self, frame: Any) -> None:
        self._confirmed = max(self._confirmed, frame.method.delivery_tag)
        self._room.set()

    async def close(self) -> None:
        self._connection.close()
        await asyncio.sleep(0.1)

    async def create(self, topic: str) -> None:
        await self._call(lambda done: self._channel.queue_declare(topic, durable=True, callback=done))

    async def send(self, topic: str, body: bytes) -> None:
        while self._sent - self._confirmed >= WINDOW:
            await self._wait()
        self._channel.basic_publish("", topic, body, self._persistent)
        self._sent += 1

    async def _wait(self) -> None:
        self._room.clear()
        await self._room.wait()

    async def flush(self) -> None:
        while self._confirmed < self._sent:
            await self._wait()

    @asynccontextmanager
    async def receiving(self, topic: str, take: Take) -> AsyncIterator[None]:
        channel = await self._call(lambda done: self._connection.channel(on_open_callback=done))
        await self._call(lambda done: channel.basic_qos(prefetch_count=WINDOW, callback=done))

        def hear(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            take(body)
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume(topic, hear)
        yield
        channel.close()


PEERS: tuple[type[Peer], ...] = (VernierMQ, Nats, Redis, RabbitMQ)


@attrs.frozen
class Extent:
    size: int
    seconds: float
    rate: int


async def measure(kind: type[Peer], extent: Extent) -> Figures:
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="verniermq-bench-", ignore_cleanup_errors=True) as folder:
        peer = kind(Path(folder))
        began = time.perf_counter()
        peer.launch()
        try:
            await _until_open(peer, began + 120)
            await peer.create("first")
            await peer.send("first", bytes(STAMP))
            await peer.flush()
            figures.start = time.perf_counter() - began
            await asyncio.sleep(1)
            figures.idle = memory(peer.pids).resident
            count = await _sends(peer, extent, figures)
            await _receives(peer, count, figures)
            await _latency(peer, extent, figures)
            figures.loaded = memory(peer.pids).resident
            await peer.close()
        finally:
            peer.stop()
    return figures


async def _until_open(peer: Peer, deadline: float) -> None:
    while True:
        try:
            return await peer.open()
        except Exception:
            if time.perf_counter() > deadline or peer.process.poll() is not None:
                raise
            await asyncio.sleep(0.05)


async def _sends(peer: Peer, extent: Extent, figures: Figures) -> int:
    await peer.create("load")
    body = bytes(STAMP) + b"x" * (extent.size - STAMP)
    for _ in range(WINDOW):
        await peer.send("load", body)
    await peer.flush()
    cpu, own, began = cpu_seconds(peer.pids), time.process_time(), time.perf_counter()
    count = 0
    while time.perf_counter() - began < extent.seconds:
        for _ in range(100):
            await peer.send("load", body)
        count += 100
    await peer.flush()
    figures.sent = count / (time.perf_counter() - began)
    figures.send_client_cpu = (time.process_time() - own) / count * 1e6
    figures.send_broker_cpu = (cpu_seconds(peer.pids) - cpu) / count * 1e6
    return count + WINDOW


async def _receives(peer: Peer, count: int, figures: Figures) -> None:
    seen, enough = 0, asyncio.Event()
    began = cpu = own = 0.0

    def take(body: bytes) -> None:
        nonlocal seen, began, own, cpu
        if not seen:
            cpu, own, began = cpu_seconds(peer.pids), time.process_time(), time.perf_counter()
        seen += 1
        if seen == count:
            enough.set()

    async with peer.receiving("load", take):
        await asyncio.wait_for(enough.wait(), 300)
        figures.received = count / (time.perf_counter() - began)
        figures.receive_client_cpu = (time.process_time() - own) / count * 1e6
        figures.receive_broker_cpu = (cpu_seconds(peer.pids) - cpu) / count * 1e6


async def _latency(peer: Peer, extent: Extent, figures: Figures) -> None:
    await peer.create("steady")
    took: list[float] = []

    def take(body: bytes) -> None:
        due = int.from_bytes(body[:STAMP], "big")
        if due:
            took.append((time.perf_counter_ns() - due) / 1e6)

    async with peer.receiving("steady", take):
        await asyncio.sleep(0.5)
        began = time.perf_counter_ns()
        count = int(extent.rate * extent.seconds)
        for number in range(count):
            due = began + number * 1_000_000_000 // extent.rate
            if (early := due - time.perf_counter_ns()) > 0:
                await peer.flush() if early > 50_000_000 else await asyncio.sleep(early / 1e9)
            await peer.send("steady", due.to_bytes(STAMP, "big") + b"x" * (extent.size - STAMP))
            if isinstance(peer, Redis):
                await peer.flush()  # a pipeline would wait for its others
        await peer.flush()
        deadline = time.perf_counter() + 30
        while len(took) < count and time.perf_counter() < deadline:  # noqa: ASYNC110 - an event costs each message
            await asyncio.sleep(0.01)
    took = sorted(took[len(took) // 10 :])
    figures.p50, figures.p99 = took[len(took) // 2], took[len(took) * 99 // 100]


def version_of(kind: type[Peer]) -> str:
    commands = {
        Nats: ["nats-server", "--version"], Redis: ["redis-server", "--version"],
        RabbitMQ: ["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"],
    }  # fmt: skip
    if kind not in commands:
        return description()["verniermq"].split()[0]
    text = subprocess.run(commands[kind], capture_output=True, text=True).stdout
    found = re.search(r"\d+\.\d+\.\d+", text)
    return found[0] if found else "unknown"


def markdown(results: dict[str, dict[str, Any]], extent: Extent, facts: dict[str, str], day: str) -> str:
    out = [
        f"Measured on {day} by `bench/others.py`, messages of {extent.size} bytes, {extent.seconds:g} s each, {WINDOW} "
        f"on the way; {facts['processors']}, {facts['system']}, {facts['python']} ({facts['path']} path); client and "
        "broker share the processors.",
        "",
        "| | sent/s | CPU of broker + client | received/s | CPU of broker + client | send to receive "
        f"at {extent.rate:,}/s, p50 / p99 | start | memory idle / after | client | durability |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for title, one in results.items():
        f = Figures(**one["figures"])
        out.append(
            f"| {title} {one['version']} | {f.sent:,.0f} | {f.send_broker_cpu:.1f} + {f.send_client_cpu:.1f} µs "
            f"| {f.received:,.0f} | {f.receive_broker_cpu:.1f} + {f.receive_client_cpu:.1f} µs "
            f"| {f.p50:.2f} / {f.p99:.2f} ms | {f.start:.2f} s | {f.idle:,.0f} / {f.loaded:,.0f} MiB | {one['client']} "
            f"| {one['durability']} |"
        )
    return "\n".join([*out, ""])


@click.command(help=__doc__)
@click.option("--size", default=256, show_default=True, help="Bytes of a message.")
@click.option("--seconds", default=5.0, show_default=True, help="Of sending, and of the steady rate.")
@click.option("--rate", default=2000, show_default=True, help="Messages a second of the steady rate.")
@click.option("--only", default="", help="Names of brokers, with commas.")
@click.option("--keep", is_flag=True, help="Write the figures to bench/results/.")
def main(size: int, seconds: float, rate: int, only: str, keep: bool) -> None:
    extent = Extent(size, seconds, rate)
    results: dict[str, dict[str, Any]] = {}
    for kind in PEERS:
        if only and not any(name.lower() in kind.title.lower() for name in only.split(",")):
            continue
        if missing := kind.missing():
            click.echo(f"{kind.title} is left out: there is no {' and no '.join(missing)}")
            continue
        figures = asyncio.run(measure(kind, extent))
        results[kind.title] = {
            "version": version_of(kind), "client": kind.client, "durability": kind.durability,
            "figures": attrs.asdict(figures),
        }  # fmt: skip
        click.echo(f"{kind.title}: {figures}")
    facts, now = description(), datetime.now(UTC)
    table = markdown(results, extent, facts, now.date().isoformat())
    click.echo(table)
    if keep:
        whole = {
            "measured": now.isoformat(timespec="seconds"),
            "machine": facts,
            **attrs.asdict(extent),
            "brokers": results,
        }
        (HERE / "results" / "others.json").write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
        (HERE / "results" / "others-table.md").write_text(table)


if __name__ == "__main__":
    main()
