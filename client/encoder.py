"""A message made ready for the wire: checked, named, compressed, its properties as one text."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from verniermq.client.compression import FLAGS, Compression, compress
from verniermq.client.errors import BadMessage, MessageTooLarge
from verniermq.client.identity import unique_ids
from verniermq.client.java import shown
from verniermq.client.message import ReceivedMessage
from verniermq.client.names import with_namespace
from verniermq.client.template import Template, send_template
from verniermq.kernel import (
    AUTO_CREATE_TOPIC,
    BROKERS_OWN_TOPICS,
    Command,
    Message,
    MessageQueue,
    NoPermission,
    Property,
    RequestCode,
    SysFlag,
    check_topic_name,
    format_properties,
)
from verniermq.kernel.requests import SendMessage

_now_ns = time.time_ns

LONGEST_COUNT: Final = 9
"""Digits of how often a message was, or may be, consumed."""


class EncodedMessage:
    """One request to send, that can be tried with several queues."""

    __slots__ = ("body", "code", "message_id", "request", "topic")

    def __init__(self, code: int, request: SendMessage, body: bytes, message_id: str) -> None:
        self.code = code
        self.topic = request.topic
        self.request = request
        self.body = body
        self.message_id = message_id

    def command(self, queue: MessageQueue, *, oneway: bool = False) -> Command:
        """The request for one try."""
        ext = self.request.for_queue(queue.queue_id, queue.broker_name)
        return Command(self.code, 0, 2 if oneway else 0, ext, body=self.body)


class Plain:
    """A message without properties of its own and small enough to travel as it is, which most are.

    It has what changes from one send to the next; all else in the request is the same for a queue.
    """

    __slots__ = ("body", "born_ms", "flag", "message_id", "properties", "topic")

    def __init__(self, topic: str, born_ms: int, flag: int, properties: str, body: bytes, message_id: str) -> None:
        self.topic = topic
        self.born_ms = born_ms
        self.flag = flag
        self.properties = properties
        self.body = body
        self.message_id = message_id


class MessageEncoder:
    """Turns messages into requests, by the settings of one producer."""

    def __init__(
        self,
        group: str,
        *,
        namespace: str = "",
        compress_over: int = 4096,
        compression: Compression = "zlib",
        max_message_size: int = 4 * 1024 * 1024,
        default_queues: int = 4,
    ) -> None:
        self._namespace = namespace
        self.group = with_namespace(namespace, group)
        # 0 means never.
        self._compress_over = compress_over or sys.maxsize
        self._compression: Compression = compression
        self._max_message_size = max_message_size
        self._default_queues = default_queues
        self._checked: dict[str, str] = {}

    def wire_topic(self, topic: str) -> str:
        """The topic as brokers know it, with the namespace before it.

        Raises:
            BadName: it may not be called so.
            NoPermission: only brokers send there.
        """
        known = self._checked.get(topic)
        if known is not None:
            return known
        wire = with_namespace(self._namespace, topic)
        check_topic_name(wire)
        if wire in BROKERS_OWN_TOPICS:
            raise NoPermission(f"topic {wire!r} is the broker's own; clients may not send to it")
        if len(self._checked) > 10_000:
            self._checked.clear()
        self._checked[topic] = wire
        return wire

    def check_parts(self, message: Message, index: int | None = None) -> None:
        """
        Raises:
            BadMessage: there is no body, or something beside it is no text.
            MessageTooLarge: there is too much of it.
        """
        body: object = message.body
        which = "the message" if index is None else f"message {index} of the list"
        if not isinstance(body, bytes | bytearray | memoryview):
            kind = type(body).__name__
            swapped: tuple[object, object] = (message.tags, message.keys)
            if any(isinstance(value, bytes) for value in swapped):
                raise BadMessage(
                    f"{which} has a body of {kind}; Java's Message(topic, tags, keys, body) is "
                    "Message(topic, body, tags='…', keys=['…']) here"
                )
            raise BadMessage(f"{which} has a body of {kind}, expected bytes; encode text with text.encode()")
        if not body:
            raise BadMessage(f"{which}, to {message.topic!r}, has an empty body, which brokers refuse; send a byte")
        if len(body) > self._max_message_size:
            raise MessageTooLarge(len(body), self._max_message_size, index)
        check_texts(message)

    def prepare(
        self, message: Message, *, code: int = RequestCode.SEND_MESSAGE_V2, sys_flag: int = 0,
        more: dict[str, str] | None = None,
    ) -> EncodedMessage:  # fmt: skip
        """
        Raises:
            BadName, NoPermission, BadMessage, MessageTooLarge: it cannot be sent.
        """
        if not more and not sys_flag:
            plain = self.plain(message)
            if plain is not None:
                return self.whole(plain, code)
        topic = self.wire_topic(message.topic)
        self.check_parts(message)
        now_ms = _now_ns() // 1_000_000
        properties = message.all_properties()
        if more:
            properties.update(more)
        message_id = properties.get(Property.UNIQUE_KEY)
        if message_id is None:
            properties[Property.UNIQUE_KEY] = message_id = unique_ids.next(now_ms)
        times = _count(properties, Property.RECONSUME_TIME)
        most = _count(properties, Property.MAX_RECONSUME_TIMES)
        body = message.body if isinstance(message.body, bytes) else bytes(message.body)
        if len(body) >= self._compress_over:
            body = compress(body, self._compression)
            sys_flag |= FLAGS[self._compression]
        if Property.TRANSACTION_PREPARED in properties and properties[Property.TRANSACTION_PREPARED] == "true":
            sys_flag |= SysFlag.TRANSACTION_PREPARED
        request = self.request(
            topic, now_ms, properties_text(properties), flag=message.flag, sys_flag=sys_flag,
            reconsume_times=times or 0, max_reconsume_times=most,
        )  # fmt: skip
        return EncodedMessage(code, request, body, message_id)

    def plain(self, message: Message) -> Plain | None:
        """The short form of a message; ``None`` for one that needs the long one.

        Raises:
            BadName, NoPermission, BadMessage, MessageTooLarge: it cannot be sent.
        """
        if message.__class__ is not Message:
            check_message(message)
        topic = self._checked.get(message.topic) or self.wire_topic(message.topic)
        body = message.body
        if body.__class__ is not bytes or not 0 < len(body) <= self._max_message_size:
            self.check_parts(message)
        if message.properties or len(body) >= self._compress_over:
            return None
        now_ms = _now_ns() // 1_000_000
        message_id = unique_ids.next(now_ms)
        text = f"UNIQ_KEY\x01{message_id}\x02WAIT\x01{'true' if message.wait_store_ok else 'false'}\x02"
        if message.tags or message.keys or message.delay_level:
            text += _named_properties(message)
        return Plain(topic, now_ms, message.flag, text, body if body.__class__ is bytes else bytes(body), message_id)

    def whole(self, plain: Plain, code: int = RequestCode.SEND_MESSAGE_V2) -> EncodedMessage:
        """The long form of a short one."""
        request = self.request(plain.topic, plain.born_ms, plain.properties, flag=plain.flag)
        return EncodedMessage(code, request, plain.body, plain.message_id)

    def template(self, queue: MessageQueue) -> Template:
        """Makes the frames of short forms, for one queue."""
        return send_template(self.request(queue.topic, 0, "").for_queue(queue.queue_id, queue.broker_name))

    def request(self, topic: str, now_ms: int, properties: str, **others: Any) -> SendMessage:
        """A send to a queue that is chosen later."""
        return SendMessage(
            group=self.group, topic=topic, queue_id=0, born_timestamp=now_ms, default_topic=AUTO_CREATE_TOPIC,
            default_queues=self._default_queues, properties=properties, **others,
        )  # fmt: skip


def _count(properties: dict[str, str], name: str) -> int | None:
    """Take a number out of the properties, since it is a field of the request.

    Raises:
        BadMessage: it is none.
    """
    text = properties.pop(name, None)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > LONGEST_COUNT:
        raise BadMessage(f"property {name} is {shown(text)}, expected a number")
    return int(text)


def check_message(message: object) -> None:
    """
    Raises:
        BadMessage: it is nothing that can be sent.
    """
    if isinstance(message, ReceivedMessage):
        raise BadMessage(
            "a ReceivedMessage is sent on as a new one: Message(topic, received.body, tags=received.tags, "
            "keys=received.keys)"
        )
    if not isinstance(message, Message):
        raise BadMessage(f"{shown(message)} is no message; send Message(topic, body)")


def check_texts(message: Message) -> None:
    """
    Raises:
        BadMessage: the tag, a key, or a property is no text.
    """
    tags: object = message.tags
    if tags is not None and not isinstance(tags, str):
        raise BadMessage(f"tags={shown(tags)}, expected one text: a message has one tag")
    keys: object = message.keys
    if not isinstance(keys, str) and not (isinstance(keys, Iterable) and all(isinstance(key, str) for key in keys)):
        raise BadMessage(f"keys={shown(keys)}, expected texts: keys=['…']")
    pairs: Mapping[Any, object] = message.properties
    for name, value in pairs.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadMessage(f"property {shown(name)} is {shown(value)}, expected a text; write str({shown(value)})")


def _named_properties(message: Message) -> str:
    """The properties that have a field of their own, without a table of them.

    Raises:
        BadMessage: one is no text, or holds one of the two separators.
    """
    if message.tags.__class__ is not str or message.keys:
        check_texts(message)
    text = f"TAGS\x01{message.tags}\x02" if message.tags else ""
    keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
    if keys:
        text += f"KEYS\x01{keys}\x02"
    if message.delay_level:
        text += f"DELAY\x01{message.delay_level}\x02"
    pairs = bool(message.tags) + bool(keys) + bool(message.delay_level)
    if text.count("\x01") != pairs or text.count("\x02") != pairs:
        properties_text(message.all_properties())  # raises, and says which
    return text


def properties_text(properties: dict[str, str]) -> str:
    """
    Raises:
        BadMessage: a name or value holds one of the two separators.
    """
    text = format_properties(properties)
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties):
        bad = next(name for name, value in properties.items() if not {"\x01", "\x02"}.isdisjoint(f"{name}{value}"))
        raise BadMessage(f"property {bad!r} holds U+0001 or U+0002, which separate properties; leave them out")
    return text
