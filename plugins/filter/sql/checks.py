"""What RocketMQ refuses to compare, found before any message is seen.

Each function returns what is wrong, or ``None``. The rules look at how an operand is written, not at what it
is worth: ``-5`` is a minus before a constant and no constant, so ``BETWEEN -5 AND -10`` gets through.
"""

from __future__ import annotations

from verniermq.plugins.filter.sql.tree import Condition, Constant, Operand, PropertyName, ValueKind


def describe(operand: Operand) -> str:
    """An operand in a few words, for an error."""
    if isinstance(operand, PropertyName):
        return f"the property {operand.name}"
    if isinstance(operand, Condition):
        return "a condition"
    if not isinstance(operand, Constant):
        return "a negated value"
    if operand.kind is ValueKind.TEXT:
        return "a text"
    if operand.kind.is_number:
        return f"the number {operand.value}"
    return "NULL" if operand.value is None else str(operand.value).upper()


def why_not_equal(left: Operand, right: Operand) -> str | None:
    """``=`` and ``<>`` take everything but NULL, and a truth value on the left wants one on the right."""
    for operand in (left, right):
        if isinstance(operand, Constant) and operand.value is None:
            return "nothing is equal or unequal to NULL; write IS NULL or IS NOT NULL"
    if (
        isinstance(left, Constant)
        and isinstance(right, Constant)
        and left.kind is ValueKind.BOOLEAN
        and right.kind is not ValueKind.BOOLEAN
    ):
        return f"{describe(left)} cannot be compared with {describe(right)}"
    return None


def why_not_ordered(sign: str, operand: Operand) -> str | None:
    """``<`` and its kin take numbers and properties."""
    if isinstance(operand, Condition) or (isinstance(operand, Constant) and not operand.kind.is_number):
        return f"{sign} compares numbers and properties, and {describe(operand)} is neither"
    return None


def why_no_range(low: Operand, high: Operand) -> str | None:
    """The bounds of BETWEEN, when both are constants, must be in order. NOT BETWEEN does not ask."""
    if isinstance(low, Constant) and isinstance(high, Constant):
        first, last = low.value, high.value
        if isinstance(first, int | float) and isinstance(last, int | float):
            # As Java converts them: a whole number becomes a double when the other one is.
            if ValueKind.DOUBLE in (low.kind, high.kind):
                first, last = float(first), float(last)
            if last < first:
                return f"BETWEEN needs the smaller bound first, and {low.value} is greater than {high.value}"
    return None
