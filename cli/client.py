"""``verniermq topic``, ``verniermq send`` and ``verniermq tail``: the client from a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine
from datetime import datetime
from itertools import chain
from typing import Any, TypeVar

import anyio
import click

from verniermq.client.admin import Admin, TopicInfo, TopicQueue
from verniermq.client.consumer.pull import PullConsumer
from verniermq.client.errors import ClientError, NoRoute
from verniermq.client.message import ReceivedMessage
from verniermq.client.options import name_servers
from verniermq.client.producer import Producer
from verniermq.client.tail import follow
from verniermq.kernel import Message, Perm, VernierMQError, is_system_topic
from verniermq.protocol.topics import MESSAGE_TYPE

T = TypeVar("T")

MESSAGE_TYPES = ("normal", "fifo", "delay", "transaction", "priority", "mixed")

namesrv_option = click.option(
    "--namesrv",
    default=lambda: ";".join(name_servers(None)),
    show_default="$VERNIERMQ_NAMESRV, $NAMESRV_ADDR or 127.0.0.1:9876",
    help="The name server; several with ';' between them.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return anyio.run(work)
    except KeyboardInterrupt:
        sys.exit(130)
    except ExceptionGroup as group:
        # Several queues are read at a time; what went wrong with the first one is what people should see.
        ours, _ = group.split(VernierMQError)
        if ours is None:
            raise
        error: Exception = ours
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from None


# --- topics --------------------------------------------------------------------------------


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
        async with Admin(namesrv=namesrv) as admin:
            found = []
            system = await _system_names(admin)
            for name in await admin.topics():
                if not show_all and (name in system or name.startswith("%") or is_system_topic(name)):
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
        [row["topic"], str(row["queues"]), _permission(row["perm"]), ", ".join(row["brokers"])] for row in rows
    ])  # fmt: skip
    if not rows:
        click.echo(f"no topics at {namesrv}; create one with: verniermq topic create NAME --namesrv {namesrv}")


@topic.command("create")
@click.argument("name")
@namesrv_option
@json_option
@click.option("--queues", "-q", type=click.IntRange(1, 65536), default=8, show_default=True)
@click.option("--perm", type=click.IntRange(0, 7), default=6, show_default=True, help="2 write, 4 read, 6 both.")
@click.option("--order", is_flag=True, help="Mark it as an order topic.")
@click.option(
    "--type", "kind", type=click.Choice(MESSAGE_TYPES, case_sensitive=False),
    help="What messages it is for; gRPC clients may send no others.",
)  # fmt: skip
def create_topic(
    name: str, namesrv: str, as_json: bool, queues: int, perm: int, order: bool, kind: str | None
) -> None:  # fmt: skip
    """Create a topic, or change it if it exists."""
    attributes = {MESSAGE_TYPE: kind.upper()} if kind is not None else None

    async def work() -> list[str]:
        async with Admin(namesrv=namesrv) as admin:
            await admin.create_topic(name, queues=queues, perm=perm, order=order, attributes=attributes)
            return list((await admin.topic(name)).brokers)

    brokers = run(work)
    if as_json:
        click.echo(json.dumps({"topic": name, "queues": queues, "perm": perm, "brokers": brokers}))
    else:
        click.echo(f"topic {name} has {queues} queues on {', '.join(brokers)}")


@topic.command("show")
@click.argument("name")
@namesrv_option
@json_option
def show_topic(name: str, namesrv: str, as_json: bool) -> None:
    """Show the queues of a topic, what they hold, and which groups consume it."""

    async def work() -> tuple[TopicInfo, list[TopicQueue], list[str]]:
        async with Admin(namesrv=namesrv) as admin:
            return await admin.topic(name), await admin.topic_queues(name), await admin.groups_of(name)

    info, queues, groups = run(work)
    if as_json:
        rows = [
            {"broker": row.queue.broker_name, "queue": row.queue.queue_id, "first": row.first, "end": row.end,
             "last_ms": row.last_ms} for row in queues
        ]  # fmt: skip
        click.echo(json.dumps({"topic": name, "perm": info.perm, "groups": groups, "queues": rows}))
        return
    messages = sum(row.end - row.first for row in queues)
    click.echo(f"topic {name}: {len(queues)} queues, {_permission(info.perm)}, {messages} messages")
    click.echo(f"groups: {', '.join(groups) or 'none'}")
    table(["broker", "queue", "first", "end", "messages", "last stored"], [
        [row.queue.broker_name, str(row.queue.queue_id), str(row.first), str(row.end), str(row.end - row.first),
         _moment(row.last_ms)] for row in queues
    ])  # fmt: skip


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).isoformat(" ", "seconds") if milliseconds > 0 else "-"


@topic.command("delete")
@click.argument("name")
@namesrv_option
@json_option
def delete_topic(name: str, namesrv: str, as_json: bool) -> None:
    """Delete a topic and its messages."""

    async def work() -> None:
        async with Admin(namesrv=namesrv) as admin:
            await admin.topic(name)
            await admin.delete_topic(name)

    run(work)
    click.echo(json.dumps({"topic": name, "deleted": True}) if as_json else f"topic {name} is deleted")


async def _system_names(admin: Admin) -> set[str]:
    """Topics that brokers have before anybody creates one, named after themselves."""
    clusters = await admin.clusters()
    return {*clusters, *chain(*clusters.values()), *(f"{cluster}_REPLY_TOPIC" for cluster in clusters)}


def _permission(perm: int) -> str:
    return {2: "write", 4: "read", 6: "read, write", 7: "read, write, inherit"}.get(perm, str(perm))


def table(columns: list[str], rows: list[list[str]]) -> None:
    if not rows:
        return
    # Imported here: it costs more than a send.
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


# --- send ----------------------------------------------------------------------------------


@click.command()
@click.argument("topic_name", metavar="TOPIC")
@click.argument("body")
@namesrv_option
@json_option
@click.option("--tags", help="The message's tag.")
@click.option("--keys", help="Keys to find it by, with spaces between them.")
@click.option("--property", "-p", "properties", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option("--delay-level", type=click.IntRange(0), default=0, help="Deliver later: one of the broker's levels.")
@click.option("--sharding-key", help="Messages of one key go to one queue.")
@click.option("--count", "-c", type=click.IntRange(1), default=1, show_default=True, help="Send it so many times.")
@click.option("--group", default="verniermq-cli", show_default=True, help="The producer group.")
def send(
    topic_name: str, body: str, namesrv: str, as_json: bool, tags: str | None, keys: str | None,
    properties: tuple[str, ...], delay_level: int, sharding_key: str | None, count: int, group: str,
) -> None:  # fmt: skip
    """Send BODY to TOPIC. With BODY "-" every line of the standard input is a message."""
    extra: dict[str, str] = {}
    for text in properties:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--property {text!r}: expected NAME=VALUE")
        extra[name] = value
    lines = sys.stdin.read().splitlines() if body == "-" else [body]

    async def work() -> None:
        async with Producer(group, namesrv=namesrv) as producer:
            for _ in range(count):
                for line in lines:
                    message = Message(
                        topic_name, line.encode(), tags, (keys or "").split(), dict(extra), delay_level=delay_level
                    )
                    result = await producer.send(message, sharding_key=sharding_key)
                    if as_json:
                        click.echo(json.dumps({
                            "status": result.status.name, "id": result.message_id, "broker": result.queue.broker_name,
                            "queue": result.queue.queue_id, "offset": result.queue_offset,
                        }))  # fmt: skip
                    else:
                        where = f"{result.queue.broker_name} queue {result.queue.queue_id} offset {result.queue_offset}"
                        click.echo(f"{result.status.name} {result.message_id} {where}")

    run(work)


# --- tail ----------------------------------------------------------------------------------


@click.command()
@click.argument("topic_name", metavar="TOPIC")
@namesrv_option
@json_option
@click.option("--from-start", is_flag=True, help="Begin with the oldest message instead of the next new one.")
@click.option("--tags", default="*", help="Only these tags: 'a || b'.")
@click.option("--group", help="Read as this group and keep its place; without it, nothing is left behind.")
@click.option("--limit", "-n", "limit", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("--no-wait", is_flag=True, help="Stop at the end instead of waiting for more.")
def tail(
    topic_name: str, namesrv: str, as_json: bool, from_start: bool, tags: str, group: str | None, limit: int | None,
    no_wait: bool,
) -> None:  # fmt: skip
    """Print the messages of TOPIC as they come."""

    async def show(message: ReceivedMessage) -> None:
        click.echo(json.dumps(_as_json(message)) if as_json else _as_text(message))

    async def work() -> None:
        consumer = PullConsumer(group, namesrv=namesrv) if group else PullConsumer(namesrv=namesrv)
        async with consumer:
            await _must_be_readable(namesrv, topic_name)
            await follow(
                consumer, topic_name, show, tags=tags, from_start=from_start, limit=limit, wait=not no_wait,
                keep_place=bool(group),
            )  # fmt: skip

    run(work)


async def _must_be_readable(namesrv: str, topic_name: str) -> None:
    """A topic that may not be read has no queues to read from: say so, instead of printing nothing."""
    async with Admin(namesrv=namesrv) as admin:
        perm = (await admin.topic(topic_name)).perm
    if not perm & Perm.READ:
        raise ClientError(
            f"topic {topic_name} may not be read: its permission is {_permission(perm)}; "
            f"change it with: verniermq topic create {topic_name} --perm 6"
        )


def _readable(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"<{len(body)} bytes> {body[:64].hex(' ')}{' …' if len(body) > 64 else ''}"
    return text if text.isprintable() or "\n" in text else repr(text)[1:-1]


def _body(message: ReceivedMessage) -> str:
    try:
        return _readable(message.body)
    except ClientError as error:
        return f"<{error}>"


def _as_text(message: ReceivedMessage) -> str:
    stored = datetime.fromtimestamp(message.store_timestamp / 1000).strftime("%H:%M:%S.%f")[:-3]
    marks = [f"{message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}"]
    if message.tags:
        marks.append(click.style(f"#{message.tags}", fg="cyan"))
    if message.keys:
        marks.append(click.style(f"[{' '.join(message.keys)}]", fg="yellow"))
    return f"{click.style(stored, dim=True)} {' '.join(marks)} {_body(message)}"


def _as_json(message: ReceivedMessage) -> dict[str, Any]:
    return {
        "id": message.message_id,
        "offset_id": message.offset_message_id,
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "born": message.born_timestamp,
        "stored": message.store_timestamp,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "body": _body(message),
    }
