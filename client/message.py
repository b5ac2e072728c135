"""A message as a consumer gets it (RocketMQ: ``MessageExt``), cut out of a pull's answer and unpacked when looked at.

A pull's answer is records of the commit log, back to back; :func:`decode_messages` walks over them. The numbers of a
record are read at once, since every message needs some of them; text is decoded and a body inflated only when
somebody asks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from zlib import crc32

import attrs

from verniermq.client.compression import decompress
from verniermq.client.errors import BodyNotReadable, ClientError
from verniermq.client.java import JavaNames
from verniermq.client.record import WIRE, MessageFields, decode_plain
from verniermq.kernel import (
    CorruptRecord,
    MessageQueue,
    Property,
    StoredMessage,
    SysFlag,
    decode_record,
    offset_message_id,
    parse_properties,
    unpack_host,
)
from verniermq.protocol.inflate import MAX_BODY

if TYPE_CHECKING:
    from verniermq.client.receipt import Receipt

MAX_OFFSET: Final = 2**63 - 1
_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]")

if TYPE_CHECKING or WIRE is None:
    Fields = MessageFields
else:
    Fields, decode_plain = WIRE.MessageFields, WIRE.decode_plain


class ReceivedMessage(JavaNames, Fields):
    """One message from a queue.

    ``body`` is as the producer gave it, inflated if it travelled compressed. ``message_id`` is the id that the
    producer saw; it stays the same through retries, unlike ``offset_message_id``, which says where this copy lies.
    """

    __slots__ = ()

    @classmethod
    def from_stored(cls, stored: StoredMessage, queue: MessageQueue, max_body_size: int = MAX_BODY) -> ReceivedMessage:
        return cls(
            stored.topic, queue, stored.queue_offset, stored.commit_log_offset, stored.size, stored.flag,
            stored.sys_flag, stored.born_timestamp, stored.born_host, stored.store_timestamp, stored.store_host,
            stored.reconsume_times, stored.prepared_transaction_offset, stored.body, b"", max_body_size,
            stored.properties,
        )  # fmt: skip

    @property
    def body(self) -> bytes:
        """
        Raises:
            BodyTooLarge: it inflates to more than the client's ``max_body_size``.
            BodyNotReadable, MissingLibrary: it cannot be inflated.
        """
        if self.sys_flag & SysFlag.COMPRESSED:
            if (known := self.body_error) is not None:
                raise known.with_traceback(None)
            which = f"message {self.message_id} of topic {self.topic!r}"
            try:
                self._body = decompress(self._body, self.sys_flag, self._limit, which)
            except BodyNotReadable as error:
                self._body_error = error
                raise
            self.sys_flag &= ~(SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
        return self._body

    @property
    def body_error(self) -> BodyNotReadable | None:
        """What was wrong with the body when somebody looked at it: no later try would find it better."""
        return getattr(self, "_body_error", None)  # set when it happens: nearly no message has one

    @property
    def receipt(self) -> Receipt | None:
        """What a popped message is acknowledged by; ``None`` for others. Each delivery has its own."""
        return getattr(self, "_receipt", None)

    @receipt.setter
    def receipt(self, receipt: Receipt) -> None:
        self._receipt = receipt

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
    def delay_level(self) -> int:
        """The delay that it was sent with, 1 to 18 by the broker's table; 0 for none."""
        text = self.properties.get(Property.DELAY, "")
        return int(text) if text.isdecimal() else 0

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


@attrs.frozen
class DamagedMessage:
    """A message whose record reached us damaged: nobody can say what it was."""

    queue: MessageQueue
    queue_offset: int
    """Where it lies in its queue, as far as can be told."""
    commit_log_offset: int
    """Where it says that it lies in the broker's log; -1 if it does not even say that."""
    why: str

    def __str__(self) -> str:
        return f"{self.queue} offset {self.queue_offset} (commit-log offset {self.commit_log_offset}): {self.why}"


