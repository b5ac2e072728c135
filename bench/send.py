"""How many messages a second a broker takes, beside what the loop under it could do at most.

``python bench/send.py`` starts a broker with its default plugins and a bare echo server of the same frames, each
in a process of its own, and drives both in turns: 1, 8 and 64 connections that wait for each answer, and 4 that
keep 64 requests on the way. Each is driven by a client that sleeps while it has nothing to do, and by one that stays
awake: whoever writes to a sleeper on the same machine pays for waking it, which a peer elsewhere would not cost.
``--scale`` repeats the 8 connections with 10,000 topics and with 2,000 idle connections beside them. ``--enable``
names plugins: a second broker has them, and takes turns with the first (``turns.py``); ``nothing`` compares two equal
brokers. ``--against`` takes the sources of another commit (a folder): a broker of these takes turns with ours;
``--pure`` measures ours without what is compiled.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import click
from load import drive
from rich.console import Console
from rich.table import Table
from sidebyside.machine import cpu_seconds
from sources import Sources, running
from turns import compare

from verniermq.kernel import Command, RequestCode, connect
from verniermq.kernel.loop import backend_options
from verniermq.testing import BrokerProcess, broker_process

SHAPES = [("1 waiting", 1, 1), ("8 waiting", 8, 1), ("64 waiting", 64, 1), ("pipelined, 4 × 64", 4, 64)]

QUIET_SECONDS = 2.0

PROPERTIES = "KEYS\x01order-4711\x02TAGS\x01paid\x02UNIQ_KEY\x017F0000011267000018B4AAC247B70003\x02WAIT\x01true\x02"


def send_request(topic: str, queue_id: int, size: int, *, binary: bool = False) -> Command:
    ext = {
        "a": "bench", "b": topic, "c": "TBW102", "d": "8", "e": str(queue_id), "f": "0",
        "g": str(int(time.time() * 1000)), "h": "0", "i": PROPERTIES, "j": "0", "k": "false", "m": "false",
        "n": "broker-a",
    }  # fmt: skip
    return Command.request(RequestCode.SEND_MESSAGE_V2, ext, b"x" * size, binary=binary)


def frames(connections: int, size: int, binary: bool) -> list[bytes]:
    return [send_request("bench", number % 8, size, binary=binary).encode() for number in range(connections)]


@contextmanager
def echo_server(answer: bytes) -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).with_name("echo.py")), answer.hex()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate()


async def first_answer(address: str, size: int, binary: bool) -> bytes:
    connection = await connect(address)
    answer = await connection.request(send_request("bench", 0, size, binary=binary))
    connection.close()
    assert answer.code == 0, answer.remark
    return answer.encode()


async def measure(
    broker: str, echo: str, size: int, seconds: float, rounds: int, binary: bool
) -> list[tuple[str, str, float, float]]:
    results = []
    for name, connections, window in SHAPES:
        for awake in (False, True):
            of_broker, of_echo = [], []
            for _ in range(rounds):
                for address, rates in ((echo, of_echo), (broker, of_broker)):
                    load = frames(connections, size, binary)
                    rates.append(await drive(address, load, window=window, seconds=seconds, awake=awake))
            client = "awake" if awake else "sleeps"
            results.append((name, client, sorted(of_broker)[rounds // 2], sorted(of_echo)[rounds // 2]))
    return results


async def quiet(pid: int) -> None:
    """Wait until the broker is idle. It makes and syncs the files of 10,000 new queues first, once."""
    before = -QUIET_SECONDS
    while (now := cpu_seconds([pid])) - before > QUIET_SECONDS / 20:
        before = now
        await anyio.sleep(QUIET_SECONDS)


async def scale(process: BrokerProcess, size: int, seconds: float, console: Console) -> None:
    """The same rate with many topics and with many connections that do nothing."""

    async def rate() -> float:
        rates = [await drive(process.broker, frames(8, size, False), window=1, seconds=seconds) for _ in range(3)]
        return sorted(rates)[1]

    table = Table("8 waiting connections, and", "messages/s", title="what else there is")
    alone = await rate()
    table.add_row("nothing", f"{alone:,.0f}")
    connection = await connect(process.broker)
    with console.status("creating 10,000 topics"):
        for number in range(10_000):
            await connection.request(send_request(f"scale-{number}", 0, 100))
        await quiet(process.pid)
    table.add_row("10,000 topics with messages", f"{await rate():,.0f}")
    idle = [await connect(process.broker) for _ in range(2_000)]
    table.add_row("… and 2,000 idle connections", f"{await rate():,.0f}")
    for one in idle:
        one.close()
    connection.close()
    console.print(table)


def show_plugins(names: str, size: int, seconds: float, rounds: int, console: Console) -> None:
    """What a broker takes with plugins beside one without them."""
    large = "--set=store.segment_size=1GiB"
    wanted = [name for name in names.split(",") if name != "nothing"]
    enabled = ", ".join(f'"{name}"' for name in ["default", *wanted])
    listen = [f"--set=plugins.{name}.listen=127.0.0.1:0" for name in wanted if name in ("http", "metrics")]
    with console.status("measuring"):
        results = compare(
            lambda: broker_process(None, large),
            lambda: broker_process(None, large, f"--set=plugins.enable=[{enabled}]", *listen),
            SHAPES, lambda connections: frames(connections, size, False), seconds=seconds, rounds=rounds,
        )  # fmt: skip
    table = Table("connections", "CPU of a send, µs", f"with {names}", "ratio", "is from", title="plugins")
    for shape in results:
        table.add_row(shape.name, f"{shape.one.cost:.2f}", f"{shape.other.cost:.2f}", f"{shape.ratio:.3f}", shape.range)
    console.print(table)


def show_commits(against: Path, pure: bool, size: int, seconds: float, rounds: int, console: Console) -> None:
    """What a broker of ours takes beside one of another commit."""
    large = "--set=store.segment_size=1GiB"
    here = Sources(Path(__file__).resolve().parent.parent, pure)
    with console.status("measuring"):
        results = compare(
            lambda: running(Sources(against), large), lambda: running(here, large),
            SHAPES, lambda connections: frames(connections, size, False), seconds=seconds, rounds=rounds,
        )  # fmt: skip
    table = Table("connections", "before, messages/s", "now", "ratio", "before, µs of CPU", "now", "ratio", "is from")
    for shape in results:
        before, now = shape.one, shape.other
        table.add_row(
            shape.name, f"{before.rate:,.0f}", f"{now.rate:,.0f}", f"{now.rate / before.rate:.2f}",
            f"{before.cost:.2f}", f"{now.cost:.2f}", f"{shape.ratio:.3f}", shape.range,
        )  # fmt: skip
    console.print(table)


def _statm(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/statm").read_text().split()


@click.command(help=__doc__)
@click.option("--size", default=300, show_default=True, help="Bytes of a message's body.")
@click.option("--seconds", type=float, help="How long each measurement takes.  [default: 2, in turns 0.4]")
@click.option("--rounds", type=int, help="How often; the middle one counts.  [default: 3, in turns 16]")
@click.option("--binary", is_flag=True, help="Binary headers instead of JSON.")
@click.option("--scale", "with_scale", is_flag=True, help="Also with 10,000 topics and 2,000 idle connections.")
@click.option("--enable", "plugins", metavar="NAMES", help="Only what these plugins cost, such as http,metrics.")
@click.option("--against", type=click.Path(exists=True, path_type=Path), help="The sources of another commit.")
@click.option("--pure", is_flag=True, help="With --against: ours without what is compiled.")
def main(
    size: int, seconds: float | None, rounds: int | None, binary: bool, with_scale: bool, plugins: str | None,
    against: Path | None, pure: bool,
) -> None:  # fmt: skip
    console = Console()
    if against is not None:
        show_commits(against, pure, size, seconds or 0.4, rounds or 16, console)
        return
    if plugins:
        show_plugins(plugins, size, seconds or 0.4, rounds or 16, console)
        return
    seconds, rounds = seconds or 2.0, rounds or 3
    with broker_process(None, "--set=store.segment_size=1GiB") as process:
        answer = anyio.run(first_answer, process.broker, size, binary)
        with echo_server(answer) as echo, console.status("measuring"):
            results = anyio.run(
                measure, process.broker, echo, size, seconds, rounds, binary, backend_options=backend_options()
            )
        table = Table(
            "connections", "client", "broker, messages/s", "echo, frames/s", "ratio", title=f"sends of {size} bytes"
        )
        for name, client, broker, limit in results:
            table.add_row(name, client, f"{broker:,.0f}", f"{limit:,.0f}", f"{broker / limit:.2f}")
        console.print(table)
        resident, shared = [int(pages) * 4096 // 2**20 for pages in _statm(process.pid)[1:3]]
        console.print(f"resident memory of the broker: {resident} MiB, {shared} MiB of it mapped files and libraries")
        if with_scale:
            anyio.run(scale, process, size, seconds, console, backend_options=backend_options())


if __name__ == "__main__":
    main()
