"""The bytes between a master and a slave (RocketMQ: ``DefaultHAService``); no sockets here.

::

    slave  → master   i64 where its log ends                     after each block, and every 5 s
    master → slave    i64 offset, i32 length, that many bytes    never past the end of a file; length 0: a sign of life

There is no greeting: the first thing said is the slave's report, and a master sends nothing before it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from verniermq.kernel import ProtocolError

REPORT: Final = struct.Struct(">q")
HEAD: Final = struct.Struct(">qi")

LARGEST_BLOCK: Final = 4 * 1024 * 1024 - HEAD.size
"""More does not fit into the buffer of an Apache slave."""


def block(offset: int, data: bytes) -> bytes:
    return HEAD.pack(offset, len(data)) + data


class Reports:
    """What a slave says, from bytes as they come: of several reports only the newest matters."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """The newest whole report, if there is one."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        return REPORT.unpack_from(data, whole - REPORT.size)[0] if whole else None


class Blocks:
    """What a master sends, from bytes as they come.

    A log takes bytes that end anywhere, so nothing waits here for the end of its block: whatever came is passed on.
    """

    def __init__(self) -> None:
        self._head = b""
        """What has come of a head that is not whole."""
        self._offset = 0
        """Where the next bytes of this block belong."""
        self._lacking = 0
        """So many of them have not come yet."""

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Blocks or parts of them, as (offset, bytes); one without a byte is a sign of life.

        Raises:
            ProtocolError: a length is impossible.
        """
        rest = memoryview(data)
        while rest:
            if self._lacking:
                part, rest = rest[: self._lacking], rest[self._lacking :]
                offset = self._offset
                self._offset += len(part)
                self._lacking -= len(part)
                yield offset, part
                continue
            lacking = HEAD.size - len(self._head)
            self._head += rest[:lacking]
            rest = rest[lacking:]
            if len(self._head) < HEAD.size:
                return
            offset, length = HEAD.unpack(self._head)
            self._head = b""
            if not 0 <= length <= LARGEST_BLOCK or offset < 0:
                raise ProtocolError(f"a block of {length} bytes at {offset}: the peer is no master")
            self._offset, self._lacking = offset, length
            if not length:
                yield offset, rest[:0]
