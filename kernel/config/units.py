"""Sizes and durations as people write them: ``"4MiB"``, ``"72h"``, ``"1h30m"``, ``"500ms"``.

=========  =====================================================  =======================
kind       units                                                  a bare number means
=========  =====================================================  =======================
size       B; KiB MiB GiB TiB or K M G T (powers of 1024);        bytes
           KB MB GB TB (powers of 1000)
duration   ms s m h d, alone or largest first: ``1d12h``          seconds
=========  =====================================================  =======================

A setting refuses a number without a unit that is 100 times its default or more (``structure.py``).

Sums are exact and rounded once, so what is formatted parses back to the same value.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NewType

if TYPE_CHECKING:
    from decimal import Decimal

Size = NewType("Size", int)
"""A number of bytes. A setting annotated with it may be written ``"4MiB"``."""

Duration = NewType("Duration", float)
"""A number of seconds. A setting annotated with it may be written ``"500ms"``."""

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40

_SIZE_UNITS: Final = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "kb": 10**3,
    "m": MIB, "mib": MIB, "mb": 10**6,
    "g": GIB, "gib": GIB, "gb": 10**9,
    "t": TIB, "tib": TIB, "tb": 10**12,
}  # fmt: skip
_DURATION_UNITS: Final = {
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
    "ms": 1,
}
"""In milliseconds."""

_SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_NUMBER: Final = re.compile(r"\s*[0-9]+(?:\.[0-9]+)?\s*")
_DURATION_PART: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|[smhd])\s*")

_LONGEST: Final = 40
"""No sensible size or duration has more characters; a longer text is refused before any arithmetic."""
_SCALE: Final = 10**_LONGEST
"""What numbers are multiplied with, so that all their digits are whole ones."""


def parse_size(text: str) -> Size:
    """Read a size; ``ValueError`` when it is none, or not a whole number of bytes."""
    match = _SIZE.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise ValueError(f"{text!r} is not a size such as '4MiB'")
    size, rest = divmod(_scaled(match[1]) * _SIZE_UNITS[match[2].lower()], _SCALE)
    if rest:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return Size(size)


def parse_duration(text: str) -> Duration:
    """Read a duration into seconds; ``ValueError`` when it is none."""
    if len(text) <= _LONGEST:
        if _NUMBER.fullmatch(text):
            return Duration(float(text))
        milliseconds = _sum_of_parts(text)
        if milliseconds is not None:
            return Duration(milliseconds / (1000 * _SCALE))
    raise ValueError(f"{text!r} is not a duration such as '500ms' or '1h30m'")


def _sum_of_parts(text: str) -> int | None:
    """In milliseconds, scaled."""
    milliseconds = 0
    smaller_than: int | None = None
    position = 0
    while position < len(text):
        match = _DURATION_PART.match(text, position)
        if match is None:
            return None
        unit = _DURATION_UNITS[match[2]]
        # "30m1h" or "5s5s" is more often a slip than a wish.
        if smaller_than is not None and unit >= smaller_than:
            return None
        milliseconds += _scaled(match[1]) * unit
        smaller_than = unit
        position = match.end()
    return milliseconds if smaller_than is not None else None


def _scaled(number: str) -> int:
    whole, _, fraction = number.partition(".")
    return int(whole + fraction.ljust(_LONGEST, "0"))


def format_size(size: int) -> str:
    """Write a size with the largest unit that divides it: 4194304 is ``4MiB``, 1500 is ``1500B``."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return f"{size}B"


def format_duration(seconds: float) -> str:
    """Write a duration, largest unit first: 5400 is ``1h30m``, 0.5 is ``500ms``, 0 is ``0s``."""
    from decimal import Decimal  # here: a start formats none

    rest = Decimal(repr(float(seconds))) * 1000
    if 0 < rest < 1000:
        return f"{_plain(rest)}ms"
    parts = []
    for name in ("d", "h", "m"):
        count, rest = divmod(rest, _DURATION_UNITS[name])
        if count:
            parts.append(f"{int(count)}{name}")
    if rest or not parts:
        parts.append(f"{_plain(rest / 1000)}s")
    return "".join(parts)


def _plain(number: Decimal) -> str:
    """A decimal without exponent and without idle zeros."""
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
