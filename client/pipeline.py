"""A quick way for many small requests on a connection, beside its general one.

The answer to a send is a small frame with a JSON header and no body, and there are tens of thousands of them a second.
Such a frame is recognised here by its opaque and handed over as the bare header; every other byte goes on to the
general decoder, in the same order::

    socket -> sift -> a small answer whose opaque is awaited -> Awaited.answered
                   -> anything else -> the connection's decoder

One timer watches over all that are awaited: it sleeps until the earliest deadline.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import attrs
import orjson

from verniermq.kernel import Connection, ConnectionLost, RemotingError, RequestTimeout

logger = logging.getLogger(__name__)

FIRST_OPAQUE: Final = 2**30
"""The general way counts from 1 on, so the two never meet."""
LAST_OPAQUE: Final = 2**31 - 1
SMALL: Final = 4096
"""Bytes of a frame that is worth waiting for here; of a larger one, each part goes on as it comes."""
SHORTEST_SLEEP: Final = 0.05

_unpack_words = struct.Struct(">iI").unpack_from


class Awaited(Protocol):
    """Somebody who waits for the answer to a quick request."""

    request: str
    """What was asked, for an error."""
    patience: float
    """Seconds that the answer may take."""
    deadline: float
    """When they are over, by ``time.monotonic``."""

    def answered(self, header: dict[str, Any]) -> None:
        """The answer is there."""

    def failed(self, error: RemotingError) -> None:
        """There will be none."""


@attrs.define(eq=False)
class RequestPipeline:
    """The quick requests on one connection of a client."""

    connection: Connection
    _awaited: dict[int, Awaited] = attrs.field(factory=dict, init=False)
    _opaque: int = attrs.field(default=FIRST_OPAQUE, init=False)
    _unread: bytes = attrs.field(default=b"", init=False)
    """The beginning of a small frame."""
    _owed: int = attrs.field(default=0, init=False)
    """How many bytes of a frame whose beginning went to the general decoder are still to come."""
    _sweep_at: float = attrs.field(default=float("inf"), init=False)

    def __attrs_post_init__(self) -> None:
        self.connection.sift = self.sift
        self.connection.on_close.append(self._connection_lost)

    # --- asking ----------------------------------------------------------------------------

    def next_opaque(self) -> int:
        """The number to put into the frame of the next quick request."""
        self._opaque = opaque = self._opaque + 1 if self._opaque < LAST_OPAQUE else FIRST_OPAQUE
        return opaque

    def begin(self, opaque: int, frame: bytes, awaited: Awaited) -> None:
        """Send a whole frame with this opaque; whoever waits hears of the answer, or of the reason why there is none.

        Mind the connection's ``is_writable`` and ``closed`` before.
        """
        self._awaited[opaque] = awaited
        if awaited.deadline < self._sweep_at:
            self._sweep_by(awaited.deadline)
        self.connection.send(frame)

    def _sweep_by(self, deadline: float) -> None:
        self._sweep_at = deadline
        pause = max(deadline - time.monotonic(), SHORTEST_SLEEP)
        asyncio.get_running_loop().call_later(pause, self._sweep, deadline)

    def _sweep(self, meant_for: float) -> None:
        """Give up what is overdue, and sleep until the next deadline."""
        if meant_for != self._sweep_at:
            return  # a request with less patience came later, and has its own timer
        self._sweep_at = float("inf")
        now = time.monotonic()
        late = [opaque for opaque, awaited in self._awaited.items() if awaited.deadline <= now]
        for opaque in late:
            awaited = self._awaited.pop(opaque, None)
            if awaited is not None:
                peer = self.connection.peer_address
                self._inform(awaited.failed, RequestTimeout(peer, awaited.request, awaited.patience))
        if self._awaited:
            earliest = min(awaited.deadline for awaited in self._awaited.values())
            if earliest < self._sweep_at:
                self._sweep_by(earliest)

    # --- what the connection calls ---------------------------------------------------------

    def sift(self, data: bytes) -> bytes:
        """Take the answers that somebody waits for here out of the bytes that came; the rest is for the decoder."""
        if self._unread:
            data = self._unread + data
            self._unread = b""
        end = len(data)
        # Everything before `passed` was taken here or is in `left`; everything before `position` has been looked at.
        passed = position = 0
        left: list[bytes] = []
        if self._owed:
            position = min(self._owed, end)
            self._owed -= position
        awaited = self._awaited
        while end - position >= 8:
            length, word = _unpack_words(data, position)
            following = position + 4 + length
            if following > end or length < 4:
                break
            # A header word without a form in its top byte means JSON; a header that fills the frame, no body.
            if word + 4 == length and awaited:
                answer = _answer(data[position + 8 : following])
                waiting = awaited.pop(answer["opaque"], None) if answer else None
                if waiting is not None:
                    if passed < position:
                        left.append(data[passed:position])
                    passed = following
                    self._inform(waiting.answered, answer)
            position = following
        rest = end - position
        if rest:
            length = _unpack_words(data, position)[0] if rest >= 8 else 4
            if 4 <= length <= SMALL:
                self._unread = data[position:]
                end = position
            else:
                self._owed = max(length + 4 - rest, 0)
        if passed < end:
            left.append(data[passed:end])
        return b"".join(left)

    def _connection_lost(self, connection: Connection) -> None:
        waiting = list(self._awaited.values())
        self._awaited.clear()
        for awaited in waiting:
            self._inform(awaited.failed, ConnectionLost(connection.peer_address))

    def _inform(self, hear: Callable[[Any], None], what: Any) -> None:
        try:
            hear(what)
        except Exception:
            logger.exception("callback failed after a request peer=%s", self.connection.peer_address)


def _answer(header: bytes) -> dict[str, Any] | None:
    """A header that is an answer's; the general decoder says what is wrong with one that is none at all."""
    try:
        answer: dict[str, Any] = orjson.loads(header)
        return answer if answer["flag"] & 1 and answer["opaque"].__class__ is int else None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
