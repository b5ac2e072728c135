"""One file of fixed length, mapped into memory (RocketMQ: ``DefaultMappedFile``).

A file has its full length from the start and is sparse; unwritten bytes read as zero. Two things would be
unsafe with a map alone, and are looked after here:

- A store into a map that needs a block from a full disk kills the process with a bus error, where a call would
  return ``ENOSPC``. So a store is only for what :meth:`MappedFile.reserve` got from the disk before, which is an
  ``OSError`` when there is no room, and only where such a store takes no further block. Elsewhere, see
  :func:`writes_in_place`, and where there is hardly any room left, see :func:`has_ample_room`, a call writes.
- A map that is closed while another thread reads it raises there. So what is read is copied out, and a
  file is let go by dropping the last reference to it, not by closing it under somebody's hands.

Syncing goes through the file descriptor, since ``mmap.flush`` keeps the interpreter's lock while it waits.

A page that was touched once counts as ours for as long as the map lives, and a broker would seem to need as much
memory as it has stored. So pages that nobody will want soon are let go: the system still has them, and gives them
back without reading, unless it needs the room for something better.
"""

from __future__ import annotations

import ctypes
import errno
import mmap as system
import os
import sys
import time
from functools import cache
from mmap import ACCESS_READ, ACCESS_WRITE, PAGESIZE, mmap
from pathlib import Path

from verniermq.kernel.errors import SegmentSizeMismatch

_SCRATCH = memoryview(bytearray(64 << 10))
"""Where bytes go that nobody wants, only to learn whether they were there."""

_LET_GO_STEP = 4 << 20
"""So many bytes at a time: the call keeps the interpreter's lock, about 0.1 ms for this much."""

