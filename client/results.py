"""What sends and pulls come back with."""

from __future__ import annotations

from enum import Enum, IntEnum

import attrs

from verniermq.client.java import JavaNames
from verniermq.client.message import DamagedMessage, ReceivedMessage
from verniermq.kernel import MessageQueue, ResponseCode


class SendStatus(IntEnum):
    """How a send ended. All four mean that the broker has the message; the last three, that not all wishes were met."""

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT

    def __str__(self) -> str:
        return self.name

    __format__ = Enum.__format__  # by the name too, where IntEnum has the number


@attrs.define
class SendResult(JavaNames):
    """Where a message went."""

    status: SendStatus
    message_id: str
    """The unique id that the producer gave it; for a batch those of all messages, separated by commas."""
    offset_message_id: str
    """Where it lies: the broker's address and its place in the log."""
    queue: MessageQueue
    queue_offset: int
    transaction_id: str = ""
    recall_handle: str = ""
    """For a message with a delivery time: what takes it back before that time."""
    region: str = "DefaultRegion"
    trace_on: bool = True
    """Whether the broker wants messages of its to be traced."""

    @property
    def stored_as_wished(self) -> bool:
        return self.status is SendStatus.SEND_OK


class PullStatus(Enum):
    FOUND = ResponseCode.SUCCESS
    NO_NEW_MESSAGE = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MESSAGE = ResponseCode.PULL_RETRY_IMMEDIATELY
    """There were messages, and the filter let none of them pass; go on from ``next_offset``."""
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED
    """The offset lies outside the queue, or the group was reset; go on from ``next_offset``."""

    def __str__(self) -> str:
        return self.name


@attrs.define
class PullResult(JavaNames):
    """What one pull found."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker: int = 0
    """The id of the broker to pull from next: 0 the master, or a slave's when the master has too much to do."""
    damaged: list[DamagedMessage] = attrs.Factory(list)
    """What lies between the messages and cannot be had; ``next_offset`` lies behind it."""
