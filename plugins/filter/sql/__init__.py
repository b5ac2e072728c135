"""SQL filtering: ``"price > 100 AND region IN ('eu', 'uk')"`` (RocketMQ: ``ExpressionType.SQL92``).

An expression goes through three steps, once: :mod:`.tokens` cuts it into words, :mod:`.parser` makes a
:mod:`.tree` of them, :mod:`.evaluate` makes a function of the tree, which then sees the properties of every
message. All rules are RocketMQ's, the surprising ones too; its own filter is the judge in
``tests/interop/filter``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import ClassVar, Final

import attrs

from verniermq.kernel import Context, Declaration, MessageFilter, Subscription, hookimpl, setting

EXPRESSION_TYPE: Final = "SQL92"

DEEPEST: Final = 64
"""Parsing one level of nesting takes up to ten Python calls, of the thousand that Python allows."""

Test = Callable[[Mapping[str, str]], bool]


def compile_sql(expression: str, *, max_length: int = 4096, max_depth: int = 50) -> Test:
    """A test for messages; it answers from their properties and never raises.

    Raises:
        SubscriptionParseFailed: the expression is too long, too deep or wrong; the text says where.
    """
    # Imported with the first expression: most brokers never see one, and all of them want to start soon.
    from verniermq.plugins.filter.sql.evaluator import compile_test
    from verniermq.plugins.filter.sql.parser import parse

    return compile_test(parse(expression, max_length=max_length, max_depth=max_depth))


@attrs.frozen
class Config:
    """``[plugins.sql]``"""

    max_length: int = setting(4096, "How many characters an expression may have; a longer one is refused.", at_least=1)
    max_depth: int = setting(50, "How deeply an expression may be nested.", at_least=1, at_most=DEEPEST)
    cache_size: int = setting(100, "How many compiled expressions are kept; 0 keeps none.", at_least=0)


@attrs.define(eq=False)
class Plugin:
    """Answers ``compile_filter`` for SQL92 expressions."""

    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Filters messages by SQL92 conditions on their properties.",
        expressions=("SQL92",),
        on_failure="closed",
    )
    config: Config
    broker: Context
    _compile: Callable[[str], MessageFilter] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._compile = lru_cache(maxsize=self.config.cache_size)(self._compile_anew)

    @hookimpl
    def compile_filter(self, subscription: Subscription) -> MessageFilter | None:
        if subscription.expression_type != EXPRESSION_TYPE:
            return None
        return self._compile(subscription.expression)

    def _compile_anew(self, expression: str) -> MessageFilter:
        limits = self.config
        return MessageFilter(test=compile_sql(expression, max_length=limits.max_length, max_depth=limits.max_depth))
