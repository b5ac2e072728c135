"""Making compressed bytes plain without letting them fill the memory.

A few kilobytes may inflate to a thousand times as much, so whoever inflates what others sent says how much he takes.
Of anything larger, no more than that limit and one byte is ever made.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from verniermq.kernel import VernierMQError

MAX_BODY: Final = 64 << 20
"""The limit for a message's body unless somebody says otherwise: producers refuse larger bodies than their
``max_message_size`` of 4 MiB before they compress them, so this is sixteen times what is usual."""

_STEP: Final = 1 << 20


class InflatesTooFar(VernierMQError):
    """Compressed bytes whose plain form is larger than somebody is ready to take."""

    def __init__(self, stored: int, limit: int) -> None:
        super().__init__(f"{stored} compressed bytes inflate to more than the {limit} that are allowed")
        self.stored = stored
        self.limit = limit


def inflate(data: bytes, limit: int = MAX_BODY) -> bytes:
    """The plain form of what zlib compressed.

    Raises:
        InflatesTooFar: it has more than ``limit`` bytes.
        ValueError: the bytes are no whole zlib stream.
    """
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(plain) > limit:
        raise InflatesTooFar(len(data), limit)
    if not inflater.eof:
        raise ValueError(f"the zlib stream of {len(data)} bytes is cut off")
    return plain


def read_within(read: Callable[[int], bytes], stored: int, limit: int = MAX_BODY) -> bytes:
    """All that a stream has to give, read in steps; ``stored`` is how many bytes it has in its compressed form.

    Raises:
        InflatesTooFar: that is more than ``limit`` bytes.
    """
    pieces: list[bytes] = []
    room = limit + 1
    while room and (piece := read(min(_STEP, room))):
        pieces.append(piece)
        room -= len(piece)
    if not room:
        raise InflatesTooFar(stored, limit)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
