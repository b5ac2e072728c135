"""One send or one delivery, as a client's hooks see it before and after.

The same object is handed to ``before_send`` and ``after_send`` (``before_consume`` and ``after_consume``), so a
plugin can keep something in ``notes`` between the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import attrs

from verniermq.kernel.message import Message, MessageQueue


@attrs.define(eq=False)
class Sending:
    """A message on its way to a broker (RocketMQ: ``SendMessageContext``)."""

    group: str
    client_id: str
    message: Message
    """May be changed in ``before_send``: tags, keys, properties, body, even the topic."""
    mode: Literal["sync", "async", "oneway"]
    message_id: str = ""
    """The unique id; known in ``after_send``."""
    queue: MessageQueue | None = None
    broker: str = ""
    """The address it went to; known in ``after_send``."""
    result: Any = None
    """The client's ``SendResult``; ``None`` before, after an error, and for one-way sends."""
    error: BaseException | None = None
    latency_ms: float = 0.0
    notes: dict[str, Any] = attrs.Factory(dict)


@attrs.define(eq=False)
class Consuming:
    """Messages that are handed to a consumer's handler (RocketMQ: ``ConsumeMessageContext``)."""

    group: str
    client_id: str
    queue: MessageQueue
    messages: Sequence[Any]
    """The client's ``ReceivedMessage`` objects."""
    succeeded: bool = False
    error: BaseException | None = None
    """What the handler raised."""
    latency_ms: float = 0.0
    notes: dict[str, Any] = attrs.Factory(dict)
