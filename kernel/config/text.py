"""Values that come as plain text, from an environment variable or a flag, read by the kind of their setting.

======================  =============================================================================
kind                    text
======================  =============================================================================
true or false           ``true false yes no on off 1 0``
a number                ``42``, ``0.5``
a list                  ``a,b,c``, or as in the file: ``["a", "b"]``; of numbers, sizes and times also ``1s 5s``
a table                 as in the file: ``{ a = 1, b = 2 }``, or lines of TOML
anything else           the text itself
======================  =============================================================================

A text that does not fit is handed back as it is; whoever checks the kinds then words the complaint.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, get_origin

from verniermq.kernel.config.kinds import is_table, item_kind, value_kind
from verniermq.kernel.config.units import Duration, Size

_BOOLEANS: Final = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,30}(?:_[0-9]+)*")


class PlainText(str):
    """A value from where there are only texts; it is read once its setting's kind is known."""


def read_text(text: PlainText, kind: Any) -> Any:
    """The value that the text stands for, as a TOML file would have given it."""
    plain = str(text)
    if kind is bool:
        return _BOOLEANS.get(plain.strip().lower(), plain)
    if kind is int:
        return int(plain) if _WHOLE.fullmatch(plain.strip()) else plain
    if kind is float:
        return _float(plain)
    if item_kind(kind) is not None:
        if plain.lstrip().startswith("["):
            return _as_in_the_file(plain)
        is_spaced = item_kind(kind) in (int, float, Size, Duration)
        items = plain.replace(",", " ").split() if is_spaced else [item.strip() for item in plain.split(",")]
        return [PlainText(item) for item in items if item]
    if value_kind(kind) is not None or is_table(kind):
        return _table(plain)
    if kind is Any or get_origin(kind) is Literal:
        return _as_in_the_file(plain)
    return plain


def _float(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _table(text: str) -> Any:
    table = _as_in_the_file(text)
    if table is not text or not text.strip():
        return table
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return text


def _as_in_the_file(text: str) -> Any:
    import tomllib  # a broker with the defaults reads no such text

    try:
        document = tomllib.loads(f"value = {text.strip()}")
    except tomllib.TOMLDecodeError:
        return text
    # More than one key: the text held a line break and further keys, so it is no value.
    return document["value"] if len(document) == 1 else text
