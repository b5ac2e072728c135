"""A blocking connection: one request, one answer. For Spark's Python workers, which are plain processes.

Nothing is opened before the first request and nothing runs in the background, so it may be made before a fork and used
after it.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import BinaryIO, Final, Self, cast

from verniermq.kernel import (
    Command,
    ConnectionLost,
    FrameDecoder,
    PeerUnreachable,
    RequestTimeout,
    parse_address,
    request_name,
)

HEAD: Final = struct.Struct(">iI")
"""A frame's length, and a word with the header's size in it."""
HEADER_SIZE: Final = 0xFFFFFF

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 20.0


class Wire:
    """One peer. After an error it is closed, and the next request connects anew."""

    def __init__(self, address: str, timeout: float = ANSWER_SECONDS) -> None:
        self.address = address
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._incoming: BinaryIO
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        """Send a request and wait for its answer, whatever its code.

        Raises:
            PeerUnreachable: nobody listens there.
            ConnectionLost, RequestTimeout: the peer went away, or does not answer.
        """
        self.send(Command.request(code, ext, body))
        return self.receive()

    def send(self, request: Command) -> None:
        """Send a request whose answer :meth:`receive` waits for; several may be on the way, answers come in order."""
        if self._socket is None:
            self._connect()
        assert self._socket is not None
        self._opaque += 1
        request.opaque = self._opaque
        self._last = request.code
        try:
            self._socket.sendall(request.encode())
        except OSError as error:
            raise self._lost(error) from error

    def receive(self) -> Command:
        """The next answer. Its body goes from the socket into its place; only the header is looked at."""
        try:
            head = self._read(HEAD.size)
            length, word = HEAD.unpack(head)
            self._decoded(head)
            header = self._read(word & HEADER_SIZE)
            body = self._read(length - 4 - len(header))
        except OSError as error:
            raise self._lost(error) from error
        command = self._decoded(HEAD.pack(4 + len(header), word) + header)[0]
        # What a broker asks of its clients is not for us.
        if not command.is_response:
            return self.receive()
        command.body = body
        return command

    def _decoded(self, frame: bytes) -> list[Command]:
        """
        Raises:
            ProtocolError: the peer sent what is no frame.
        """
        decoder = FrameDecoder()
        commands = decoder.feed(frame)
        if decoder.error is not None:
            self.close()
            raise decoder.error
        return commands

    def _read(self, size: int) -> bytes:
        data = self._incoming.read(size)
        if len(data) < size:
            raise ConnectionResetError("the peer closed the connection")
        return data

    def _lost(self, error: OSError) -> Exception:
        self.close()
        if isinstance(error, TimeoutError):
            return RequestTimeout(self.address, request_name(self._last), self._timeout)
        return ConnectionLost(self.address)

    def _connect(self) -> None:
        try:
            host, port = parse_address(self.address)
            self._socket = socket.create_connection((host, port), CONNECT_SECONDS)
        except (OSError, ValueError) as error:
            raise PeerUnreachable(self.address, getattr(error, "strerror", None) or str(error)) from error
        self._socket.settimeout(self._timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._incoming = cast(BinaryIO, self._socket.makefile("rb", buffering=1 << 16))

    def close(self) -> None:
        if self._socket is not None:
            self._incoming.close()
            self._socket.close()
            self._socket = None
