"""The attributes that a topic or a group may have (RocketMQ: ``TopicAttributes``, ``SubscriptionGroupAttributes``).

One that has an effect here is kept, any other is refused with the reason: what is asked for happens, or is refused.
The kernel's own are listed below; plugins declare theirs in ``Declaration(topic_attributes=…, group_attributes=…)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from verniermq.kernel.errors import InvalidParameter, nearest
from verniermq.kernel.refusals import LITE_TOPICS

MESSAGE_TYPE: Final = "message.type"


@attrs.frozen
class Attribute:
    """An attribute that has an effect, with the values that it may have: texts, or whole numbers of a range."""

    name: str
    values: tuple[str, ...] | range

    def allows(self, name: str, value: str) -> bool:
        if name != self.name:
            return False
        if isinstance(self.values, range):
            return value.isdecimal() and len(value) < 20 and int(value) in self.values
        return value in self.values

    @property
    def expected(self) -> str:
        if isinstance(self.values, range):
            return f"{self.values[0]} to {self.values[-1]}"
        return ", ".join(self.values)


TOPIC_ATTRIBUTES: Final = (
    Attribute(MESSAGE_TYPE, ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")),
    Attribute("queue.type", ("SimpleCQ",)),
    Attribute("cleanup.policy", ("DELETE",)),
    Attribute("reserve.time", ("-1",)),
    Attribute("lite.topic.expiration", ("-1",)),
)
"""``message.type`` tells clients what a topic is for; of the others there is what every topic here is."""

GROUP_ATTRIBUTES: Final[tuple[Attribute, ...]] = ()

REASONS: Final[Mapping[str, str]] = {
    "queue.type=BatchCQ": "a batch is stored message by message here, and has no consume queue of its own kind",
    "cleanup.policy=COMPACTION": "topics are not compacted here; messages go by their age, see [plugins.retention]",
    "reserve.time": "all topics keep messages for the same time, see max_age in [plugins.retention]",
    f"{MESSAGE_TYPE}=LITE": LITE_TOPICS,
    "lite.topic.expiration": LITE_TOPICS,
    "lite.bind.topic": LITE_TOPICS,
    "lite.sub.model": LITE_TOPICS,
    "lite.sub.reset.offset.exclusive": LITE_TOPICS,
    "lite.sub.reset.offset.unsubscribe": LITE_TOPICS,
    "lite.sub.client.quota": LITE_TOPICS,
    "lite.sub.client.max.event.cnt": LITE_TOPICS,
    "lite.sub.wildcard": LITE_TOPICS,
}
"""Attributes of RocketMQ, alone or with one value, that have no effect here → why not."""


def check_attribute(whose: str, name: str, value: str, honoured: Iterable[Attribute]) -> None:
    """
    :param whose: such as ``topic 'orders'``

    Raises:
        InvalidParameter: the attribute would have no effect.
    """
    known = list(honoured)
    if any(attribute.allows(name, value) for attribute in known):
        return
    what = f"{whose}: attribute {name:.80}={value:.80}"
    reason = REASONS.get(f"{name}={value}") or REASONS.get(name)
    if reason is not None:
        raise InvalidParameter(f"{what} has no effect here: {reason}")
    expected = [attribute.expected for attribute in known if attribute.name == name]
    if expected:
        raise InvalidParameter(f"{what}; expected one of {', '.join(expected)}")
    raise InvalidParameter(f"{what} is not known; {nearest(name, {attribute.name for attribute in known})}")


def parse_changes(text: str) -> dict[str, str]:
    """``+name=value,-name`` as Java's classes hold it: ``{"+name": "value", "-name": ""}``.

    Raises:
        InvalidParameter: it is no such list.
    """
    changes = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part[1:].partition("=")
        if not name or part[0] not in "+-" or (part[0] == "+" and not value):
            raise InvalidParameter(
                f"attributes {text!r:.200}: expected a list of +name=value and -name, found {part!r}"
            )
        changes[part[0] + name] = value
    return changes


def changed_attributes(current: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Apply ``+name`` and ``-name``; a name without a sign is set too, as in a configuration read from a broker."""
    attributes = dict(current)
    for name, value in changes.items():
        if name.startswith("-"):
            attributes.pop(name[1:], None)
        else:
            attributes[name.removeprefix("+")] = value
    return attributes
