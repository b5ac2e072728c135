"""How the broker's log looks: coloured for a person, plain lines for a file, or JSON for a collector.

Our lines are an event in plain words and then ``key=value``. As JSON the keys are members, taken from the arguments
themselves, so that a value with spaces in it stays whole::

    segment rolled offset=1073741824 took_ms=3
    {"ts":"2026-11-18T02:30:00.123Z","level":"INFO","logger":"verniermq.kernel.…","event":"segment rolled","offset":…}
"""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson

OWN: Final = frozenset({"ts", "level", "logger", "event", "error"})
"""Members that no argument may take."""
_PLACE: Final = re.compile(r"(?:(\w+)=)?%(?:%|[#0\- +]*\d*(?:\.\d+)?[sradfgxXo])")


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        event, fields = _parts(record)
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "event": event,
            **fields,
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def _parts(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    """The event, and what stands behind it as ``key=value``; what is named inside a sentence stays there."""
    message = record.getMessage()
    if not isinstance(record.msg, str) or not isinstance(record.args, tuple):
        return message, {}
    places = [place for place in _PLACE.finditer(record.msg) if not place.group().endswith("%%")]
    if len(places) != len(record.args):
        return message, {}
    fields: dict[str, Any] = {}
    end = len(record.msg)
    kept = len(places)
    for place, value in zip(reversed(places), reversed(record.args), strict=True):
        name = place.group(1)
        if name is None or name in OWN or name in fields or record.msg[place.end() : end].strip():
            break
        fields[name] = value if isinstance(value, int | float | bool | str) else str(value)
        end = place.start()
        kept -= 1
    event = record.msg[:end].rstrip()
    try:
        return (event % record.args[:kept] if kept else event.replace("%%", "%")), dict(reversed(fields.items()))
    except (TypeError, ValueError):
        return message, {}


def set_up_logging(level: str, form: Literal["text", "json"]) -> None:
    """To standard error, once, before anything is logged."""
    if form == "json":
        handler: logging.Handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
        logging.basicConfig(level=level, handlers=[handler])
    elif sys.stderr.isatty():
        from rich.logging import RichHandler

        from verniermq.cli.progress import terminal

        handler = RichHandler(console=terminal(), show_path=False)
        logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
    else:
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
