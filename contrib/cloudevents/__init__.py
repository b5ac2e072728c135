"""CloudEvents as messages, in the binding of RocketMQ that the Java SDK has.

Binary mode: each attribute is a property ``CE_<name>``, the content type is ``CE_contenttype``, the body is the data.
Structured mode: the body is the whole event, and ``CE_contenttype`` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings import kafka
from cloudevents.core.bindings.kafka import KafkaMessage
from cloudevents.core.formats.base import Format
from cloudevents.core.formats.json import JSONFormat

from verniermq.client import Message, ReceivedMessage
from verniermq.client.errors import ClientError

__all__ = ["from_message", "is_event", "to_message"]

PREFIX: Final = "CE_"
CONTENT_TYPE: Final = "CE_contenttype"
STRUCTURED: Final = "application/cloudevents"
NO_DATA: Final = b"\0"
"""What stands for no data: brokers refuse empty bodies."""

_KAFKA_PREFIX: Final = "ce_"
_KAFKA_CONTENT_TYPE: Final = "content-type"


def to_message(
    event: BaseCloudEvent,
    topic: str,
    *,
    mode: Literal["binary", "structured"] = "binary",
    event_format: Format | None = None,
    **options: Any,
) -> Message:
    """An event as a message; its id is a key. ``options`` are those of :class:`~verniermq.client.Message`."""
    event_format = event_format or JSONFormat()
    # The two bindings differ in their names only, and the SDK has one for Kafka.
    convert = kafka.to_binary if mode == "binary" else kafka.to_structured
    converted = convert(event, event_format)
    properties = dict(options.pop("properties", {}))
    for name, value in converted.headers.items():
        if name == _KAFKA_CONTENT_TYPE:
            properties[CONTENT_TYPE] = value.decode()
        elif mode == "binary":
            properties[PREFIX + name.removeprefix(_KAFKA_PREFIX)] = value.decode()
    keys = options.pop("keys", [event.get_id()])
    return Message(topic, converted.value or NO_DATA, properties=properties, keys=keys, **options)


def is_event(message: ReceivedMessage) -> bool:
    """Whether a message is an event, in either mode."""
    return f"{PREFIX}specversion" in message.properties or _is_structured(message.properties)


def from_message(message: ReceivedMessage, *, event_format: Format | None = None) -> BaseCloudEvent:
    """The event that a message carries.

    Raises:
        ClientError: it carries none.
    """
    if not is_event(message):
        raise ClientError(f"message {message.message_id} is no event: it has neither CE_specversion nor CE_contenttype")
    event_format = event_format or JSONFormat()
    properties = message.properties
    if _is_structured(properties):
        headers = {_KAFKA_CONTENT_TYPE: properties[CONTENT_TYPE].encode()}
        return kafka.from_structured(KafkaMessage(headers, None, message.body), event_format)
    headers = {
        _KAFKA_PREFIX + name.removeprefix(PREFIX): value.encode()
        for name, value in properties.items()
        if name.startswith(PREFIX) and name != CONTENT_TYPE
    }
    if CONTENT_TYPE in properties:
        headers[_KAFKA_CONTENT_TYPE] = properties[CONTENT_TYPE].encode()
    body = b"" if message.body == NO_DATA else message.body
    return kafka.from_binary(KafkaMessage(headers, None, body), event_format)


def _is_structured(properties: Mapping[str, str]) -> bool:
    return properties.get(CONTENT_TYPE, "").startswith(STRUCTURED)
