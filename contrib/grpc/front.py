"""One port for TLS and plain: a look at the first byte, as the broker's own port does it, and a relay.

::

    client ──TLS or plain──> front ──plain──> 127.0.0.1:<private port>, where gRPC listens
                               └ knows which of its own connections belongs to which client

gRPC's library listens for one of the two on a port. So it listens on a private one, and the front takes TLS off. The
client's address goes with it: gRPC sees the port of the relay's connection, and the front knows whose it is. Whoever
finds the private port and comes without the front is turned away.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, cast

import attrs

from verniermq.contrib.grpc.enums import Code
from verniermq.contrib.grpc.status import CallFailed
from verniermq.kernel import ConfigError, Listener, RemotingLimits, SharedPort, Tls

logger = logging.getLogger(__name__)

PRIVATE_HOST: Final = "127.0.0.1"
BUFFER: Final = 256 * 1024
"""Bytes that wait for the slower side before the faster one is not read any more."""


@attrs.define(eq=False)
class Front:
    """Listens for clients."""

    tls: Tls
    limits: RemotingLimits
    private_port: int = 0
    port: int = 0
    relays: set[ClientSide] = attrs.field(factory=set, init=False)
    _peers: dict[int, tuple[str, int]] = attrs.field(factory=dict, init=False)
    """Our end of a connection to the private port → the client that it is for."""
    _shared_port: SharedPort = attrs.field(init=False)
    _listener: Listener | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._shared_port = SharedPort(self.tls, lambda: ClientSide(self), self.limits)

    async def listen(self, host: str, port: int) -> int:
        """Listen, and return the port.

        Raises:
            ConfigError: it cannot be listened there.
        """
        self._listener = Listener(self._shared_port.greet)
        try:
            await self._listener.listen(host, port, self.limits.listen_backlog)
        except OSError as error:
            what = f"plugin 'grpc' cannot listen on {host}:{port}: {error.strerror or error}"
            raise ConfigError(f"{what}; choose another port in [plugins.grpc]") from error
        self.port = int(self._listener.sockets[0].getsockname()[1])
        return self.port

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._shared_port.close()
        for relay in list(self.relays):
            relay.close()

    def peer_of(self, port: int) -> tuple[str, int]:
        """The client behind a connection to the private port.

        Raises:
            CallFailed: it did not come by the front.
        """
        known = self._peers.get(port)
        if known is None:
            raise CallFailed(Code.UNAUTHORIZED, f"calls are served on port {self.port} only")
        return known

    def note(self, port: int, client: tuple[str, int]) -> None:
        self._peers[port] = client

    def forget(self, port: int) -> None:
        self._peers.pop(port, None)


class Side(asyncio.Protocol):
    """One side of a relay: what comes here goes to the other one."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.other: Any = None

    def data_received(self, data: bytes) -> None:
        self.other.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and not self.other.is_closing():
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.is_closing():
            self.other.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.close()


class ServerSide(Side):
    """The side of gRPC."""

    def __init__(self, front: Front, client: ClientSide) -> None:
        super().__init__()
        self._front = front
        self._client = client
        self._port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=BUFFER)
        self._port = transport.get_extra_info("sockname")[1]
        self._front.note(self._port, self._client.peer)
        self.other = self._client.transport

    def connection_lost(self, error: Exception | None) -> None:
        self._front.forget(self._port)
        super().connection_lost(error)


class ClientSide(Side):
    """The side of a client. What it says before gRPC has taken the connection waits here."""

    def __init__(self, front: Front) -> None:
        super().__init__()
        self._front = front
        self.peer = ("", 0)
        self._early: list[bytes] = []
        self._joining: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._front.relays.add(self)
        if len(self._front.relays) > self._front.limits.max_connections:
            logger.warning("gRPC connection refused, there are %d already", len(self._front.relays) - 1)
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=BUFFER)
        name = transport.get_extra_info("peername") or ("", 0)
        self.peer = (str(name[0]), int(name[1]))
        self.transport.pause_reading()
        self._joining = asyncio.get_running_loop().create_task(self._join())

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
            self.transport.pause_reading()
        else:
            self.other.write(data)

    async def _join(self) -> None:
        loop = asyncio.get_running_loop()
        server = ServerSide(self._front, self)
        try:
            other, _ = await loop.create_connection(lambda: server, PRIVATE_HOST, self._front.private_port)
        except OSError as error:
            logger.warning("gRPC connection lost before it was one peer=%s reason=%s", self.peer, error)
            self.transport.abort()
            return
        if self.transport.is_closing():
            other.abort()
            return
        self.other = other
        other.writelines(self._early)
        self._early.clear()
        self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._front.relays.discard(self)
        super().connection_lost(error)

    def close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
