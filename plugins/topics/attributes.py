"""The attributes that a topic or a group may have (RocketMQ: ``TopicAttributes``, ``SubscriptionGroupAttributes``).

One that has an effect here is kept, any other is refused with the reason: what is asked for happens, or is refused.
Plugins declare those that take effect because of them in ``Declaration(topic_attributes=…, group_attributes=…)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from verniermq.kernel import (
    LITE_TOPICS,
    Attribute,
    Declaration,
    InvalidParameter,
    PluginHost,
    PluginMissing,
    ResponseCode,
    nearest,
)
from verniermq.protocol.topics import MESSAGE_TYPE

TOPIC_ATTRIBUTES: Final = (
    Attribute(MESSAGE_TYPE, ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")),
    Attribute("queue.type", ("SimpleCQ",)),
    Attribute("cleanup.policy", ("DELETE",)),
    Attribute("reserve.time", ("-1",)),
    Attribute("lite.topic.expiration", ("-1",)),
)
"""``message.type`` tells clients what a topic is for; of the others there is what every topic here is."""

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


Kind = Literal["topic", "group"]


def check_attributes(
    plugins: PluginHost, kind: Kind, whose: str, current: Mapping[str, str], changed: Mapping[str, str]
) -> None:
    """What was there already stays, also if it has no effect: an Apache broker may have written it.

    Raises:
        PluginMissing: the plugin that makes an attribute take effect is not active.
        InvalidParameter: an attribute would have no effect.
    """
    for name, value in changed.items():
        if current.get(name) != value:
            _check(plugins, kind, whose, name, value)


def _check(plugins: PluginHost, kind: Kind, whose: str, name: str, value: str) -> None:
    known = [one for plugin in plugins.active.values() for one in _declared(plugin.declaration, kind)]
    if any(attribute.allows(name, value) for attribute in known):
        return
    what = f"{kind} {whose!r}: attribute {name:.80}={value:.80}"
    for plugin_name, declaration in plugins.others().items():
        if any(attribute.allows(name, value) for attribute in _declared(declaration, kind)):
            raise PluginMissing(plugin_name, what, ResponseCode.INVALID_PARAMETER)
    reason = REASONS.get(f"{name}={value}") or REASONS.get(name)
    if reason is not None:
        raise InvalidParameter(f"{what} has no effect here: {reason}")
    expected = [attribute.expected for attribute in known if attribute.name == name]
    if expected:
        raise InvalidParameter(f"{what}; expected one of {', '.join(expected)}")
    raise InvalidParameter(f"{what} is not known; {nearest(name, {attribute.name for attribute in known})}")


def _declared(declaration: Declaration, kind: Kind) -> Iterable[Attribute]:
    return declaration.topic_attributes if kind == "topic" else declaration.group_attributes


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
