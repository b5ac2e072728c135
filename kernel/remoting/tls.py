"""TLS and plain frames on the same port, told apart by the first byte (RocketMQ: ``TlsModeHandler``).

A TLS handshake begins with 0x16; a frame begins with the high byte of its length, which is 0 or 1::

    accepted -> look at the first byte, and leave it in the socket
                  0x16        -> handshake -> Connection        closed in mode "disabled"
                  any other   -> Connection                     closed in mode "enforcing"

Looking is done on the bare socket, before the event loop has it, since a loop that reads cannot give back what it read.
A newcomer is no connection yet: it has no place among them and cannot ask for anything. One that says nothing, or never
finishes its handshake, is closed when its time is up, and nobody else notices.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeAlias

import attrs

from verniermq.kernel.errors import ConfigError
from verniermq.kernel.remoting.limits import RemotingLimits

logger = logging.getLogger(__name__)

TlsMode: TypeAlias = Literal["disabled", "permissive", "enforcing"]

HANDSHAKE: Final = 0x16
"""The type of the TLS record that a client hello travels in."""
ACCEPTS_PER_TURN: Final = 100
PAUSE_SECONDS: Final = 1.0
"""How long to wait when the process has no descriptor left for another connection."""


@attrs.frozen
class Tls:
    """What a server needs to speak TLS."""

    context: ssl.SSLContext
    plain_allowed: bool = True
    """Whether frames outside of TLS are served too."""
    handshake_seconds: float = 10.0


def load_tls(
    mode: TlsMode, certificate: str, key: str, client_ca: str = "", handshake_seconds: float = 10.0
) -> Tls | None:
    """Read the files of ``[tls]``; ``None`` for mode ``disabled``.

    Raises:
        ConfigError: a file is missing or is not what it should be.
    """
    if mode == "disabled":
        return None
    if not certificate or not key:
        missing = "certificate" if not certificate else "key"
        raise ConfigError(f'[tls] mode = "{mode}" needs a {missing}; name a PEM file in [tls] {missing}')
    for setting, path in (("certificate", certificate), ("key", key), ("client_ca", client_ca)):
        if path and not Path(path).is_file():
            raise ConfigError(f"[tls] {setting}: there is no file {path!r}; name one in PEM")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password of ours OpenSSL would ask for one at the terminal, and wait.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (ssl.SSLError, OSError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error)
        raise ConfigError(
            f"[tls] {certificate!r} and {key!r} are no certificate with its key, in PEM and without a password: {why}"
        ) from error
    if client_ca:
        try:
            context.load_verify_locations(client_ca)
        except ssl.SSLError as error:
            raise ConfigError(f"[tls] client_ca: {client_ca!r} holds no certificates in PEM: {error.reason}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return Tls(context, mode == "permissive", handshake_seconds)


@attrs.define(eq=False)
class Door:
    """Accepts newcomers; each becomes a connection when it is known how it speaks, or is gone."""

    tls: Tls
    make: Callable[[], asyncio.Protocol]
    limits: RemotingLimits
    newcomers: set[Newcomer] = attrs.field(factory=set, init=False)

    async def listen(self, host: str, port: int) -> Listener:
        """
        Raises:
            OSError: it cannot be listened there.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listener = Listener(self, loop)
        try:
            for family, address in {(entry[0], entry[4]) for entry in found}:
                listener.add(socket.create_server(address, family=family, backlog=self.limits.listen_backlog))
        except OSError:
            listener.close()
            raise
        return listener

    def close(self) -> None:
        """Send everybody away who is not a connection yet."""
        for newcomer in list(self.newcomers):
            newcomer.leave("the server stops")


@attrs.define(eq=False)
class Listener:
    """The sockets of one address; what a server needs of :class:`asyncio.Server`."""

    door: Door
    loop: asyncio.AbstractEventLoop
    sockets: list[socket.socket] = attrs.field(factory=list, init=False)

    def add(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sockets.append(sock)
        self.loop.add_reader(sock.fileno(), self._accept, sock)

    def _accept(self, sock: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, peer = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("no connection accepted, again in %g s: %s", PAUSE_SECONDS, error)
                self.loop.remove_reader(sock.fileno())
                self.loop.call_later(PAUSE_SECONDS, self._resume, sock)
                return
            accepted.setblocking(False)
            Newcomer(self.door, self.loop, accepted, str(peer)).wait()

    def _resume(self, sock: socket.socket) -> None:
        if sock in self.sockets:
            self.loop.add_reader(sock.fileno(), self._accept, sock)

    def close(self) -> None:
        for sock in self.sockets:
            self.loop.remove_reader(sock.fileno())
            sock.close()
        self.sockets.clear()


@attrs.define(eq=False)
class Newcomer:
    """A peer before its first byte, and during its handshake."""

    _door: Door
    _loop: asyncio.AbstractEventLoop
    _sock: socket.socket
    _peer: str
    _timer: asyncio.TimerHandle | None = attrs.field(default=None, init=False)
    _joining: asyncio.Task[None] | None = attrs.field(default=None, init=False)

    def wait(self) -> None:
        """Wait for the first byte."""
        limits = self._door.limits
        self._door.newcomers.add(self)
        if len(self._door.newcomers) > limits.max_connections:
            self.leave(f"{limits.max_connections} others wait at the door already")
            return
        self._loop.add_reader(self._sock.fileno(), self._look)
        self._timer = self._loop.call_later(limits.idle_seconds, self.leave, "it said nothing for too long")

    def _look(self) -> None:
        try:
            first = self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.leave(f"it went away: {error}")
            return
        tls = self._door.tls
        if not first:
            self.leave("it closed without a word")
        elif first[0] == HANDSHAKE or tls.plain_allowed:
            self._stop_looking()
            self._joining = self._loop.create_task(self._join(tls if first[0] == HANDSHAKE else None))
        else:
            self.leave('it does not speak TLS, and [tls] mode is "enforcing"')

    async def _join(self, tls: Tls | None) -> None:
        """Become a connection."""
        context = tls.context if tls is not None else None
        patience = tls.handshake_seconds if tls is not None else None
        try:
            await self._loop.connect_accepted_socket(
                self._door.make, self._sock, ssl=context, ssl_handshake_timeout=patience
            )
        except OSError as error:  # which TLS errors and timeouts are, too
            self._joining = None
            self.leave(f"the TLS handshake failed: {getattr(error, 'reason', None) or error}")
        else:
            self._door.newcomers.discard(self)

    def leave(self, reason: str) -> None:
        """Close, with a line that says why."""
        logger.info("connection closed at the door peer=%s reason=%s", self._peer, reason)
        self._stop_looking()
        self._door.newcomers.discard(self)
        if self._joining is not None:
            self._joining.cancel()  # and with it the transport that has the socket
        else:
            self._sock.close()

    def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._loop.remove_reader(self._sock.fileno())
