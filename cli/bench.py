"""``verniermq bench``: how fast a cluster takes and gives messages, seen from here. Works on Apache's brokers too.

One process of Python is the client, so a fast cluster is not at its end when this one is: start several at a time.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import anyio
import attrs
import click

from verniermq.cli.client import connection, json_option, namesrv_option, print_json, run
from verniermq.client.admin import Admin
from verniermq.client.consumer.pull import PullConsumer
from verniermq.client.errors import ClientError, NoRoute
from verniermq.client.message import ReceivedMessage
from verniermq.client.options import ConnectionOptions
from verniermq.client.producer import Producer
from verniermq.client.results import PullStatus
from verniermq.client.tail import follow
from verniermq.kernel import Message, MessageQueue, VernierMQError

TOPIC: Final = "verniermq-bench"
QUEUES: Final = 8
BATCH: Final = 32
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
STAMP: Final = struct.Struct(">16sd")
"""Which run a message is of, and when it was sent."""
SETTLE_SECONDS: Final = 10.0
"""How long the last messages may take to come back."""

seconds_option = click.option(
    "--seconds", type=click.FloatRange(0, 3600, min_open=True), default=10.0, show_default=True, help="How long."
)
size_option = click.option(
    "--size", type=click.IntRange(STAMP.size, 4 * 1024 * 1024), default=1024, show_default=True, help="Bytes of a body."
)


def quantiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds; nothing if there are none."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    return {
        name: round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)
        for name, share in QUANTILES.items()
    }


@attrs.define
class BenchResult:
    """What a run counted."""

    what: str
    topic: str
    messages: int = 0
    size: int = 0
    failed: int = 0
    lost: int = 0
    begin: float = attrs.Factory(time.perf_counter)
    seconds: float = 0.0
    times: dict[str, list[float]] = attrs.Factory(dict)
    """By what took them, in seconds."""
    trouble: str = ""

    def stop(self) -> None:
        self.seconds = time.perf_counter() - self.begin

    def measure(self, work: Callable[[], Coroutine[Any, Any, None]], as_json: bool) -> None:
        """Do the work of a run; if it is interrupted, the figures so far are told."""

        def tell_so_far() -> None:
            self.stop()
            self.tell(as_json)

        run(work, tell_so_far)

    def as_json(self) -> dict[str, Any]:
        rate = self.messages / self.seconds if self.seconds else 0.0
        return {
            "bench": self.what, "topic": self.topic, "messages": self.messages, "seconds": round(self.seconds, 3),
            "rate": round(rate, 1), "bytes_per_second": round(self.size / self.seconds) if self.seconds else 0,
            "failed": self.failed, "lost": self.lost, "trouble": self.trouble,
            "milliseconds": {name: quantiles(times) for name, times in self.times.items()},
        }  # fmt: skip

    def show(self, as_json: bool) -> None:
        self.tell(as_json)
        if self.failed or self.lost or not self.messages:
            raise SystemExit(1)

    def tell(self, as_json: bool) -> None:
        told = self.as_json()
        if as_json:
            print_json(told)
        else:
            click.echo(
                f"{self.what} {self.topic}: {self.messages} messages in {self.seconds:.2f} s, {told['rate']:,.0f} a "
                f"second, {told['bytes_per_second'] / 1e6:.2f} MB/s"
            )
            for name, figures in told["milliseconds"].items():
                click.echo(f"  {name}, ms: " + "  ".join(f"{key} {value:g}" for key, value in figures.items()))
            if self.failed or self.lost:
                click.echo(f"  failed {self.failed}, lost {self.lost} {self.trouble}".rstrip())


@click.group()
def bench() -> None:
    """Measure sends, reads and the time between them. Exit code 1 if something failed or was lost.

    \b
    verniermq bench pub --size 1024 --clients 4 --seconds 10
    verniermq bench sub
    verniermq bench latency --rate 100

    What is sent stays in the topic, verniermq-bench unless another is named, and expires as all messages do. One
    process of Python is the client: start several for more. Ctrl-C ends a run early and prints its figures so far.
    """


@bench.command("pub")
@click.argument("topic", default=TOPIC)
@namesrv_option
@json_option
@seconds_option
@size_option
@click.option("--messages", type=click.IntRange(1), help="Stop after so many.")
@click.option("--clients", type=click.IntRange(1, 256), default=1, show_default=True, help="Producers.")
@click.option(
    "--in-flight", type=click.IntRange(1, 4096), default=32, show_default=True, help="Sends of each at a time."
)
@click.option("--batch", type=click.IntRange(1, 4096), default=1, show_default=True, help="Messages of one send.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="At most so many messages a second.")
def pub(
    topic: str, namesrv: str, as_json: bool, seconds: float, size: int, messages: int | None, clients: int,
    in_flight: int, batch: int, rate: float | None,
) -> None:  # fmt: skip
    """Send to TOPIC as fast as it goes, or at --rate."""
    figures = BenchResult("pub", topic, times={"send": []})
    body = os.urandom(size)

    async def sender(producer: Producer, pace: SendPace) -> None:
        took = figures.times["send"]
        while await pace.next():
            started = time.perf_counter()
            try:
                if batch == 1:
                    await producer.send(Message(topic, body))
                else:
                    await producer.send_batch([Message(topic, body) for _ in range(batch)])
            except VernierMQError as error:
                figures.failed += batch
                figures.trouble = str(error)
                continue
            took.append(time.perf_counter() - started)
            figures.messages += batch
            figures.size += batch * size

    async def work() -> None:
        options = connection(namesrv)
        await _ensure_topic(options, topic)
        async with AsyncExitStack() as stack:
            producers = [
                await stack.enter_async_context(Producer(f"verniermq-bench-{number}", **options))
                for number in range(clients)
            ]
            figures.begin = time.perf_counter()
            pace = SendPace(
                seconds, None if messages is None else -(-messages // batch), None if rate is None else rate / batch
            )
            async with anyio.create_task_group() as tasks:
                for producer in producers:
                    for _ in range(in_flight):
                        tasks.start_soon(sender, producer, pace)
            figures.stop()

    figures.measure(work, as_json)
    figures.show(as_json)


class SendPace:
    """Says when the next send may go, until the time is over or the number is reached."""

    def __init__(self, seconds: float, most: int | None, rate: float | None) -> None:
        self._begin = time.perf_counter()
        self._end = self._begin + seconds
        self._most = most
        self._rate = rate
        self._taken = 0

    async def next(self) -> bool:
        if self._most is not None and self._taken >= self._most:
            return False
        turn = self._begin + self._taken / self._rate if self._rate else 0.0
        self._taken += 1
        if turn >= self._end:
            return False
        if (wait := turn - time.perf_counter()) > 0:
            await anyio.sleep(wait)
        return time.perf_counter() < self._end


@bench.command("sub")
@click.argument("topic", default=TOPIC)
@namesrv_option
@json_option
@seconds_option
@click.option("--messages", type=click.IntRange(1), help="Stop after so many.")
@click.option("--new", is_flag=True, help="Read what comes from now on, instead of what is there.")
def sub(topic: str, namesrv: str, as_json: bool, seconds: float, messages: int | None, new: bool) -> None:
    """Read TOPIC from its start, all queues at a time, and leave no trace. It ends where the topic does."""
    figures = BenchResult("sub", topic, times={"pull": []})

    async def read(consumer: PullConsumer, queue: MessageQueue, done: anyio.CancelScope) -> None:
        offset = await (consumer.max_offset(queue) if new else consumer.min_offset(queue))
        while True:
            started = time.perf_counter()
            result = await consumer.pull(queue, offset, max_messages=BATCH, wait=1.0 if new else 0.0)
            if result.messages:
                figures.times["pull"].append(time.perf_counter() - started)
            figures.messages += len(result.messages)
            figures.size += sum(len(message.body) for message in result.messages)
            figures.stop()
            offset = result.next_offset
            if messages is not None and figures.messages >= messages:
                done.cancel()
            if result.status is PullStatus.NO_NEW_MESSAGE and not new:
                return

    async def work() -> None:
        async with PullConsumer(**connection(namesrv)) as consumer:
            queues = await consumer.queues(topic)
            figures.begin = time.perf_counter()
            with anyio.move_on_after(seconds):
                async with anyio.create_task_group() as tasks:
                    for queue in queues:
                        tasks.start_soon(read, consumer, queue, tasks.cancel_scope)

    figures.measure(work, as_json)
    if not figures.messages:
        raise ClientError(f"topic {topic} gave no message; verniermq bench pub {topic} sends some")
    figures.show(as_json)


@bench.command("latency")
@click.argument("topic", default=TOPIC)
@namesrv_option
@json_option
@seconds_option
@size_option
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), default=100.0, show_default=True, help="A second.")
def latency(topic: str, namesrv: str, as_json: bool, seconds: float, size: int, rate: float) -> None:
    """Send to TOPIC at a rate and read it again: the time of a send, and until a waiting reader has the message."""
    figures = BenchResult("latency", topic, times={"send": [], "end to end": []})
    run_id, padding = os.urandom(16), os.urandom(size - STAMP.size)
    waiting: set[float] = set()
    all_back = anyio.Event()
    is_sent = False

    async def received(message: ReceivedMessage) -> None:
        now = time.perf_counter()
        if len(message.body) >= STAMP.size:
            which, sent = STAMP.unpack_from(message.body)
            if which == run_id and sent in waiting:
                waiting.discard(sent)
                figures.times["end to end"].append(now - sent)
                figures.messages += 1
                figures.size += len(message.body)
                if is_sent and not waiting:
                    all_back.set()

    async def one(producer: Producer) -> None:
        started = time.perf_counter()
        waiting.add(started)
        try:
            await producer.send(Message(topic, STAMP.pack(run_id, started) + padding))
        except VernierMQError as error:
            waiting.discard(started)
            figures.failed += 1
            figures.trouble = str(error)
        else:
            figures.times["send"].append(time.perf_counter() - started)

    async def work() -> None:
        nonlocal is_sent
        options = connection(namesrv)
        await _ensure_topic(options, topic)
        async with Producer("verniermq-bench", **options) as producer, _reader(options, topic, received):
            figures.begin = time.perf_counter()
            pace = SendPace(seconds, None, rate)
            async with anyio.create_task_group() as sends:
                while await pace.next():
                    sends.start_soon(one, producer)
            figures.stop()
            is_sent = True
            with anyio.move_on_after(SETTLE_SECONDS if waiting else 0):
                await all_back.wait()
        figures.lost = len(waiting)

    figures.measure(work, as_json)
    figures.show(as_json)


@asynccontextmanager
async def _reader(options: ConnectionOptions, topic: str, show: Any) -> AsyncIterator[None]:
    """Reads what comes to a topic from now on."""
    async with PullConsumer(**options) as consumer, anyio.create_task_group() as tasks:
        ready = anyio.Event()

        async def read() -> None:
            await follow(consumer, topic, show, started=ready.set)

        tasks.start_soon(read)
        await ready.wait()
        yield
        tasks.cancel_scope.cancel()


async def _ensure_topic(options: ConnectionOptions, topic: str) -> None:
    async with Admin(**options) as admin:
        try:
            await admin.topic(topic)
        except NoRoute:
            await admin.create_topic(topic, queues=QUEUES)
