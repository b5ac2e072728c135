"""What a refused SQL expression is told: the place, what was found, what was expected."""

from __future__ import annotations

import pytest

from verniermq.kernel import ResponseCode
from verniermq.plugins.filter.sql import compile_sql
from verniermq.plugins.filter.sql.errors import SqlRefused, SqlTooLong


def refusal(expression: str, max_depth: int = 50) -> SqlRefused:
    with pytest.raises(SqlRefused) as caught:
        compile_sql(expression, max_depth=max_depth)
    return caught.value


@pytest.mark.parametrize(
    ("expression", "line", "column", "problem"),
    [
        ("a = ", 1, 5, "a text in single quotes, a number, TRUE, FALSE, NULL, NOT or '(', found the end"),
        ("a = 1 AND\n  b > AND c = 2", 2, 7, "found 'AND'"),
        ("a = NULL", 1, 3, "write IS NULL"),
        ("a > 'x'", 1, 3, "> compares numbers and properties, and a text is neither"),
        ("a NOT BETWEEN NULL AND 2", 1, 7, "NULL is neither"),
        ("a BETWEEN 5 AND 1", 1, 3, "5 is greater than 1"),
        ("a BETWEEN 5 OR 1", 1, 13, "expected AND between the two bounds of BETWEEN, found 'OR'"),
        ("a IN ('x' 'y')", 1, 11, "expected ',' or ')', found \"'y'\""),
        ("a IN (1)", 1, 7, "expected a text in single quotes, found '1'"),
        ("5 IN ('x')", 1, 3, "IN tests a property, and the number 5 is none"),
        ("a NOT 3", 1, 7, "expected CONTAINS, STARTSWITH, ENDSWITH, BETWEEN or IN after NOT"),
        ("a IS 3", 1, 6, "expected NULL or NOT NULL, found '3'"),
        ("a = 1 AND 'x'", 1, 11, "expected the right side of AND to be a condition, found a text"),
        ("NOT 5", 1, 5, "expected what follows NOT to be a condition, found the number 5"),
        ("-a", 1, 1, "expected the expression to be a condition, found a negated value"),
        ("TRUE = 'x'", 1, 6, "TRUE cannot be compared with a text"),
        ("a = 9223372036854775808", 1, 5, "the largest whole number"),
        ("a = 0.0", 1, 5, "lies above 0"),
        ("a = 'x", 1, 5, "no closing quote"),
        ("a = 1 /* x", 1, 7, "no closing */"),
        ('a = "x"', 1, 5, "single quotes"),
        ("a != 1", 1, 3, "<>"),
        ("a.b = 1", 1, 2, "a property name has letters"),
        ("a ; b", 1, 3, "';' means nothing here"),
        ("(a = 1", 1, 7, "expected ')' or an operator, found the end of the expression"),
    ],
)
def test_a_refusal_names_the_place_and_the_problem(expression: str, line: int, column: int, problem: str) -> None:
    error = refusal(expression)

    assert (error.line, error.column) == (line, column)
    assert problem in error.problem
    assert f"line {line}, column {column}: " in str(error)
    assert error.code is ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_a_refusal_of_a_long_expression_quotes_only_what_is_near() -> None:
    error = refusal("a = 1 AND " * 300 + "#" + " AND b = 2" * 50)

    assert error.column == 3001
    assert len(str(error)) < 200


def test_an_expression_that_is_too_long_is_refused_unread() -> None:
    fits = "a = '" + "x" * 4090 + "'"
    assert compile_sql(fits)({"a": "x" * 4090})

    with pytest.raises(SqlTooLong, match="4097 characters exceeds the limit of 4096"):
        compile_sql(fits + " ")


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 2000 + "a" + ")" * 2000,
        "NOT " * 1000 + "a",
        "- " * 2000 + "a = 1",
        "a" + "=a" * 2000,
        "a" + " IS NULL" * 500,
        "a" + " CONTAINS 'x'" * 300,
        "((" * 20 + "a" + "=a" * 40 + ")=a=a)" * 20,
        "NOT (a AND " * 300 + "a" + ")" * 300,
    ],
)
def test_deep_nesting_is_refused_in_whatever_form(expression: str) -> None:
    assert "nested more than 50 levels deep" in refusal(expression).problem


def test_nesting_up_to_the_limit_is_taken() -> None:
    assert compile_sql("(" * 64 + "a = 1" + ")" * 64, max_depth=64)({"a": "1"})
    assert compile_sql("NOT (a AND " * 20 + "b" + ")" * 20)({"b": "x"}) is False
    assert "nested more than 3" in refusal("((((a = 1))))", max_depth=3).problem


def test_a_long_row_of_terms_is_not_deep() -> None:
    test = compile_sql(" OR ".join([f"a={number}" for number in range(400)]), max_depth=2)

    assert test({"a": "399"})
    assert not test({"a": "400"})