def decode_messages(
    data: bytes, queue: MessageQueue, max_body_size: int = MAX_BODY, first: int = 0, following: int = MAX_OFFSET
) -> tuple[list[ReceivedMessage], list[DamagedMessage]]:
    """The messages of a pull's answer, and what in it is damaged.

    A body that is not what its checksum says, parts that do not add up, and a queue offset that is not from ``first``
    to before ``following``, are damage: one such record must not hide the others. A compressed body is refused when
    it is looked at and larger than ``max_body_size``.
    """
    messages: list[ReceivedMessage] = []
    damaged: list[DamagedMessage] = []
    position = 0
    while True:
        position = decode_plain(
            ReceivedMessage, data, position, queue, queue.topic, max_body_size, first, following, messages
        )
        if position >= len(data):
            return messages, damaged
        # IPv6, a long topic, or damage: the kernel's decoder knows them all and says what is wrong.
        try:
            record = decode_record(data, position)
        except CorruptRecord as error:
            where = messages[-1].queue_offset + 1 if messages else first
            damaged.append(DamagedMessage(queue, where, -1, error.why))
            position = _next_record(data, position, queue)
            continue
        why = _what_is_wrong(record, first, following)
        if why is None:
            messages.append(ReceivedMessage.from_stored(record, queue, max_body_size))
        else:
            is_plausible = first <= record.queue_offset < following
            where = record.queue_offset if is_plausible else messages[-1].queue_offset + 1 if messages else first
            damaged.append(DamagedMessage(queue, where, record.commit_log_offset, why))
        position += record.size


def _what_is_wrong(record: StoredMessage, first: int, following: int) -> str | None:
    crc = crc32(record.body) & 0x7FFFFFFF
    if crc != record.body_crc and record.body:
        return f"its body's checksum is {crc:#010x} and not {record.body_crc:#010x}"
    # A batch that is one record begins where it begins, wherever in it was asked for.
    if not first <= record.queue_offset < following and not record.sys_flag & SysFlag.INNER_BATCH:
        return f"it says that it has queue offset {record.queue_offset}, where {first} to {following - 1} was read"
    return None


def _next_record(data: bytes, position: int, queue: MessageQueue) -> int:
    """Where the next record of the queue begins after one that does not say how long it is; the end, if none does."""
    for hit in _MAGIC.finditer(data, position + 5):
        try:
            record = decode_record(data, hit.start() - 4)
        except CorruptRecord:
            continue
        # A body may hold a record, but hardly one of the same queue.
        if record.topic == queue.topic and record.queue_id == queue.queue_id:
            return hit.start() - 4
    return len(data)


def decode_popped(
    data: bytes, broker_name: str, max_body_size: int = MAX_BODY
) -> tuple[list[ReceivedMessage], list[DamagedMessage]]:
    """The messages of a pop's answer, which come from any queue, and what in it is damaged.

    A record that does not say how long it is hides those behind it: they come again when their time is over.
    """
    messages: list[ReceivedMessage] = []
    damaged: list[DamagedMessage] = []
    position = 0
    while position < len(data):
        try:
            record = decode_record(data, position)
        except CorruptRecord as error:
            damaged.append(DamagedMessage(MessageQueue("?", broker_name, -1), -1, -1, error.why))
            break
        why = _what_is_wrong(record, record.queue_offset, record.queue_offset + 1)
        queue = queue_of(record, broker_name)
        if why is None:
            messages.append(ReceivedMessage.from_stored(record, queue, max_body_size))
        else:
            damaged.append(DamagedMessage(queue, record.queue_offset, record.commit_log_offset, why))
        position += record.size
    return messages, damaged


def queue_of(stored: StoredMessage, broker_name: str) -> MessageQueue:
    return MessageQueue(stored.topic, broker_name, stored.queue_id)


def decode_one(data: bytes, broker_name: str, max_body_size: int = MAX_BODY) -> ReceivedMessage:
    """The single message that some answers carry.

    Raises:
        ClientError: there is none.
        CorruptRecord: the bytes are not a record, or its body is not what its checksum says.
    """
    if not data:
        raise ClientError("the broker's answer holds no message")
    stored = decode_record(data)
    why = _what_is_wrong(stored, stored.queue_offset, stored.queue_offset + 1)
    if why is not None:
        raise CorruptRecord(stored.commit_log_offset, why)
    return ReceivedMessage.from_stored(stored, queue_of(stored, broker_name), max_body_size)
