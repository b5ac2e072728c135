"""One send or one delivery, as a client's hooks see it before and after, and the client that they live in.

The same object is handed to ``before_send`` and ``after_send`` (``before_consume`` and ``after_consume``), so a
plugin can keep something in ``notes`` between the two.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol

import attrs

from verniermq.kernel.message import Message, MessageQueue
from verniermq.kernel.remoting.command import Command


class ClientContext(Protocol):
    """What a plugin may do with the producer or consumer that it lives in."""

    @property
    def client_id(self) -> str: ...

    @property
    def group(self) -> str: ...

    async def post(self, message: Message) -> None:
        """Send a message of the plugin's own: no hook hears of it, so a trace is not traced.

        Raises:
            VernierMQError: it could not be sent.
        """
        ...

    def broker_address(self, broker_name: str) -> str | None:
        """Where the master of that name is, if a topic in use lives there."""
        ...

    async def request(self, address: str, command: Command, timeout: float) -> Command:
        """Ask a broker something; any answer will do.

        Raises:
            RemotingError: there is none.
        """
        ...

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run something beside everything else, until the client closes."""
        ...


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
class EndedTransaction:
    """What a producer told a broker about a half message (RocketMQ: ``EndTransactionContext``)."""

    group: str
    client_id: str
    topic: str
    message_id: str
    transaction_id: str
    state: Literal["COMMIT", "ROLLBACK", "UNKNOWN"]
    from_check: bool
    """The broker had asked; otherwise the producer said it by itself."""
    broker: str = ""
    """The address it was told to."""
    tags: str = ""
    keys: str = ""


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


class FaultStrategy(Protocol):
    """How a producer learns which broker to avoid: asked for the next queue, told how each send went."""

    def choose(self, queues: Sequence[MessageQueue], last_broker: str | None) -> MessageQueue:
        """The queue to send to; ``last_broker`` is the one that just failed in this call, if any."""
        ...

    def record(self, broker_name: str, latency_ms: float, *, failed: bool, reachable: bool = True) -> None:
        """Hear how a send to a broker went."""
        ...