LARGEST_FOLIO = PAGESIZE * min(PAGESIZE // 8, 2048)
"""The most that Linux keeps in memory in one piece, aligned to its own size: 2 MiB with pages of 4 KiB.

The first store into any page of a piece wants blocks for the whole piece (ext4 since Linux 6.16, XFS since 5.18), also
for what nobody reserved. So whole ones are reserved.
"""

AMPLE_ROOM = 64 << 20
"""With less than this left on the disk, nothing is stored through a map. See :func:`has_ample_room`."""

_WRITTEN_IN_PLACE = frozenset({0xEF53, 0x58465342, 0x01021994})
"""ext2 to ext4, XFS, tmpfs: what ``statfs`` calls them."""

_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


@cache
def _nowhere() -> int:
    """A descriptor that swallows what is written to it: one for the process, since there may be none to spare later."""
    return os.open(os.devnull, os.O_WRONLY)


def writes_in_place(descriptor: int) -> bool:
    """Whether a file's blocks, once there, are written again and again, so that a store into a map takes no new one.

    Btrfs, ZFS and others write each change to another place, and may find none. What we do not know counts as such.
    """
    if _LIBC is None:
        return False
    found = (ctypes.c_long * 64)()  # more than any struct statfs has; its first word is the file system's magic
    return not _LIBC.fstatfs(descriptor, found) and found[0] in _WRITTEN_IN_PLACE


def has_ample_room(descriptor: int) -> bool:
    """Whether the disk has so much room that a store which takes a block after all would get one.

    XFS writes to another place when a copy shares the file's blocks (``cp`` makes such copies); and what a system asks
    for behind a store has changed before.
    """
    disk = os.fstatvfs(descriptor)
    return disk.f_bavail * disk.f_frsize >= AMPLE_ROOM


def stores_are_safe(descriptor: int) -> bool:
    """Whether a store into a map of the file cannot fail, given that blocks are reserved there."""
    return writes_in_place(descriptor) and has_ample_room(descriptor)


def write_all(descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
    """Write all of ``data`` at ``position``. The system may write a part and call that a success, as on a full disk.

    Raises:
        OSError: it was not written, or only a part of it; the error names the file where the system tells it.
    """
    rest = memoryview(data)
    try:
        while rest:
            written = os.pwrite(descriptor, rest, position)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            rest = rest[written:]
            position += written
    except OSError as error:
        raise OSError(error.errno, error.strerror, _path_of(descriptor)) from None


def _path_of(descriptor: int) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None  # not Linux


class SyncFailed(OSError):
    """A sync failed. What was to be made durable may be gone from memory and disk alike, whatever the reason was.

    Linux drops what it could not write, also for want of room (``ENOSPC``, ``EDQUOT``), tells whoever syncs first, and
    lets the next sync succeed. A write that fails is another matter: what it was for is still ours.
    """


def sync_data(descriptor: int) -> None:
    """Make a file's data and length durable; the times in its inode need not be.

    Raises:
        SyncFailed: they are not, and no later sync can say that they are.
    """
    try:
        if hasattr(os, "fdatasync"):
            os.fdatasync(descriptor)
        else:
            os.fsync(descriptor)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror) from error


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: a file's own sync does not include its name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror) from error
    finally:
        os.close(descriptor)


def sync_filesystem(path: Path) -> None:
    """Make everything on the file system of ``path`` durable: for very many files, far cheaper than one by one."""
    if _LIBC is None or not hasattr(_LIBC, "syncfs"):
        os.sync()
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if _LIBC.syncfs(descriptor):
            code = ctypes.get_errno()
            raise SyncFailed(code, os.strerror(code), str(path))
    finally:
        os.close(descriptor)


def let_go_of_pages(mapped: mmap, start: int, stop: int) -> None:
    """Take the whole pages from ``start`` to ``stop`` out of our memory. What is in them is neither lost nor synced.

    For a worker thread; others may read and write the map meanwhile.
    """
    advice = getattr(system, "MADV_DONTNEED", None)
    if advice is None:
        return  # a system that has no such call finds out by itself what nobody wants
    start = -(-start // PAGESIZE) * PAGESIZE
    stop -= stop % PAGESIZE
    for position in range(start, stop, _LET_GO_STEP):
        try:
            mapped.madvise(advice, position, min(_LET_GO_STEP, stop - position))
        except OSError:
            return  # it was a piece of advice, and the system did not take it
        time.sleep(0)  # the loop may have waited for the interpreter's lock


def file_name(start: int) -> str:
    """The name of the file that begins at this offset: 20 digits."""
    return f"{start:020d}"


def file_starts(directory: Path | str) -> list[int]:
    """The offsets that the files of a directory are named after, in order; anything else there is left alone."""
    try:
        with os.scandir(directory) as found:
            return sorted([int(e.name) for e in found if len(e.name) == 20 and e.name.isdecimal() and e.is_file()])
    except FileNotFoundError:
        return []


def clear_from(path: Path, position: int) -> None:
    """Zero everything from ``position`` on, durably, keeping the file's length at every moment."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        if zero_from(descriptor, position):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def zero_from(descriptor: int, position: int) -> bool:
    """Zero everything from ``position`` on; say whether there was anything.

    Only what is not zero already is written, and holes are not even read, so that a sparse file stays one.
    """
    changed = False
    while True:
        try:
            position = os.lseek(descriptor, position, os.SEEK_DATA)
            hole = os.lseek(descriptor, position, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return changed  # only a hole is left
        chunk = os.pread(descriptor, min(hole - position, 1 << 20), position)
        if not chunk:
            return changed
        if chunk.count(0) != len(chunk):
            write_all(descriptor, bytes(len(chunk)), position)
            changed = True
        position += len(chunk)


def written_end(path: Path) -> int:
    """The position behind the last byte that is not zero. Holes are not read."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        end = os.fstat(descriptor).st_size
        while end > 0:
            start = max(end - (1 << 20), 0)
            try:
                data = os.lseek(descriptor, start, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                data = end  # only a hole is left
            if data < end and (written := os.pread(descriptor, end - data, data).rstrip(b"\0")):
                return data + len(written)
            end = start
        return 0
    finally:
        os.close(descriptor)


class MappedFile:
    """A file of ``size`` bytes whose first byte has the offset ``start`` in the whole."""

    __slots__ = ("_descriptor", "in_place", "map", "path", "reserved", "size", "start")

    def __init__(self, path: Path, size: int, *, writable: bool = True) -> None:
        """Open an existing file.

        Raises:
            SegmentSizeMismatch: it has another length.
        """
        self.path = path
        self.size = size
        self.start = int(path.name) if path.name.isdecimal() else 0
        self.reserved = 0
        """Up to here the disk has given blocks for whole pieces, see :data:`LARGEST_FOLIO`."""
        self._descriptor = -1  # for __del__, should open raise
        self._descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        found = os.fstat(self._descriptor).st_size
        if found != size:
            raise SegmentSizeMismatch(path, found, size)
        self.in_place = writable and writes_in_place(self._descriptor)
        """Whether what is reserved can be stored into."""
        self.map = mmap(self._descriptor, size, access=ACCESS_WRITE if writable else ACCESS_READ)

    @classmethod
    def create(cls, path: Path, size: int) -> MappedFile:
        """Make the file if it is not there yet, at its full length, with a durable name, and open it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if os.fstat(descriptor).st_size == 0:
                os.ftruncate(descriptor, size)
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(path.parent)
        return cls(path, size)

    def reserve(self, end: int) -> None:
        """Have the disk keep room for everything before position ``end``, where that makes a store safe.

        Raises:
            OSError: there is no room (``ENOSPC``, ``EDQUOT``), or the disk failed.
        """
        end = min(-(-end // LARGEST_FOLIO) * LARGEST_FOLIO, self.size)
        if end <= self.reserved:
            return
        if self.in_place:
            try:
                os.posix_fallocate(self._descriptor, self.reserved, end - self.reserved)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
                self.in_place = False  # it cannot promise room, so it is asked with each write
        self.reserved = end

    def stores_are_safe(self) -> bool:
        """Whether what is reserved can be stored into now: if not, :meth:`write`."""
        return self.in_place and has_ample_room(self._descriptor)

    def write(self, data: bytes | memoryview, position: int) -> None:
        """Write by a call: it costs a microsecond more than a store into the map, and where that kills, it raises.

        Raises:
            OSError: there is no room, or the disk failed; a part may have been written.
        """
        write_all(self._descriptor, data, position)

    def read(self, position: int, length: int) -> bytes:
        """A copy of ``length`` bytes, fewer at the end of the file."""
        return self.map[position : position + length]

    def in_memory(self, position: int, length: int) -> bool:
        """Whether all of it can be read without waiting for the disk; ``True`` where the system cannot tell."""
        stop = min(position + length, self.size)
        while position < stop:
            buffer = _SCRATCH[: stop - position]
            try:
                if os.preadv(self._descriptor, [buffer], position, os.RWF_NOWAIT) < len(buffer):
                    return False
            except BlockingIOError:
                return False
            except (AttributeError, OSError):
                return True
            position += len(buffer)
        return True

    def want(self, position: int, length: int) -> None:
        """Ask for bytes to be read into memory soon."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, position, length, os.POSIX_FADV_WILLNEED)

    def fetch(self, position: int, length: int) -> None:
        """Return when the bytes are in memory. Blocks, but no other thread: call it in a worker.

        Raises:
            OSError: the disk failed.
        """
        stop = min(position + length, self.size)
        while position < stop:
            position += self._pass_over(position, stop - position) or stop

    def _pass_over(self, position: int, length: int) -> int:
        """Have the system read bytes for nobody; say how many."""
        try:
            return os.sendfile(_nowhere(), self._descriptor, position, length)
        except (AttributeError, OSError):  # other systems than Linux want a socket, and copies do as well
            return len(os.pread(self._descriptor, min(1 << 20, length), position))

    def let_go(self, start: int, stop: int) -> None:
        """Take pages out of our memory, see :func:`let_go_of_pages`."""
        let_go_of_pages(self.map, start, stop)

    def sync(self) -> None:
        """Return when everything written so far is on the disk. Blocks: call it in a worker thread."""
        sync_data(self._descriptor)

    def close(self) -> None:
        """Let go of the file at once; only where nobody else can be reading it."""
        if self._descriptor >= 0:
            self.map.close()
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
