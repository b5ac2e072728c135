"""How a message is printed: as a line, as JSON, or by a template such as ``{queue}@{offset} {keys} {body}``."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import click

from verniermq.cli.bodies import BadBody, Decode, value_text
from verniermq.client.errors import ClientError
from verniermq.client.message import ReceivedMessage

_FIELD: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_ESCAPE: Final = re.compile(r"\\([nrt0\\])")
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}

FIELDS: Final[dict[str, Callable[[ReceivedMessage], Any]]] = {
    "topic": lambda message: message.topic,
    "broker": lambda message: message.queue.broker_name,
    "queue": lambda message: message.queue.queue_id,
    "offset": lambda message: message.queue_offset,
    "id": lambda message: message.message_id,
    "offset_id": lambda message: message.offset_message_id,
    "born": lambda message: _moment(message.born_timestamp),
    "stored": lambda message: _moment(message.store_timestamp),
    "born_ms": lambda message: message.born_timestamp,
    "stored_ms": lambda message: message.store_timestamp,
    "tags": lambda message: message.tags or "",
    "keys": lambda message: " ".join(message.keys),
    "size": lambda message: len(message.body),
    "properties": lambda message: json.dumps(message.properties, ensure_ascii=False),
    "base64": lambda message: base64.b64encode(message.body).decode(),
}
"""What a template may name beside ``{body}``; ``{property.colour}`` is one property."""


def _moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).isoformat(" ", "milliseconds")


class MessageTemplate:
    """A line for a message, with its fields between braces; ``{{`` is one brace, ``\\n`` and ``\\t`` are what they are.

    Raises:
        ClientError: a field that no message has.
    """

    def __init__(self, text: str, decode: Decode | None = None) -> None:
        text = _ESCAPE.sub(lambda found: _ESCAPED[found.group(1)], text)
        self._parts: list[str | Callable[[ReceivedMessage], Any]] = []
        end = 0
        for found in _FIELD.finditer(text):
            self._parts.append(text[end : found.start()])
            end = found.end()
            self._parts.append(found.group()[0] if found.group(1) is None else _field(found.group(1), decode))
        self._parts.append(text[end:])

    def __call__(self, message: ReceivedMessage) -> str:
        return "".join(part if isinstance(part, str) else str(part(message)) for part in self._parts)


def _field(name: str, decode: Decode | None) -> Callable[[ReceivedMessage], Any]:
    if name == "body":
        return lambda message: body_text(message, decode)
    if name.startswith("property."):
        wanted = name.removeprefix("property.")
        return lambda message: message.properties.get(wanted, "")
    if name not in FIELDS:
        raise ClientError(f"{{{name}}} is no field of a message; known are {', '.join(FIELDS)}, body and property.NAME")
    return FIELDS[name]


def body_text(message: ReceivedMessage, decode: Decode | None = None) -> str:
    """The body for a person: its value, its text, or its first bytes."""
    try:
        body = message.body
        if decode is not None:
            return value_text(decode(body))
    except ClientError as error:
        return f"<{error}>"
    except BadBody as error:
        return f"<{error}> {body[:64].hex(' ')}{' …' if len(body) > 64 else ''}"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"<{len(body)} bytes> {body[:64].hex(' ')}{' …' if len(body) > 64 else ''}"
    return text if text.isprintable() or "\n" in text else repr(text)[1:-1]


def as_line(message: ReceivedMessage, decode: Decode | None = None) -> str:
    return f"{_head(message)} {body_text(message, decode)}"


def _head(message: ReceivedMessage) -> str:
    stored = datetime.fromtimestamp(message.store_timestamp / 1000).strftime("%H:%M:%S.%f")[:-3]
    marks = [f"{message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}"]
    if message.tags:
        marks.append(click.style(f"#{message.tags}", fg="cyan"))
    if message.keys:
        marks.append(click.style(f"[{' '.join(message.keys)}]", fg="yellow"))
    return f"{click.style(stored, dim=True)} {' '.join(marks)}"


def as_pretty(message: ReceivedMessage, decode: Decode | None = None) -> str:
    """A line for where it lies, and its body below; JSON and decoded values are indented."""
    try:
        body = value_text((decode or json.loads)(message.body), indent=2)
    except (ValueError, ClientError, BadBody):
        body = body_text(message, decode)
    return f"{_head(message)}\n{body}"


def as_json(message: ReceivedMessage, decode: Decode | None = None) -> dict[str, Any]:
    """For programs; a body that is no text comes as ``body_base64``, one that cannot be inflated as ``body_error``.

    What it is decoded to stands beside it as ``value``, and the reason where it cannot be as ``value_error``.
    """
    content: dict[str, Any]
    try:
        body = message.body
    except ClientError as error:
        content = {"body_error": str(error)}
    else:
        try:
            content = {"body": body.decode()}
        except UnicodeDecodeError:
            content = {"body_base64": base64.b64encode(body).decode()}
        if decode is not None:
            try:
                content["value"] = decode(body)
            except BadBody as error:
                content["value_error"] = str(error)
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
        **content,
    }
