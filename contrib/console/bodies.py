"""A message as data to show: its body as JSON, text or bytes, with what has to stay hidden masked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from verniermq.client.errors import ClientError
from verniermq.client.message import ReceivedMessage

PREVIEW: Final = 160
LARGEST: Final = 64 * 1024
"""Bytes of a body that are shown."""
MASK: Final = "••••"


def summary(message: ReceivedMessage, mask: Sequence[str] = ()) -> dict[str, Any]:
    """One row of a table."""
    kind, text = body_text(message, mask)
    line = " ".join(text.split()) if kind == "json" else text
    return {
        "id": message.message_id,
        "offset_id": message.offset_message_id,
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "stored_ms": message.store_timestamp,
        "tags": message.tags or "",
        "keys": message.keys,
        "size": message.size,
        "body_size": body_size(message),
        "attempts": message.reconsume_times,
        "kind": kind,
        "preview": line[:PREVIEW] + ("…" if len(line) > PREVIEW else ""),
    }


def whole(message: ReceivedMessage, mask: Sequence[str] = ()) -> dict[str, Any]:
    """Everything about a message."""
    kind, text = body_text(message, mask)
    properties = {name: MASK if name in mask else value for name, value in sorted(message.properties.items())}
    return {
        **summary(message, mask),
        "born_ms": message.born_timestamp,
        "born_host": message.born_host,
        "place": message.commit_log_offset,
        "properties": properties,
        "kind": kind,
        "body": text,
    }


def body_size(message: ReceivedMessage) -> int | None:
    """Bytes of the body as consumers get it; ``None`` if it cannot be unpacked."""
    try:
        return len(message.body)
    except ClientError:
        return None


def body_text(message: ReceivedMessage, mask: Sequence[str] = ()) -> tuple[str, str]:
    """What a body is, ``json``, ``text`` or ``bytes``, and how it is shown. With a mask, what is not JSON stays hidden:
    nothing says where in it is what has to be."""
    try:
        body = message.body
    except ClientError as error:
        return "bytes", str(error)
    if body[:1] in (b"{", b"["):
        try:
            return "json", orjson.dumps(masked(orjson.loads(body), mask), option=orjson.OPT_INDENT_2).decode()[:LARGEST]
        except ValueError:
            pass  # it only looks like JSON
    try:
        kind, text = "text", body.decode()[:LARGEST]
    except UnicodeDecodeError:
        kind, text = "bytes", hex_lines(body[: LARGEST // 4])
    return kind, MASK if mask else text


def masked(value: Any, mask: Sequence[str]) -> Any:
    """The same with the members hidden that the mask names, by their name or their path such as ``customer.card``."""
    return _masked(value, frozenset(mask), "") if mask else value


def _masked(value: Any, mask: frozenset[str], path: str) -> Any:
    if isinstance(value, list):
        return [_masked(item, mask, path) for item in value]
    if not isinstance(value, dict):
        return value
    shown = {}
    for name, member in value.items():
        inner = f"{path}.{name}" if path else name
        shown[name] = MASK if name in mask or inner in mask else _masked(member, mask, inner)
    return shown


def hex_lines(body: bytes) -> str:
    """Bytes as sixteen to a line, with the characters that they may be."""
    lines = []
    for start in range(0, len(body), 16):
        part = body[start : start + 16]
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {characters}")
    return "\n".join(lines)
