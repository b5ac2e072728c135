"""The wheel: for each second of two weeks, the chain of timed messages that wait for it (RocketMQ: ``TimerWheel``).

One file of 1,209,600 slots; the slot of a second is at (second mod 1,209,600) × 32, so it comes round every two
weeks. Big-endian::

    offset  bytes  field
         0      8  the second that the slot is used for
         8      8  position in the timer log of its first record
        16      8  position of its newest record, which names the one before
        24      4  how many messages, less those taken back
        28      4  0

    00 00 00 00 65 53 f1 1d  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 34  00 00 00 02  00 00 00 00

A slot with another second in it is empty. Nothing waits longer than a week (what is further away makes stops on the
way), so no two seconds need a slot at the same time.

Which slots still have to be emptied is kept in memory too, a byte each: finding the next one then takes no reading.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from verniermq.kernel import sync_data, sync_directory, write_all

SLOT: Final = struct.Struct(">qqqii")
SLOTS: Final = 2 * 7 * 86_400
SIZE: Final = SLOTS * SLOT.size
_CHUNK: Final = 1 << 17
_SECOND: Final = struct.Struct(f">q{SLOT.size - 8}x")


class Slot(NamedTuple):
    second: int
    first: int
    last: int
    messages: int
    magic: int = 0


class Wheel:
    def __init__(self, path: Path) -> None:
        """Open the file, or make it, sparse.

        One that has not its size is made anew: all of it follows from the timer log.

        Raises:
            OSError: it cannot be opened or made.
        """
        self.path = path
        self._descriptor = -1  # for __del__, should open raise
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self.is_new = os.fstat(self._descriptor).st_size != SIZE
        self._waiting = bytearray(SLOTS)
        if self.is_new:
            self.clear()
            sync_directory(path.parent)

    def get(self, second: int) -> Slot | None:
        """The slot of a second, if something was put there."""
        data = os.pread(self._descriptor, SLOT.size, second % SLOTS * SLOT.size)
        slot = Slot(*SLOT.unpack(data))
        return slot if slot.second == second and second else None

    def add(self, second: int, position: int, change: int) -> None:
        """Make a record the newest of its second.

        Raises:
            OSError: the disk refused; the slot is as it was.
        """
        slot = self.get(second)
        first, messages = (position, 0) if slot is None else (slot.first, slot.messages)
        data = SLOT.pack(second, first, position, messages + change, 0)
        write_all(self._descriptor, data, second % SLOTS * SLOT.size)
        self._waiting[second % SLOTS] = 1

    # --- which slots have to be emptied ----------------------------------------------------

    def next_waiting(self, second: int) -> int | None:
        """The first second from this one on whose slot has to be emptied."""
        begin = second % SLOTS
        found = self._waiting.find(1, begin)
        if found >= 0:
            return second + found - begin
        found = self._waiting.find(1, 0, begin)
        return None if found < 0 else second + found + SLOTS - begin

    def emptied(self, second: int) -> None:
        self._waiting[second % SLOTS] = 0

    @property
    def number_waiting(self) -> int:
        return self._waiting.count(1)

    def find_waiting(self, second: int) -> Iterator[Slot]:
        """Read the file for slots that have to be emptied from this second on, and note them."""
        for chunk in self._chunks():
            for found in map(Slot._make, SLOT.iter_unpack(chunk)):
                if second <= found.second < second + SLOTS and found.last >= 0:
                    self._waiting[found.second % SLOTS] = 1
                    yield found

    def seconds(self) -> Iterator[int]:
        """Every second that is in the file, delivered or not."""
        for chunk in self._chunks():
            for (second,) in _SECOND.iter_unpack(chunk):
                if second:
                    yield second

    def _chunks(self) -> Iterator[bytes]:
        """The parts of the file that have something in them, whole slots each."""
        position = 0
        while position < SIZE:
            try:
                position = os.lseek(self._descriptor, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # only a hole is left
            position -= position % SLOT.size
            chunk = os.pread(self._descriptor, _CHUNK, position)
            if chunk.count(0) < len(chunk):
                yield chunk
            position += len(chunk)

    def clear(self) -> None:
        """Empty all slots."""
        os.ftruncate(self._descriptor, 0)
        os.ftruncate(self._descriptor, SIZE)
        self._waiting = bytearray(SLOTS)

    def forget(self, first: int, end: int) -> None:
        """Empty the slots of the seconds from ``first`` up to ``end``."""
        for second in range(first, end):
            if self.get(second) is not None:
                write_all(self._descriptor, bytes(SLOT.size), second % SLOTS * SLOT.size)

    def sync(self) -> None:
        """Return when everything put before the call is on the disk. For a worker thread."""
        sync_data(self._descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
