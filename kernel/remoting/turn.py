"""A turn of the loop, for all connections of a server: take in what came, serve it, write the answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol, final

logger = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 64
"""Chunks that are taken in before they are served: a turn with thousands of full sockets must not fill the memory."""

BYTES_PER_TURN: Final = 2 * 1024 * 1024
"""Bytes of answers after which whoever is not served yet waits for the next turn: to copy them takes time too."""

SECONDS_PER_TURN: Final = 0.01
"""After this long, too."""

DECODED: Final = 8
"""Peers that have requests waiting, decoded, before others' bytes are: many objects at once cost the collector time."""

TOGETHER: Final = 64 * 1024
"""Bytes of requests that are decoded and served without a look at the clock: some hundred small messages."""


class Peer(Protocol):
    """What has its turn; see :class:`~verniermq.kernel.remoting.connection.Connection`."""

    peer_address: str

    def decode(self, data: bytes) -> None: ...

    def hold(self) -> None: ...

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

    A turn in which much was answered, or that took long, leaves the rest to the next one, so that ten peers that each
    ask for a hundred large answers, or a hundred peers that each send a thousand messages, do not hold up everybody
    else: who sent little comes first, and whoever sends something meanwhile comes before those that wait. One of these
    has its turn each time. They are not read from until then.

    Nothing is lost by waiting: whoever closes connections, or learns that a peer has, ends the turn first.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.perf_counter) -> None:
        self._loop = loop
        self.clock = clock
        self._began = 0.0
        """When this turn began to serve, once there is so much that it may take long."""
        self._received: list[tuple[Peer, bytes]] = []
        self._size = 0
        """Bytes of that."""
        self._left: dict[Peer, list[bytes]] = {}
        """What earlier turns had no time to decode."""
        self._writing: list[Peer] = []
        self._waiting: dict[Peer, None] = {}
        self.answered = 0
        """Bytes of what was answered in this turn, right when it was served."""
        self._end_is_due = False

    def received(self, peer: Peer, data: bytes) -> None:
        """Have this decoded and served when the turn ends."""
        if self._left and peer in self._left:
            self._left[peer].append(data)
            return
        received = self._received
        received.append((peer, data))
        self._size += len(data)
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
        """Serve what came so far and write the answers, now; what would take too long is left to the next turn."""
        waiting, self._waiting = self._waiting, {}
        try:
            if self._received:
                self._serve()
            if waiting:
                self._serve_waiting(waiting)
            if self._left:
                self._serve_left()
        finally:
            self._end_is_due = False
            self.answered = 0
            self._began = 0.0
            writing, self._writing = self._writing, []
            for peer in writing:
                try:
                    peer.flush()
                except Exception:
                    _give_up(peer)
            if (self._waiting or self._left) and not self._end_is_due:
                self._end_soon()

    def decode_left(self, peer: Peer) -> None:
        """Have nothing left of this peer that is not decoded: it sends no more, or the server stops."""
        chunks = self._left.pop(peer, ())
        for data in chunks:
            peer.decode(data)
        if chunks:
            peer.wait()

    def decode_all_left(self) -> None:
        """The same of all."""
        for peer in list(self._left):
            self.decode_left(peer)

    def ends_at(self) -> float:
        """When it has taken long, by ``clock``."""
        if not self._began:
            self._began = self.clock()
        return self._began + SECONDS_PER_TURN

    def _is_over(self) -> bool:
        now = self.clock()
        if not self._began:
            self._began = now
        return now - self._began >= SECONDS_PER_TURN

    def _serve(self) -> None:
        received, self._received = self._received, []
        size, self._size = self._size, 0
        is_over = (self._began or len(received) >= MOST_AT_ONCE) and self._is_over()
        if size <= TOGETHER and not is_over:
            self._serve_together(received)
            return
        chunks: dict[Peer, list[bytes]] = {}
        for peer, data in received:
            chunks.setdefault(peer, []).append(data)
        small_first = sorted(chunks.items(), key=lambda item: sum(map(len, item[1])))
        together: list[tuple[Peer, bytes]] = []
        size = 0
        for peer, parts in small_first:
            much = sum(map(len, parts))
            if (not together and self._is_over()) or (self._left and much >= TOGETHER):
                self._leave(peer, parts)
                continue
            together += [(peer, data) for data in parts]
            size += much
            if size >= TOGETHER:
                self._serve_together(together)
                together, size = [], 0
        self._serve_together(together)

    def _leave(self, peer: Peer, chunks: list[bytes]) -> None:
        self._left.setdefault(peer, []).extend(chunks)
        try:
            peer.hold()
        except Exception:
            _give_up(peer)

    def _serve_left(self) -> None:
        """Serve the first, and more while there is time; but those come first whose requests are decoded."""
        while self._left and len(self._waiting) < DECODED:
            peer = next(iter(self._left))
            self._serve_together([(peer, data) for data in self._left.pop(peer)])
            if self._is_over():
                break

    def _serve_together(self, received: list[tuple[Peer, bytes]]) -> None:
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
            if self.is_full or self._is_over():
                break
        if left:
            self._waiting = dict.fromkeys(reversed(left)) | self._waiting


def _give_up(peer: Peer) -> None:
    """Whatever is wrong with this one must not keep the others from their answers."""
    logger.exception("connection closed after an unexpected error peer=%s", peer.peer_address)
    peer.abort()
