"""Messages and what names them: the types that every part of VernierMQ shares.

A message changes its form three times on its way. A producer makes a ``Message``; the broker turns the
request into a ``PendingMessage``, which plugins may still change; the log stores it, and whoever reads the
log gets a ``StoredMessage``. Properties travel as one text, ``name 0x01 value 0x02 name 0x01 value 0x02``.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import attrs

# Files of their own, for one idea each; whoever uses messages finds all of it here.
from verniermq.kernel.message.pending import PendingMessage
from verniermq.kernel.names import Property

MAX_TOPIC_LENGTH: Final = 127
"""A record of the first version keeps the topic's length in a signed byte."""
NAME_END: Final = "\x01"
VALUE_END: Final = "\x02"


class SysFlag:
    """Bits of a message's system flag (RocketMQ: ``MessageSysFlag``)."""

    COMPRESSED: Final = 0x1
    MULTI_TAGS: Final = 0x2
    TRANSACTION_PREPARED: Final = 0x4
    TRANSACTION_COMMIT: Final = 0x8
    TRANSACTION_ROLLBACK: Final = 0xC
    TRANSACTION_MASK: Final = 0xC
    BORN_HOST_V6: Final = 0x10
    STORE_HOST_V6: Final = 0x20
    INNER_BATCH: Final = 0x80
    COMPRESSION_MASK: Final = 0x700
    COMPRESSION_LZ4: Final = 0x100
    COMPRESSION_ZSTD: Final = 0x200
    COMPRESSION_ZLIB: Final = 0x300


# --- properties ----------------------------------------------------------------------------


def parse_properties(text: str) -> dict[str, str]:
    """Read a properties text. A pair without a name or a value is dropped and a later one wins, as in RocketMQ."""
    properties: dict[str, str] = {}
    for pair in text.split(VALUE_END):
        name, _, value = pair.partition(NAME_END)
        if value and name:
            properties[name] = value
    return properties


def format_properties(properties: Mapping[str, str]) -> str:
    """Write a properties text; every pair ends with 0x02, the last one too."""
    return "".join([f"{name}{NAME_END}{value}{VALUE_END}" for name, value in properties.items()])


# --- hashes and ids ------------------------------------------------------------------------


LONGEST_KEPT: Final = 128
"""Characters of a text whose hash is kept: thousands of long ones, which a producer may make, would fill the memory."""


LONGEST_TAG: Final = 1024
"""Characters of a tag that is taken. A queue entry keeps its hash; those of 32 KiB, pipelined, would take a second."""


def java_hash(text: str) -> int:
    """Java's ``String.hashCode``: over UTF-16 code units, 32 bits, signed."""
    return _kept_hash(text) if len(text) <= LONGEST_KEPT else _hash(text)


def _hash(text: str) -> int:
    value = 0
    encoded = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


_kept_hash = lru_cache(maxsize=16384)(_hash)


def tags_code(tags: str | None) -> int:
    """The number a consume-queue entry keeps for a tag; 0 means no tag."""
    return java_hash(tags) if tags else 0


def pack_host(host: str, port: int) -> bytes:
    """An address as a record keeps it: 4 or 16 bytes of IP, then the port in 4 bytes.

    Raises:
        ValueError: ``host`` is no IP address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.inet_pton(family, host) + port.to_bytes(4, "big")
    except OSError as error:
        raise ValueError(f"{host!r} is no IP address") from error


def unpack_host(packed: bytes) -> str:
    """The same address as text: ``10.0.0.5:10911`` or ``[2001:db8::5]:10911``."""
    port = int.from_bytes(packed[-4:], "big")
    if len(packed) == 8:
        return f"{socket.inet_ntop(socket.AF_INET, packed[:4])}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed[:16])}]:{port}"


def offset_message_id(packed_store_host: bytes, commit_log_offset: int) -> str:
    """The id in a send's answer: where the message lies, in upper-case hex."""
    return (packed_store_host + commit_log_offset.to_bytes(8, "big")).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[str, int]:
    """The broker's address and the commit-log offset inside an offset message id.

    Raises:
        ValueError: the text is no such id.
    """
    if len(message_id) not in (32, 56):
        raise ValueError(f"{message_id!r} is no offset message id: expected 32 or 56 hex digits")
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raise ValueError(f"{message_id!r} is no offset message id: it has a character that is no hex digit") from None
    return unpack_host(raw[:-8]), int.from_bytes(raw[-8:], "big", signed=True)


