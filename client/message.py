"""A message as a consumer gets it (RocketMQ: ``MessageExt``), cut out of a pull's answer and unpacked when looked at.

A pull's answer is records of the commit log, back to back; :func:`decode_messages` walks over them. The numbers of a
record are read at once, since every message needs some of them; text is decoded and a body inflated only when
somebody asks.
"""

from __future__ import annotations

import struct
from typing import Final

from verniermq.client.compression import decompress
from verniermq.client.errors import ClientError
from verniermq.kernel import (
    MessageQueue,
    Property,
    StoredMessage,
    SysFlag,
    decode_record,
    offset_message_id,
    parse_properties,
    unpack_host,
)

# size, magic, crc, queue id, flag, queue offset, commit-log offset, system flag, born time, born host,
# store time, store host, times consumed before, half message's offset, length of the body
_HEAD: Final = struct.Struct(">iIIiiqqiq8sq8siqi")
_unpack_head = _HEAD.unpack_from
_MAGIC_V1: Final = 0xDAA320A7
_HOSTS_V6: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6


class ReceivedMessage:
    """One message from a queue.

    ``body`` is as the producer gave it, inflated if it travelled compressed. ``message_id`` is the id that the
    producer saw; it stays the same through retries, unlike ``offset_message_id``, which says where this copy lies.
    """

    __slots__ = (
        "_body", "_born_host", "_properties", "_raw_properties", "_store_host", "born_timestamp",
        "commit_log_offset", "flag", "prepared_transaction_offset", "queue", "queue_offset", "reconsume_times",
        "size", "store_timestamp", "sys_flag", "topic",
    )  # fmt: skip

    topic: str
    """The topic that it was sent to, for a retried message too."""
    queue: MessageQueue
    """Where it was read from; of a retried message, a queue of the retry topic."""
    queue_offset: int
    commit_log_offset: int
    size: int
    """Bytes of the whole record."""
    flag: int
    sys_flag: int
    born_timestamp: int
    """Milliseconds since 1970, by the producer's clock."""
    store_timestamp: int
    reconsume_times: int
    """How often it was handed out before and failed."""
    prepared_transaction_offset: int

    def __init__(
        self, topic: str, queue: MessageQueue, queue_offset: int, commit_log_offset: int, size: int, flag: int,
        sys_flag: int, born_timestamp: int, born_host: bytes, store_timestamp: int, store_host: bytes,
        reconsume_times: int, prepared_transaction_offset: int, body: bytes, raw_properties: bytes,
    ) -> None:  # fmt: skip
        self.topic = topic
        self.queue = queue
        self.queue_offset = queue_offset
        self.commit_log_offset = commit_log_offset
        self.size = size
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self._born_host = born_host
        self.store_timestamp = store_timestamp
        self._store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self._body = body
        self._raw_properties = raw_properties
        self._properties: dict[str, str] | None = None

    @classmethod
    def from_stored(cls, stored: StoredMessage, queue: MessageQueue) -> ReceivedMessage:
        message = cls(
            stored.topic, queue, stored.queue_offset, stored.commit_log_offset, stored.size, stored.flag,
            stored.sys_flag, stored.born_timestamp, stored.born_host, stored.store_timestamp, stored.store_host,
            stored.reconsume_times, stored.prepared_transaction_offset, stored.body, b"",
        )  # fmt: skip
        message._properties = stored.properties
        return message

    @property
    def body(self) -> bytes:
        if self.sys_flag & SysFlag.COMPRESSED:
            self._body = decompress(self._body, self.sys_flag)
            self.sys_flag &= ~(SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
        return self._body

    @property
    def properties(self) -> dict[str, str]:
        if self._properties is None:
            self._properties = parse_properties(self._raw_properties.decode("utf-8", "replace"))
        return self._properties

    @property
    def tags(self) -> str | None:
        return self.properties.get(Property.TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(Property.KEYS, "").split()

    @property
    def message_id(self) -> str:
        return self.properties.get(Property.UNIQUE_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        return offset_message_id(self._store_host, self.commit_log_offset)

    @property
    def transaction_id(self) -> str | None:
        return self.properties.get(Property.TRANSACTION_ID)

    @property
    def born_host(self) -> str:
        return unpack_host(self._born_host) if self._born_host else ""

    @property
    def store_host(self) -> str:
        return unpack_host(self._store_host) if self._store_host else ""

    def __repr__(self) -> str:
        return (
            f"<ReceivedMessage {self.message_id} topic={self.topic!r} queue={self.queue.queue_id} "
            f"offset={self.queue_offset} tags={self.tags!r} keys={self.keys!r} body={len(self._body)} bytes>"
        )


def decode_messages(data: bytes, queue: MessageQueue) -> list[ReceivedMessage]:
    """The messages of a pull's answer.

    Raises:
        CorruptRecord: the bytes are not records.
    """
    messages: list[ReceivedMessage] = []
    add = messages.append
    position = 0
    end = len(data)
    topic = queue.topic
    while position < end:
        if end - position > 91:
            (
                size, magic, _, _, flag, queue_offset, log_offset, sys_flag, born, born_host, stored, store_host,
                times, prepared, body_size,
            ) = _unpack_head(data, position)  # fmt: skip
            following = position + size
            if magic == _MAGIC_V1 and not sys_flag & _HOSTS_V6 and following <= end and 0 <= body_size <= size - 91:
                body_at = position + 88
                topic_at = body_at + body_size
                properties_at = topic_at + 1 + data[topic_at]
                if properties_at + 2 + int.from_bytes(data[properties_at : properties_at + 2], "big") == following:
                    add(
                        ReceivedMessage(
                            topic, queue, queue_offset, log_offset, size, flag, sys_flag, born, born_host, stored,
                            store_host, times, prepared, data[body_at:topic_at], data[properties_at + 2 : following],
                        )
                    )  # fmt: skip
                    position = following
                    continue
        # IPv6, a long topic, or damage: the kernel's decoder knows them all and says what is wrong.
        record = decode_record(data, position)
        add(ReceivedMessage.from_stored(record, queue))
        position += record.size
    return messages


def queue_of(stored: StoredMessage, broker_name: str) -> MessageQueue:
    return MessageQueue(stored.topic, broker_name, stored.queue_id)


def decode_one(data: bytes, broker_name: str) -> ReceivedMessage:
    """The single message that some answers carry.

    Raises:
        ClientError: there is none.
        CorruptRecord: the bytes are not a record.
    """
    if not data:
        raise ClientError("the broker's answer holds no message")
    stored = decode_record(data)
    return ReceivedMessage.from_stored(stored, queue_of(stored, broker_name))
