"""A turn of the loop, for all connections of a server: take in what came, serve it, write the answers."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol, final

logger = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 64
"""Chunks that are taken in before they are served: a turn with thousands of full sockets must not fill the memory."""

BYTES_PER_TURN: Final = 2 * 1024 * 1024
"""Bytes of answers after which whoever is not served yet waits for the next turn: to copy them takes time too."""


class Peer(Protocol):
    """What has its turn; see :class:`~verniermq.kernel.remoting.connection.Connection`."""

    peer_address: str

    def decode(self, data: bytes) -> None: ...

    def serve(self) -> None: ...

    def wait(self) -> None: ...

    def serve_next(self) -> None: ...

    def flush(self) -> None: ...

    def abort(self) -> None: ...


@final
class Turn:
    """What came in this turn of the loop, and the peers that have something to write when it ends.

    All that came is decoded first and served then, and all answers are written in a row: the same work right after
    itself is a tenth quicker than each message by itself, since the processor still has the code at hand. A write
    wakes the peer; written one right after the other, the answers of a turn wake it once instead of once each.

    A turn in which much was answered leaves the rest to the next one, so that ten peers that each ask for a hundred
    large answers do not hold up everybody else. Whoever sends something meanwhile comes before those that wait, but
    one of these has its turn each time.

    Nothing is lost by waiting: whoever closes connections, or learns that a peer has, ends the turn first.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._received: list[tuple[Peer, bytes]] = []
        self._writing: list[Peer] = []
        self._waiting: dict[Peer, None] = {}
        self.answered = 0
        """Bytes of what was answered in this turn, right when it was served."""
        self._end_is_due = False

    def received(self, peer: Peer, data: bytes) -> None:
        """Have this decoded and served when the turn ends."""
        received = self._received
        received.append((peer, data))
        if not self._end_is_due:
            self._end_soon()
        elif len(received) == MOST_AT_ONCE:
            self._serve()

    @property
    def is_full(self) -> bool:
        """Whether so much was answered that the rest should wait for the next turn."""
        return self.answered >= BYTES_PER_TURN

    def will_serve(self, peer: Peer) -> None:
        """Have this one, whose requests wait, served in the next turn or in a later one."""
        self._waiting[peer] = None
        if not self._end_is_due:
            self._end_soon()

    def will_write(self, peer: Peer) -> None:
        """Have this one flushed when the turn ends."""
        self._writing.append(peer)
        if not self._end_is_due:
            self._end_soon()

    def _end_soon(self) -> None:
        self._end_is_due = True
        self._loop.call_soon(self.end)

    def end(self) -> None:
        """Serve what came so far and write the answers, now."""
        waiting, self._waiting = self._waiting, {}
        try:
            if self._received:
                self._serve()
            if waiting:
                self._serve_waiting(waiting)
        finally:
            self._end_is_due = False
            self.answered = 0
            writing, self._writing = self._writing, []
            for peer in writing:
                try:
                    peer.flush()
                except Exception:
                    _give_up(peer)
            if self._waiting and not self._end_is_due:
                self._end_soon()

    def _serve(self) -> None:
        received, self._received = self._received, []
        for peer, data in received:
            try:
                peer.decode(data)
            except Exception:
                _give_up(peer)
        for peer, _ in received:
            try:
                if self.answered >= BYTES_PER_TURN:
                    peer.wait()
                else:
                    peer.serve()
            except (Exception, asyncio.CancelledError):  # a handler may have asked a future that was cancelled
                _give_up(peer)

    def _serve_waiting(self, waiting: dict[Peer, None]) -> None:
        """Serve the first, and more while there is room; those that waited longer stay before those that begin to."""
        left = list(reversed(waiting))
        while left:
            peer = left.pop()
            try:
                peer.serve_next()
            except (Exception, asyncio.CancelledError):
                _give_up(peer)
            if self.is_full:
                break
        if left:
            self._waiting = dict.fromkeys(reversed(left)) | self._waiting


def _give_up(peer: Peer) -> None:
    """Whatever is wrong with this one must not keep the others from their answers."""
    logger.exception("connection closed after an unexpected error peer=%s", peer.peer_address)
    peer.abort()
