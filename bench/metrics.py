"""What the plugin ``metrics`` costs: a send, and a scrape of 10,000 topics with three groups each.

``python bench/metrics.py`` gives the same bytes to two brokers in this process in turns, one with the plugin and one
without, as ``chain.py`` does, and compares what a message takes of the processor. Then a broker process gets
10,000 topics with a message each, on which three groups lag, and is scraped: what that takes of its processor, the
longest that its loop is held for one turn, by the first scrape and by later ones, and the longest that a client had to
wait for an answer meanwhile, beside what it waits for otherwise.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import anyio
import anyio.to_thread
import click
import uvloop
from chain import PER_SPAN, Nowhere, batches, single, singles, stored
from send import quiet, send_request
from sidebyside.machine import cpu_seconds

from verniermq.kernel import Broker, Command, Connection, RequestCode, connect
from verniermq.kernel.config import load
from verniermq.testing import broker_process
from verniermq.testing.ports import held_port

LOOPWATCH = Path(__file__).parents[1] / "tests" / "campaign" / "loopwatch.py"
WATCH = 9_199
"""The request that it serves."""
TOPICS = 10_000
GROUPS = 3
SPANS_GATHERED = 8
WARM_UP = 1200
"""So often 64 messages come before they are announced together: half of what comes in 50 ms at 20,000 a second."""


def options(port: int, names: str) -> list[str]:
    listen = ["--set=plugins.http.listen=127.0.0.1:0", f"--set=plugins.metrics.listen=127.0.0.1:{port}"]
    wanted = ", ".join(f'"{name}"' for name in names.split(","))
    enabled = f'--set=plugins.enable=["default", "http", "metrics", "{LOOPWATCH}"]'
    return [enabled, f"--set=plugins.metrics.names=[{wanted}]", *listen]


def alone(size: int) -> Callable[[int], list[bytes]]:
    """Single messages, each in a chunk of its own, as of producers that wait."""
    return lambda start: [single(start + number, size) for number in range(PER_SPAN)]


def together(make: Callable[[int], bytes]) -> Callable[[int], list[bytes]]:
    return lambda start: [make(start)]


async def costs_of_a_message(make: Callable[[int], list[bytes]], spans: int) -> tuple[list[float], list[float]]:
    """Microseconds of CPU without and with the plugin, sorted; no sockets, both in turns in this process."""
    with tempfile.TemporaryDirectory() as folder:
        plain = {
            "broker.port": 0, "plugins.namesrv.port": 0, "broker.host": "127.0.0.1", "store.path": f"{folder}/plain",
        }  # fmt: skip
        watched = {
            **plain, "store.path": f"{folder}/watched", "plugins.enable": ["default", "http", "metrics"],
            "plugins.http.listen": "127.0.0.1:0", "plugins.metrics.listen": "127.0.0.1:0",
        }  # fmt: skip
        async with Broker(load(None, plain, environ={})) as one, Broker(load(None, watched, environ={})) as other:
            sides: list[tuple[Broker, Any, list[float]]] = []
            for broker in (one, other):
                connection = broker.server._make_connection()
                connection.connection_made(Nowhere())  # type: ignore[arg-type]
                for span in range(WARM_UP):  # the more requests of a kind came, the fewer are timed
                    for data in make(span * PER_SPAN):
                        connection.data_received(data)
                    await asyncio.sleep(0.01)
                sides.append((broker, connection, []))
            gc.collect()
            gc.disable()
            for start in range(0, spans, SPANS_GATHERED):
                chunks = [data for span in range(start, start + SPANS_GATHERED) for data in make(span * PER_SPAN)]
                for broker, connection, found in sides if start // SPANS_GATHERED % 2 else sides[::-1]:
                    before = stored(broker)
                    began = time.thread_time_ns()
                    for data in chunks:
                        connection.data_received(data)
                        connection._turn.end()
                    broker.catch_up()
                    used = time.thread_time_ns() - began
                    if stored(broker) - before == PER_SPAN * SPANS_GATHERED:
                        found.append(used / 1000 / PER_SPAN / SPANS_GATHERED)
                    else:  # a turn took long, and the next one serves the rest
                        await asyncio.sleep(0.01)
                await asyncio.sleep(0)
            gc.enable()
            for _, connection, _ in sides:
                connection.connection_lost(None)
        return sorted(sides[0][2]), sorted(sides[1][2])


async def fill(connection: Connection) -> None:
    for number in range(TOPICS):
        topic = f"scale-{number}"
        await connection.request(send_request(topic, 0, 100))
        for group in range(GROUPS):
            ext = {"consumerGroup": f"group-{group}", "topic": topic, "queueId": "0", "commitOffset": "0"}
            await connection.request(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext))


async def longest_wait(connection: Connection, over: anyio.Event) -> list[float]:
    """Milliseconds that answers took, one request after the other, until it is over."""
    waits = []
    while not over.is_set():
        begun = time.perf_counter()
        await connection.request(Command.request(RequestCode.GET_MAX_OFFSET, {"topic": "scale-0", "queueId": "0"}))
        waits.append((time.perf_counter() - begun) * 1000)
    return sorted(waits)


async def scrapes(port: int, count: int, names: str) -> None:
    with broker_process(None, *options(port, names)) as process:
        connection = await connect(process.broker)
        await fill(connection)
        await quiet(process.pid)
        first = await _held(connection, port)
        costs, seconds, size = [], [], 0
        for _ in range(count):
            before, begun = cpu_seconds([process.pid]), time.perf_counter()
            size = len(await anyio.to_thread.run_sync(scrape, port))
            costs.append(cpu_seconds([process.pid]) - before)
            seconds.append(time.perf_counter() - begun)
        click.echo(
            f"scrape of {TOPICS:,} topics × {GROUPS} groups, {size / 2**20:.1f} MiB, best and median of {count}:"
        )
        click.echo(f"  CPU {min(costs) * 1000:.0f} and {statistics.median(costs) * 1000:.0f} ms")
        click.echo(f"  time {min(seconds) * 1000:.0f} and {statistics.median(seconds) * 1000:.0f} ms")
        holds = sorted([await _held(connection, port) for _ in range(count)])
        click.echo(
            f"  the loop held for one turn, of CPU: {holds[0]:.1f}, {statistics.median(holds):.1f} and at most "
            f"{holds[-1]:.1f} ms, by the first scrape {first:.1f}"
        )
        for what, scrapes_meanwhile in (("without a scrape", False), ("during a scrape", True)):
            worst = [await _waits(connection, port, scrapes_meanwhile) for _ in range(count)]
            click.echo(f"  longest wait for an answer {what}: {min(worst):.1f} and {statistics.median(worst):.1f} ms")
        connection.close()


async def _held(connection: Connection, port: int) -> float:
    """Milliseconds of its thread's processor time."""
    await connection.request(Command.request(WATCH, {"do": "begin"}))
    await anyio.to_thread.run_sync(scrape, port)
    return float((await connection.request(Command.request(WATCH, {"do": "end"}))).ext["held_ms"])


