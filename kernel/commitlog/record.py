"""One message as bytes in the commit log, and back (RocketMQ: ``MessageExtEncoder``, ``MessageDecoder``).

Everything is big-endian. With IPv4 addresses on both sides the head has 88 bytes::

    offset  bytes  field
         0      4  size of the whole record
         4      4  magic: DA A3 20 A7 (version 1) or DA A3 20 AB (version 2)
         8      4  CRC-32 of the body, top bit dropped
        12      4  queue id
        16      4  flag: the producer's own
        20      8  queue offset
        28      8  commit-log offset: where this record lies
        36      4  system flag
        40      8  born timestamp
        48      8  born host: IP, port in 4 bytes         (20 bytes when system flag has 0x10)
        56      8  store timestamp
        64      8  store host                             (20 bytes when system flag has 0x20)
        72      4  reconsume times
        76      8  prepared transaction offset
        84      4  body length, then the body
                1  topic length (2 bytes in version 2), then the topic
                2  properties length, then the properties text

A small one: body ``hi``, topic ``T``, no properties, 94 bytes (0x5e)::

    00 00 00 5e  da a3 20 a7  ..crc....  ..queue..  ..flag...  … 00 00 00 02 68 69  01 54  00 00

Where the next record does not fit into the rest of a segment, 8 bytes say so, and the record begins the
next segment: the number of bytes left (4), then the blank magic CB D4 31 94. Unwritten bytes are zero.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from mmap import mmap
from typing import Final, NamedTuple
from zlib import crc32

from verniermq.kernel.errors import CorruptRecord
from verniermq.kernel.message import StoredMessage, SysFlag, parse_properties

Buffer = bytes | bytearray | memoryview | mmap

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
MAGIC_FAMILY: Final = 0xDAA32000
"""The first three bytes of every record's magic; an unknown fourth byte is a version that came after us."""

SIZE_AND_MAGIC: Final = struct.Struct(">iI")
BLANK_SIZE: Final = SIZE_AND_MAGIC.size

_LENGTHS: Final = [(born, store) for born in (8, 20) for store in (8, 20)]
HEADS: Final = {(born, store): struct.Struct(f">iIiiiqqiq{born}sq{store}siqi") for born, store in _LENGTHS}
"""The head by the lengths of the born host and the store host."""

HOST_BITS: Final = {
    (born, store): (SysFlag.BORN_HOST_V6 if born == 20 else 0) | (SysFlag.STORE_HOST_V6 if store == 20 else 0)
    for born, store in HEADS
}
"""The bits of the system flag that say the same."""

_FORMS: Final = {hosts: (head.pack, head.size + 2, HOST_BITS[hosts]) for hosts, head in HEADS.items()}
"""By the lengths of both hosts: what packs the head, its size with the properties' length, the bits of the flag."""

HOST_MASK: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
SYS_FLAG_POSITION: Final = 36
START_OF_RECORD: Final = struct.Struct(">iIi16xqi")
"""Size, magic, checksum, commit-log offset, system flag."""
SMALLEST: Final = HEADS[8, 8].size + 1 + 2
"""A record without body, topic and properties."""

WITHOUT_ENTRY: Final = SysFlag.TRANSACTION_PREPARED & SysFlag.TRANSACTION_ROLLBACK
"""The bit that prepared and rolled-back messages share. They lie in the log only: no consume queue knows them."""

MAX_PROPERTIES: Final = 32767
"""Their length is a signed 16-bit number."""

_LENGTH16: Final = struct.Struct(">H")
_pack_length: Final = _LENGTH16.pack
_INT32: Final = struct.Struct(">i")


@lru_cache(maxsize=65536)
def topic_field(topic: str) -> tuple[int, bytes]:
    """The magic that a topic asks for, and the topic with its length in front, as the record has it."""
    encoded = topic.encode()
    if len(encoded) <= 127:
        return MAGIC_V1, bytes((len(encoded),)) + encoded
    return MAGIC_V2, _LENGTH16.pack(len(encoded)) + encoded


