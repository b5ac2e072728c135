"""The answers of a turn of the loop, written together at its end."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from verniermq.kernel.remoting.connection import Connection

logger = logging.getLogger(__name__)


@final
class Outbox:
    """The connections that have something to write, to be written when the turn of the loop ends.

    Shared by the connections of a server. A write wakes the peer; written one right after the other, the answers of
    a turn wake it once instead of once each, and the broker has taken in all that had come by then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Connection] = []

    def add(self, connection: Connection) -> None:
        """Have this one flushed when the turn ends."""
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(connection)

    def flush(self) -> None:
        """Write everything now."""
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            try:
                connection.flush()
            except Exception:
                # Whatever is wrong with this one must not keep the others from their answers.
                logger.exception("answers could not be written peer=%s", connection.peer_address)
