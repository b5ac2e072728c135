"""``verniermq topic``: list, show, create and delete topics. Works on Apache's brokers too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Any

import attrs
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
from verniermq.cli.topicchange import TopicChange, WantedTopic, plan_change
from verniermq.client.admin import Admin, TopicInfo, TopicStatus
from verniermq.client.errors import NoRoute
from verniermq.kernel import is_system_topic

MESSAGE_TYPES = ("normal", "fifo", "delay", "transaction", "priority", "mixed")


@click.group()
def topic() -> None:
    """List, show, create and delete topics."""


@topic.command("list")
@namesrv_option
@json_option
@click.option("--all", "show_all", is_flag=True, help="With the topics that brokers keep for themselves.")
def list_topics(namesrv: str, as_json: bool, show_all: bool) -> None:
    """Show the topics that the name server knows."""

    async def work() -> list[dict[str, Any]]:
        async with Admin(**connection(namesrv)) as admin:
            found = []
            system = await system_names(admin)
            for name in await admin.topics():
                if not show_all and is_brokers_own_topic(name, system):
                    continue
                try:
                    info = await admin.topic(name)
                except NoRoute:
                    continue  # deleted between the two questions
                found.append({"topic": name, "queues": info.queues, "perm": info.perm, "brokers": list(info.brokers)})
            return found

    rows = run(work)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    table(["topic", "queues", "permission", "brokers"], [
        [row["topic"], str(row["queues"]), permission(row["perm"]), ", ".join(row["brokers"])] for row in rows
    ])  # fmt: skip
    if not rows:
        click.echo(f"no topics at {namesrv}; create one with: verniermq topic create NAME --namesrv {namesrv}")


@topic.command("create")
@click.argument("name")
@namesrv_option
@json_option
@click.option("--queues", "-q", type=click.IntRange(1, 65536), help="On each broker.  [default: 8]")
@click.option("--perm", type=click.IntRange(0, 7), help="2 write, 4 read, 6 both.  [default: 6]")
@click.option("--order/--no-order", default=None, help="Whether it is marked as an order topic.")
@click.option(
    "--type", "kind", type=click.Choice(MESSAGE_TYPES, case_sensitive=False),
    help="What messages it is for; gRPC clients may send no others.",
)  # fmt: skip
@yes_option
@dry_run_option
def create_topic(
    name: str, namesrv: str, as_json: bool, queues: int | None, perm: int | None, order: bool | None,
    kind: str | None, yes: bool, dry_run: bool,
) -> None:  # fmt: skip
    """Create a topic, or change it if it exists: what is not named here stays as it is then.

    With fewer queues, messages of the others go out of sight. How many is shown first, and asked about.
    """
    wanted = WantedTopic(queues, perm, order, kind)

    async def look() -> TopicChange:
        async with Admin(**connection(namesrv)) as admin:
            return await plan_change(admin, name, wanted)

    change = run(look)
    for line in change.out_of_sight():
        click.echo(f"topic {name}: {line}", err=as_json)
    if change.hidden and not dry_run:
        confirm(f"take queues from topic {name}?", yes)

    async def work() -> None:
        async with Admin(**connection(namesrv)) as admin:
            await admin.change_topic(name, change.brokers, wanted.attributes)

    if not dry_run and change.changes:
        run(work)
    if as_json:
        click.echo(json.dumps({"topic": name, **change.as_json()}))
    else:
        verb = "would have" if dry_run and change.changes else "has"
        click.echo(f"topic {name} {verb} {change.queues_text}{'' if change.changes else ', as before'}")


@topic.command("show")
@click.argument("name")
@namesrv_option
@json_option
def show_topic(name: str, namesrv: str, as_json: bool) -> None:
    """Show what a topic is set to, its queues with what they hold, and how far its groups are."""

    async def work() -> TopicLook:
        async with Admin(**connection(namesrv)) as admin:
            return await look_at(admin, name)

    found = run(work)
    if as_json:
        click.echo(json.dumps(found.as_json()))
        return
    info, status = found.info, found.status
    messages = sum(row.end - row.first for row in status.queues)
    queues = counted(len(status.queues), "queue")
    click.echo(
        f"topic {name}: {queues}, {permission(info.perm)}, {counted(messages, 'message')}, {status.rate:.1f} a second"
    )
    for broker, settings in found.settings.items():
        click.echo(f"  {broker}: {', '.join(f'{key} {value}' for key, value in _told(settings))}")
    table(["broker", "queue", "first", "end", "first stored", "last stored"], [
        [row.queue.broker_name, str(row.queue.queue_id), str(row.first), str(row.end), _moment(first_ms),
         _moment(row.last_ms)] for row, first_ms in zip(status.queues, found.first_ms, strict=True)
    ], right=("queue", "first", "end"))  # fmt: skip
    if found.groups:
        table(["group", "members", "lag"], [
            [one.group, str(one.members), str(one.lag)] for one in found.groups
        ], right=("members", "lag"))  # fmt: skip
    else:
        click.echo("no group consumes it")


@attrs.frozen
class TopicLook:
    info: TopicInfo
    status: TopicStatus
    first_ms: list[int]
    """Of each queue: when its first message was stored."""
    settings: dict[str, dict[str, Any]]
    """By broker."""
    groups: list[TopicGroup]

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.info.name, "perm": self.info.perm, "rate": round(self.status.rate, 2),
            "settings": {broker: dict(_told(settings)) for broker, settings in self.settings.items()},
            "groups": [attrs.asdict(one) for one in self.groups],
            "queues": [
                {"broker": row.queue.broker_name, "queue": row.queue.queue_id, "first": row.first, "end": row.end,
                 "first_ms": first_ms, "last_ms": row.last_ms}
                for row, first_ms in zip(self.status.queues, self.first_ms, strict=True)
            ],
        }  # fmt: skip


@attrs.frozen
class TopicGroup:
    """A group that consumes a topic."""

    group: str
    members: int
    lag: int


async def look_at(admin: Admin, name: str) -> TopicLook:
    """
    Raises:
        NoRoute: there is no such topic.
    """
    status = await admin.topic_status(name)
    first_ms = [await admin.first_stored(row.queue) if row.end > row.first else 0 for row in status.queues]
    groups = [
        TopicGroup(group, len(await admin.members(group)), await admin.lag(group, name))
        for group in await admin.groups_of(name)
    ]
    groups.sort(key=lambda one: (-one.lag, one.group))
    return TopicLook(await admin.topic(name), status, first_ms, await admin.topic_settings(name), groups)


def _told(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What somebody may have set: the rest of a topic's members says nothing that the queues do not."""
    yield "read queues", str(settings.get("readQueueNums"))
    yield "write queues", str(settings.get("writeQueueNums"))
    yield "permission", permission(int(settings.get("perm") or 0))
    yield "order", "yes" if settings.get("order") else "no"
    yield from ((str(key).lstrip("+"), str(value)) for key, value in (settings.get("attributes") or {}).items())


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).isoformat(" ", "seconds") if milliseconds > 0 else "-"