# --- the types -----------------------------------------------------------------------------


@attrs.frozen(order=True, cache_hash=True)  # a consumer looks its place up by it, for each message
class MessageQueue:
    """One queue of a topic on one broker. Sorted by topic, broker name, queue id, as every client sorts them."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


@attrs.frozen
class Subscription:
    """What a consumer group wants of one topic (RocketMQ: ``SubscriptionData``)."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0
    """Milliseconds; a later subscription has a larger one."""

    @property
    def wants_all(self) -> bool:
        return self.expression_type == "TAG" and self.expression in ("", "*")


@attrs.define
class Message:
    """What a producer sends. ``tags`` and ``keys`` are properties with a name of their own."""

    topic: str
    body: bytes
    tags: str | None = None
    keys: Iterable[str] = ()
    properties: dict[str, str] = attrs.Factory(dict)
    flag: int = 0
    delay_level: int = 0
    """1 to 18: deliver later, by the broker's table of delays; 0: at once."""
    wait_store_ok: bool = True
    """False: the answer need not wait for the disk or the slaves."""

    def all_properties(self) -> dict[str, str]:
        """The properties with those that have a field of their own put in."""
        properties = dict(self.properties)
        if self.tags:
            properties[Property.TAGS] = self.tags
        keys = " ".join([self.keys] if isinstance(self.keys, str) else self.keys)
        if keys:
            properties[Property.KEYS] = keys
        if self.delay_level:
            properties[Property.DELAY] = str(self.delay_level)
        properties[Property.WAIT] = "true" if self.wait_store_ok else "false"
        return properties


@attrs.frozen
class StoredMessage:
    """One message as the log has it (RocketMQ: ``MessageExt``)."""

    topic: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    size: int
    """Of the whole record, in bytes."""
    body: bytes
    """As stored: still compressed when ``sys_flag`` says so."""
    properties: dict[str, str]
    flag: int = 0
    sys_flag: int = 0
    body_crc: int = 0
    born_timestamp: int = 0
    born_host: bytes = b""
    store_timestamp: int = 0
    store_host: bytes = b""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @property
    def tags(self) -> str | None:
        return self.properties.get(Property.TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(Property.KEYS, "").split()

    @property
    def unique_key(self) -> str | None:
        return self.properties.get(Property.UNIQUE_KEY)

    @property
    def offset_message_id(self) -> str:
        return offset_message_id(self.store_host, self.commit_log_offset)

    @property
    def is_body_intact(self) -> bool:
        """Whether the body is what its checksum says, which only somebody who compares them knows."""
        return not self.body or zlib.crc32(self.body) & 0x7FFFFFFF == self.body_crc

    def pending(self, **changes: Any) -> PendingMessage:
        """The same message, to be put into the log again: how delays, retries and commits travel."""
        message = PendingMessage(
            topic=self.topic,
            queue_id=self.queue_id,
            body=self.body,
            properties=dict(self.properties),
            flag=self.flag,
            sys_flag=self.sys_flag,
            born_timestamp=self.born_timestamp,
            born_host=self.born_host,
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
        )
        for name, value in changes.items():
            setattr(message, name, value)
        return message


@attrs.frozen
class MessageFilter:
    """A compiled subscription: what the broker can ask of a message without looking at its body.

    ``tag_codes`` is tested against the consume-queue entry alone, as 32-bit hashes: some messages too many
    may pass (the client compares the text), none too few. ``test`` is asked about the properties of those
    that are left. ``None`` lets everything pass.
    """

    tag_codes: frozenset[int] | None = None
    test: Callable[[Mapping[str, str]], bool] | None = None
    """Answers from the properties alone, and never raises."""


MATCH_ALL: Final = MessageFilter()
"""Lets every message pass."""
