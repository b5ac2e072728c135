"""Order numbers: ``A-2024-000123-88``, whose last two digits check the rest, as those of a bank account do.

Letters count as numbers (A is 10 … Z is 35); the whole, without its dashes, leaves 1 when it is divided by 97. One
wrong digit, or two that changed places, is always noticed.
"""

from __future__ import annotations

import re

_FORM = re.compile(r"[A-Z]+-[0-9]{4}-[0-9]{6}-[0-9]{2}")


def with_check(number: str) -> str:
    """``A-2024-000123`` with its two check digits."""
    return f"{number}-{98 - _as_integer(number) * 100 % 97:02}"


def is_valid(number: str) -> bool:
    return _FORM.fullmatch(number) is not None and _as_integer(number) % 97 == 1


def _as_integer(number: str) -> int:
    return int("".join(str(int(character, 36)) for character in number if character != "-"))
