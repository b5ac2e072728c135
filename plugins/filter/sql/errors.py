"""A SQL expression that cannot be used: what is wrong, and where."""

from __future__ import annotations

from verniermq.kernel import SubscriptionParseFailed

_EXCERPT = 20
"""How many characters on either side of the place are quoted: enough to find it, short enough for a log."""


class SqlRefused(SubscriptionParseFailed):
    """``problem`` at ``line`` and ``column``, both counted from 1; ``position`` counts characters from 0."""

    def __init__(self, expression: str, position: int, problem: str) -> None:
        self.expression = expression
        self.position = position
        self.problem = problem
        self.line = expression.count("\n", 0, position) + 1
        self.column = position - expression.rfind("\n", 0, position)
        before = expression[max(0, position - _EXCERPT) : position]
        after = expression[position : position + _EXCERPT]
        super().__init__(
            f"SQL expression refused at line {self.line}, column {self.column}: {problem} (at «here» in "
            f"{before + '«here»' + after!r})"
        )


class SqlTooLong(SubscriptionParseFailed):
    def __init__(self, length: int, limit: int) -> None:
        super().__init__(
            f"SQL expression of {length} characters exceeds the limit of {limit}; "
            "shorten it, or raise max_length in [plugins.sql]"
        )
        self.length = length
        self.limit = limit
