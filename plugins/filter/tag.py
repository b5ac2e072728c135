"""Tag filtering: subscriptions like ``"paid || refunded"`` (RocketMQ: ``ExpressionType.TAG``).

A consume-queue entry keeps the 32-bit hash of a message's tag, so the broker decides without reading the
message. Two tags may share a hash: some messages too many may pass, and the client compares the text.

The surprising corners, which are RocketMQ's: a blank between two bars names no tag; an expression that
names no tag at all matches nothing; only the bare ``*`` means everything (``a || *`` wants the tags ``a``
and ``*``); and an expression of bars alone is refused.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from verniermq.kernel import (
    MATCH_ALL,
    Context,
    Declaration,
    MessageFilter,
    Subscription,
    SubscriptionParseFailed,
    hookimpl,
    java_hash,
    setting,
)

SEPARATOR: Final = "||"
EXPRESSION_TYPES: Final = ("TAG", "")
"""A client that names no type means tags."""

LONGEST_EXPRESSION: Final = 65_536
"""Characters; to hash a tag of a megabyte would take a tenth of a second, for which everybody else waits."""

_BLANKS: Final = "".join(map(chr, range(0x21)))
"""What Java's ``trim`` takes away: the space and everything below it, and no Unicode blank."""


def parse_tags(expression: str) -> frozenset[str] | None:
    """The tags an expression names; ``None`` stands for all messages.

    Raises:
        SubscriptionParseFailed: the expression consists of bars alone.
    """
    if expression in ("", "*"):
        return None
    parts = expression.split(SEPARATOR)
    if not any(parts):
        raise SubscriptionParseFailed(
            f"tag expression {expression!r} names no tag; write '*' for all messages, or tags like 'a || b'"
        )
    return frozenset(tag for part in parts if (tag := part.strip(_BLANKS)))


def compile_tags(expression: str, max_tags: int) -> MessageFilter:
    """The filter for a tag expression.

    Raises:
        SubscriptionParseFailed: it consists of bars alone, or is too long, or names more than ``max_tags`` tags.
    """
    if len(expression) > LONGEST_EXPRESSION:
        raise SubscriptionParseFailed(
            f"tag expression has {len(expression)} characters, the limit is {LONGEST_EXPRESSION}; name fewer tags"
        )
    tags = parse_tags(expression)
    if tags is None:
        return MATCH_ALL
    if len(tags) > max_tags:
        raise SubscriptionParseFailed(
            f"tag expression names {len(tags)} tags, the limit is {max_tags}; "
            "name fewer, or raise max_tags in [plugins.filter]"
        )
    return MessageFilter(tag_codes=frozenset(map(java_hash, tags)))


@attrs.frozen
class Config:
    """``[plugins.filter]``"""

    max_tags: int = setting(1024, "How many tags one subscription may name; a longer one is refused.", at_least=1)


@attrs.define(eq=False)
class Plugin:
    """Answers ``compile_filter`` for tag expressions."""

    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Filters messages by tag, with the consume queue alone.",
        expressions=EXPRESSION_TYPES,
        on_failure="closed",
    )
    config: Config
    broker: Context

    @hookimpl
    def compile_filter(self, subscription: Subscription) -> MessageFilter | None:
        if subscription.expression_type not in EXPRESSION_TYPES:
            return None
        return compile_tags(subscription.expression, self.config.max_tags)
