"""How much JSON is read from a text that somebody else wrote, before and after it is parsed.

A few bytes can ask for much: a megabyte of ``[],[],[]`` is 350,000 lists, a thousand ``[`` are a value that no
recursive function gets through (Python's, and the writer of our own files, end below that), and references double
with each line. So there are limits on how many values a text has and on how deep they lie, far above
what RocketMQ's largest bodies have, and what goes past them is refused like any other malformed text.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

Text: TypeAlias = bytes | bytearray | memoryview | str

SLOWER: Final = 10
"""What Python reads itself (the dialect, references) takes ten times as long: a tenth as many values."""


class JsonLimits(NamedTuple):
    values: float
    """Values in one text, at most: an object with two members is three."""
    depth: int
    """Objects and lists within each other, at most."""

    @property
    def slow_values(self) -> float:
        return self.values / SLOWER


FROM_PEER: Final = JsonLimits(values=100_000, depth=32)
"""A request: its reading may hold the loop for a few hundredths of a second, whoever sent it."""

FROM_SERVER: Final = JsonLimits(values=2_000_000, depth=32)
"""An answer of a server that we chose to ask, or the registration of a broker that may register."""

FROM_FILE: Final = JsonLimits(values=math.inf, depth=254)
"""A file of our own: as deep as can be written, and as long as it is."""


def parse_json(text: Text, limits: JsonLimits = FROM_PEER) -> Any:
    """Read plain JSON.

    Raises:
        ValueError: it is none, or more than the limits allow.
    """
    check_count(text, limits)
    value = orjson.loads(text)
    check_depth(value, text, limits)
    return value


def check_count(text: Text, limits: JsonLimits) -> None:
    """Refuse a text that may have more values than allowed, before it is parsed.

    Every value but the first follows a comma or opens an object or a list. Such signs inside strings are counted too:
    it is a limit and no measure.

    Raises:
        ValueError: it may have more.
    """
    if len(text) > limits.values and (count := 1 + _count(text, ",{[")) > limits.values:
        raise ValueError(f"it has up to {count} values; at most {limits.values:.0f} are read")


def check_depth(value: Any, text: Text, limits: JsonLimits) -> None:
    """Refuse a value that lies deeper than allowed. ``text`` is what it was read from, which tells most at a glance.

    Raises:
        ValueError: it does.
    """
    if _count(text, "{[") <= limits.depth:
        return
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(limits.depth):
        level = [
            member
            for container in level
            for member in (container.values() if type(container) is dict else container)
            if type(member) is dict or type(member) is list
        ]
    if level:
        raise ValueError(f"it is nested more than {limits.depth} levels deep")


def _count(text: Text, signs: str) -> int:
    if isinstance(text, str):
        return sum(map(text.count, signs))
    data = bytes(text) if isinstance(text, memoryview) else text
    return sum(map(data.count, signs.encode()))
