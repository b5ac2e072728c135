"""The records of a pull's answer that are plain, as nearly all are: IPv4 addresses, a short topic, whole.

``_wire.pyx`` is the same, compiled (by ``make run``, where there is a C compiler). This is its reference, and does the
work where it is missing.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from verniermq.kernel import MessageQueue, SysFlag, compiled
from verniermq.protocol.inflate import MAX_BODY

if TYPE_CHECKING:
    from verniermq.client.errors import BodyNotReadable
    from verniermq.client.receipt import Receipt

# size, magic, crc, queue id, flag, queue offset, commit-log offset, system flag, born time, born host,
# store time, store host, times consumed before, half message's offset, length of the body
_HEAD: Final = struct.Struct(">iIIiiqqiq8sq8siqi")
_unpack_head = _HEAD.unpack_from
_MAGIC_V1: Final = 0xDAA320A7
_HOSTS_V6: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6


class MessageFields:
    """What a message is made of; :class:`~verniermq.client.message.ReceivedMessage` says what it means."""

    __slots__ = (
        "_body", "_body_error", "_born_host", "_limit", "_properties", "_raw_properties", "_receipt", "_store_host",
        "born_timestamp", "commit_log_offset", "flag", "prepared_transaction_offset", "queue", "queue_offset",
        "reconsume_times", "size", "store_timestamp", "sys_flag", "topic",
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
    _limit: int
    """What a compressed body may inflate to."""
    _body_error: BodyNotReadable | None
    _receipt: Receipt | None
    """Of popped messages only."""

    def __init__(
        self, topic: str, queue: MessageQueue, queue_offset: int, commit_log_offset: int, size: int, flag: int,
        sys_flag: int, born_timestamp: int, born_host: bytes, store_timestamp: int, store_host: bytes,
        reconsume_times: int, prepared_transaction_offset: int, body: bytes, raw_properties: bytes,
        limit: int = MAX_BODY, properties: dict[str, str] | None = None,
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
        self._limit = limit
        self._properties = properties


def decode_plain(
    kind: type[Any], data: bytes, position: int, queue: MessageQueue, topic: str, limit: int, first: int,
    following: int, messages: list[Any],
) -> int:  # fmt: skip
    """Append the plain records from ``position`` on as messages of a ``kind``; say where the first other one begins.

    A body that is not what its checksum says, parts that do not add up, and a queue offset that is not from ``first``
    to before ``following``, are not plain.
    """
    add = messages.append
    end = len(data)
    while end - position > 91:
        (
            size, magic, crc, _, flag, queue_offset, log_offset, sys_flag, born, born_host, stored, store_host, times,
            prepared, body_size,
        ) = _unpack_head(data, position)  # fmt: skip
        after = position + size
        if magic != _MAGIC_V1 or sys_flag & _HOSTS_V6 or after > end or not 0 <= body_size <= size - 91:
            break
        body_at = position + 88
        topic_at = body_at + body_size
        properties_at = topic_at + 1 + data[topic_at]
        body = data[body_at:topic_at]
        if (
            properties_at + 2 + int.from_bytes(data[properties_at : properties_at + 2], "big") != after
            or crc32(body) & 0x7FFFFFFF != crc
            or not first <= queue_offset < following
        ):
            break
        message = kind(
            topic, queue, queue_offset, log_offset, size, flag, sys_flag, born, born_host, stored, store_host, times,
            prepared, body, data[properties_at + 2 : after], limit,
        )  # fmt: skip
        add(message)
        position = after
    return position


WIRE: Final = compiled(__package__, "_wire")
"""The compiled way, if there is one."""
