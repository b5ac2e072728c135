"""One call on a connection: the messages that a client sends, and those that it gets.

Of what it sends, 64 KiB come without asking, which is nearly every message. For a longer one the client is given just
the room that this message needs, once it has said how long it is: :class:`Http2Connection` has so much of it to give.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from verniermq.contrib.grpc.frames import (
    DEFAULT_WINDOW,
    LARGEST_FRAME,
    PREFIX_SIZE,
    RESPONSE,
    TRAILERS,
    GrpcStatus,
    message_frame,
    message_prefix,
    trailers,
)
from verniermq.kernel import VernierMQError

if TYPE_CHECKING:
    from verniermq.contrib.grpc.http2 import Http2Connection

MOST_WAITING: Final = 16
"""Messages of a stream that wait to be looked at; then the client gets no room for more."""


class RpcFailed(VernierMQError):
    """A call ends with a status of gRPC's own."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class Stream:
    """One call. ``messages`` are those that came and nobody has taken yet."""

    __slots__ = (
        "_room_asked", "allowed", "connection", "deadline", "drained", "has_ended", "id", "incoming", "is_answered",
        "is_closed", "largest", "lent", "messages", "metadata", "more", "outgoing", "received", "taken", "task",
        "trailers", "window",
    )  # fmt: skip

    def __init__(self, connection: Http2Connection, number: int, metadata: dict[str, str], window: int) -> None:
        self.connection = connection
        self.id = number
        self.metadata = metadata
        self.deadline: float | None = None
        self.task: asyncio.Task[None] | None = None
        self.largest = connection.largest_message
        # in
        self.incoming = bytearray()
        self.messages: deque[bytes] = deque()
        self.received = 0
        self.taken = 0
        """Bytes of whole messages."""
        self.allowed = DEFAULT_WINDOW
        self._room_asked = 0
        self.lent = 0
        """Bytes of the connection's room for long messages."""
        self.has_ended = False
        self.more: asyncio.Future[None] | None = None
        # out
        self.window = window
        self.outgoing = bytearray()
        self.is_answered = False
        self.trailers: bytes | None = None
        self.drained: asyncio.Future[None] | None = None
        self.is_closed = False

    @property
    def peer(self) -> tuple[str, int]:
        """The client's address."""
        return self.connection.peer

    def time_left(self) -> float | None:
        return None if self.deadline is None else self.deadline - time.monotonic()

    # --- in --------------------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        """Take in what a frame brought.

        Raises:
            RpcFailed: it is no message that is served here.
        """
        incoming = self.incoming
        incoming += data
        while len(incoming) >= PREFIX_SIZE:
            compressed, size = message_prefix(incoming)
            if compressed:
                raise RpcFailed(GrpcStatus.UNIMPLEMENTED, "compressed messages of gRPC are not served here")
            if size > self.largest:
                what = f"a message of {size} bytes; at most {self.largest} are taken"
                raise RpcFailed(GrpcStatus.RESOURCE_EXHAUSTED, what)
            whole = PREFIX_SIZE + size
            if len(incoming) < whole:
                missing = self.taken + whole - self.allowed - self._room_asked
                if missing > 0:
                    self._room_asked += missing
                    self.connection.ask_for_room(self, missing)
                return
            self.messages.append(bytes(memoryview(incoming)[PREFIX_SIZE:whole]))
            self.taken += whole
            del incoming[:whole]
            if self.lent:
                self.connection.take_room_back(self)
        self._wake_reader()

    def give_room(self, size: int) -> None:
        """The client may send so many bytes more."""
        self.allowed += size
        self._room_asked = max(0, self._room_asked - size)

    def end(self) -> None:
        """The client has sent all."""
        self.has_ended = True
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self.more is not None and not self.more.done():
            self.more.set_result(None)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> bytes:
        """The next message of a client that sends several."""
        while not self.messages:
            if self.has_ended or self.is_closed:
                raise StopAsyncIteration
            self.more = asyncio.get_running_loop().create_future()
            await self.more
        message = self.messages.popleft()
        room = self.received + DEFAULT_WINDOW - self.allowed
        if room > DEFAULT_WINDOW // 2 and len(self.messages) < MOST_WAITING:
            self.connection.grant(self, room)
        return message

    # --- out -------------------------------------------------------------------------------

    async def send(self, message: bytes, *, soon: bool = False) -> None:
        """Send one message of several; waits until the client has room for the next.

        Args:
            soon: more follows at once, and small messages may go together
        """
        self.outgoing += message_frame(message)
        if soon and len(self.outgoing) < LARGEST_FRAME:
            return
        self.connection.pump(self)
        while self.outgoing and not self.is_closed:
            self.drained = asyncio.get_running_loop().create_future()
            await self.drained

    def finish(self, message: bytes) -> None:
        """Send the last message, or the only one."""
        self.outgoing += message_frame(message)
        self.trailers = TRAILERS
        self.connection.pump(self)

    def close(self) -> None:
        """Nothing follows."""
        self.trailers = TRAILERS
        self.connection.pump(self)

    def fail(self, status: GrpcStatus, text: str) -> None:
        # Not in the middle of a frame's message: what waits is complete, and goes first.
        self.trailers = trailers(status, text)
        if not self.is_answered and not self.outgoing:
            self.is_answered = True
            self.trailers = RESPONSE + self.trailers
        self.connection.pump(self)

    def wake_writer(self) -> None:
        if self.drained is not None and not self.drained.done():
            self.drained.set_result(None)
