"""``verniermq message``: find messages by id or by key, from a terminal."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable, Coroutine
from datetime import datetime
from time import time
from typing import Any, Final, TypeVar

import anyio
import click
import orjson

from verniermq.kernel import (
    ConfigError,
    RemotingError,
    StoredMessage,
    SysFlag,
    VernierMQError,
    parse_duration,
    unpack_host,
)
from verniermq.plugins.query.lookup import LATEST, by_key, by_offset_id
from verniermq.protocol.inflate import InflatesTooFar, inflate

T = TypeVar("T")

namesrv_option = click.option(
    "--namesrv",
    envvar=["VERNIERMQ_NAMESRV", "NAMESRV_ADDR"],
    default="127.0.0.1:9876",
    show_default="$VERNIERMQ_NAMESRV, $NAMESRV_ADDR or 127.0.0.1:9876",
    help="The name server; several with ';' between them.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")

_MILLISECONDS: Final = re.compile(r"\d{11,}")


class Moment(click.ParamType[int]):
    """A time as people write it: a date, so long ago, or milliseconds since 1970."""

    name = "time"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        if _MILLISECONDS.fullmatch(text):
            return int(text)
        try:
            return round(datetime.fromisoformat(text).timestamp() * 1000)
        except ValueError:
            pass
        try:
            return round((time() - parse_duration(text)) * 1000)
        except (ValueError, ConfigError):
            self.fail(
                f"{text!r} is no time; write 2026-03-01 or 2026-03-01T12:30, 2h for two hours ago, "
                "or milliseconds since 1970",
                parameter,
                context,
            )


@click.group()
def message() -> None:
    """Find messages by id or by key.

    \b
    verniermq message get 7F00000100002A9F0000000000001000
    verniermq message get 0A000009126718B4AAC247B760000003 --topic orders
    verniermq message query orders order-4711 --begin 2h
    """


@message.command()
@click.argument("message_id", metavar="ID")
@click.option("--topic", help="The topic; needed to find a unique key, the id that producers see.")
@namesrv_option
@json_option
def get(message_id: str, topic: str | None, namesrv: str, as_json: bool) -> None:
    """Show the message with this ID.

    An offset message id says itself where the message lies. A unique key does not: name its --topic.
    """

    async def work() -> list[StoredMessage]:
        if topic is not None:
            found = await by_key(namesrv, topic, message_id, unique=True)
            same = [each for each in found if each.unique_key == message_id]
            if same:
                return same
        try:
            one = await by_offset_id(message_id)
        except (ValueError, RemotingError):
            # Any 32 hex digits name some broker; that this one does not answer says that they are no offset id.
            one = None
        return [] if one is None else [one]

    found = _run(work)
    if not found:
        hint = "" if topic else "; if it is a unique key, name its topic with --topic"
        raise click.ClickException(f"there is no message with the id {message_id}{hint}")
    _show(found, as_json)


@message.command()
@click.argument("topic")
@click.argument("key", required=False)
@click.option("--key", "key_option", help="The same as KEY.")
@click.option("--begin", type=Moment(), default=0, help="Only messages stored at this time or later.")
@click.option("--end", type=Moment(), default=LATEST, help="Only messages stored at this time or before.")
@click.option("--max", "most", type=click.IntRange(1, 64), default=32, show_default=True, help="The newest so many.")
@namesrv_option
@json_option
def query(
    topic: str, key: str | None, key_option: str | None, begin: int, end: int, most: int, namesrv: str, as_json: bool
) -> None:
    """Show the messages of TOPIC that have KEY: one word of their keys, or their unique key.

    A time is a date (2026-03-01T12:30), so long ago (2h, 90s), or milliseconds since 1970.
    """

    wanted = key or key_option
    if not wanted or (key and key_option):
        every = f"verniermq tail {topic} --from-start --no-wait"
        raise click.UsageError(f"say one key: verniermq message query {topic} KEY; all messages: {every}")

    async def work() -> list[StoredMessage]:
        return await by_key(namesrv, topic, wanted, begin_ms=begin, end_ms=end, most=most)

    found = _run(work)
    if not found:
        raise click.ClickException(f"topic {topic} has no message with the key {wanted} in that time")
    _show(found, as_json)


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return anyio.run(work)
    except KeyboardInterrupt:
        sys.exit(130)


# --- showing them --------------------------------------------------------------------------


def _show(found: list[StoredMessage], as_json: bool) -> None:
    if as_json:
        for each in found:
            click.echo(orjson.dumps(as_dict(each)))
        return
    click.echo("\n\n".join(_described(each) for each in found))


def as_dict(message: StoredMessage) -> dict[str, Any]:
    """A message for machines; a body that is no text comes as base64."""
    body = _body(message)
    try:
        content = {"body": body.decode()}
    except UnicodeDecodeError:
        content = {"body_base64": base64.b64encode(body).decode()}
    return {
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "id": message.unique_key,
        "offset_id": message.offset_message_id,
        "commit_log_offset": message.commit_log_offset,
        "size": message.size,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "born_ms": message.born_timestamp,
        "born_host": unpack_host(message.born_host),
        "stored_ms": message.store_timestamp,
        "stored_host": unpack_host(message.store_host),
        "reconsume_times": message.reconsume_times,
        **content,
    }


def _described(message: StoredMessage) -> str:
    own = ("TAGS", "KEYS", "UNIQ_KEY")
    others = "  ".join(f"{name}={value}" for name, value in message.properties.items() if name not in own)
    try:
        body = _body(message).decode()
    except UnicodeDecodeError:
        body = f"{_body(message)!r}"
    rows = [
        ("topic", f"{message.topic}  queue {message.queue_id}  offset {message.queue_offset}"),
        ("id", message.unique_key or "-"),
        ("offset id", message.offset_message_id),
        ("tags", message.tags or "-"),
        ("keys", " ".join(message.keys) or "-"),
        ("born", f"{_time(message.born_timestamp)}  at {unpack_host(message.born_host)}"),
        ("stored", f"{_time(message.store_timestamp)}  at {unpack_host(message.store_host)}"),
        ("consumed again", str(message.reconsume_times)),
        ("properties", others or "-"),
        ("body", body),
    ]
    return "\n".join(f"{name:<15}{value}" for name, value in rows)


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).isoformat(" ", "milliseconds")


def _body(message: StoredMessage) -> bytes:
    """The body as it was sent, if it was compressed with zlib; other ways need libraries that may not be there."""
    if not message.sys_flag & SysFlag.COMPRESSED:
        return message.body
    if message.sys_flag & SysFlag.COMPRESSION_MASK not in (0, SysFlag.COMPRESSION_ZLIB):
        return message.body
    try:
        return inflate(message.body)
    except (ValueError, InflatesTooFar) as error:
        raise VernierMQError(f"the body of {message.offset_message_id} does not decompress: {error}") from error
