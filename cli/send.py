"""``verniermq send``: messages from a terminal, a file, or another command. Works on Apache's brokers too."""

from __future__ import annotations

import base64
import binascii
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, Literal

import anyio
import attrs
import click

from verniermq.cli.client import connection, json_option, namesrv_option, print_json, run
from verniermq.cli.durations import DURATION
from verniermq.cli.properties import parse_properties
from verniermq.client.admin.messages import NOT_RESENT
from verniermq.client.errors import ClientError
from verniermq.client.producer import Producer
from verniermq.kernel import Message, Property

OF_ITS_OWN: Final = NOT_RESENT | {Property.TAGS, Property.KEYS, Property.TIMER_DELIVER_MS, Property.TIMER_OUT_MS}
"""Properties of a printed message that the new one gets from elsewhere."""


@attrs.frozen
class Draft:
    """What all messages of one command have in common."""

    topic: str
    tags: str | None
    keys: list[str]
    properties: dict[str, str]
    delay_level: int
    key_separator: str | None

    def message(self, body: bytes) -> Message:
        return Message(
            self.topic, body, self.tags, self.keys, dict(self.properties), delay_level=self.delay_level
        )  # fmt: skip

    def of_line(self, line: str) -> Message:
        """A line is a body, or ``key<separator>body``."""
        if self.key_separator is None:
            return self.message(line.encode())
        key, separator, body = line.partition(self.key_separator)
        if not separator:
            raise ClientError(f"line {line[:80]!r} has no {self.key_separator!r} between its key and its body")
        return attrs.evolve(self, keys=[*self.keys, *key.split()]).message(body.encode())

    def of_json(self, line: str) -> Message:
        """A line is an object as ``verniermq tail --json`` prints it; what the command says goes before it."""
        try:
            told = json.loads(line)
            body = base64.b64decode(told["body_base64"]) if "body_base64" in told else told["body"].encode()
            keys, properties = told.get("keys") or [], told.get("properties") or {}
            found = {str(name): str(value) for name, value in properties.items() if name not in OF_ITS_OWN}
            return Message(
                self.topic, body, self.tags or told.get("tags"), [*self.keys, *map(str, keys)],
                {**found, **self.properties}, delay_level=self.delay_level,
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise ClientError(
                f"line {line[:80]!r} is no message as tail --json prints it, an object with body or body_base64: "
                f"{type(error).__name__}: {error}"
            ) from None


@click.command()
@click.argument("topic_name", metavar="TOPIC")
@click.argument("body")
@namesrv_option
@json_option
@click.option("--tags", help="The message's tag.")
@click.option("--keys", help="Keys to find it by, with spaces between them.")
@click.option("--property", "-p", "properties", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option(
    "--delay-level", type=click.IntRange(0), default=0,
    help="Deliver later: one of the broker's levels, 1 (1s) to 18 (2h) if it has RocketMQ's; more is the highest.",
)  # fmt: skip
@click.option("--delay", type=DURATION, help="Deliver so much later: 90s, 2h.")
@click.option("--sharding-key", help="Messages of one key go to one queue.")
@click.option("--count", "-c", type=click.IntRange(1), default=1, show_default=True, help="Send it so many times.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="At most so many messages a second.")
@click.option(
    "--input", "form", type=click.Choice(["lines", "json"]), default="lines", show_default=True,
    help='What BODY "-" reads: a body a line, or objects as tail --json prints them.',
)  # fmt: skip
@click.option("--key-separator", metavar="TEXT", help='With BODY "-": a line is KEY, this text, and the body.')
@click.option("--group", default="verniermq-cli", show_default=True, help="The producer group.")
def send(
    topic_name: str, body: str, namesrv: str, as_json: bool, tags: str | None, keys: str | None,
    properties: tuple[str, ...], delay_level: int, delay: float | None, sharding_key: str | None, count: int,
    rate: float | None, form: Literal["lines", "json"], key_separator: str | None, group: str,
) -> None:  # fmt: skip
    """Send BODY to TOPIC. "-" sends every line of the standard input, "@FILE" a whole file.

    \b
    verniermq send orders '{"number": 4711}' --keys 4711 --tags paid
    verniermq send orders @order.json --delay 5m
    cat keyed.txt | verniermq send orders - --key-separator : --rate 100
    verniermq tail a --from-start --no-wait --json |
      verniermq send b - --input json

    A body that begins with "@" itself is written with two: "@@home".
    """
    extra = parse_properties(properties)
    if delay is not None and delay_level:
        raise click.UsageError("--delay and --delay-level say two times; choose one")
    if delay is not None:
        extra[Property.TIMER_DELAY_MS] = str(round(delay * 1000))
    if body != "-" and (form == "json" or key_separator is not None):
        raise click.UsageError('--input json and --key-separator are about lines of the standard input: BODY is "-"')
    common = Draft(topic_name, tags, (keys or "").split(), extra, delay_level, key_separator)

    async def work() -> None:
        async with Producer(group, **connection(namesrv)) as producer:
            begin, sent = time.monotonic(), 0
            async for message in _messages(common, body, form, count):
                if rate is not None:
                    await anyio.sleep(max(0.0, begin + sent / rate - time.monotonic()))
                result = await producer.send(message, sharding_key=sharding_key)
                sent += 1
                if as_json:
                    print_json({
                        "status": result.status.name, "id": result.message_id, "broker": result.queue.broker_name,
                        "queue": result.queue.queue_id, "offset": result.queue_offset,
                    })  # fmt: skip
                else:
                    where = f"{result.queue.broker_name} queue {result.queue.queue_id} offset {result.queue_offset}"
                    click.echo(f"{result.status.name} {result.message_id} {where}")

    run(work)


async def _messages(common: Draft, body: str, form: str, count: int) -> AsyncIterator[Message]:
    if body == "-":
        make: Any = common.of_json if form == "json" else common.of_line
        if sys.stdin is None:
            raise ClientError('BODY "-" reads the standard input, which is closed')
        lines = anyio.wrap_file(sys.stdin)  # read while it comes: another command may still write
        async for line in lines:
            for _ in range(count):
                yield make(line.rstrip("\r\n"))
        return
    content = _body(body)
    for _ in range(count):
        yield common.message(content)


def _body(text: str) -> bytes:
    if not text.startswith("@"):
        return text.encode()
    if text.startswith("@@"):
        return text[1:].encode()
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise ClientError(f"{text}: {error.strerror}; a body that begins with @ is written with two: @{text}") from None
