"""``verniermq dlq``: look at dead letters, write them to a file, send them again."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, NoReturn, TextIO, TypeVar

import anyio
import click
import orjson
from rich.console import Console
from rich.table import Table

from verniermq.kernel import RETRY_PREFIX, SystemClock, VernierMQError
from verniermq.plugins.retry.deadletters import DeadLetter, DeadLetters, Pace
from verniermq.protocol.peers import START_ONE, NoNameServer

T = TypeVar("T")
PREVIEW = 60

namesrv_option = click.option(
    "--namesrv",
    default=lambda: os.environ.get("VERNIERMQ_NAMESRV") or os.environ.get("NAMESRV_ADDR") or "127.0.0.1:9876",
    show_default="$VERNIERMQ_NAMESRV, $NAMESRV_ADDR or 127.0.0.1:9876",
    help="The name server.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
key_option = click.option(
    "--key", "keys", multiple=True, help="Only the one with this key, unique key or message id. May be repeated."
)
since_option = click.option("--since", type=click.DateTime(), help="Only those that died at this time (UTC) or later.")


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return anyio.run(work)
    except NoNameServer as error:
        raise VernierMQError(f"{error}; {START_ONE}") from None
    except KeyboardInterrupt:
        sys.exit(130)


@click.group()
def dlq() -> None:
    """Dead letters: messages that a consumer group failed on too often.

    \b
    verniermq dlq list
    verniermq dlq show billing
    verniermq dlq resend billing --key order-4711
    verniermq dlq resend billing --all --rate 50
    """


@dlq.command("list")
@namesrv_option
@json_option
def list_groups(namesrv: str, as_json: bool) -> None:
    """Show which groups have dead letters, and how many."""

    async def work() -> list[dict[str, Any]]:
        async with DeadLetters(_first(namesrv)) as letters:
            return [{"group": group, "letters": await letters.count(group)} for group in await letters.groups()]

    rows = _run(work)
    if as_json:
        for row in rows:
            click.echo(orjson.dumps(row))
        return
    table = Table("group", "dead letters", box=None)
    for row in rows:
        table.add_row(row["group"], str(row["letters"]))
    Console(highlight=False).print(table if rows else "no group has dead letters")


@dlq.command()
@click.argument("group")
@namesrv_option
@key_option
@since_option
@click.option("--limit", default=20, show_default=True, help="At most so many.")
@json_option
def show(group: str, namesrv: str, keys: tuple[str, ...], since: datetime | None, limit: int, as_json: bool) -> None:
    """Show a group's dead letters: what they are, where they came from, and why each attempt failed.

    Exit code 1: there are none.
    """

    async def work() -> None:
        shown = 0
        async with DeadLetters(_first(namesrv)) as letters:
            async for letter in _chosen(letters, group, keys, since):
                click.echo(orjson.dumps(as_dict(letter)) if as_json else _described(letter))
                shown += 1
                if shown == limit:
                    break
        if not shown:
            _nothing(group, keys, since)

    _run(work)


@dlq.command()
@click.argument("group")
@namesrv_option
@key_option
@since_option
@click.option(
    "--output", "-o", type=click.File("w", encoding="utf-8"), default="-", help="The file; - is standard output."
)
def export(group: str, namesrv: str, keys: tuple[str, ...], since: datetime | None, output: TextIO) -> None:
    """Write a group's dead letters as JSON, one object per line, with everything that is known of each."""

    async def work() -> int:
        written = 0
        async with DeadLetters(_first(namesrv)) as letters:
            async for letter in _chosen(letters, group, keys, since):
                output.write(orjson.dumps(as_dict(letter)).decode() + "\n")
                written += 1
        return written

    click.echo(f"{_run(work)} dead letters of group {group} written", err=True)


