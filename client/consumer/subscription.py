"""What a consumer wants of a topic: tags, an SQL expression, or everything (RocketMQ: ``SubscriptionData``)."""

from __future__ import annotations

import time
from typing import Any, TypeAlias

import attrs

from verniermq.client.errors import ClientError
from verniermq.client.java import shown
from verniermq.client.message import ReceivedMessage
from verniermq.kernel import Subscription, java_hash

ALL = "*"


@attrs.frozen
class Sql:
    """An SQL92 condition over the properties of messages: ``Sql("price > 10 AND region = 'EU'")``."""

    expression: str = attrs.field()

    @expression.validator
    def _is_text(self, _: object, value: object) -> None:
        if not isinstance(value, str):
            raise ClientError(f'Sql({shown(value)}), expected a condition as a text: Sql("price > 10")')


Selector: TypeAlias = str | Sql
"""Tags (``"paid || refunded"``, ``"*"`` for all) or :class:`Sql`."""


def tags_of(expression: str) -> frozenset[str]:
    """The tags of an expression; none for everything.

    Raises:
        ClientError: there are only separators.
    """
    if expression.strip() in ("", ALL):
        return frozenset()
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    if not tags:
        raise ClientError(f"tags={expression!r} names no tag; write 'a || b', or '*' for all messages")
    return tags


@attrs.frozen
class TopicSubscription:
    """One topic's subscription, with what the client itself needs of it."""

    subscription: Subscription
    tags: frozenset[str] = frozenset()

    @classmethod
    def make(cls, topic: str, selector: Selector = ALL, version: int | None = None) -> TopicSubscription:
        """
        Raises:
            ClientError: the selector says nothing.
        """
        version = time.time_ns() // 1_000_000 if version is None else version
        if isinstance(selector, Sql):
            if not selector.expression.strip():
                raise ClientError("an empty SQL expression; write a condition, or subscribe with '*'")
            return cls(Subscription(topic, selector.expression, "SQL92", version))
        if not isinstance(selector, str):
            raise ClientError(
                f"{shown(selector)} selects nothing of {topic!r}; expected tags as one text, 'a || b', or "
                "Sql('price > 10')"
            )
        tags = tags_of(selector)
        return cls(Subscription(topic, selector.strip() or ALL, "TAG", version), tags)

    @property
    def topic(self) -> str:
        return self.subscription.topic

    @property
    def is_sql(self) -> bool:
        return self.subscription.expression_type == "SQL92"

    def keep(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Those that really have one of the tags: the broker goes by their hashes, which may collide."""
        if not self.tags:
            return messages
        tags = self.tags
        return [message for message in messages if message.tags in tags]

    def as_json(self) -> dict[str, Any]:
        """For a heartbeat."""
        return {
            "classFilterMode": False,
            "codeSet": sorted(java_hash(tag) for tag in self.tags),
            "expressionType": self.subscription.expression_type,
            "subString": self.subscription.expression,
            "subVersion": self.subscription.version,
            "tagsSet": sorted(self.tags),
            "topic": self.topic,
        }
