"""How fast the Python client is, against VernierMQ's broker and, with ``--apache``, against Apache's in the same run.

``python bench/client.py`` starts a broker in a process of its own and measures with 256-byte messages from one process:

- sends: ``submit``, many under way at a time
- one by one: ``send``, each waiting for its answer, with the median and the 99th percentile
- consumed: a push consumer with an async handler that does nothing, over a backlog

Each figure is the best of ``--rounds``. "µs of CPU" is what this process itself spends on a message: it tells what the
client could do with a core to itself. ``--java`` has Apache's Java client do the same in the same run. ``--forgetful``
adds a broker that stores nothing: how fast the client sends when the broker is not what it waits for. ``--profile``
measures one round only, for a profiler to look at.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from pathlib import Path

import anyio
import attrs
import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # the interop suite's Apache broker

from verniermq.client import Admin, Message, Producer, PushConsumer, ReceivedMessage, SendResult
from verniermq.kernel.loop import backend_options
from verniermq.testing import broker_process

QUEUES = 8
JAVA = "java5"
COLUMNS = ("client → broker", "sends/s", "µs of CPU", "one by one/s", "p50 ms", "p99 ms", "consumed/s", "µs of CPU")


DIGITS = {"sends": 0, "send_cpu": 1, "waiting": 0, "p50": 2, "p99": 2, "consumed": 0, "consume_cpu": 1}
"""The fields of :class:`Figures` in the order of the columns."""


@attrs.define
class Figures:
    """One round against one broker."""

    sends: float = 0.0
    send_cpu: float = 0.0
    waiting: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    consumed: float = 0.0
    consume_cpu: float = 0.0

    def best(self, other: Figures) -> Figures:
        better = {"sends": max, "waiting": max, "consumed": max}
        names = [field.name for field in attrs.fields(Figures)]
        return Figures(*[better.get(n, min)(getattr(self, n), getattr(other, n)) for n in names])


async def measure(namesrv: str, topic: str, count: int, size: int, in_flight: int, *, keeps: bool = True) -> Figures:
    figures = Figures()
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=QUEUES)
    body = b"x" * size
    async with Producer("bench", namesrv=namesrv, max_in_flight=in_flight, send_timeout=30) as producer:
        for _ in range(QUEUES):
            await producer.send(Message(topic, body))
        await send_many(producer, topic, body, count, figures)
        await send_one_by_one(producer, topic, body, min(count // 20, 3000), figures)
    if keeps:
        await consume(namesrv, topic, count, figures)
    return figures


async def send_many(producer: Producer, topic: str, body: bytes, count: int, figures: Figures) -> None:
    started, cpu = time.perf_counter(), time.process_time()
    answered: Counter[str] = Counter()

    def note(result: SendResult | None, error: BaseException | None) -> None:
        answered["failed" if result is None else result.status.name] += 1

    for _ in range(count):
        await producer.submit(Message(topic, body), callback=note)
    await producer.flush()
    await asyncio.sleep(0)
    figures.sends = count / (time.perf_counter() - started)
    figures.send_cpu = (time.process_time() - cpu) / count * 1e6
    assert answered == {"SEND_OK": count}, answered


async def send_one_by_one(producer: Producer, topic: str, body: bytes, count: int, figures: Figures) -> None:
    took = []
    for _ in range(count):
        started = time.perf_counter()
        await producer.send(Message(topic, body))
        took.append(time.perf_counter() - started)
    took.sort()
    figures.waiting = count / sum(took)
    figures.p50, figures.p99 = took[count // 2] * 1e3, took[count * 99 // 100] * 1e3


async def consume(namesrv: str, topic: str, count: int, figures: Figures) -> None:
    consumer = PushConsumer(f"{topic}-readers", namesrv=namesrv, start="first")
    consumer.subscribe(topic)
    seen = 0
    enough = asyncio.Event()
    began = [0.0, 0.0]

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        nonlocal seen
        if not seen:
            began[:] = time.perf_counter(), time.process_time()
        seen += 1
        if seen == count:
            enough.set()

    async with consumer:
        await enough.wait()
        figures.consumed = count / (time.perf_counter() - began[0])
        figures.consume_cpu = (time.process_time() - began[1]) / count * 1e6


def run_java(namesrv: str, topic: str, count: int, size: int, in_flight: int) -> Figures:
    """Apache's Java client against the same broker; its CPU time is spread over many threads and not shown."""
    from tests.interop.drivers import Driver
    from tests.interop.toolchains import driver_command

    with tempfile.TemporaryDirectory() as folder:
        driver = Driver("java", driver_command(JAVA), Path(folder))
        done = driver.start("bench", namesrv=namesrv, topic=topic, count=count, size=size, in_flight=in_flight).finish(
            600
        )
        (event,) = done.events("figures")
    names = ("sends", "waiting", "p50", "p99", "consumed")
    return Figures(**{name: float(event[name]) for name in names})


