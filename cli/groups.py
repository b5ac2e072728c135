"""``verniermq group``: consumer groups, how far they are, and sending them elsewhere. Works on Apache's brokers too."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import click

from verniermq.cli.client import (
    confirm,
    connection,
    counted,
    dry_run_option,
    json_option,
    namesrv_option,
    run,
    table,
    yes_option,
)
from verniermq.cli.durations import DURATION
from verniermq.cli.moments import Position, kept_places, parse_position
from verniermq.client.admin import Admin
from verniermq.client.admin.progress import GroupProgress
from verniermq.client.errors import ClientError
from verniermq.kernel import DEAD_LETTER_PREFIX, RETRY_PREFIX, MessageQueue, format_duration


@click.group()
def group() -> None:
    """List consumer groups, see how far they are, send them elsewhere, copy and delete them.

    \b
    verniermq group list
    verniermq group show billing
    verniermq group reset billing --topic orders --to 2h
    verniermq group check billing --max-lag 1000 --max-age 5m
    """


# --- looking ---------------------------------------------------------------------------------


@group.command("list")
@namesrv_option
@json_option
@click.option("--all", "show_all", is_flag=True, help="With the groups that brokers keep for themselves.")
def list_groups(namesrv: str, as_json: bool, show_all: bool) -> None:
    """Show the groups with their members and their lag, the one furthest behind first."""

    async def work() -> list[GroupProgress]:
        async with Admin(**connection(namesrv)) as admin:
            names = [name for name in await admin.groups() if show_all or not is_brokers_own(name)]
            return [await admin.group_progress(name) for name in names]

    found = sorted(run(work), key=lambda one: (-one.lag, one.group))
    if as_json:
        for one in found:
            click.echo(json.dumps(_summary(one)))
        return
    table(["group", "members", "lag", "behind", "rate/s", "topics"], [
        [one.group, str(one.members), str(one.lag), age_text(one.behind_ms), f"{one.rate:.1f}", ", ".join(one.topics)]
        for one in found
    ], right=("members", "lag", "behind", "rate/s"))  # fmt: skip
    if not found:
        click.echo(f"no groups at {namesrv}; a group is there once a consumer has joined it")


@group.command("show")
@click.argument("name", metavar="GROUP")
@namesrv_option
@json_option
@click.option("--topic", help="Only this topic.")
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="Seconds between.")
def show_group(name: str, namesrv: str, as_json: bool, topic: str | None, watch: bool, interval: float) -> None:
    """Show how far GROUP is, queue by queue, and which member has each."""

    async def work() -> None:
        async with Admin(**connection(namesrv)) as admin:
            await _must_exist(admin, name)
            while True:
                found, owners = await admin.group_progress(name), await admin.owners(name)
                if watch and not as_json and sys.stdout.isatty():
                    click.clear()
                _show(found, owners, topic, as_json)
                if not watch:
                    return
                await anyio.sleep(interval)

    run(work)


def _show(found: GroupProgress, owners: Mapping[MessageQueue, str], topic: str | None, as_json: bool) -> None:
    rows = [row for row in found.queues if topic is None or row.queue.topic == topic]
    if as_json:
        queues = [{**_queue(row), "owner": owners.get(row.queue, "")} for row in rows]
        click.echo(json.dumps({**_summary(found), "clients": list(found.clients), "queues": queues}))
        return
    members = counted(found.members, "member")
    click.echo(f"group {found.group}: {members}, lag {found.lag}, {_behind(found)}, {found.rate:.1f} a second")
    # Client ids are long: the table names their place in this list.
    places = {client: str(number) for number, client in enumerate(found.clients, 1)}
    for client, number in places.items():
        click.echo(f"  {number}  {client}")
    columns = ["topic", "broker", "queue", "committed", "end", "lag", "last consumed", *(["member"] if places else [])]
    table(columns, [
        [
            row.queue.topic, row.queue.broker_name, str(row.queue.queue_id), str(row.committed), str(row.end),
            str(row.lag), _time(row.last_ms), *([places.get(owners.get(row.queue, ""), "-")] if places else []),
        ]
        for row in rows
    ], right=("queue", "committed", "end", "lag", "member"))  # fmt: skip


@group.command("check")
@click.argument("name", metavar="GROUP")
@namesrv_option
@json_option
@click.option("--max-lag", type=click.IntRange(0), help="The most messages that may wait.")
@click.option(
    "--max-age", type=DURATION, help="How long ago the last one may have been consumed while others wait, such as 5m."
)
@click.option("--min-members", type=click.IntRange(0), help="How many members there have to be.")
@click.pass_context
def check_group(
    context: click.Context, name: str, namesrv: str, as_json: bool, max_lag: int | None, max_age: float | None,
    min_members: int | None,
) -> None:  # fmt: skip
    """Say whether GROUP keeps up, for scripts. Exit code 0: it does. 1: it does not. 2: it cannot be said."""
    if max_lag is None and max_age is None and min_members is None:
        raise click.UsageError("say what to check: --max-lag, --max-age or --min-members")
    found = _progress(namesrv, name)
    wrong = []
    if max_lag is not None and found.lag > max_lag:
        wrong.append(f"lag {found.lag} is more than {max_lag}")
    if max_age is not None and found.behind_ms > max_age * 1000:
        wrong.append(f"{_behind(found)}, more than {format_duration(max_age)}")
    if min_members is not None and found.members < min_members:
        wrong.append(f"{found.members} members, fewer than {min_members}")
    if as_json:
        click.echo(json.dumps({**_summary(found), "ok": not wrong, "why": wrong}))
    else:
        click.echo(f"group {name}: {'; '.join(wrong) or 'fine'} (lag {found.lag}, {found.members} members)")
    context.exit(1 if wrong else 0)


def _progress(namesrv: str, name: str) -> GroupProgress:
    async def work() -> GroupProgress:
        async with Admin(**connection(namesrv)) as admin:
            await _must_exist(admin, name)
            return await admin.group_progress(name)

    return run(work)


async def _must_exist(admin: Admin, name: str) -> None:
    known = await admin.groups()
    if name not in known:
        raise ClientError(f"there is no group {name!r}; verniermq group list shows them")


def _summary(found: GroupProgress) -> dict[str, Any]:
    return {
        "group": found.group, "members": found.members, "lag": found.lag, "behind_ms": found.behind_ms,
        "rate": round(found.rate, 2), "topics": list(found.topics),
    }  # fmt: skip


def _queue(row: Any) -> dict[str, Any]:
    return {
        "topic": row.queue.topic, "broker": row.queue.broker_name, "queue": row.queue.queue_id,
        "committed": row.committed, "end": row.end, "lag": row.lag, "last_ms": row.last_ms,
    }  # fmt: skip


# --- changing --------------------------------------------------------------------------------


@group.command("reset")
@click.argument("name", metavar="GROUP")
@click.option("--topic", required=True, help="The topic.")
@click.option(
    "--to",
    "place",
    required=True,
    metavar="PLACE",
    help="start, end, 2h (two hours ago), 2026-03-01T12:30, an offset such as 4711, +100 and -100, or @FILE.",
)
@click.option("--queue", "queue_id", type=click.IntRange(0), help="Only this queue of each broker.")
@namesrv_option
@json_option
@yes_option
@dry_run_option
def reset_group(
    name: str, topic: str, place: str, queue_id: int | None, namesrv: str, as_json: bool, yes: bool, dry_run: bool
) -> None:
    """Send GROUP elsewhere in a topic. What would happen is shown first, and asked about.

    A time is so long ago (2h, 90s) or a date (2026-03-01T12:30); +100 skips so many messages of each queue.

    @FILE is where a group was when group show --json printed it:

    \b
    verniermq group show billing --json > before.json
    verniermq group reset billing --topic orders --to end
    verniermq group reset billing --topic orders --to @before.json

    Members that run go there at once; a group without members begins there.
    """
    to = kept_places(Path(place[1:]), topic) if place.startswith("@") else parse_position(place)

    async def plan() -> tuple[GroupProgress, dict[MessageQueue, tuple[int, int]]]:
        async with Admin(**connection(namesrv)) as admin:
            await _must_exist(admin, name)
            return await admin.group_progress(name), await _planned(admin, name, topic, to, queue_id)

    found, moves = run(plan)
    _show_moves(moves, as_json)
    if dry_run or not moves:
        return
    if found.members and not as_json:
        click.echo(f"{found.members} members are online; they go there at once")
    confirm(f"move group {name} in topic {topic}?", yes)

    async def work() -> None:
        async with Admin(**connection(namesrv)) as admin:
            await admin.set_offsets(name, {queue: after for queue, (_, after) in moves.items()})

    run(work)
    if not as_json:
        click.echo(f"group {name} is moved in {len(moves)} queues of {topic}")


async def _planned(
    admin: Admin, name: str, topic: str, to: Position | Mapping[tuple[str, int], int], queue_id: int | None
) -> dict[MessageQueue, tuple[int, int]]:
    """Queue → where the group is and where it would go."""
    moves = {}
    for queue, progress in (await admin.progress(name, topic)).items():
        if queue_id is None or queue.queue_id == queue_id:
            before = progress.min_offset if progress.committed is None else progress.committed
            if not isinstance(to, Position):
                after = to.get((queue.broker_name, queue.queue_id), before)
            elif to.moment is not None:
                after = await admin.offset_at(queue, to.moment)
            else:
                after = to.offset(before)
            moves[queue] = before, min(max(after, progress.min_offset), progress.max_offset)
    if not moves:
        raise ClientError(f"topic {topic} has no queue {queue_id}")
    return moves


def _show_moves(moves: Mapping[MessageQueue, tuple[int, int]], as_json: bool) -> None:
    if as_json:
        for queue, (before, after) in moves.items():
            click.echo(json.dumps({
                "broker": queue.broker_name, "queue": queue.queue_id, "from": before, "to": after,
            }))  # fmt: skip
        return
    table(["broker", "queue", "from", "to", "again or skipped"], [
        [queue.broker_name, str(queue.queue_id), str(before), str(after), _effect(before - after)]
        for queue, (before, after) in moves.items()
    ], right=("queue", "from", "to", "again or skipped"))  # fmt: skip


@group.command("clone")
@click.argument("source", metavar="GROUP")
@click.argument("target", metavar="NEW")
@click.option("--topic", help="Only this topic; without it, all that GROUP has offsets of.")
@namesrv_option
@json_option
@yes_option
@dry_run_option
def clone_group(
    source: str, target: str, topic: str | None, namesrv: str, as_json: bool, yes: bool, dry_run: bool
) -> None:
    """Let NEW begin where GROUP is."""
    found = _progress(namesrv, source)
    rows = [row for row in found.queues if not row.queue.topic.startswith(RETRY_PREFIX)]
    rows = [row for row in rows if topic is None or row.queue.topic == topic]
    topics = sorted({row.queue.topic for row in rows})
    if not rows:
        raise ClientError(f"group {source} has no offsets{f' of topic {topic}' if topic else ''}")
    click.echo(f"{target} would begin where {source} is: {len(rows)} queues of {', '.join(topics)}", err=as_json)
    if dry_run:
        return
    confirm(f"set the offsets of group {target}?", yes)

    async def work() -> None:
        async with Admin(**connection(namesrv)) as admin:
            if target not in await admin.groups():
                await admin.create_group(target)
            await admin.set_offsets(target, {row.queue: row.committed for row in rows})

    run(work)
    if as_json:
        click.echo(json.dumps({"group": target, "from": source, "queues": len(rows), "topics": topics}))
    else:
        click.echo(f"group {target} begins where {source} was")


@group.command("delete")
@click.argument("name", metavar="GROUP")
@click.option("--keep-offsets", is_flag=True, help="A group of this name that comes later goes on where this one was.")
@namesrv_option
@json_option
@yes_option
@dry_run_option
def delete_group(name: str, keep_offsets: bool, namesrv: str, as_json: bool, yes: bool, dry_run: bool) -> None:
    """Forget GROUP, and how far it was."""
    found = _progress(namesrv, name)
    what = f"group {name}: {found.members} members, {found.lag} messages not consumed"
    click.echo(what, err=as_json)
    if dry_run:
        return
    confirm(f"delete group {name}?", yes)

    async def work() -> None:
        async with Admin(**connection(namesrv)) as admin:
            await admin.delete_group(name, with_offsets=not keep_offsets)

    run(work)
    click.echo(json.dumps({"group": name, "deleted": True}) if as_json else f"group {name} is deleted")


# --- shared ----------------------------------------------------------------------------------


def is_brokers_own(name: str) -> bool:
    return name.startswith(("CID_RMQ_SYS_", "CID_ONS", "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_")) or (
        name in ("SCHEDULE_CONSUMER", "__MONITOR_CONSUMER", "CLIENT_INNER_PRODUCER", DEAD_LETTER_PREFIX)
    )


def age_text(milliseconds: int) -> str:
    return "-" if milliseconds <= 0 else format_duration(float(max(1, milliseconds // 1000)))


def _behind(found: GroupProgress) -> str:
    return f"{age_text(found.behind_ms)} behind" if found.behind_ms > 0 else "not behind"


def _effect(messages: int) -> str:
    """Of a move: what is consumed again, or skipped."""
    return f"{messages} again" if messages > 0 else f"{-messages} skipped" if messages else "-"


def _time(milliseconds: int) -> str:
    if milliseconds <= 0:
        return "-"
    return datetime.fromtimestamp(milliseconds / 1000).isoformat(" ", "seconds")
