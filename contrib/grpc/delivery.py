"""A stored message as clients get it.

Bodies are sent as the producer gave them: of the ways to compress one, some clients know one and some another. The
digest is MD5 in capital hex digits, the only form that all clients agree on; Node's does not check whether there is
one. For what is large, both are worked out in a thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import anyio.to_thread
import attrs

from verniermq.client.compression import decompress
from verniermq.contrib.grpc.enums import DigestType, Encoding, MessageType
from verniermq.contrib.grpc.handles import TransactionId
from verniermq.contrib.grpc.properties import (
    BORN_HOST,
    DEAD_LETTER_ID,
    DEAD_LETTER_TOPIC,
    PRIORITY,
    TRACE_CONTEXT,
    is_reserved,
)
from verniermq.contrib.grpc.schema import proto
from verniermq.kernel import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    Property,
    StoredMessage,
    SysFlag,
    decode_record,
    unpack_host,
)
from verniermq.protocol.transaction import CheckTransactionState

LARGE: Final = 256 * 1024
"""Bytes of a body that take longer to be digested than the loop should be held."""

DELAYS: Final = frozenset(
    {Property.DELAY, Property.TIMER_DELIVER_MS, Property.TIMER_DELAY_SEC, Property.TIMER_DELAY_MS}
)


@attrs.frozen
class Name:
    """A topic as a client knows it."""

    namespace: str
    name: str

    @classmethod
    def of(cls, topic: str, namespace: str) -> Name:
        return cls(namespace, topic.removeprefix(f"{namespace}%")) if namespace else cls("", topic)


def message_type(properties: Mapping[str, str]) -> MessageType:
    if properties.get(Property.TRANSACTION_PREPARED, "").lower() == "true":
        return MessageType.TRANSACTION
    if not DELAYS.isdisjoint(properties):
        return MessageType.DELAY
    if PRIORITY in properties:
        return MessageType.PRIORITY
    return MessageType.FIFO if Property.SHARDING_KEY in properties else MessageType.NORMAL


async def delivered(
    stored: StoredMessage, topic: Name, *, receipt: str | None = None, attempt: int | None = None
) -> Any:
    """
    Raises:
        ClientError: its body is compressed in a way that cannot be undone here.
    """
    body, digest = await _body(stored)
    properties = stored.properties
    message = proto.Message(body=body)
    message.topic.name, message.topic.resource_namespace = topic.name, topic.namespace
    for name, value in properties.items():
        # Apache's proxy shows the sharding key too, and the tests of the client of Node look at it.
        if not is_reserved(name) or name == Property.SHARDING_KEY:
            message.user_properties[name] = value
    system = message.system_properties
    if stored.tags:
        system.tag = stored.tags
    system.keys.extend(stored.keys)
    system.message_id = stored.unique_key or stored.offset_message_id
    system.body_digest.type, system.body_digest.checksum = DigestType.MD5, digest
    system.body_encoding = Encoding.IDENTITY
    system.message_type = message_type(properties)
    system.born_timestamp.FromMilliseconds(stored.born_timestamp)
    system.born_host = properties.get(BORN_HOST) or unpack_host(stored.born_host)
    system.store_timestamp.FromMilliseconds(stored.store_timestamp)
    system.store_host = unpack_host(stored.store_host)
    system.queue_id, system.queue_offset = stored.queue_id, stored.queue_offset
    system.delivery_attempt = stored.reconsume_times + 1 if attempt is None else attempt
    if receipt is not None:
        system.receipt_handle = receipt
    if (deliver := properties.get(Property.TIMER_DELIVER_MS, "")).isdecimal() and len(deliver) < 15:
        system.delivery_timestamp.FromMilliseconds(int(deliver))
    if Property.SHARDING_KEY in properties:
        system.message_group = properties[Property.SHARDING_KEY]
    if TRACE_CONTEXT in properties:
        system.trace_context = properties[TRACE_CONTEXT]
    if (priority := properties.get(PRIORITY, "")).isdecimal() and len(priority) < 10:
        system.priority = int(priority)
    _name_dead_letter(stored, system)
    return message


def _name_dead_letter(stored: StoredMessage, system: Any) -> None:
    """Where a message comes from that is read from the dead letters of a group."""
    if not stored.topic.startswith(DEAD_LETTER_PREFIX):
        return
    properties = stored.properties
    origin = properties.get(DEAD_LETTER_TOPIC) or properties.get(Property.RETRY_TOPIC, "")
    if not origin.startswith(RETRY_PREFIX):
        system.dead_letter_queue.topic = origin
    system.dead_letter_queue.message_id = properties.get(DEAD_LETTER_ID) or properties.get(
        Property.ORIGIN_MESSAGE_ID, ""
    )


async def _body(stored: StoredMessage) -> tuple[bytes, str]:
    is_compressed = bool(stored.sys_flag & SysFlag.COMPRESSED)
    if is_compressed or len(stored.body) > LARGE:
        return await anyio.to_thread.run_sync(_opened, stored, is_compressed)
    return _opened(stored, is_compressed)


def _opened(stored: StoredMessage, is_compressed: bool) -> tuple[bytes, str]:
    body = decompress(stored.body, stored.sys_flag) if is_compressed else stored.body
    return body, hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


async def recovery_command(check: CheckTransactionState, record: bytes) -> Any:
    """Ask a producer what became of a transaction: what a broker asks on a producer's connection."""
    half = decode_record(record)
    identifier = TransactionId(check.broker_name or "", check.log_offset, check.half_offset)
    command = proto.TelemetryCommand()
    recovery = command.recover_orphaned_transaction_command
    recovery.message.CopyFrom(await delivered(half, Name("", half.topic), attempt=1))
    recovery.transaction_id = str(identifier)
    return command