@topic.command("delete")
@click.argument("name")
@namesrv_option
@json_option
@yes_option
@dry_run_option
def delete_topic(name: str, namesrv: str, as_json: bool, yes: bool, dry_run: bool) -> None:
    """Delete a topic and its messages. What would be lost is shown first, and asked about."""

    async def plan() -> tuple[TopicInfo, int, list[str]]:
        async with Admin(**connection(namesrv)) as admin:
            info = await admin.topic(name)
            messages = sum(high - low for low, high in (await admin.topic_offsets(name)).values())
            return info, messages, await admin.groups_of(name)

    info, messages, groups = run(plan)
    what = f"topic {name}: {messages} messages in {info.queues} queues on {', '.join(info.brokers)}"
    click.echo(f"{what}; consumed by {', '.join(groups) or 'no group'}", err=as_json)
    if dry_run:
        return
    confirm(f"delete topic {name} and its messages?", yes)

    async def work() -> None:
        async with Admin(**connection(namesrv)) as admin:
            await admin.delete_topic(name)

    run(work)
    click.echo(json.dumps({"topic": name, "deleted": True}) if as_json else f"topic {name} is deleted")


async def system_names(admin: Admin) -> set[str]:
    """Topics that brokers have before anybody creates one, named after themselves."""
    clusters = await admin.clusters()
    return {*clusters, *chain(*clusters.values()), *(f"{cluster}_REPLY_TOPIC" for cluster in clusters)}


def is_brokers_own_topic(name: str, system: set[str]) -> bool:
    # Apache's validator has names of its own, all of which begin so.
    return name in system or name.startswith(("%", "RMQ_SYS_")) or is_system_topic(name)


def permission(perm: int) -> str:
    return {2: "write", 4: "read", 6: "read, write", 7: "read, write, inherit"}.get(perm, str(perm))
