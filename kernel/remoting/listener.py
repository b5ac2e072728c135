"""Accepting peers, without ever running out of file descriptors for the files.

A system gives a new socket the lowest number that is free. So its number tells how many descriptors are in use, and a
peer whose socket comes near to the limit of the process is sent away at once: what is left belongs to the log, the
queues and the tables, which go on being written::

    0 ................................................ limit - reserved ............ limit
    files and peers, as they come                      | refused: only files from here on

Peers are taken again as soon as others have gone. If there is no descriptor at all, since somebody else took them or
the whole system has none left, accepting rests for a moment instead of trying in a circle.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

import attrs

from verniermq.kernel.remoting.descriptors import descriptor_limit, kept_for_files

logger = logging.getLogger(__name__)

ACCEPTS_PER_TURN: Final = 100
PAUSE_SECONDS: Final = 1.0
"""How long to wait when no connection can be accepted at all."""
TOLD_EVERY: Final = 10.0
"""Seconds between two lines about peers that were refused."""


@attrs.define(eq=False)
class Listener:
    """The sockets of one address. ``greet`` gets each peer's socket and its address."""

    greet: Callable[[socket.socket, str], None]
    loop: asyncio.AbstractEventLoop = attrs.Factory(asyncio.get_running_loop)
    sockets: list[socket.socket] = attrs.field(factory=list, init=False)
    _refused: int = attrs.field(default=0, init=False)
    _told: asyncio.TimerHandle | None = attrs.field(default=None, init=False)

    async def listen(self, host: str, port: int, backlog: int) -> None:
        """
        Raises:
            OSError: it cannot be listened there.
        """
        flags = socket.AI_PASSIVE
        try:
            # Numbers need no thread and, given as bytes, no tables of names in other scripts: half a megabyte.
            found = socket.getaddrinfo(
                host.encode(), port, type=socket.SOCK_STREAM, flags=flags | socket.AI_NUMERICHOST
            )
        except socket.gaierror:
            found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        try:
            for family, address in {(entry[0], entry[4]) for entry in found}:
                sock = socket.create_server(address, family=family, backlog=backlog)
                sock.setblocking(False)
                self.sockets.append(sock)
                self.loop.add_reader(sock.fileno(), self._accept, sock)
        except OSError:
            self.close()
            raise

    def _accept(self, sock: socket.socket) -> None:
        limit = descriptor_limit()
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
            if accepted.fileno() >= limit - kept_for_files(limit):
                accepted.close()
                self._refuse(limit)
                continue
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.greet(accepted, str(peer))

    def _refuse(self, limit: int) -> None:
        self._refused += 1
        if self._told is None:
            logger.error(
                "connections are refused: %d of the %d files and sockets that this process may open are in use, and "
                "the others are kept for the store; raise the limit (ulimit -n, LimitNOFILE= of systemd), or have "
                "fewer clients",
                limit - kept_for_files(limit), limit,
            )  # fmt: skip
            self._told = self.loop.call_later(TOLD_EVERY, self._tell)

    def _tell(self) -> None:
        logger.warning(
            "connections refused for want of file descriptors in the last %g s: %d", TOLD_EVERY, self._refused
        )
        self._refused, self._told = 0, None

    def _resume(self, sock: socket.socket) -> None:
        if sock in self.sockets:
            self.loop.add_reader(sock.fileno(), self._accept, sock)

    def close(self) -> None:
        if self._told is not None:
            self._told.cancel()
            self._told = None
        for sock in self.sockets:
            self.loop.remove_reader(sock.fileno())
            sock.close()
        self.sockets.clear()
