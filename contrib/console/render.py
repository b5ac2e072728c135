"""Data as HTML: Jinja2's templates, with everything escaped, and how numbers and times are written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from verniermq.kernel import format_duration
from verniermq.protocol.versions import version_name

HERE: Final = Path(__file__).parent
STATIC: Final = HERE / "static"


def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "count": count, "rate": rate, "moment": moment, "ago": ago, "size": size, "part": part, "percent": percent,
        "noun": noun, "version": version,
    }  # fmt: skip
    made.globals |= {"static": static_name, "with_query": with_query}
    return made


def count(number: float | None) -> str:
    """1234567 → 1,234,567."""
    return "–" if number is None else f"{round(number):,}"


def noun(number: float, word: str) -> str:
    """What is counted: one message, two messages."""
    return word if round(number) == 1 else f"{word}s"


def rate(number: float | None) -> str:
    if number is None:
        return "–"
    return f"{number:,.1f}" if number < 100 else f"{round(number):,}"


def moment(milliseconds: int) -> str:
    """A time as people in one office write it, in the time of the console's machine."""
    if milliseconds <= 0:
        return "–"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ago(milliseconds: float | None) -> str:
    """A span of time in its largest unit or two: 90061000 → 1d1h."""
    if not milliseconds or milliseconds <= 0:
        return "–"
    seconds = round(milliseconds / 1000)
    for unit in (86400, 3600, 60):
        if seconds >= 10 * unit:
            seconds -= seconds % unit
            break
    return format_duration(float(max(1, seconds)))


def size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def percent(ratio: float) -> str:
    return f"{ratio * 100:.0f} %"


def version(number: int | None) -> str:
    """Of a client, by the number that it sends."""
    return "–" if number is None else version_name(number)


def part(name: str) -> str:
    """A name as a part of an address, whatever is in it."""
    return quote(name, safe="")


def with_query(query: Mapping[str, str], **changes: Any) -> str:
    """The query of this page with some changes; ``None`` leaves a name out."""
    merged = {**query, **changes}
    return "?" + urlencode({name: value for name, value in merged.items() if value not in (None, "")})


def static_name(file: str) -> str:
    """The address of a file of the console's own, which changes with its content."""
    return f"/static/{_digest(file)}/{file}"


_digests: dict[str, str] = {}


def _digest(file: str) -> str:
    if file not in _digests:
        _digests[file] = hashlib.sha256((STATIC / file).read_bytes()).hexdigest()[:16]
    return _digests[file]
