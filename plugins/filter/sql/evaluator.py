"""From tree to function: one small closure per node, put together once and called for every message.

An answer is ``True``, ``False`` or ``None`` (unknown). A closure takes the properties and returns an answer,
or raises ``NotComparable``, which ends the whole test: ``a = 3 OR TRUE`` does not pass when ``a`` is "x".

What to convert and how to compare is decided here, by the kinds of the operands, and not when a message
comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from verniermq.plugins.filter.sql.comparison import SIGNS, Value, equality, ordering
from verniermq.plugins.filter.sql.javavalues import NotComparable, order_of_doubles
from verniermq.plugins.filter.sql.tree import (
    AllOf,
    AnyOf,
    Bare,
    Condition,
    Constant,
    Equal,
    IsNull,
    Negative,
    Not,
    OneOf,
    Operand,
    Ordered,
    PropertyName,
    Search,
    Truth,
    ValueKind,
)

Properties: TypeAlias = Mapping[str, str]
Answer: TypeAlias = bool | None
Ask: TypeAlias = Callable[[Properties], Answer]

FINDERS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def compile_test(tree: Truth) -> Callable[[Properties], bool]:
    """A function that says whether a message with these properties passes. It never raises."""
    ask = compile_condition(tree)

    def test(properties: Properties) -> bool:
        try:
            return ask(properties) is True
        except NotComparable:
            return False

    return test


def compile_condition(node: Truth) -> Ask:
    """A function with the full answer: true, false, unknown (``None``), or ``NotComparable`` raised."""
    match node:
        case Constant(value=value):
            return _constant(value)  # type: ignore[arg-type]  # the parser lets only TRUE, FALSE and NULL stand here
        case Bare(name=name):
            return lambda properties: None if properties.get(name) is None else False
        case Not(operand=operand):
            return _not(compile_condition(operand))
        case AllOf(parts=parts):
            return _all_of(tuple(map(compile_condition, parts)))
        case AnyOf(parts=parts):
            return _any_of(tuple(map(compile_condition, parts)))
        case Equal(left=left, right=right):
            return _equal(_folded(left), _folded(right))
        case Ordered(sign=sign, left=left, right=right):
            return _ordered(sign, _folded(left), _folded(right))
        case IsNull(operand=operand):
            return _is_null(_value(_folded(operand)))
        case Search():
            return _search(node)
        case OneOf(name=name, choices=choices, negated=negated):
            return _one_of(name, choices, negated)
    raise TypeError(f"{node!r} is no condition")


# --- operands ------------------------------------------------------------------------------


def _folded(node: Operand) -> Operand:
    """A minus before a number is a smaller number; the sort of number stays."""
    if isinstance(node, Negative):
        operand = _folded(node.operand)
        if isinstance(operand, Constant) and isinstance(operand.value, int | float) and operand.kind.is_number:
            return Constant(operand.kind, -operand.value)
        return Negative(operand)
    return node


def _kind(node: Operand) -> ValueKind:
    if isinstance(node, Constant):
        return node.kind
    if isinstance(node, PropertyName):
        return ValueKind.TEXT
    return ValueKind.NOTHING if isinstance(node, Negative) else ValueKind.BOOLEAN


def _value(node: Operand) -> Callable[[Properties], Value]:
    if isinstance(node, Condition):
        return compile_condition(node)
    if isinstance(node, PropertyName):
        name = node.name
        return lambda properties: properties.get(name)
    if isinstance(node, Constant):
        value = node.value
        return lambda properties: value
    return _nothing_from(_value(node.operand))


def _nothing_from(value: Callable[[Properties], Value]) -> Ask:
    def ask(properties: Properties) -> Answer:
        value(properties)  # for what it may raise
        return None

    return ask


# --- conditions ----------------------------------------------------------------------------


def _constant(answer: Answer) -> Ask:
    return lambda properties: answer


def _not(ask: Ask) -> Ask:
    def negation(properties: Properties) -> Answer:
        answer = ask(properties)
        return None if answer is None else not answer

    return negation


def _all_of(parts: tuple[Ask, ...]) -> Ask:
    def all_of(properties: Properties) -> Answer:
        together: Answer = True
        for ask in parts:
            answer = ask(properties)
            if answer is False:
                return False
            if answer is None:
                # Go on: a later part may be false, or may fail.
                together = None
        return together

    return all_of


def _any_of(parts: tuple[Ask, ...]) -> Ask:
    def any_of(properties: Properties) -> Answer:
        together: Answer = False
        for ask in parts:
            answer = ask(properties)
            if answer:
                return True
            if answer is None:
                together = None
        return together

    return any_of


def _equal(left: Operand, right: Operand) -> Ask:
    """Nothing equals nothing; nothing on the left alone is unknown, on the right alone it is unequal."""
    left_value, right_value = _value(left), _value(right)
    same = equality(_kind(left), _kind(right))

    def equal(properties: Properties) -> Answer:
        one = left_value(properties)
        other = right_value(properties)
        if one is None:
            return True if other is None else None
        return other is not None and same(one, other)

    return equal


def _ordered(sign: str, left: Operand, right: Operand) -> Ask:
    holds = SIGNS[sign]
    left_value, right_value = _value(left), _value(right)
    kinds = _kind(left), _kind(right)
    # Nothing has no order; the closure below then never gets so far as to ask for one.
    order = order_of_doubles if ValueKind.NOTHING in kinds else ordering(*kinds)

    def ordered(properties: Properties) -> Answer:
        one = left_value(properties)
        if one is None:
            return None
        other = right_value(properties)
        if other is None:
            return None
        return holds(order(one, other), 0)

    return ordered


def _is_null(value: Callable[[Properties], Value]) -> Ask:
    return lambda properties: value(properties) is None


def _search(node: Search) -> Ask:
    """Never unknown, and false in both forms if there is no text to search in or nothing to search for."""
    if not node.wanted:
        return _constant(False)
    find, wanted, found = FINDERS[node.how], node.wanted, not node.negated
    operand = _folded(node.operand)
    value = _value(operand)
    if _kind(operand) is not ValueKind.TEXT:
        nothing = _nothing_from(value)
        return lambda properties: nothing(properties) is not None

    def search(properties: Properties) -> Answer:
        text = value(properties)
        return text is not None and find(text, wanted) is found

    return search


def _one_of(name: str, choices: frozenset[str], negated: bool) -> Ask:
    if negated:
        return lambda properties: None if (text := properties.get(name)) is None else text not in choices
    return lambda properties: None if (text := properties.get(name)) is None else text in choices
