"""``verniermq tail``: print the messages of a topic as they come. Works on Apache's brokers too."""

from __future__ import annotations

from functools import partial

import click

from verniermq.cli.bodies import SPELLINGS, body_decoder, value_text
from verniermq.cli.client import connection, namesrv_option, run
from verniermq.cli.formats import MessageTemplate, as_json, as_line, as_pretty
from verniermq.cli.moments import parse_moment
from verniermq.cli.properties import parse_properties
from verniermq.cli.topics import permission
from verniermq.client.admin import Admin
from verniermq.client.consumer.pull import PullConsumer
from verniermq.client.consumer.subscription import Sql
from verniermq.client.errors import ClientError
from verniermq.client.message import ReceivedMessage
from verniermq.client.tail import follow
from verniermq.kernel import Perm


@click.command()
@click.argument("topic_name", metavar="TOPIC")
@namesrv_option
@click.option("--json", "shows_json", is_flag=True, help="Print JSON, one object per line.")
@click.option(
    "--format", "-f", "template", metavar="TEXT", help="Print by a template: '{queue}@{offset} {keys} {body}'."
)
@click.option("--pretty", is_flag=True, help="Print each body below its line; JSON indented.")
@click.option("--decode", "decoding", metavar="FORMAT", help=f"Print bodies as the values they hold: {SPELLINGS}.")
@click.option("--from-start", is_flag=True, help="Begin with the oldest message instead of the next new one.")
@click.option("--since", metavar="TIME", help="Begin here: 2h (two hours ago) or 2026-03-01T12:30.")
@click.option("--until", metavar="TIME", help="Stop here; messages stored later are not printed.")
@click.option("--tags", help="Only these tags: 'a || b'. The broker selects them.")
@click.option(
    "--sql", metavar="CONDITION", help="Only what fits: \"price > 10 AND region = 'EU'\". The broker selects."
)
@click.option("--key", "keys", multiple=True, help="Only messages with this key. May be repeated.")
@click.option("--property", "-p", "properties", multiple=True, metavar="NAME=VALUE", help="Only with this property.")
@click.option("--group", help="Read as this group and keep its place; without it, nothing is left behind.")
@click.option("--limit", "-n", "limit", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("--no-wait", is_flag=True, help="Stop at the end instead of waiting for more.")
def tail(
    topic_name: str, namesrv: str, shows_json: bool, template: str | None, pretty: bool, decoding: str | None,
    from_start: bool, since: str | None, until: str | None, tags: str | None, sql: str | None, keys: tuple[str, ...],
    properties: tuple[str, ...], group: str | None, limit: int | None, no_wait: bool,
) -> None:  # fmt: skip
    """Print the messages of TOPIC as they come.

    \b
    verniermq tail orders --since 2h --no-wait
    verniermq tail orders --sql "amount > 100" --pretty
    verniermq tail orders --from-start -f '{stored} {property.colour} {body}'
    verniermq tail orders --decode avro:order.avsc

    Fields of a template: topic, broker, queue, offset, id, offset_id, born, stored, born_ms, stored_ms, tags, keys,
    size, properties, property.NAME, body, base64.
    """
    if sum((shows_json, template is not None, pretty)) > 1:
        raise click.UsageError("--json, --format and --pretty say three ways to print; choose one")
    if tags is not None and sql is not None:
        raise click.UsageError("--tags and --sql: choose one; write TAGS = 'a' AND … in the condition")
    if from_start and since is not None:
        raise click.UsageError("--from-start and --since say two places to begin; choose one")
    decode = body_decoder(decoding) if decoding is not None else None
    printed = (
        MessageTemplate(template, decode) if template is not None
        else partial(as_pretty if pretty else as_line, decode=decode)
    )  # fmt: skip
    begin = parse_moment(since) if since is not None else None
    end = parse_moment(until) if until is not None else None
    wanted = parse_properties(properties)

    def keep(message: ReceivedMessage) -> bool:
        has = message.properties
        return (not keys or not set(keys).isdisjoint(message.keys)) and all(
            has.get(name) == value for name, value in wanted.items()
        )

    async def show(message: ReceivedMessage) -> None:
        click.echo(value_text(as_json(message, decode)) if shows_json else printed(message))

    async def work() -> None:
        options = connection(namesrv)
        consumer = PullConsumer(group, **options) if group else PullConsumer(**options)
        async with consumer:
            async with Admin(**options) as admin:
                await _must_be_readable(admin, topic_name)
            await follow(
                consumer, topic_name, show, selector=Sql(sql) if sql is not None else tags or "*",
                from_start=from_start, since_ms=begin, until_ms=end, keep=keep, limit=limit,
                wait=not no_wait, keep_place=bool(group),
            )  # fmt: skip

    run(work)


async def _must_be_readable(admin: Admin, topic_name: str) -> None:
    """A topic that may not be read has no queues to read from: say so, instead of printing nothing."""
    perm = (await admin.topic(topic_name)).perm
    if not perm & Perm.READ:
        raise ClientError(
            f"topic {topic_name} may not be read: its permission is {permission(perm)}; "
            f"change it with: verniermq topic create {topic_name} --perm 6"
        )
