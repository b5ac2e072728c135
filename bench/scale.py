"""How the rate changes while something grows: topics, connections, plugins, the backlog.

``python bench/scale.py`` starts brokers with their default plugins and drives each with a load generator in Python, so
the figures are for comparing the points of a curve, not for comparing brokers (``bench/apache.py`` does that).

- topics 1 → 10,000: 8 connections with 8 requests each on the way, every message to the next topic
- connections 1 → 2,000: each waits for its answer before it sends again
- plugins 0 → 20 beside the default ones, which do nothing: for each message, and only for messages that concern them
- backlog 0 → 10 million, without the key index: sends to another topic, and pulls from the beginning of the backlog

Writes ``scale.json``, ``scale.svg`` and ``scale-table.md`` into ``bench/results/`` (``--quick``: into ``partial/``).
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import attrs
import click
from curves import Chart, draw
from load import Sender, drive
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from send import send_request
from sidebyside.machine import cpu_seconds, memory

from verniermq.kernel import Command, RequestCode, connect
from verniermq.kernel.loop import backend_options
from verniermq.testing import BrokerProcess, broker_process

HERE = Path(__file__).parent
SIZE = 300
QUEUES = 8
# As a broker outside of tests has them.
DEFAULTS = ("--set=store.segment_size=1GiB", "--set=store.queue_entries=300000")
TOPICS = (1, 10, 100, 1_000, 10_000)
CONNECTIONS = (1, 8, 64, 256, 1_000, 2_000)
PLUGINS = (0, 1, 2, 5, 10, 20)
BACKLOG = (0, 10_000, 100_000, 1_000_000, 10_000_000)
PLUGIN = """\
from typing import ClassVar
import attrs
from verniermq.kernel import Context, Declaration, PendingMessage, concerns, hookimpl

@attrs.frozen
class Config:
    pass

@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(api=1, config=Config, summary="Does nothing.")
    config: Config
    broker: Context

    @hookimpl{concerns}
    def before_append(self, message: PendingMessage) -> None:
        pass
"""


@attrs.frozen
class Point:
    curve: str
    line: str
    x: int
    rate: float
    """Messages a second."""
    cpu: float
    """Microseconds of the broker's CPU for each."""
    resident: float
    """MiB in memory afterwards, with mapped files."""
    own: float
    """MiB without them."""
    start: float
    """Seconds until the broker was ready."""


@attrs.define(eq=False)
class Rotating(Sender):
    """Sends one frame after the other, and begins anew after the last."""

    frames: Iterator[bytes] = attrs.field(kw_only=True)

    def start(self) -> None:
        self._transport.write(self.following(self.window))

    def following(self, count: int) -> bytes:
        return b"".join(itertools.islice(self.frames, count))


# --- measuring ----------------------------------------------------------------------------


@attrs.define
class Meter:
    """Measures one broker for one point."""

    process: BrokerProcess
    started: float
    seconds: float

    def point(self, curve: str, line: str, x: int, load: Callable[[], Any]) -> Point:
        before, began = cpu_seconds([self.process.pid]), time.perf_counter()
        rate: float = anyio.run(load, backend_options=backend_options())
        share = (cpu_seconds([self.process.pid]) - before) / (time.perf_counter() - began)
        used = memory([self.process.pid])
        return Point(curve, line, x, rate, share / rate * 1e6, used.resident, used.own, self.started)

    def sends(self, frames: list[bytes], window: int) -> Callable[[], Any]:
        return partial(drive, self.process.broker, frames, window=window, seconds=self.seconds, warm_up=1.0)


def meter(process: BrokerProcess, began: float, seconds: float) -> Meter:
    return Meter(process, time.perf_counter() - began, seconds)


def frames(connections: int) -> list[bytes]:
    return [send_request("bench", number % QUEUES, SIZE, binary=True).encode() for number in range(connections)]


def topics(seconds: float, counts: tuple[int, ...], folder: Path) -> Iterator[Point]:
    began = time.perf_counter()
    with broker_process(folder / "topics", *DEFAULTS) as process:
        measured = meter(process, began, seconds)
        known = 0
        for count in counts:
            anyio.run(touch_topics, process.broker, range(known, count), backend_options=backend_options())
            known = count
            encoded = [send_request(f"topic-{n}", n % 4, SIZE, binary=True).encode() for n in range(count)]
            turns = itertools.cycle(encoded)
            load = partial(
                drive, process.broker, [b""] * 8, window=8, seconds=seconds, warm_up=1.0,
                sender=partial(Rotating, frames=turns),
            )  # fmt: skip
            yield measured.point("topics", "sent", count, load)


async def touch_topics(address: str, numbers: range) -> None:
    connection = await connect(address)
    for number in numbers:
        answer = await connection.request(send_request(f"topic-{number}", 0, SIZE), timeout=30)
        assert answer.code == 0, answer.remark
    connection.close()


def connections(seconds: float, counts: tuple[int, ...], folder: Path) -> Iterator[Point]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 65536)), hard))
    began = time.perf_counter()
    with broker_process(folder / "connections", *DEFAULTS) as process:
        measured = meter(process, began, seconds)
        for count in counts:
            yield measured.point("connections", "sent", count, measured.sends(frames(count), 1))


def plugins(seconds: float, counts: tuple[int, ...], folder: Path) -> Iterator[Point]:
    kinds = {"for each message": "", "for messages with a property": '\n    @concerns(properties=("other",))'}
    for line, concerns in kinds.items():
        for count in counts:
            names = []
            for number in range(count):
                file = folder / f"nothing_{number}.py"
                file.write_text(PLUGIN.format(concerns=concerns))
                names.append(str(file))
            enable = f"--set=plugins.enable={json.dumps(['default', *names])}"
            began = time.perf_counter()
            with broker_process(None, *DEFAULTS, enable) as process:
                measured = meter(process, began, seconds)
                yield measured.point("plugins", line, count, measured.sends(frames(8), 8))


