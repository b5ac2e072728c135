"""Values written as TOML; the standard library only reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from datetime import date, datetime, time
from enum import Enum
from pathlib import PurePath
from typing import Final

_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_BARE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def toml_key(key: str) -> str:
    """A key, quoted only where TOML asks for it."""
    return key if key and _BARE.issuperset(key) else toml_text(key)


def toml_text(text: str) -> str:
    """A text in double quotes, on one line whatever it contains."""
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    # Control characters are forbidden in TOML; the line separators would break a one-line message.
    if ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 or character in "\u2028\u2029":
        return f"\\u{ord(character):04X}"
    return character


def toml_value(value: object) -> str:
    """Any value that a TOML file can hold, on one line."""
    match value:
        case Enum():
            return toml_value(choice_of(value))
        case bool():
            return "true" if value else "false"
        case str():
            return toml_text(value)
        case PurePath():
            return toml_text(str(value))
        case float() if not math.isfinite(value):
            return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
        case int() | float():
            return repr(value)
        case datetime() | date() | time():
            return value.isoformat()
        case Mapping():
            inside = ", ".join(f"{toml_key(str(key))} = {toml_value(item)}" for key, item in value.items())
            return f"{{ {inside} }}" if inside else "{}"
        case Set():
            return toml_value(sorted(value, key=str))
        case Sequence():
            return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return toml_text(str(value))


def choice_of(member: Enum) -> object:
    """How an enum's member is written: its value if that is a text, otherwise its name in small letters."""
    return member.value if isinstance(member.value, str) else member.name.lower()


def shortened(text: str, limit: int = 80) -> str:
    """A value for an error message, which has to stay one readable line."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
