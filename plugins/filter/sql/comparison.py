"""How two values are compared, by their kinds (RocketMQ: ``ComparisonExpression``).

Chosen before any message is seen, since the kind of every operand is known then.

====================  =====================================================================
left, right           compared as
====================  =====================================================================
text, number          the text read as that sort of number; if it is none, ``NotComparable``
text, text            ``=``: the very same text. ``<`` and its kin: both read as doubles
text, truth value     whether the text is "true" in any case
truth value, text     ``NotComparable``, always: RocketMQ casts the wrong side
truth value, number   unequal, either way round
number, number        as doubles if one is a double, else as whole numbers
====================  =====================================================================
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from verniermq.plugins.filter.sql.javavalues import (
    NotComparable,
    boolean,
    double,
    integer,
    long,
    order_of_doubles,
    order_of_integers,
)
from verniermq.plugins.filter.sql.tree import ValueKind

Value: TypeAlias = Any
"""A text, a number, a truth value or nothing; which of them, the operand's kind says."""

READERS: Final[dict[ValueKind, Callable[[str], Any]]] = {
    ValueKind.INTEGER: integer,
    ValueKind.LONG: long,
    ValueKind.DOUBLE: double,
    ValueKind.TEXT: double,  # two texts: only ever asked for an order
}
SIGNS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def equality(left: ValueKind, right: ValueKind) -> Callable[[Value, Value], bool]:
    """The function that says whether a value of one kind equals one of another."""
    if left is right and left in (ValueKind.TEXT, ValueKind.BOOLEAN):
        return operator.eq
    if right is ValueKind.BOOLEAN:
        return _text_is_truth if left is ValueKind.TEXT else _never
    if left is ValueKind.BOOLEAN:
        return _fail if right is ValueKind.TEXT else _never
    if ValueKind.NOTHING in (left, right):
        return _never
    order = ordering(left, right)
    return lambda one, other: order(one, other) == 0


def ordering(left: ValueKind, right: ValueKind) -> Callable[[Value, Value], int]:
    """The function that answers below 0, 0 or above 0 for two values, numbers or texts."""
    as_doubles = ValueKind.DOUBLE in (left, right) or left is right is ValueKind.TEXT
    compare: Callable[[Any, Any], int] = order_of_doubles if as_doubles else order_of_integers
    number = float if as_doubles else int
    read_left = READERS[right] if left is ValueKind.TEXT else number
    read_right = READERS[left] if right is ValueKind.TEXT else number
    return lambda one, other: compare(read_left(one), read_right(other))


def _text_is_truth(text: str, truth: bool) -> bool:
    return boolean(text) is truth


def _never(left: Value, right: Value) -> bool:
    return False


def _fail(left: Value, right: Value) -> bool:
    raise NotComparable(right)