def pack_record(
    magic: int,
    topic: bytes,
    body: bytes | memoryview,
    properties: bytes,
    queue_id: int,
    queue_offset: int,
    commit_log_offset: int,
    store_timestamp: int,
    store_host: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp: int = 0,
    born_host: bytes = bytes(8),
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """The bytes of one record; ``magic`` and ``topic`` come from :func:`topic_field`.

    Raises:
        struct.error: a number does not fit into its field.
    """
    pack_head, size, host_bits = _FORMS[len(born_host), len(store_host)]
    body_size, properties_size = len(body), len(properties)
    return b"".join(
        (
            pack_head(
                size + body_size + len(topic) + properties_size,
                magic,
                crc32(body) & 0x7FFFFFFF,
                queue_id,
                flag,
                queue_offset,
                commit_log_offset,
                sys_flag & ~HOST_MASK | host_bits,
                born_timestamp,
                born_host,
                store_timestamp,
                store_host,
                reconsume_times,
                prepared_transaction_offset,
                body_size,
            ),
            body,
            topic,
            _pack_length(properties_size),
            properties,
        )
    )


def pack_blank(remaining: int) -> bytes:
    """The mark after a segment's last record; ``remaining`` counts from the mark to the segment's end."""
    return SIZE_AND_MAGIC.pack(remaining, MAGIC_BLANK)


class RecordLayout(NamedTuple):
    """Where the parts of one record lie in a buffer, and the numbers of its head (a tuple: a scan makes millions)."""

    start: int
    size: int
    magic: int
    crc: int
    queue_id: int
    flag: int
    queue_offset: int
    commit_log_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_length: int
    body: int
    """The position of the body, as the next two are those of the topic and the properties."""
    topic: int
    topic_length: int
    properties: int
    properties_length: int


def layout(buffer: Buffer, position: int, limit: int | None = None) -> RecordLayout:
    """Find the parts of the record at ``position``; ``limit`` is where the buffer ends for this record.

    Raises:
        CorruptRecord: the lengths do not add up, or the magic is none of a record.
    """
    end = len(buffer) if limit is None else limit
    left = end - position
    if left < SMALLEST:
        raise CorruptRecord(position, f"{left} bytes are left, and the smallest record has {SMALLEST}")
    size, magic = SIZE_AND_MAGIC.unpack_from(buffer, position)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptRecord(position, f"its magic is {magic:#010x}, expected {MAGIC_V1:#x} or {MAGIC_V2:#x}")
    if not SMALLEST <= size <= left:
        raise CorruptRecord(position, f"it claims {size} bytes where {left} are left")
    (sys_flag,) = _INT32.unpack_from(buffer, position + SYS_FLAG_POSITION)
    head = HEADS[20 if sys_flag & SysFlag.BORN_HOST_V6 else 8, 20 if sys_flag & SysFlag.STORE_HOST_V6 else 8]
    stop = position + size
    body = position + head.size
    if body > stop:
        raise CorruptRecord(position, f"its head has {head.size} bytes, and it claims to have {size}")
    fields = head.unpack_from(buffer, position)
    body_length = fields[14]
    length_at = body + body_length
    topic = length_at + (1 if magic == MAGIC_V1 else 2)
    if body_length < 0 or topic > stop:
        raise CorruptRecord(position, f"it claims a body of {body_length} bytes in a record of {size}")
    topic_length = int.from_bytes(buffer[length_at:topic], "big")
    properties = topic + topic_length + 2
    if properties > stop:
        raise CorruptRecord(position, f"it claims a topic of {topic_length} bytes beyond its end")
    (properties_length,) = _LENGTH16.unpack_from(buffer, properties - 2)
    if properties + properties_length != stop:
        raise CorruptRecord(position, f"its parts end {properties + properties_length - stop:+} bytes from its own end")
    return RecordLayout._make((position, *fields, body, topic, topic_length, properties, properties_length))


def decode(buffer: Buffer, position: int = 0, limit: int | None = None) -> StoredMessage:
    """The message whose record begins at ``position``. The body's checksum is left to who wants it.

    Raises:
        CorruptRecord: the bytes are no record.
    """
    found = layout(buffer, position, limit)
    try:
        topic = str(buffer[found.topic : found.topic + found.topic_length], "utf-8")
        text = str(buffer[found.properties : found.properties + found.properties_length], "utf-8")
    except UnicodeDecodeError as error:
        raise CorruptRecord(position, f"its topic or properties are not UTF-8: {error}") from None
    return StoredMessage(
        topic=topic,
        queue_id=found.queue_id,
        queue_offset=found.queue_offset,
        commit_log_offset=found.commit_log_offset,
        size=found.size,
        body=bytes(buffer[found.body : found.body + found.body_length]),
        properties=parse_properties(text),
        flag=found.flag,
        sys_flag=found.sys_flag,
        body_crc=found.crc,
        born_timestamp=found.born_timestamp,
        born_host=found.born_host,
        store_timestamp=found.store_timestamp,
        store_host=found.store_host,
        reconsume_times=found.reconsume_times,
        prepared_transaction_offset=found.prepared_transaction_offset,
    )


def decode_all(buffer: Buffer) -> list[StoredMessage]:
    """Every message of records that lie one after the other, as a pull's answer carries them.

    Raises:
        CorruptRecord: something between them is no record.
    """
    messages = []
    position = 0
    while position < len(buffer):
        message = decode(buffer, position)
        messages.append(message)
        position += message.size
    return messages


def properties_of(record: bytes) -> dict[str, str]:
    """The properties of one record, without looking at anything else.

    Raises:
        CorruptRecord: its parts do not add up.
    """
    _, magic = SIZE_AND_MAGIC.unpack_from(record)
    at = 84  # of the body's length, if both addresses are IPv4
    flags = record[39]
    if flags & SysFlag.BORN_HOST_V6:
        at += 12
    if flags & SysFlag.STORE_HOST_V6:
        at += 12
    at += 4 + int.from_bytes(record[at : at + 4], "big")
    if at >= len(record):
        raise CorruptRecord(0, f"it claims to have more than its {len(record)} bytes")
    at += 3 + record[at] if magic == MAGIC_V1 else 4 + int.from_bytes(record[at : at + 2], "big")
    return parse_properties(record[at:].decode("utf-8", "replace"))


def store_timestamp_position(sys_flag: int) -> int:
    """Where in a record its store timestamp lies."""
    return 68 if sys_flag & SysFlag.BORN_HOST_V6 else 56