async def _waits(connection: Connection, port: int, scrapes_meanwhile: bool) -> float:
    over = anyio.Event()
    found: list[float] = []

    async def watch() -> None:
        found.extend(await longest_wait(connection, over))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await (anyio.to_thread.run_sync(scrape, port) if scrapes_meanwhile else anyio.sleep(0.3))
        over.set()
    return found[-1]


def scrape(port: int) -> bytes:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return bytes(answer.read())


@click.command(help=__doc__)
@click.option("--spans", default=2400, show_default=True, help="How often each side gets 64 messages; 0: no messages.")
@click.option("--scrapes", "count", default=9, show_default=True, help="How often it is scraped.")
@click.option("--names", default="apache,verniermq", show_default=True, help="Whose names are scraped.")
def main(spans: int, count: int, names: str) -> None:
    kinds = {
        "single, alone in its chunk": alone(300),
        "single": together(singles(300)),
        "batch of 32": together(batches(300)),
    }
    for kind, make in kinds.items() if spans else ():
        without, within = uvloop.run(costs_of_a_message(make, spans))
        click.echo(f"{kind}, 300 bytes, µs of CPU a message, without and with the plugin:")
        for word, share in (("least", 0.0), ("fifth", 0.2), ("middle", 0.5)):
            one, other = without[int(share * len(without))], within[int(share * len(within))]
            click.echo(f"  {word:6} {one:6.2f} {other:6.2f}  {other / one:.3f}")
    anyio.run(scrapes, held_port(main), count, names)


if __name__ == "__main__":
    main()