@dlq.command()
@click.argument("group")
@namesrv_option
@key_option
@since_option
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--topic", default="", help="Where to send them; without it, each goes where it came from.")
@click.option(
    "--to-group", is_flag=True, help="Only to this group, by its retry topic; other groups do not see them again."
)
@click.option("--rate", type=click.FloatRange(min=0.001), default=100.0, show_default=True, help="Messages per second.")
@click.option("--dry-run", is_flag=True, help="Only say what would be sent.")
@json_option
def resend(
    group: str, namesrv: str, keys: tuple[str, ...], since: datetime | None, everything: bool, topic: str,
    to_group: bool, rate: float, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Send dead letters again.

    They go to the topic they came from, where every group that subscribes to it gets them; --to-group spares the
    others (a group that consumes in order does not take messages this way). The dead letters themselves stay; what
    is sent says in its properties where it comes from: DLQ_RESENT_FROM, DLQ_RESENT_TIMES, DLQ_RESENT_MS.

    Exit code 1: there are none to send.
    """
    if everything == bool(keys):
        raise click.UsageError("say which: --all, or --key once or more")
    if topic and to_group:
        raise click.UsageError("--topic and --to-group exclude each other")
    target = RETRY_PREFIX + group if to_group else topic

    async def work() -> int:
        sent = 0
        pace = Pace(rate, SystemClock())
        async with DeadLetters(_first(namesrv)) as letters:
            async for letter in _chosen(letters, group, keys, since):
                where, letter_id, new = target or letter.origin_topic, letter.message.offset_message_id, ""
                if not dry_run:
                    await pace.turn()
                    new = await letters.resend(letter, target)
                if as_json:
                    click.echo(orjson.dumps({"id": letter_id, "topic": where, "sent_as": new}))
                elif dry_run:
                    click.echo(f"{letter_id} would go to {where}")
                else:
                    click.echo(f"{letter_id} sent to {where} as {new}")
                sent += 1
        return sent

    count = _run(work)
    if not count:
        _nothing(group, keys, since)
    click.echo(f"{count} dead letters of group {group} {'chosen' if dry_run else 'sent again'}", err=True)


def _nothing(group: str, keys: tuple[str, ...], since: datetime | None) -> NoReturn:
    """Say that there was nothing to do; exit code 1."""
    such = "such " if keys or since is not None else ""
    click.echo(f"group {group} has no {such}dead letters; 'verniermq dlq list' shows which groups have some", err=True)
    raise SystemExit(1)


def _first(namesrv: str) -> str:
    """One of several name servers will do: each knows everything."""
    return namesrv.split(";")[0].strip()


async def _chosen(
    letters: DeadLetters, group: str, keys: tuple[str, ...], since: datetime | None
) -> AsyncIterator[DeadLetter]:
    since_ms = 0 if since is None else round(since.replace(tzinfo=UTC).timestamp() * 1000)
    wanted = set(keys)
    async for letter in letters.read(group):
        if letter.message.store_timestamp >= since_ms and (not wanted or wanted & letter.names):
            yield letter


def as_dict(letter: DeadLetter) -> dict[str, Any]:
    """Everything about a dead letter, for JSON."""
    message, body = letter.message, letter.body
    try:
        content = {"body": body.decode()}
    except UnicodeDecodeError:
        content = {"bodyBase64": base64.b64encode(body).decode()}
    return {
        "id": message.offset_message_id,
        "group": letter.group,
        "topic": letter.origin_topic,
        "uniqueKey": message.unique_key,
        "keys": message.keys,
        "tags": message.tags,
        "attempts": message.reconsume_times,
        "bornMs": message.born_timestamp,
        "diedMs": message.store_timestamp,
        "reasons": {str(attempt): reason for attempt, reason in letter.reasons.items()},
        "properties": message.properties,
        **content,
    }


def _described(letter: DeadLetter) -> str:
    message = letter.message
    died = datetime.fromtimestamp(message.store_timestamp / 1000, UTC)
    body = letter.body.decode("utf-8", "replace")
    lines = [
        f"{message.offset_message_id}  from {letter.origin_topic or '?'}  died {died:%Y-%m-%d %H:%M:%S} UTC",
        f"  keys {' '.join(message.keys) or '-'}  tags {message.tags or '-'}  unique key {message.unique_key or '-'}",
        f"  body {body[:PREVIEW]!r}{' …' if len(body) > PREVIEW else ''} ({len(letter.body)} bytes)",
    ]
    lines += [f"  attempt {attempt} failed: {reason}" for attempt, reason in letter.reasons.items()]
    return "\n".join(lines)
