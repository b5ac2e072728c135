"""Where a new group begins, in a queue that it has no offset for (RocketMQ: ``ConsumeFromWhere``)."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from verniermq.client.api import BrokerApi
from verniermq.client.errors import ClientError
from verniermq.kernel import RETRY_PREFIX, MessageQueue

StartFrom: TypeAlias = Literal["last", "first"] | datetime | int
"""``"last"``: only new messages; ``"first"``: all that are there; a ``datetime`` or milliseconds: from then on.

A queue that still has its very first message is read from there by every new group, whatever is said here: so it is
with RocketMQ's brokers.
"""

_NAMES = {"last": "CONSUME_FROM_LAST_OFFSET", "first": "CONSUME_FROM_FIRST_OFFSET"}


def wire_name(start: StartFrom) -> str:
    """
    Raises:
        ClientError: it is none of the three.
    """
    if isinstance(start, datetime | int):
        return "CONSUME_FROM_TIMESTAMP"
    if start not in _NAMES:
        raise ClientError(f"start={start!r}; expected 'last', 'first', a datetime or milliseconds since 1970")
    return _NAMES[start]


async def first_offset(api: BrokerApi, address: str, queue: MessageQueue, start: StartFrom) -> int:
    """The offset that a group begins with, when the broker knows none."""
    is_retry = queue.topic.startswith(RETRY_PREFIX)
    if start == "first":
        return 0
    if start == "last":
        # What is in the retry topic belongs to this group, however new this queue is to it.
        return 0 if is_retry else await api.max_offset(address, queue)
    if is_retry:
        return await api.max_offset(address, queue)
    ms = int(start.timestamp() * 1000) if isinstance(start, datetime) else int(start)
    return await api.offset_by_time(address, queue, ms)
