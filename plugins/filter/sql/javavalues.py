"""How Java reads a number or a truth value out of a text, and how it orders numbers.

Property values are texts, and RocketMQ converts them with ``Integer.valueOf``, ``Long.valueOf``,
``Double.valueOf`` and ``Boolean.valueOf`` at the moment of comparison. Python's own conversions take other
texts (``1_000``, `` 7 ``, ``nan``) and refuse some that Java takes (``1.5f``, ``0x1p3``), hence this file.

Note that Java trims blanks around a double but not around an integer, and that an integer may be written in the
digits of any script that lies in Unicode's first plane.
"""

from __future__ import annotations

import math
import re
from typing import Final

INTEGER_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
DOUBLE_MAX: Final = float.fromhex("0x1.fffffffffffffp+1023")

_ENOUGH_DIGITS: Final = 19
"""A 64-bit number has no more. Longer ones are only in range with leading zeros, which the slow way strips."""

_SURELY_INTEGER: Final = 10
"""Fewer digits always fit into 32 bits. The first lines of each conversion are the quick way for usual texts."""

_BLANKS: Final = "".join(map(chr, range(0x21)))

_DECIMAL: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEXADECIMAL: Final = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_NAMED: Final = {
    sign + name: value
    for name, value in (("NaN", math.nan), ("Infinity", math.inf))
    for sign, value in (("", value), ("+", value), ("-", -value))
}


class NotComparable(Exception):
    """A value cannot be converted for a comparison: the whole test fails and the message does not pass."""


def integer(text: str) -> int:
    """``Integer.valueOf``.

    Raises:
        NotComparable: the text is no whole number of 32 bits.
    """
    if text.isdecimal() and len(text) < _SURELY_INTEGER and text.isascii():
        return int(text)
    number = long(text)
    if -INTEGER_MAX - 1 <= number <= INTEGER_MAX:
        return number
    raise NotComparable(text)


def long(text: str) -> int:
    """``Long.valueOf``.

    Raises:
        NotComparable: the text is no whole number of 64 bits.
    """
    if text.isdecimal() and len(text) < _ENOUGH_DIGITS and text.isascii():
        return int(text)
    digits = text[1:] if text[:1] in ("+", "-") else text
    # Java looks at 16-bit units, and a digit beyond the first plane is two of them.
    if not digits.isdecimal() or max(digits) > "\uffff":
        raise NotComparable(text)
    # Python refuses to convert very long texts, so the zeros go first, in whatever script they are written.
    start = next((place for place, digit in enumerate(digits) if int(digit)), len(digits) - 1)
    if len(digits) - start > _ENOUGH_DIGITS:
        raise NotComparable(text)
    number = int(digits[start:])
    if text[0] == "-":
        number = -number
    if -LONG_MAX - 1 <= number <= LONG_MAX:
        return number
    raise NotComparable(text)


def double(text: str) -> float:
    """``Double.valueOf``.

    Raises:
        NotComparable: the text is no number.
    """
    if text.replace(".", "", 1).isdecimal() and text.isascii():
        return float(text)
    text = text.strip(_BLANKS)
    if match := _DECIMAL.fullmatch(text):
        return float(match[1])
    if match := _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(match[1])
        except OverflowError:
            return -math.inf if text[0] == "-" else math.inf
    named = _NAMED.get(text)
    if named is None:
        raise NotComparable(text)
    return named


def boolean(text: str) -> bool:
    """``Boolean.valueOf``: any other text than "true" is false."""
    return text.lower() == "true"


def order_of_doubles(left: float, right: float) -> int:
    """``Double.compareTo``: a total order, with -0.0 below 0.0 and NaN equal to itself and above all others."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left, right)


def _rank(left: float, right: float) -> int:
    """The order of two that Python finds neither below nor above each other."""
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) - math.isnan(right)
    return (math.copysign(1, left) > 0) - (math.copysign(1, right) > 0)


def order_of_integers(left: int, right: int) -> int:
    return (left > right) - (left < right)
