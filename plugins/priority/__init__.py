"""Priority messages: the more urgent one is popped first (RocketMQ 5.5: ``TopicMessageType.PRIORITY``).

A priority is a queue. A message with the property ``_SYS_MSG_PRIORITY_`` goes into the queue of that number, or into
the last one if there are fewer; a pop of a topic with the attribute ``message.type=PRIORITY`` looks into the queues
from the most urgent one on, instead of from a random one on. Within a queue messages keep their order.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import attrs

from verniermq.kernel import (
    Attribute,
    Connection,
    Context,
    Declaration,
    GroupConfig,
    PendingMessage,
    Property,
    TopicConfig,
    concerns,
    hookimpl,
    setting,
)
from verniermq.protocol.topics import MESSAGE_TYPE

PRIORITY: Final = Property.PRIORITY
TYPE: Final = "PRIORITY"
FACTOR: Final = "priority.factor"

DELAYS: Final = frozenset(
    {Property.DELAY, Property.TIMER_DELIVER_MS, Property.TIMER_DELAY_SEC, Property.TIMER_DELAY_MS}
)


@attrs.frozen
class Config:
    """``[plugins.priority]``"""

    highest_first: bool = setting(
        True, "Whether the queue with the highest number is the most urgent; RocketMQ's priorityOrderAsc."
    )
    retry_first_percent: int = setting(
        0,
        "How many pops by priority of a hundred look for messages to be tried again first; the others do so last.",
        at_least=0,
        at_most=100,
    )


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Priority messages: the more urgent one is popped first.",
        before=("txn", "schedule"),
        properties=(PRIORITY,),
        topic_attributes=(Attribute(MESSAGE_TYPE, (TYPE,)),),
        group_attributes=(Attribute(FACTOR, range(101)),),
    )
    config: Config
    broker: Context

    @hookimpl
    def settings_changed(self, settings: Any) -> None:
        self.config = settings

    @hookimpl
    @concerns(properties=(PRIORITY,))
    def before_append(self, message: PendingMessage, connection: Connection | None) -> None:
        if connection is None:
            return  # a copy that the broker makes stays where the broker puts it
        priority = priority_of(message.properties)
        if priority is None:
            message.drop_property(PRIORITY)
            return
        topic = self.broker.topics.get(message.topic)
        message.queue_id = max(0, min(priority, topic.write_queues - 1))
        message.add_to_answer("queueId", str(message.queue_id))

    @hookimpl(optionalhook=True)
    def pop_order(self, topic: TopicConfig, group: GroupConfig) -> tuple[Sequence[int], bool] | None:
        if topic.attributes.get(MESSAGE_TYPE) != TYPE or random.random() * 100 >= factor_of(group):
            return None
        queues = range(topic.read_queues)
        retry_first = random.random() * 100 < self.config.retry_first_percent
        return (queues[::-1] if self.config.highest_first else queues), retry_first


def priority_of(properties: Mapping[str, str]) -> int | None:
    """The priority of a message; ``None`` if it is none, or if the message is of a kind that has none.

    As in RocketMQ a transaction, a delayed message and one with a sharding key have no priority.
    """
    text = properties[PRIORITY]
    if properties.get(Property.TRANSACTION_PREPARED, "").lower() == "true" or Property.SHARDING_KEY in properties:
        return None
    if not DELAYS.isdisjoint(properties) or not text.isdecimal() or len(text) > 10:
        return None
    return int(text)


def factor_of(group: GroupConfig) -> int:
    """How many pops of a hundred go by priority; the others begin at a random queue, so that none waits forever."""
    text = group.attributes.get(FACTOR, "")
    return int(text) if text.isdecimal() and len(text) < 5 else 100
