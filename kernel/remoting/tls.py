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
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, Literal, TypeAlias

import attrs

from verniermq.kernel.errors import ConfigError
from verniermq.kernel.remoting.limits import RemotingLimits

logger = logging.getLogger(__name__)

TlsMode: TypeAlias = Literal["disabled", "permissive", "enforcing"]

HANDSHAKE: Final = 0x16
"""The type of the TLS record that a client hello travels in."""
TELL_SECONDS: Final = 60.0
"""Between two lines about newcomers that were turned away."""


@attrs.define(eq=False)
class Tls:
    """What a server needs to speak TLS. Every handshake takes the ``context`` as it is then."""

    context: ssl.SSLContext
    plain_allowed: bool = True
    """Whether frames outside of TLS are served too."""
    handshake_seconds: float = 10.0
    read: Callable[[], ssl.SSLContext] | None = None
    """Makes the context anew from its files."""

    def reload(self) -> None:
        """Show the certificate that the files have now to whoever connects from now on.

        Raises:
            ConfigError: a file is missing or is not what it should be; the old certificate stays.
        """
        if self.read is not None:
            self.context = self.read()
            logger.info("certificate changed; whoever connects from now on is shown the new one")


def load_tls(
    mode: TlsMode, certificate: str, key: str, client_ca: str = "", handshake_seconds: float = 10.0
) -> Tls | None:
    """Read the files of ``[tls]``; ``None`` for mode ``disabled``.

    Raises:
        ConfigError: a file is missing or is not what it should be.
    """
    if mode == "disabled":
        if certificate or key:
            logger.warning('[tls] certificate and key are not used: mode is "disabled"; "permissive" serves TLS too')
        return None
    if not certificate or not key:
        missing = "certificate" if not certificate else "key"
        raise ConfigError(f'[tls] mode = "{mode}" needs a {missing}; name a PEM file in [tls] {missing}')
    read = partial(_server_context, certificate, key, client_ca)
    return Tls(read(), mode == "permissive", handshake_seconds, read)


def _server_context(certificate: str, key: str, client_ca: str) -> ssl.SSLContext:
    for setting, path in (("certificate", certificate), ("key", key), ("client_ca", client_ca)):
        if path and not os.path.isfile(path):  # which is false, too, where nobody may look
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
        except (ssl.SSLError, OSError) as error:
            why = getattr(error, "reason", None) or str(error)
            raise ConfigError(f"[tls] client_ca: {client_ca!r} holds no certificates in PEM: {why}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_outgoing_tls(outgoing: bool, server_ca: str, certificate: str, key: str) -> ssl.SSLContext | None:
    """What connections to other servers need of ``[tls]``; ``None`` for plain frames.

    If there is a certificate of our own, it is shown to whoever asks for one.

    Raises:
        ConfigError: a file is missing or is not what it should be.
    """
    if not outgoing:
        return None
    try:
        context = ssl.create_default_context(cafile=server_ca or None)
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or str(error)
        raise ConfigError(f"[tls] server_ca: {server_ca!r} holds no certificates in PEM: {why}") from error
    if certificate and key:
        try:
            context.load_cert_chain(certificate, key, password=lambda: b"")
        except (ssl.SSLError, OSError, ValueError) as error:
            raise ConfigError(f"[tls] {certificate!r} and {key!r} are no certificate with its key: {error}") from error
    return context


@attrs.define(eq=False)
class SharedPort:
    """Accepts newcomers; each becomes a connection when it is known how it speaks, or is gone."""

    tls: Tls
    make: Callable[[], asyncio.Protocol]
    limits: RemotingLimits
    detectors: set[ProtocolDetector] = attrs.field(factory=set, init=False)
    _turned_away: int = attrs.field(default=0, init=False)
    _tell_again: float = attrs.field(default=0.0, init=False)

    def greet(self, sock: socket.socket, peer: str) -> None:
        """Wait for the first byte of a newcomer."""
        ProtocolDetector(self, asyncio.get_running_loop(), sock, peer).wait()

    def note_turned_away(self, peer: str, reason: str) -> None:
        """One line for all of a minute: whoever scans ports must not fill the log."""
        logger.debug("connection closed at the door peer=%s reason=%s", peer, reason)
        self._turned_away += 1
        now = asyncio.get_running_loop().time()
        if now >= self._tell_again:
            logger.info(
                "connections closed at the door count=%d last_peer=%s reason=%s", self._turned_away, peer, reason
            )
            self._turned_away, self._tell_again = 0, now + TELL_SECONDS

    def close(self) -> None:
        """Send everybody away who is not a connection yet."""
        for newcomer in list(self.detectors):
            newcomer.leave("the server stops")


@attrs.define(eq=False)
class ProtocolDetector:
    """A peer before its first byte, and during its handshake."""

    _shared_port: SharedPort
    _loop: asyncio.AbstractEventLoop
    _sock: socket.socket
    _peer: str
    _timer: asyncio.TimerHandle | None = attrs.field(default=None, init=False)
    _joining: asyncio.Task[None] | None = attrs.field(default=None, init=False)

    def wait(self) -> None:
        """Wait for the first byte."""
        limits = self._shared_port.limits
        self._shared_port.detectors.add(self)
        if len(self._shared_port.detectors) > limits.max_connections:
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
        tls = self._shared_port.tls
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
                self._shared_port.make, self._sock, ssl=context, ssl_handshake_timeout=patience
            )
        except OSError as error:  # which TLS errors and timeouts are, too
            self._joining = None
            self.leave(f"the TLS handshake failed: {getattr(error, 'reason', None) or error}")
        else:
            self._shared_port.detectors.discard(self)

    def leave(self, reason: str) -> None:
        """Close, with a line that says why."""
        self._shared_port.note_turned_away(self._peer, reason)
        self._stop_looking()
        self._shared_port.detectors.discard(self)
        if self._joining is not None:
            self._joining.cancel()  # and with it the transport that has the socket
        else:
            self._sock.close()

    def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._loop.remove_reader(self._sock.fileno())
