"""``verniermq top``: what a cluster does now. Two looks at it, and what changed between them. Works on Apache's too.

Rates of topics are by their offsets: a message more at the end of a queue came in between.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import attrs
import click

from verniermq.cli.client import connection, json_option, namesrv_option, print_json, run
from verniermq.cli.cluster import disk_text, uptime_text
from verniermq.cli.groups import age_text, is_brokers_own
from verniermq.cli.topics import is_brokers_own_topic, system_names
from verniermq.client.admin import Admin, BrokerStatus, GroupProgress
from verniermq.client.errors import NoRoute
from verniermq.kernel import RemotingError

if TYPE_CHECKING:
    from rich.console import RenderableType

T = TypeVar("T")
R = TypeVar("R")

MOST: Final = 500
"""Topics, and groups, that are looked at; each costs a request to each broker."""
AT_A_TIME: Final = 8
ROWS: Final = 10
KEYS: Final = {"b": "brokers", "c": "brokers", "t": "topics", "g": "groups", "a": "all"}


@attrs.frozen
class ClusterLook:
    """The cluster at one moment."""

    moment: float
    brokers: list[BrokerStatus]
    ends: dict[str, tuple[int, int]]
    """Topic → messages that ever came, and messages that are there."""
    groups: list[GroupProgress]
    left_out: int = 0
    """Topics and groups that were not looked at."""


@attrs.frozen
class TopicRow:
    topic: str
    rate: float
    messages: int


@attrs.frozen
class GroupRow:
    group: str
    members: int
    lag: int
    growth: float
    """Messages a second by which the lag grows."""
    behind_ms: int
    rate: float


@attrs.frozen
class ClusterView:
    """What changed between two looks, the most important first."""

    brokers: list[BrokerStatus]
    topics: list[TopicRow]
    groups: list[GroupRow]
    left_out: int

    @classmethod
    def between(cls, before: ClusterLook, after: ClusterLook) -> ClusterView:
        seconds = max(after.moment - before.moment, 1e-3)
        topics = [
            TopicRow(name, max(0, end - before.ends.get(name, (end, 0))[0]) / seconds, messages)
            for name, (end, messages) in after.ends.items()
        ]
        lags = {one.group: one.lag for one in before.groups}
        groups = [
            GroupRow(
                one.group, one.members, one.lag, (one.lag - lags.get(one.group, one.lag)) / seconds, one.behind_ms,
                one.rate,
            )
            for one in after.groups
        ]  # fmt: skip
        return cls(
            after.brokers,
            sorted(topics, key=lambda row: (-row.rate, -row.messages, row.topic)),
            sorted(groups, key=lambda row: (-row.lag, row.group)),
            after.left_out,
        )

    def as_json(self, most: int) -> dict[str, Any]:
        return {
            "brokers": [
                {"broker": one.name, "role": one.role, "address": one.address, "in": one.rate("putTps"),
                 "out": one.rate("getTransferredTps"), "disk": one.rate("commitLogDiskRatio"),
                 "trouble": one.trouble} for one in self.brokers
            ],
            "topics": [attrs.asdict(row) for row in self.topics[:most]],
            "groups": [attrs.asdict(row) for row in self.groups[:most]],
            "left_out": self.left_out,
        }  # fmt: skip


async def take_look(admin: Admin) -> ClusterLook:
    """
    Raises:
        RemotingError: no name server answers. A broker that does not is shown as such.
    """
    moment = time.monotonic()
    brokers = await admin.broker_statuses()
    system = await system_names(admin)
    topics = [name for name in await admin.topics() if not is_brokers_own_topic(name, system)]
    try:
        groups = [name for name in await admin.groups() if not is_brokers_own(name)]
    except RemotingError:
        groups = []  # its row says that a broker does not answer

    async def end(name: str) -> tuple[str, tuple[int, int]] | None:
        try:
            queues = (await admin.topic_status(name)).queues
        except (NoRoute, RemotingError):
            return None  # deleted since, or its broker does not answer
        return name, (sum(row.end for row in queues), sum(row.end - row.first for row in queues))

    async def progress(name: str) -> GroupProgress | None:
        try:
            return await admin.group_progress(name)
        except RemotingError:
            return None

    ends = await each(topics[:MOST], end)
    found = await each(groups[:MOST], progress)
    return ClusterLook(moment, brokers, dict(ends), found, max(0, len(topics) - MOST) + max(0, len(groups) - MOST))


async def each(names: Sequence[T], ask: Callable[[T], Awaitable[R | None]]) -> list[R]:
    """What is found by asking for each, some at a time."""
    found: list[R] = []
    limit = anyio.CapacityLimiter(AT_A_TIME)

    async def one(name: T) -> None:
        async with limit:
            if (answer := await ask(name)) is not None:
                found.append(answer)

    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(one, name)
    return found


# --- showing it ------------------------------------------------------------------------------


@click.command()
@namesrv_option
@json_option
@click.option("--once", is_flag=True, help="Print it once as plain text and end, as it is where there is no terminal.")
@click.option(
    "--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--rows", type=click.IntRange(1), default=ROWS, show_default=True, help="Topics and groups at most.")
def top(namesrv: str, as_json: bool, once: bool, interval: float, rows: int) -> None:
    """Show what a cluster does now: brokers, the busiest topics, and the groups furthest behind.

    Keys: t topics, g groups, b brokers, a all, q ends. With --json there is one object per look.
    """

    async def work() -> None:
        async with Admin(**connection(namesrv)) as admin:
            if once or as_json or not sys.stdout.isatty():
                await _print(admin, as_json=as_json, once=once or not as_json, interval=interval, rows=rows)
            else:
                await _watch(admin, interval, rows)

    run(work)


async def _print(admin: Admin, *, as_json: bool, once: bool, interval: float, rows: int) -> None:
    before = await take_look(admin)
    while True:
        await anyio.sleep(interval)
        after = await take_look(admin)
        view = ClusterView.between(before, after)
        if as_json:
            print_json(view.as_json(rows))
        else:
            from rich.console import Console

            Console(highlight=False).print(rendered(view, "all", rows))
        if once:
            return
        before = after


async def _watch(admin: Admin, interval: float, rows: int) -> None:
    from rich.live import Live

    part = "all"
    view: ClusterView | None = None

    with single_keys(), Live(screen=True, auto_refresh=False) as live:

        def show() -> None:
            if view is not None:
                live.update(rendered(view, part, rows if part == "all" else live.console.height - 6), refresh=True)

        async def listen() -> None:
            nonlocal part
            while True:
                await anyio.wait_readable(sys.stdin)
                key = os.read(sys.stdin.fileno(), 1).decode("ascii", "replace")
                if key in ("q", ""):
                    tasks.cancel_scope.cancel()
                    return
                part = KEYS.get(key, part)
                show()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            before = await take_look(admin)
            while True:
                await anyio.sleep(interval)
                after = await take_look(admin)
                view = ClusterView.between(before, after)
                before = after
                show()


@contextmanager
def single_keys() -> Iterator[None]:
    """A terminal that gives each key at once, and is as before afterwards."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def rendered(view: ClusterView, part: str, rows: int) -> RenderableType:
    from rich.console import Group

    parts: list[RenderableType] = []
    if part in ("all", "brokers"):
        parts.append(_table(["broker", "role", "address", "in/s", "out/s", "disk", "up"], [
            [one.name, one.role, one.trouble or one.address, f"{one.rate('putTps'):.1f}",
             f"{one.rate('getTransferredTps'):.1f}", disk_text(one), uptime_text(one)] for one in view.brokers
        ]))  # fmt: skip
    if part in ("all", "topics"):
        parts.append(_table(["topic", "in/s", "messages"], [
            [row.topic, f"{row.rate:.1f}", str(row.messages)] for row in view.topics[:rows]
        ]))  # fmt: skip
    if part in ("all", "groups"):
        parts.append(_table(["group", "members", "lag", "growth/s", "behind", "out/s"], [
            [row.group, str(row.members), str(row.lag), f"{row.growth:+.1f}", age_text(row.behind_ms),
             f"{row.rate:.1f}"] for row in view.groups[:rows]
        ]))  # fmt: skip
    hidden = max(0, len(view.topics) - rows) + max(0, len(view.groups) - rows) if part == "all" else 0
    if hidden or view.left_out:
        parts.append(f"and {hidden + view.left_out} more; --rows shows more, group list and topic list all")
    return Group(*parts)


def _table(columns: list[str], rows: list[list[str]]) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        is_text = column in ("broker", "role", "address", "topic", "group")
        table.add_column(column, overflow="fold", justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    if not rows:
        table.add_row(*("-" for _ in columns))
    return table
