"""What the conventions call the parts of a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verniermq.kernel import Message, Property


def message_attributes(message: Message) -> dict[str, Any]:
    """Of a message that is to be sent."""
    return {"messaging.message.body.size": len(message.body), **_property_attributes(message.all_properties())}


def received_attributes(message: Any) -> dict[str, Any]:
    """Of a single message that was received."""
    return {
        "messaging.message.id": message.message_id,
        "messaging.message.body.size": len(message._body),  # as it travelled: nothing is inflated for this
        **_property_attributes(message.properties),
    }


def _property_attributes(properties: Mapping[str, str]) -> dict[str, Any]:
    attributes: dict[str, Any] = {"messaging.rocketmq.message.type": _type(properties)}
    if tag := properties.get(Property.TAGS):
        attributes["messaging.rocketmq.message.tag"] = tag
    if keys := properties.get(Property.KEYS):
        attributes["messaging.rocketmq.message.keys"] = keys.split()
    if group := properties.get(Property.SHARDING_KEY):
        attributes["messaging.rocketmq.message.group"] = group
    if (level := properties.get(Property.DELAY, "")).isdigit():
        attributes["messaging.rocketmq.message.delay_time_level"] = int(level)
    if (due := properties.get(Property.TIMER_DELIVER_MS, "")).isdigit():
        attributes["messaging.rocketmq.message.delivery_timestamp"] = int(due)
    return attributes


def _type(properties: Mapping[str, str]) -> str:
    if Property.TRANSACTION_PREPARED in properties:
        return "transaction"
    delays = (Property.DELAY, Property.TIMER_DELIVER_MS, Property.TIMER_DELAY_SEC, Property.TIMER_DELAY_MS)
    if any(name in properties for name in delays):
        return "delay"
    return "fifo" if Property.SHARDING_KEY in properties else "normal"


def server_attributes(address: str) -> dict[str, Any]:
    """Of ``host:port``."""
    host, _, port = address.rpartition(":")
    return {"server.address": host.strip("[]"), "server.port": int(port)} if host and port.isdigit() else {}
