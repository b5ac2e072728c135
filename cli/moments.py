"""Places in a topic as people write them: ``start``, ``end``, ``2h``, ``2026-03-01T12:30``, ``4711``, ``+100``."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from time import time
from typing import Final, Literal

import attrs

from verniermq.client.errors import ClientError
from verniermq.kernel import ConfigError, parse_duration

Moment = datetime | int | Literal["first", "last"]

WORDS: Final[dict[str, Literal["first", "last"]]] = {
    "start": "first", "first": "first", "earliest": "first", "end": "last", "last": "last", "latest": "last",
}  # fmt: skip
_OFFSET: Final = re.compile(r"[+-]?\d{1,18}")


@attrs.frozen
class Position:
    """A moment (milliseconds since 1970, or an end of the queue), an offset, or so many messages from where one is."""

    moment: Moment | None = None
    number: int = 0
    relative: bool = False

    def offset(self, now: int) -> int:
        return now + self.number if self.relative else self.number


def parse_position(text: str) -> Position:
    """
    Raises:
        ClientError: it is no place.
    """
    if text in WORDS:
        return Position(WORDS[text])
    if _OFFSET.fullmatch(text):
        return Position(number=int(text), relative=text[0] in "+-")
    try:
        return Position(parse_moment(text))
    except ClientError:
        raise ClientError(
            f"{text!r} is no place; write start, end, 2h for two hours ago, 2026-03-01T12:30, "
            "an offset such as 4711, +100 and -100, or @FILE"
        ) from None


def kept_places(file: Path, topic: str) -> dict[tuple[str, int], int]:
    """Where a group was in a topic: broker and queue → offset, from what ``group show --json`` printed.

    Raises:
        ClientError: the file cannot be read, or says nothing of this topic.
    """
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["queues"]
        found = {
            (str(row["broker"]), int(row["queue"])): int(row["committed"]) for row in rows if row["topic"] == topic
        }
    except OSError as error:
        raise ClientError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, LookupError) as error:
        raise ClientError(f"{file} is not what group show --json prints: {error!r}") from None
    if not found:
        raise ClientError(f"{file} says nothing of topic {topic}")
    return found


def parse_moment(text: str) -> int:
    """``2h`` or ``2026-03-01T12:30`` as milliseconds since 1970.

    Raises:
        ClientError: it is no time.
    """
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        pass
    try:
        return round((time() - parse_duration(text)) * 1000)
    except (ValueError, ConfigError):
        raise ClientError(f"{text!r} is no time; write 2h for two hours ago, or 2026-03-01T12:30") from None
