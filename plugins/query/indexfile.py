"""One index file: from the hash of a key to the commit-log offsets of its messages (RocketMQ: ``IndexFile``).

A hash table whose slots point at the newest entry, and each entry at the one before it in its slot. Big-endian::

    offset          bytes  field
         0              8  store time of the first entry
         8              8  store time of the newest entry
        16              8  commit-log offset of the first entry
        24              8  commit-log offset of the newest entry
        32              4  how many slots are in use
        36              4  number of the next entry; the first one is 1
        40      4 × slots  number of the slot's newest entry, 0 for none
              20 × entries hash i4, commit-log offset i8, seconds since the first entry i4, entry before it i4

    20 4c 58 7e | 00 00 00 00 00 00 10 00 | 00 00 00 00 | 00 00 00 00     record at 4096, alone in its slot

Entry 0 is used by nobody. VernierMQ keeps a mark there: up to which entry the file was whole on the disk, and before
which commit-log offset all messages are in it or in the files before it. After a crash the file is cut back to it. A
new file has a mark for no entry and no offset (-1), which tells it from another broker's::

    "VIX1" | number of the next entry i4 | commit-log offset i8 | CRC-32 of these 16 bytes

The file has its full length from the start and is sparse. The loop stores into a map, with blocks reserved before,
since a full disk must be an error and not the end of the process; where reserving does not make a store safe, it
writes by calls. Searches run in worker threads and read through the descriptor: that neither holds the interpreter's
lock nor breaks when the file is deleted meanwhile.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from mmap import mmap
from pathlib import Path
from sys import byteorder
from typing import Final

import attrs

from verniermq.kernel import LARGEST_FOLIO, let_go_of_pages, stores_are_safe, sync_data, write_all
from verniermq.plugins.query.keys import ENTRIES

HEADER: Final = struct.Struct(">4q2i")
ENTRY: Final = struct.Struct(">iqii")
_ENTRY_SIZE: Final = ENTRY.size
_SLOT: Final = struct.Struct(">i")
_get_slot, _put_slot, _put_entry = _SLOT.unpack_from, _SLOT.pack_into, ENTRY.pack_into
_MARK: Final = struct.Struct(">4siqI")
_MARK_NAME: Final = b"VIX1"
_CHUNK: Final = 1 << 16
"""Slots are looked through so many bytes at a time."""
_PIECE_BITS: Final = LARGEST_FOLIO.bit_length() - 1
_PIECE: Final = LARGEST_FOLIO
"""Blocks are reserved for what the system may keep in memory as one piece, and for no more: a young file is small."""
_LARGEST: Final = 2**31 - 1
_SECOND: Final = 1000

UNKNOWN: Final = -1
"""What the mark of a new file says about messages: nothing."""


@attrs.frozen
class IndexMark:
    """The file was whole on the disk with entries before ``count``.

    All messages before ``complete`` are among them and in earlier files; -1 if that was never made sure.
    """

    count: int
    complete: int


def file_size(slots: int, entries: int) -> int:
    return HEADER.size + 4 * slots + ENTRY.size * entries


class IndexFile:
    """One file of ``slots`` slots and ``entries`` entries."""

    def __init__(self, path: Path, slots: int, entries: int, *, create: bool = False) -> None:
        """Open a file, or make it.

        Raises:
            OSError: that cannot be done.
            ValueError: its length is not that of a file with so many slots and entries.
        """
        self.path = path
        self.slots = slots
        self.entries = entries
        self._first_entry = HEADER.size + 4 * slots
        self.size = file_size(slots, entries)
        self._descriptor = -1  # for __del__, should open raise
        self._descriptor = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o644)
        if create:
            os.ftruncate(self._descriptor, self.size)
        if os.fstat(self._descriptor).st_size != self.size:
            raise ValueError(f"index file {path} has {os.fstat(self._descriptor).st_size} bytes, expected {self.size}")
        self._map = mmap(self._descriptor, self.size)
        self._reserved = bytearray((self.size >> _PIECE_BITS) + 1)
        self._by_call = not stores_are_safe(self._descriptor)
        """Whether calls write the file, since a store into the map could kill the process."""
        self._was_synced = False
        """Its pages are clean, and the next store into each may want something of the disk: time to look again."""
        # Not through the map: on a full tmpfs even a look at a page that is not there yet kills the process.
        head: tuple[int, ...] = HEADER.unpack(os.pread(self._descriptor, HEADER.size, 0))
        self.begin_time, self.end_time, self.begin_offset, self.end_offset, self.used_slots, count = head
        self.count = self._head_count = max(count, 1)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def __repr__(self) -> str:
        return f"<IndexFile {self.path.name} count={self.count}>"

    @classmethod
    def begin(cls, path: Path, slots: int, entries: int, full: IndexFile | None) -> IndexFile:
        """Make a file, behind a full one if there is one.

        Raises:
            OSError: that cannot be done; there is no file then.
        """
        try:
            file = cls(path, slots, entries, create=True)
            if full is not None:
                file.follow(full)
            file.write_head(1)
            file.write_mark(1, UNKNOWN)
        except FileExistsError:
            raise
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return file

    @property
    def is_full(self) -> bool:
        return self.count >= self.entries

    @property
    def is_sane(self) -> bool:
        """Whether the head can be true at all."""
        return self.count <= self.entries and min(self.begin_time, self.begin_offset, self.end_offset) >= 0

    @property
    def is_blank(self) -> bool:
        """Whether nothing was ever written: a crash came right after the file was made."""
        return self.count == 1 and not self.end_offset and self.mark() is None

    @property
    def is_filled_by_another(self) -> bool:
        """Whether another broker made and filled the file. In one of ours that lost its mark, the first entry is lost
        with it."""
        return self.is_sane and self.is_full and self.mark() is None and any(self._entry(1))

    # --- writing: on the loop --------------------------------------------------------------

    def follow(self, full: IndexFile) -> None:
        """Begin where a full file ended; its end is our beginning until the first entry comes."""
        self.begin_time = self.end_time = full.end_time
        self.begin_offset = self.end_offset = full.end_offset

    def add(self, keys: Sequence[tuple[int, int, int]]) -> int:
        """Add entries of (hash, commit-log offset, store time) as long as there is room; return how many.

        Written for speed, since it runs for every key of every message. An entry comes before the slot that points
        at it: a search in another thread may follow the slot at once.

        Raises:
            OSError: the disk has no room; ``count`` says how many were added before.
        """
        if self.count == 1 and len(keys) > 1:
            return self.add(keys[:1]) + self.add(keys[1:])  # the first one's time is what all others count from
        if self._was_synced:
            self._was_synced = False
            self._by_call = not stores_are_safe(self._descriptor)
        table, reserved, slots = self._map, self._reserved, self.slots
        begin, before_count, count, used = self.begin_time, self.count, self.count, 0
        at_entry = self._first_entry + _ENTRY_SIZE * count
        adding = list(keys[: self.entries - count])
        last_time, seconds = -1, 0
        try:
            self._reserve(at_entry, _ENTRY_SIZE * len(adding))
            while ENTRIES is not None and not self._by_call and (done := count - before_count) < len(adding):
                put, slots_taken = ENTRIES.put(
                    table, reserved, _PIECE_BITS, slots, self._first_entry, count, begin, adding, done
                )
                count += put
                used += slots_taken
                at_entry += _ENTRY_SIZE * put
                if done + put < len(adding):
                    self._reserve(HEADER.size + 4 * (adding[done + put][0] % slots), 4)
            by_call = self._by_call
            for key_hash, offset, store_time in adding[count - before_count :]:
                at_slot = 40 + 4 * (key_hash % slots)
                if by_call:
                    (before,) = _SLOT.unpack(os.pread(self._descriptor, 4, at_slot))
                else:
                    if not reserved[at_slot >> _PIECE_BITS]:
                        self._reserve(at_slot, 4)
                    (before,) = _get_slot(table, at_slot)
                if not 0 < before <= count:
                    before = 0
                    used += 1
                if store_time != last_time:
                    last_time = store_time
                    seconds = (store_time - begin) // 1000 if begin > 0 else 0
                    if not 0 <= seconds <= _LARGEST:
                        seconds = 0 if seconds < 0 else _LARGEST
                if by_call:
                    write_all(self._descriptor, ENTRY.pack(key_hash, offset, seconds, before), at_entry)
                    write_all(self._descriptor, _SLOT.pack(count), at_slot)
                else:
                    _put_entry(table, at_entry, key_hash, offset, seconds, before)
                    _put_slot(table, at_slot, count)
                at_entry += _ENTRY_SIZE
                count += 1
        finally:
            if count > before_count:
                _, self.end_offset, newest = adding[count - before_count - 1]
                if before_count == 1:
                    self.begin_offset, self.begin_time, self.end_time = self.end_offset, newest, newest
                elif newest > self.end_time:
                    self.end_time = newest  # the clock may have been set back; what is in the file stays in its span
            self.used_slots += used
            # The head first: a sync in another thread goes by ``count``, and its mark must not say more than the head.
            try:
                self.write_head(count)
            finally:
                self.count = count  # the slots point at the entries already
        return count - before_count

    def write_head(self, count: int) -> None:
        """Put where others find it what the file has.

        Raises:
            OSError: the disk has no room.
        """
        if not self._reserved[0]:
            self._reserve(0, HEADER.size)
        self._put(
            HEADER.pack(self.begin_time, self.end_time, self.begin_offset, self.end_offset, self.used_slots, count), 0
        )
        self._head_count = count

    def _put(self, data: bytes, position: int) -> None:
        """Write where :meth:`_reserve` has been."""
        if self._by_call:
            write_all(self._descriptor, data, position)
        else:
            self._map[position : position + len(data)] = data

    def _reserve(self, position: int, length: int) -> None:
        """Have the disk keep room for what is stored into the map; a call asks for its room itself."""
        for piece in range(position >> _PIECE_BITS, (position + length - 1 >> _PIECE_BITS) + 1):
            if self._by_call or self._reserved[piece]:
                continue
            start = piece << _PIECE_BITS
            try:
                os.posix_fallocate(self._descriptor, start, min(_PIECE, self.size - start))
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
                self._by_call = True  # it cannot promise room
            else:
                self._reserved[piece] = 1

    # --- durability ------------------------------------------------------------------------

    def sync(self, complete: int) -> None:
        """Make the file durable as it is, and mark it so; ``complete``: all messages before it are in, here or earlier.

        The names of all files and all earlier files must be durable. For a worker thread: what the loop adds
        meanwhile lies behind the mark.

        Raises:
            OSError: the disk failed.
        """
        count = self.count
        if self._head_count < count:
            self.write_head(count)  # the disk had no room for it before
        sync_data(self._descriptor)
        self.write_mark(count, complete)
        sync_data(self._descriptor)
        self._was_synced = True
        # The next write to any of its pages has to ask the system first anyway, now that they are clean.
        let_go_of_pages(self._map, 0, self.size)

    def write_mark(self, count: int, complete: int) -> None:
        """
        Raises:
            OSError: the disk refused.
        """
        fields = struct.pack(">4siq", _MARK_NAME, count, complete)
        write_all(self._descriptor, fields + struct.pack(">I", zlib.crc32(fields)), self._first_entry)

    def mark(self) -> IndexMark | None:
        """The mark that the last sync left; ``None`` if the file is not ours."""
        raw = os.pread(self._descriptor, _MARK.size, self._first_entry)
        name, count, complete, crc = _MARK.unpack(raw)
        if name != _MARK_NAME or crc != zlib.crc32(raw[:-4]) or not 1 <= count <= self.entries:
            return None
        return IndexMark(count, complete)

    def cut(self, count: int) -> None:
        """Drop the entries from number ``count`` on, also from the slots: those may point at what never got written.

        Reads the slots and, if some have to go back, the hashes of the entries that stay: seconds for a full file.

        Raises:
            OSError: the disk has no room.
        """
        wrong: dict[int, int] = {}
        used = 0
        for first, slots in self._chunks_of_slots():
            used += len(slots) - slots.count(0)
            if max(slots) >= count or min(slots) < 0:
                wrong |= {first + at: 0 for at, newest in enumerate(slots) if not 0 <= newest < count}
        if wrong:
            self._find_newest(wrong, count)
            for slot, newest in wrong.items():
                self._reserve(HEADER.size + 4 * slot, 4)
                self._put(_SLOT.pack(newest), HEADER.size + 4 * slot)
        self.used_slots = used - list(wrong.values()).count(0)
        self.count = count
        if count == 1:
            self.begin_offset = self.begin_time = self.end_offset = self.end_time = 0
        else:
            _, self.end_offset, seconds, _ = self._entry(count - 1)
            self.end_time = self.begin_time + (0 if count == 2 else seconds * _SECOND)
        self.write_head(count)

    def cut_offset(self, log_end: int) -> None:
        """Drop the entries of messages that begin at ``log_end`` or later: the log has lost them.

        The mark goes first. Were it left, a crash later on would bring back entries of messages that are gone, and
        leave out those that came in their place.

        Raises:
            OSError: the disk refused.
        """
        low, high = 1, self.count
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle)[1] < log_end:
                low = middle + 1
            else:
                high = middle
        self.write_mark(low, log_end)
        sync_data(self._descriptor)
        if low < self.count:
            self.cut(low)

    def _chunks_of_slots(self) -> Iterator[tuple[int, array[int]]]:
        """The slots in pieces, each with its first one's number; holes in the file are left out."""
        position, end = HEADER.size, self._first_entry
        while position < end:
            try:
                data = os.lseek(self._descriptor, position, os.SEEK_DATA)
            except OSError:
                return  # only a hole is left
            position = max(position, data - (data - HEADER.size) % 4)
            if position < end:
                yield (position - HEADER.size) // 4, self._integers(position, min(_CHUNK, end - position))
            position += _CHUNK

    def _find_newest(self, newest: dict[int, int], count: int) -> None:
        """Put the number of its newest entry before ``count`` to each slot; 0 stays where there is none."""
        step = 100_000
        for first in range(1, count, step):
            last = min(first + step, count)
            position, length = self._first_entry + ENTRY.size * first, ENTRY.size * (last - first)
            if ENTRIES is not None:
                ENTRIES.find_newest(os.pread(self._descriptor, length, position), first, self.slots, newest)
                continue
            for number, key_hash in enumerate(self._integers(position, length)[::5], first):
                if key_hash % self.slots in newest:
                    newest[key_hash % self.slots] = number

    def _integers(self, position: int, length: int) -> array[int]:
        numbers = array("i", os.pread(self._descriptor, length, position))
        if byteorder == "little":
            numbers.byteswap()
        return numbers

    # --- reading: in any thread ------------------------------------------------------------

    def overlaps(self, begin: int, end: int) -> bool:
        """Whether the file can have messages that were stored between these times, both included."""
        return self.count > 1 and self.begin_time <= end and self.end_time + _SECOND > begin

    def offsets(self, key_hash: int, begin: int, end: int) -> Iterator[int]:
        """The commit-log offsets of entries with this hash, newest first.

        Entries know their time in whole seconds, so messages a second outside are among them.
        """
        (number,) = _SLOT.unpack(os.pread(self._descriptor, 4, HEADER.size + 4 * (key_hash % self.slots)))
        while 0 < number < self.entries:
            found, offset, seconds, before = self._entry(number)
            # The first entry's seconds count from the end of the file before, but its time is our beginning.
            time = self.begin_time + (0 if number == 1 else seconds * _SECOND)
            if seconds < 0 or time + _SECOND < begin:
                return
            if found == key_hash and time <= end:
                yield offset
            if before >= number:
                return  # a link that does not lead back was left by a crash
            number = before

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        raw = os.pread(self._descriptor, ENTRY.size, self._first_entry + ENTRY.size * number)
        entry: tuple[int, int, int, int] = ENTRY.unpack(raw)
        return entry
