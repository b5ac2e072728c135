"""Listening for peers (RocketMQ: ``NettyRemotingServer``): who may connect, how long they may idle, how we stop.

One table of handlers serves every listener; a broker listens on its port and, for old Java clients, on the port
two below. Errors are kept where they happen: see :mod:`verniermq.kernel.remoting.connection` for a request
or a peer that goes wrong; a listener that cannot be opened is the caller's to know.

Stopping takes four steps: no new connections; new requests are sent elsewhere; what is being worked on ends, or is
cancelled when the time is up; what was answered is written, and the sockets are closed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import attrs

from verniermq.kernel.codes import ResponseCode
from verniermq.kernel.errors import ListenFailed, RequestRefused
from verniermq.kernel.remoting.command import Command
from verniermq.kernel.remoting.connection import NO_HANDLERS, Connection, Guard, Handler, Observer
from verniermq.kernel.remoting.inprocess import connect_in_process
from verniermq.kernel.remoting.lane import Lane
from verniermq.kernel.remoting.limits import RemotingLimits
from verniermq.kernel.remoting.listener import Listener
from verniermq.kernel.remoting.turn import Turn

if TYPE_CHECKING:
    from verniermq.kernel.remoting.tls import SharedPort, Tls

logger = logging.getLogger(__name__)

UNDERSTANDS_GO_AWAY: Final = 475
"""Clients of a later version than this one (5.3.1) reconnect elsewhere when told to go away."""
SWEEPS_PER_IDLE_TIME: Final = 4


@attrs.define(eq=False)
class RemotingServer:
    """Accepts peers and gives each a :class:`Connection`. Leaving its context stops it at once."""

    handlers: Mapping[int, Handler]
    limits: RemotingLimits = attrs.Factory(RemotingLimits)
    guards: Sequence[Guard] = ()
    observers: Sequence[Observer] = ()
    lane: Lane | None = None
    unsupported: Handler | None = None
    on_connect: Callable[[Connection], None] | None = None
    on_disconnect: Callable[[Connection], None] | None = None
    clock: Callable[[], float] = time.monotonic
    tls: Tls | None = None
    """For peers that speak TLS; without it, nobody looks whether they do."""

    connections: set[Connection] = attrs.field(factory=set, init=False)
    addresses: list[tuple[str, int]] = attrs.field(factory=list, init=False)
    """Where it listens, with the real ports."""
    _listeners: list[Listener] = attrs.field(factory=list, init=False)
    _sweep_timer: asyncio.TimerHandle | None = attrs.field(default=None, init=False)
    _stopping: bool = attrs.field(default=False, init=False)
    _turn: Turn | None = attrs.field(default=None, init=False)
    _joining: set[asyncio.Task[None]] = attrs.field(factory=set, init=False)
    _shared_port: SharedPort | None = attrs.field(init=False)

    @_shared_port.default
    def _make_shared_port(self) -> SharedPort | None:
        if self.tls is None:
            return None
        from verniermq.kernel.remoting.tls import SharedPort

        return SharedPort(self.tls, self._make_connection, self.limits)

    async def listen(self, host: str, port: int) -> int:
        """Listen here too, and return the port: the one asked for, or a free one for port 0.

        Raises:
            ListenFailed: the port is in use, or the host is not ours.
        """
        loop = asyncio.get_running_loop()
        listener = Listener(self._greet if self._shared_port is None else self._shared_port.greet, loop)
        try:
            await listener.listen(host, port, self.limits.listen_backlog)
        except OSError as error:
            raise ListenFailed(host, port, why_not_listening(error)) from error
        self._listeners.append(listener)
        names = [sock.getsockname() for sock in listener.sockets]
        self.addresses += [(name[0], name[1]) for name in names]
        if self._sweep_timer is None:
            self._sweep_timer = loop.call_later(self._sweep_seconds, self._sweep)
        return int(names[0][1])

    def connect_in_process(
        self, peername: tuple[str, int], identity: object, handlers: Mapping[int, Handler] = NO_HANDLERS
    ) -> Connection:
        """A connection to this server without a socket, for a peer that speaks another protocol.

        Args:
            identity: says who makes its requests, see :class:`~verniermq.kernel.requests.Identity`
            handlers: serve what the server asks of the peer
        """
        ours, served = Connection(handlers, self.limits, clock=self.clock), self._new_connection()
        served.identity = identity
        connect_in_process(ours, served, peername)
        return ours

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Stop; requests that are being worked on have ``grace_seconds`` to end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_seconds
        self._stopping = True
        for listener in self._listeners:
            listener.close()
        self._end_turn()  # what was read already is served, not refused
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        if self._shared_port is not None:
            self._shared_port.close()
        for connection in self.connections:
            connection.serve_all()
            connection.guards = (_refuse_while_stopping,)

        if self._joining:
            await asyncio.wait(self._joining)
        working = await _wait(self._tasks(), deadline - loop.time())
        for task in working:
            task.cancel()
        if working:
            logger.warning("requests cancelled at stop count=%d grace_seconds=%g", len(working), grace_seconds)
            await asyncio.wait(working)

        self._end_turn()
        leaving = [loop.create_task(connection.wait_closed()) for connection in self.connections]
        for connection in list(self.connections):
            connection.close()
        if await _wait(leaving, max(deadline - loop.time(), 0.1)):
            for connection in list(self.connections):
                connection.abort()
            await asyncio.wait(leaving)
        self._listeners.clear()
        self.addresses.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def close_idle(self) -> int:
        """Close the connections on which nothing happened for too long; say how many."""
        oldest = self.clock() - self.limits.idle_seconds
        idle = [connection for connection in self.connections if connection.last_active <= oldest]
        for connection in idle:
            logger.info(
                "connection closed, it was idle peer=%s limit_seconds=%g",
                connection.peer_address, self.limits.idle_seconds,
            )  # fmt: skip
            connection.close()
        return len(idle)

    # --- inside ----------------------------------------------------------------------------

    def _greet(self, sock: socket.socket, peer: str) -> None:
        loop = asyncio.get_running_loop()
        joining = loop.create_task(self._join(sock, peer))
        self._joining.add(joining)
        joining.add_done_callback(self._joining.discard)

    async def _join(self, sock: socket.socket, peer: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._make_connection, sock)
        except OSError as error:
            logger.info("connection lost before it was one peer=%s reason=%s", peer, error)
            sock.close()

    def _make_connection(self) -> asyncio.Protocol:
        return self._new_connection().as_protocol()

    def _new_connection(self) -> Connection:
        if self._turn is None:
            self._turn = Turn(asyncio.get_running_loop())
        return Connection(
            self.handlers,
            self.limits,
            self.guards,
            self.observers,
            self.unsupported,
            self.clock,
            accepted=True,
            on_open=self._admit,
            turn=self._turn,
            lane=self.lane,
        )

    def _admit(self, connection: Connection) -> None:
        if self._stopping or len(self.connections) >= self.limits.max_connections:
            logger.warning(
                "connection refused peer=%s connections=%d max_connections=%d",
                connection.peer_address, len(self.connections), self.limits.max_connections,
            )  # fmt: skip
            connection.abort()
            return
        self.connections.add(connection)
        connection.on_close.append(self.connections.discard)
        if self.on_disconnect is not None:
            connection.on_close.append(self.on_disconnect)
        if self.on_connect is not None:
            self.on_connect(connection)

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.end()
            self._turn.decode_all_left()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for connection in self.connections for task in connection.tasks]

    @property
    def _sweep_seconds(self) -> float:
        return self.limits.idle_seconds / SWEEPS_PER_IDLE_TIME

    def _sweep(self) -> None:
        # One timer for all connections: thousands of idle ones then cost a comparison each, now and then.
        self.close_idle()
        self._sweep_timer = asyncio.get_running_loop().call_later(self._sweep_seconds, self._sweep)


def _refuse_while_stopping(request: Command, connection: Connection) -> None:
    newer = request.version > UNDERSTANDS_GO_AWAY
    raise RequestRefused(
        "the broker is stopping; send the request to another one",
        ResponseCode.GO_AWAY if newer else ResponseCode.SYSTEM_BUSY,
    )


async def _wait(tasks: list[asyncio.Task[None]], timeout: float) -> set[asyncio.Task[None]]:
    """Wait for tasks to end, and return those that did not in time."""
    if not tasks:
        return set()
    _, late = await asyncio.wait(tasks, timeout=max(timeout, 0))
    return late


def why_not_listening(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use; stop what listens there, or choose another port (0 takes a free one)"
    if error.errno == errno.EACCES:
        return "this user may not use the port; choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have the address; choose one that it has, or 0.0.0.0 for all"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
