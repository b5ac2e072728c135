"""From text to tree, by RocketMQ's own grammar (RocketMQ: ``SelectorParser``)::

    selector   = or                               whatever follows is ignored
    or         = and { OR and }
    and        = equality { AND equality }
    equality   = comparison { "=" comparison | "<>" comparison | IS NULL | IS NOT NULL }
    comparison = unary { ( ">" | ">=" | "<" | "<=" ) unary
                       | [NOT] ( CONTAINS | STARTSWITH | ENDSWITH ) text
                       | [NOT] BETWEEN unary AND unary
                       | [NOT] IN "(" text { "," text } ")" }
    unary      = "+" unary | "-" unary | NOT unary | primary
    primary    = text | integer | float | TRUE | FALSE | NULL | name | "(" or ")"

One method per rule, each deciding by the next token. Why no parser generator: RocketMQ ends an expression at
the first token that cannot continue it, and never reads past that token, not even to see whether the rest
could be read at all. A generated (LALR) parser accepts at the end of its input only; it would have to be fed token by
token and asked each time whether it could stop here, which is more machinery than these rules are.

NOT binds tighter than any comparison: ``NOT a = 3`` compares ``NOT a`` with 3. Write ``NOT (a = 3)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from verniermq.plugins.filter.sql import checks
from verniermq.plugins.filter.sql.errors import SqlRefused, SqlTooLong
from verniermq.plugins.filter.sql.javavalues import DOUBLE_MAX, INTEGER_MAX, LONG_MAX
from verniermq.plugins.filter.sql.tokens import END, Token, read_token
from verniermq.plugins.filter.sql.tree import (
    AllOf,
    AnyOf,
    Bare,
    Condition,
    Constant,
    Equal,
    IsNull,
    Negative,
    Node,
    Not,
    OneOf,
    Operand,
    Ordered,
    PropertyName,
    Search,
    Truth,
    ValueKind,
)

ORDERING: Final = frozenset({"<", "<=", ">", ">="})
SEARCHES: Final = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
NEGATABLE: Final = SEARCHES | {"BETWEEN", "IN"}
CONSTANTS: Final = {
    "TRUE": Constant(ValueKind.BOOLEAN, True),
    "FALSE": Constant(ValueKind.BOOLEAN, False),
    "NULL": Constant(ValueKind.NOTHING, None),
}


def parse(expression: str, *, max_length: int, max_depth: int) -> Truth:
    """The tree of a SQL expression.

    ``max_depth`` bounds the tree: parentheses, signs, NOT and chained comparisons count; a long row of AND
    or OR is one level.

    Raises:
        SqlTooLong: it has more than ``max_length`` characters.
        SqlRefused: it is not well formed, compares what cannot be compared, or is nested too deeply.
    """
    if len(expression) > max_length:
        raise SqlTooLong(len(expression), max_length)
    return _Parser(expression, max_depth).selector()


class _Parser:
    def __init__(self, expression: str, max_depth: int) -> None:
        self._expression = expression
        self._max_depth = max_depth
        self._nested = 0
        self._next = read_token(expression, 0)

    # --- the rules -------------------------------------------------------------------------

    def selector(self) -> Truth:
        return self._truth(self._or, "the expression")

    def _or(self) -> Operand:
        return self._row("OR", self._and, AnyOf)

    def _and(self) -> Operand:
        return self._row("AND", self._equality, AllOf)

    def _row(self, keyword: str, part: Callable[[], Operand], together: type[AllOf] | type[AnyOf]) -> Operand:
        start = self._next
        first = part()
        if self._next.kind != keyword:
            return first
        parts = [self._as_truth(first, start, f"the left side of {keyword}")]
        while self._takes(keyword):
            parts.append(self._truth(part, f"the right side of {keyword}"))
        return together(tuple(parts), depth=self._above(*parts))

    def _equality(self) -> Operand:
        left = self._comparison()
        while self._next.kind in ("=", "<>", "IS"):
            sign = self._take()
            if sign.kind == "IS":
                negated = self._takes("NOT")
                self._expect("NULL", "NULL" if negated else "NULL or NOT NULL")
                test: Condition = IsNull(left, depth=self._above(left))
            else:
                right = self._comparison()
                negated = sign.kind == "<>"
                self._refuse_if(sign, checks.why_not_equal(left, right))
                test = Equal(left, right, depth=self._above(left, right))
            left = Not(test, depth=self._above(test)) if negated else test
        return left

    def _comparison(self) -> Operand:
        left = self._unary()
        while True:
            if self._next.kind in ORDERING:
                sign = self._take()
                left = self._ordered(sign, sign.kind, left, self._unary())
            elif self._next.kind in NEGATABLE or self._next.kind == "NOT":
                negated = self._takes("NOT")
                if self._next.kind not in NEGATABLE:
                    self._expected("CONTAINS, STARTSWITH, ENDSWITH, BETWEEN or IN after NOT")
                left = self._negatable(self._take(), left, negated)
            else:
                return left

    def _negatable(self, keyword: Token, left: Operand, negated: bool) -> Condition:
        if keyword.kind == "BETWEEN":
            return self._between(keyword, left, negated)
        if keyword.kind == "IN":
            return self._in(keyword, left, negated)
        return Search(keyword.kind, left, self._text(), negated, depth=self._above(left))

    def _between(self, keyword: Token, value: Operand, negated: bool) -> Condition:
        low = self._unary()
        self._expect("AND", "AND between the two bounds of BETWEEN")
        high = self._unary()
        if negated:
            outside = (self._ordered(keyword, "<", value, low), self._ordered(keyword, ">", value, high))
            return AnyOf(outside, depth=self._above(*outside))
        inside = (self._ordered(keyword, ">=", value, low), self._ordered(keyword, "<=", value, high))
        self._refuse_if(keyword, checks.why_no_range(low, high))
        return AllOf(inside, depth=self._above(*inside))

    def _ordered(self, place: Token, sign: str, left: Operand, right: Operand) -> Ordered:
        for operand in (left, right):
            self._refuse_if(place, checks.why_not_ordered(place.kind, operand))
        return Ordered(sign, left, right, depth=self._above(left, right))

    def _in(self, keyword: Token, left: Operand, negated: bool) -> Condition:
        self._expect("(", "'(' and a list of texts")
        choices = [self._text()]
        while self._takes(","):
            choices.append(self._text())
        self._expect(")", "',' or ')'")
        if not isinstance(left, PropertyName):
            self._refuse(keyword, f"IN tests a property, and {checks.describe(left)} is none")
        return OneOf(left.name, frozenset(choices), negated, depth=self._above(left))

    def _unary(self) -> Operand:
        if self._next.kind not in ("+", "-", "NOT"):
            return self._primary()
        sign = self._take_deeper()
        start = self._next
        operand = self._unary()
        self._nested -= 1
        if sign.kind == "+":
            return operand
        if sign.kind == "-":
            return Negative(operand, depth=self._above(operand))
        truth = self._as_truth(operand, start, "what follows NOT")
        return Not(truth, depth=self._above(truth))

    def _primary(self) -> Operand:
        kind = self._next.kind
        if kind == "(":
            self._take_deeper()
            inner = self._or()
            self._expect(")", "')' or an operator")
            self._nested -= 1
            return inner
        if kind == "name":
            return PropertyName(self._take().written)
        if kind == "text":
            return Constant(ValueKind.TEXT, self._text())
        if kind == "integer":
            return self._integer(self._take())
        if kind == "float":
            return self._float(self._take())
        if kind in CONSTANTS:
            self._take()
            return CONSTANTS[kind]
        return self._expected("a name, a text in single quotes, a number, TRUE, FALSE, NULL, NOT or '('")

    def _text(self) -> str:
        return self._expect("text", "a text in single quotes").written[1:-1].replace("''", "'")

    def _integer(self, token: Token) -> Constant:
        digits = token.written.rstrip("lL")
        # 19 digits hold the largest; more would only make Python convert a long text for nothing.
        number = int(digits) if len(digits) <= 19 else LONG_MAX + 1
        if number > LONG_MAX:
            self._refuse(token, f"{token} is greater than {LONG_MAX}, the largest whole number")
        return Constant(ValueKind.INTEGER if number <= INTEGER_MAX else ValueKind.LONG, number)

    def _float(self, token: Token) -> Constant:
        number = float(token.written)
        if not 0.0 < number <= DOUBLE_MAX:
            self._refuse(token, f"a number with a point or exponent lies above 0 and up to {DOUBLE_MAX}, not {token}")
        return Constant(ValueKind.DOUBLE, number)

    # --- a condition is wanted -------------------------------------------------------------

    def _truth(self, rule: Callable[[], Operand], where: str) -> Truth:
        start = self._next
        return self._as_truth(rule(), start, where)

    def _as_truth(self, operand: Operand, start: Token, where: str) -> Truth:
        if isinstance(operand, Condition):
            return operand
        if isinstance(operand, PropertyName):
            return Bare(operand.name)
        if isinstance(operand, Constant) and operand.kind in (ValueKind.BOOLEAN, ValueKind.NOTHING):
            return operand
        return self._refuse(start, f"expected {where} to be a condition, found {checks.describe(operand)}")

    # --- tokens and limits -----------------------------------------------------------------

    def _take(self) -> Token:
        token = self._next
        if token.kind != END:
            self._next = read_token(self._expression, token.position + len(token.written))
        return token

    def _takes(self, kind: str) -> bool:
        if self._next.kind != kind:
            return False
        self._take()
        return True

    def _expect(self, kind: str, expected: str) -> Token:
        if self._next.kind != kind:
            self._expected(expected)
        return self._take()

    def _take_deeper(self) -> Token:
        """Take a token that opens a level; the caller closes it again. Bounds the parser's own recursion."""
        self._nested += 1
        self._check_depth(self._nested)
        return self._take()

    def _above(self, *parts: Node) -> int:
        """The depth of a node above ``parts``. Bounds the tree, which a chain ``a = b = c …`` deepens too."""
        depth = 1 + max(part.depth for part in parts)
        self._check_depth(depth)
        return depth

    def _check_depth(self, depth: int) -> None:
        if depth > self._max_depth:
            self._refuse(
                self._next,
                f"nested more than {self._max_depth} levels deep; simplify, or raise max_depth in [plugins.sql]",
            )

    def _expected(self, expected: str) -> NoReturn:
        self._refuse(self._next, f"expected {expected}, found {self._next}")

    def _refuse_if(self, place: Token, problem: str | None) -> None:
        if problem is not None:
            self._refuse(place, problem)

    def _refuse(self, place: Token, problem: str) -> NoReturn:
        raise SqlRefused(self._expression, place.position, problem)
