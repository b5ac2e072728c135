"""What an expression says, as a tree.

Two sorts of node: an operand has a value (a text, a number, a truth value or nothing), a condition is true,
false or unknown. A node knows its ``depth``, so that a limit can be kept while the tree grows.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import attrs


class ValueKind(enum.Enum):
    """What sort of value an operand has, whenever it has one; known before any message is seen."""

    TEXT = "text"
    BOOLEAN = "boolean"
    INTEGER = "32-bit integer"
    LONG = "64-bit integer"
    DOUBLE = "floating-point number"
    NOTHING = "nothing"

    @property
    def is_number(self) -> bool:
        return self in (ValueKind.INTEGER, ValueKind.LONG, ValueKind.DOUBLE)


@attrs.frozen
class Node:
    depth: int = attrs.field(kw_only=True, default=0, eq=False)
    """How many nodes stand one above the other below this one."""


# --- operands ------------------------------------------------------------------------------


@attrs.frozen
class Constant(Node):
    kind: ValueKind
    value: str | bool | int | float | None


@attrs.frozen
class PropertyName(Node):
    """A property; its value is a text or missing."""

    name: str


@attrs.frozen
class Negative(Node):
    """``-operand``: a number for a number, nothing for anything else."""

    operand: Operand


# --- conditions ----------------------------------------------------------------------------


@attrs.frozen
class Condition(Node):
    """True, false or unknown."""


@attrs.frozen
class Bare(Condition):
    """A name where a condition is wanted: unknown if the property is missing, else false."""

    name: str


@attrs.frozen
class Not(Condition):
    operand: Truth


@attrs.frozen
class AllOf(Condition):
    parts: tuple[Truth, ...]


@attrs.frozen
class AnyOf(Condition):
    parts: tuple[Truth, ...]


@attrs.frozen
class Equal(Condition):
    left: Operand
    right: Operand


@attrs.frozen
class Ordered(Condition):
    sign: str
    """``<``, ``<=``, ``>`` or ``>=``"""
    left: Operand
    right: Operand


@attrs.frozen
class IsNull(Condition):
    operand: Operand


@attrs.frozen
class Search(Condition):
    how: str
    """``CONTAINS``, ``STARTSWITH`` or ``ENDSWITH``"""
    operand: Operand
    wanted: str
    negated: bool


@attrs.frozen
class OneOf(Condition):
    name: str
    choices: frozenset[str]
    negated: bool


Operand: TypeAlias = Constant | PropertyName | Negative | Condition
Truth: TypeAlias = Constant | Condition
"""A condition, or one of the constants ``TRUE``, ``FALSE`` and ``NULL``."""
