"""A quick way for some requests, and what it leaves of a chunk of bytes.

::

    plain plain plain odd plain plain half-a-frame
    └──── lane ────┘  │   └─ lane ─┘ └─ decoder
                      └─ decoder, served before the lane goes on
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

if TYPE_CHECKING:
    from verniermq.kernel.remoting.connection import Connection

MOST_PIECES: Final = 64
"""Times that a lane is tried again within a chunk; what is left then is for the decoder."""
MOST_FRAMES: Final = 64


class Lane(Protocol):
    @property
    def codes(self) -> frozenset[int]:
        """Requests that it may serve now."""
        ...

    def take(self, data: bytes, start: int, connection: Connection) -> tuple[int, bytes]:
        """Serve frames from ``start`` on: where the first one begins that is left, and what is answered."""
        ...


@final
class Remainder:
    """What a lane has not served of a chunk. The decoder gets a frame of it before the lane is tried again.

    While the lane is tried in vain the decoder gets twice as many frames each time.
    """

    __slots__ = ("_data", "_frames", "_pieces", "at")

    def __init__(self) -> None:
        self._data = b""
        self.at = 0
        self._frames = self._pieces = 0

    def __bool__(self) -> bool:
        return self.at < len(self._data)

    def begin(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        self._frames = self._pieces = 0

    def try_lane(self, lane: Lane, connection: Connection) -> bytes:
        """Have the lane serve what it can; returns what is answered."""
        end, answers = lane.take(self._data, self.at, connection)
        self._frames = 1 if end > self.at else min(max(1, 2 * self._frames), MOST_FRAMES)
        self.at = end
        return answers

    def piece(self) -> bytes:
        """The next bytes for the decoder: frames, or all that is left."""
        data, start, end = self._data, self.at, self.at
        self._pieces += 1
        for _ in range(max(1, self._frames)):
            length = int.from_bytes(data[end : end + 4], "big", signed=True)
            end += 4 + length
            if length < 4 or end >= len(data):
                return self.rest()
        if self._pieces > MOST_PIECES:
            return self.rest()
        self.at = end
        return data[start:end]

    def rest(self) -> bytes:
        """All that is left, for the decoder."""
        left, self._data = self._data[self.at :], b""
        self.at = 0
        return left

    def clear(self) -> None:
        self._data = b""
        self.at = 0