@contextmanager
def apache() -> Iterator[str]:
    from tests.interop.apache import ApacheBroker

    # By default it refuses a send that has waited for 200 ms, which on a busy machine is no measure of anything.
    patient = {"waitTimeMillsInSendQueue": "10000"}
    with tempfile.TemporaryDirectory() as folder, ApacheBroker(Path(folder), properties=patient) as broker:
        yield broker.namesrv


@contextmanager
def verniermq() -> Iterator[str]:
    with broker_process() as process:
        yield process.namesrv


@contextmanager
def forgetful() -> Iterator[str]:
    plugins = f"plugins.enable=default,{Path(__file__).parent / 'forgetful.py'}"
    with broker_process(None, "--set", plugins) as process:
        yield process.namesrv


def run(namesrv: str, topic: str, count: int, size: int, in_flight: int, *, keeps: bool = True) -> Figures:
    return anyio.run(
        partial(measure, namesrv, topic, count, size, in_flight, keeps=keeps), backend_options=backend_options()
    )


def shown(figure: float, digits: int) -> str:
    return f"{figure:,.{digits}f}" if figure else "–"


@click.command()
@click.option("--apache", "with_apache", is_flag=True, help="Measure against Apache's broker too.")
@click.option("--java", "with_java", is_flag=True, help="Let Apache's Java client do the same.")
@click.option("--forgetful", "with_forgetful", is_flag=True, help="Measure sends to a broker that stores nothing too.")
@click.option("--messages", "count", default=50_000, show_default=True)
@click.option("--size", default=256, show_default=True, help="Bytes of a body.")
@click.option("--in-flight", default=512, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--profile", is_flag=True, help="One round, VernierMQ only.")
def main(
    with_apache: bool, with_java: bool, with_forgetful: bool, count: int, size: int, in_flight: int, rounds: int,
    profile: bool,
) -> None:  # fmt: skip
    """Measure the Python client."""
    targets = {"VernierMQ": verniermq} | ({"Apache": apache} if with_apache and not profile else {})
    clients = {"Python": run} | ({"Java": run_java} if with_java and not profile else {})
    table = Table(title=f"{count:,} messages of {size} bytes, {QUEUES} queues, {in_flight} under way")
    for column in COLUMNS:
        table.add_column(column, justify="left" if "→" in column else "right", no_wrap=True)
    with ExitStack() as stack:
        running = {name: stack.enter_context(start()) for name, start in targets.items()}
        best: dict[str, Figures] = {}
        # The brokers take turns, so that whatever else the machine does meets both.
        for number in range(1 if profile else rounds):
            for broker, namesrv in running.items():
                for client, drive in clients.items():
                    figures = drive(namesrv, f"bench-{client}-{number}", count, size, in_flight)
                    name = f"{client} → {broker}"
                    best[name] = best[name].best(figures) if name in best else figures
    if with_forgetful:
        with forgetful() as namesrv:
            rates = [run(namesrv, f"bench-{number}", count, size, in_flight, keeps=False) for number in range(rounds)]
        best["Python → a broker that forgets"] = reduce(Figures.best, rates)
    for name, f in best.items():
        table.add_row(name, *[shown(getattr(f, field), digits) for field, digits in DIGITS.items()])
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
