"""What holds for any text and any properties."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from verniermq.kernel import SubscriptionParseFailed
from verniermq.plugins.filter.sql import compile_sql
from verniermq.plugins.filter.sql.javavalues import NotComparable, double, integer, long, order_of_doubles

WORDS = st.sampled_from(
    (
        "a", "b", "c", "=", "<>", "<", "<=", ">", ">=", "(", ")", ",", "+", "-", "NOT", "AND", "OR", "BETWEEN", "IN",
        "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH", "0", "1", "42L", "2147483648", "1.5", ".5",
        "3e2", "'x'", "''", "'it''s'", "--", "/*", "*/", "#", ".", "'", '"', "\n", "LIKE",
    )
)  # fmt: skip
SENTENCES = st.lists(WORDS, max_size=40).map(" ".join)
VALUES = st.text(max_size=12) | st.integers().map(str) | st.floats().map(str) | st.text("+-0123456789.eExXpPfFdDNa ")
PROPERTIES = st.dictionaries(st.sampled_from(("a", "b", "c")), VALUES)


@given(st.text(max_size=60) | SENTENCES, PROPERTIES)
@example("a > 1", {"a": "9" * 5000})
@example("a > 1.5", {"a": "9" * 5000})
@example("a > 1.5", {"a": "0x" + "f" * 500 + "p1"})
@example("a = " + "9" * 4000, {})
@example("a = " + "9" * 4000 + ".5", {})
def test_any_text_is_refused_or_becomes_a_test_that_never_raises(text: str, properties: dict[str, str]) -> None:
    try:
        test = compile_sql(text)
    except SubscriptionParseFailed:
        return

    assert test(properties) in (True, False)


@given(PROPERTIES)
def test_usual_expressions_answer_for_any_properties(properties: dict[str, str]) -> None:
    for expression in ("a > 3 AND b < 2.5 OR c = TRUE", "a BETWEEN b AND c", "a = 5000000000 OR b <> 1"):
        assert compile_sql(expression)(properties) in (True, False)


@given(st.integers(-(2**64), 2**64))
def test_whole_numbers_are_read_within_their_range_only(number: int) -> None:
    for read, bits in ((integer, 32), (long, 64)):
        if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
            assert read(str(number)) == number
        else:
            try:
                read(str(number))
            except NotComparable:
                continue
            raise AssertionError(f"{number} was read as a number of {bits} bits")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_are_read_exactly(number: float) -> None:
    assert double(repr(number)) == number
    assert double(f" {number!r}d\n") == number
    assert double(number.hex()) == number


@given(st.floats(), st.floats(), st.floats())
def test_doubles_have_a_total_order(first: float, second: float, third: float) -> None:
    assert order_of_doubles(first, first) == 0
    assert order_of_doubles(first, second) == -order_of_doubles(second, first)
    if order_of_doubles(first, second) <= 0 and order_of_doubles(second, third) <= 0:
        assert order_of_doubles(first, third) <= 0
    assert order_of_doubles(math.nan, first) >= 0
