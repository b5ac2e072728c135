"""Two connections with no socket between them, for whoever serves another protocol inside the broker's process.

What one end writes, the other end receives in the next turn of the loop, as bytes of frames: a request that comes this
way is decoded, guarded, counted and answered like any other, and the broker sees the address of the peer that it is
made for. Frames cost a few microseconds; a second way into every handler would cost more than that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from verniermq.kernel.remoting.connection import Connection


class PipeEnd(asyncio.Transport):
    """One end. Bytes that the other end does not read yet wait here, and count as unsent."""

    def __init__(self, loop: asyncio.AbstractEventLoop, peername: tuple[str, int], protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": peername})
        self._loop = loop
        self._protocol = protocol
        self._other: PipeEnd
        self._unsent: deque[bytes] = deque()
        self._size = 0
        self._high = 1 << 20
        self._is_full = False
        self._reads = True
        self._closing = False
        self._ended = False

    def tie(self, other: PipeEnd) -> None:
        """Hand what is written here to another end."""
        self._other = other

    # --- what a connection calls -----------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing:
            return
        self._unsent.append(bytes(data))
        self._size += len(data)
        if self._size > self._high and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()
        self._loop.call_soon(self._pass_on)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self._size

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is not None:
            self._high = high

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        self._loop.call_soon(self._other._pass_on)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Close both ends once the other one has read everything."""
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._pass_on)

    def abort(self) -> None:
        """Close both ends now."""
        self._closing = True
        self._unsent.clear()
        self._loop.call_soon(self._pass_on)

    # --- inside ----------------------------------------------------------------------------

    def _pass_on(self) -> None:
        other = self._other
        while self._unsent and other._reads and not other._ended:
            data = self._unsent.popleft()
            self._size -= len(data)
            other._protocol.data_received(data)
        if self._is_full and self._size <= self._high // 2:
            self._is_full = False
            self._protocol.resume_writing()
        if self._closing and (not self._unsent or other._ended):
            self._end()
            other._end()

    def _end(self) -> None:
        self._closing = True
        if not self._ended:
            self._ended = True
            self._unsent.clear()
            self._protocol.connection_lost(None)


def connect_in_process(ours: Connection, served: Connection, peername: tuple[str, int]) -> None:
    """Tie two connections together; the one that is served sees ``peername`` as its peer."""
    loop = asyncio.get_running_loop()
    near, far = PipeEnd(loop, peername, ours.as_protocol()), PipeEnd(loop, peername, served.as_protocol())
    near.tie(far)
    far.tie(near)
    ours.connection_made(near)
    served.connection_made(far)
