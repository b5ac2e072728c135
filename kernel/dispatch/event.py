"""What is known of a message once it is in the log."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar, final


class Appended:
    """Where a message went (RocketMQ: ``AppendMessageResult``).

    Attributes:
        store_host: Packed, see ``pack_host``.
    """

    __slots__ = ("commit_log_offset", "queue_id", "queue_offset", "size", "store_host", "store_timestamp")

    def __init__(
        self,
        commit_log_offset: int,
        size: int,
        queue_id: int,
        queue_offset: int,
        store_timestamp: int,
        store_host: bytes,
    ) -> None:
        self.commit_log_offset = commit_log_offset
        self.size = size
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.store_timestamp = store_timestamp
        self.store_host = store_host

    @property
    def end(self) -> int:
        """The commit-log offset behind the record: what has to be durable before it may be acknowledged."""
        return self.commit_log_offset + self.size

    @property
    def message_id(self) -> str:
        """The offset message id that the producer is answered: where the message lies, in upper-case hex."""
        return f"{in_hex(self.store_host)}{self.commit_log_offset:016X}"


@lru_cache(maxsize=16)
def in_hex(store_host: bytes) -> str:
    """A packed address as message ids have it."""
    return store_host.hex().upper()


@final
class DispatchEvent(Appended):
    """A message that is in the log now (RocketMQ: ``DispatchRequest``).

    An append's answer is the event itself: one object less to make for each message.
    """

    __slots__ = (
        "body_size",
        "born_timestamp",
        "prepared_transaction_offset",
        "properties",
        "reconsume_times",
        "sys_flag",
        "tags_code",
        "topic",
    )

    count: ClassVar[int] = 1
    """How many messages it is about; a run is about several."""

    def __init__(
        self,
        commit_log_offset: int,
        size: int,
        queue_id: int,
        queue_offset: int,
        store_timestamp: int,
        store_host: bytes,
        topic: str,
        tags_code: int,
        sys_flag: int,
        prepared_transaction_offset: int,
        properties: dict[str, str],
        born_timestamp: int,
        body_size: int,
        reconsume_times: int,
    ) -> None:
        self.commit_log_offset = commit_log_offset
        self.size = size
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.store_timestamp = store_timestamp
        self.store_host = store_host
        self.topic = topic
        self.tags_code = tags_code
        self.sys_flag = sys_flag
        self.prepared_transaction_offset = prepared_transaction_offset
        self.properties = properties
        self.born_timestamp = born_timestamp
        self.body_size = body_size
        self.reconsume_times = reconsume_times

    @property
    def newest_queue_offset(self) -> int:
        """As a run of messages says it."""
        return self.queue_offset

    def __repr__(self) -> str:
        return (
            f"<DispatchEvent {self.topic}:{self.queue_id}[{self.queue_offset}]"
            f" at {self.commit_log_offset}, {self.size} bytes>"
        )
