"""A turn of the loop, for all connections of a server: take in what came, serve it, write the answers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from verniermq.kernel.remoting.command import Command
    from verniermq.kernel.remoting.connection import Connection

logger = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 64
"""Chunks that are taken in before they are served: a turn with thousands of full sockets must not fill the memory."""


@final
class Turn:
    """What came in this turn of the loop, and the connections that have something to write when it ends.

    All that came is decoded first and served then, and all answers are written in a row: the same work right after
    itself is a tenth quicker than each message by itself, since the processor still has the code at hand. A write
    wakes the peer; written one right after the other, the answers of a turn wake it once instead of once each.

    Nothing is lost by waiting: whoever closes connections, or learns that a peer has, ends the turn first.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._received: list[tuple[Connection, bytes]] = []
        self._writing: list[Connection] = []
        self._end_is_due = False

    def received(self, connection: Connection, data: bytes) -> None:
        """Have this served when the turn ends."""
        received = self._received
        received.append((connection, data))
        if not self._end_is_due:
            self._end_soon()
        elif len(received) == MOST_AT_ONCE:
            self._serve()

    def will_write(self, connection: Connection) -> None:
        """Have this one flushed when the turn ends."""
        self._writing.append(connection)
        if not self._end_is_due:
            self._end_soon()

    def _end_soon(self) -> None:
        self._end_is_due = True
        self._loop.call_soon(self.end)

    def end(self) -> None:
        """Serve what came so far and write the answers, now."""
        try:
            if self._received:
                self._serve()
        finally:
            self._end_is_due = False
            writing, self._writing = self._writing, []
            for connection in writing:
                try:
                    connection.flush()
                except Exception:
                    _give_up(connection)

    def _serve(self) -> None:
        received, self._received = self._received, []
        decoded: list[tuple[Connection, list[Command]]] = []
        for connection, data in received:
            try:
                decoded.append((connection, connection.decode(data)))
            except Exception:
                _give_up(connection)
        for connection, commands in decoded:
            try:
                connection.take(commands)
            except (Exception, asyncio.CancelledError):  # a handler may have asked a future that was cancelled
                _give_up(connection)


def _give_up(connection: Connection) -> None:
    """Whatever is wrong with this one must not keep the others from their answers."""
    logger.exception("connection closed after an unexpected error peer=%s", connection.peer_address)
    connection.abort()