def backlog(seconds: float, counts: tuple[int, ...], folder: Path) -> Iterator[Point]:
    store, stored = folder / "backlog", 0
    for count in counts:
        if count > stored:
            # Straight through the store: over the wire it would take many times as long.
            subprocess.run([sys.executable, HERE / "large.py", "fill", store, str(count - stored)], check=True)
            stored = count
        began = time.perf_counter()
        # Without the key index, which it would first have to make of what was written past it.
        with broker_process(store, *DEFAULTS, '--set=plugins.disable=["query"]') as process:
            measured = meter(process, began, seconds)
            yield measured.point("backlog", "sent", count, measured.sends(frames(8), 8))
            if count:
                yield measured.point("backlog", "pulled", count, partial(pull_from_start, process.broker, seconds))


async def pull_from_start(address: str, seconds: float) -> float:
    """Messages a second that 8 connections get, 32 at a time; whoever is through its queue begins anew."""
    began = time.perf_counter()
    pulled = 0

    async def one_queue(queue: int) -> None:
        nonlocal pulled
        connection = await connect(address)
        offset = 0
        while time.perf_counter() - began < seconds:
            ext = {
                "consumerGroup": "bench", "topic": "large", "queueId": str(queue), "queueOffset": str(offset),
                "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
                "subscription": "*", "subVersion": "0",
            }  # fmt: skip
            answer = await connection.request(Command.request(RequestCode.PULL_MESSAGE, ext, binary=True))
            following = int(answer.ext["nextBeginOffset"])
            pulled += following - offset if answer.code == 0 else 0
            offset = following if answer.code == 0 else 0
        connection.close()

    async with anyio.create_task_group() as tasks:
        for queue in range(QUEUES):
            tasks.start_soon(one_queue, queue)
    return pulled / (time.perf_counter() - began)


# --- all of it ----------------------------------------------------------------------------

CURVES: dict[str, tuple[Callable[[float, tuple[int, ...], Path], Iterator[Point]], tuple[int, ...], str]] = {
    "topics": (topics, TOPICS, "topics that are sent to in turn"),
    "connections": (connections, CONNECTIONS, "connections that send"),
    "plugins": (plugins, PLUGINS, "plugins beside the default ones"),
    "backlog": (backlog, BACKLOG, "messages stored before"),
}


def charts(points: list[Point]) -> list[Chart]:
    made = []
    for name, (_, _, x_label) in CURVES.items():
        lines: dict[str, list[tuple[float, float]]] = {}
        for point in points:
            if point.curve == name:
                lines.setdefault(point.line, []).append((point.x, point.rate))
        if lines:
            made.append(Chart(name, x_label, "messages/s", lines))
    return made


def markdown(points: list[Point]) -> str:
    out = [
        "| | | messages/s | of the first | broker's CPU, each | resident | own | ready after |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    first: dict[tuple[str, str], float] = {}
    for point in points:
        base = first.setdefault((point.curve, point.line), point.rate)
        out.append(
            f"| {point.curve}, {point.line} | {point.x:,} | {point.rate:,.0f} | {point.rate / base:.2f} "
            f"| {point.cpu:.1f} µs | {point.resident:,.0f} MiB | {point.own:,.0f} MiB | {point.start:.2f} s |"
        )
    return "\n".join([*out, ""])


@click.command(help=__doc__)
@click.option("--curves", "names", help="Which, with commas: topics, connections, plugins, backlog.")
@click.option("--seconds", type=float, help="How long each point is measured: 4, or 1 with --quick.")
@click.option("--quick", is_flag=True, help="Fewer points, up to a hundred thousand stored messages.")
def main(names: str | None, seconds: float | None, quick: bool) -> None:
    # Ended from outside, it still ends what it started: the brokers do not share its fate.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console()
    chosen = names.split(",") if names else list(CURVES)
    if unknown := set(chosen) - set(CURVES):
        raise click.UsageError(f"no curve is called {', '.join(unknown)}; they are {', '.join(CURVES)}")
    results = HERE / "results" / ("partial" if quick else "")
    results.mkdir(parents=True, exist_ok=True)
    # A run of some curves keeps what an earlier one found of the others.
    saved = results / "scale.json"
    points = [Point(**one) for one in json.loads(saved.read_text())["points"]] if saved.exists() else []
    points = [point for point in points if point.curve not in chosen]
    columns = (TextColumn("{task.description:44}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    folder = Path(tempfile.mkdtemp(prefix="verniermq-bench-"))
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            for name in chosen:
                measure, counts, x_label = CURVES[name]
                counts = tuple(count for count in counts if not quick or count in (0, 1, 8, 20, 1_000, 100_000))
                task = progress.add_task(x_label, total=None)
                for point in measure(seconds or (1 if quick else 4), counts, folder):
                    points.append(point)
                    progress.update(task, description=f"{x_label}: {point.x:,}", completed=len(points))
                os.sync()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    order = list(CURVES)
    points.sort(key=lambda point: (order.index(point.curve), point.line, point.x))
    saved.write_text(json.dumps({"points": [attrs.asdict(point) for point in points]}, indent=1) + "\n")
    (results / "scale.svg").write_text(draw(charts(points)), encoding="utf-8")
    (results / "scale-table.md").write_text(markdown(points), encoding="utf-8")
    click.echo(markdown([point for point in points if point.curve in chosen]))


if __name__ == "__main__":
    main()
