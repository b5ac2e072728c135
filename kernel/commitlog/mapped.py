"""One file of fixed length, mapped into memory (RocketMQ: ``DefaultMappedFile``).

A file has its full length from the start and is sparse; unwritten bytes read as zero. Two things would be
unsafe with a map alone, and are looked after here:

- Writing to a page that the disk has no block for kills the process with a bus error when the disk is
  full. So blocks are reserved ahead of the writes, and a full disk is an ``OSError`` of :meth:`reserve`.
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

_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


@cache
def _nowhere() -> int:
    """A descriptor that swallows what is written to it: one for the process, since there may be none to spare later."""
    return os.open(os.devnull, os.O_WRONLY)


def sync_data(descriptor: int) -> None:
    """Make a file's data and length durable; the times in its inode need not be."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: a file's own sync does not include its name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
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
            raise OSError(code, os.strerror(code), str(path))
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
    """Zero everything from ``position`` on, keeping the file's length at every moment.

    Only what is not zero already is written, and holes are not even read, so that a sparse file stays one.
    """
    zeros = bytes(1 << 20)
    descriptor = os.open(path, os.O_RDWR)
    try:
        changed = False
        while True:
            try:
                position = os.lseek(descriptor, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # only a hole is left
            chunk = os.pread(descriptor, len(zeros), position)
            if not chunk:
                break
            if chunk != zeros[: len(chunk)]:
                os.pwrite(descriptor, zeros[: len(chunk)], position)
                changed = True
            position += len(chunk)
        if changed:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


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

    __slots__ = ("_descriptor", "map", "path", "reserved", "size", "start")

    def __init__(self, path: Path, size: int, *, writable: bool = True) -> None:
        """Open an existing file.

        Raises:
            SegmentSizeMismatch: it has another length.
        """
        self.path = path
        self.size = size
        self.start = int(path.name) if path.name.isdecimal() else 0
        self.reserved = 0
        self._descriptor = -1  # for __del__, should open raise
        self._descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        found = os.fstat(self._descriptor).st_size
        if found != size:
            raise SegmentSizeMismatch(path, found, size)
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
        """Have the disk keep room for everything before position ``end``.

        Raises:
            OSError: there is no room (``ENOSPC``, ``EDQUOT``), or the disk failed.
        """
        start, end = self.reserved, min(end, self.size)
        if end <= start:
            return
        try:
            os.posix_fallocate(self._descriptor, start, end - start)
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            # A file system that cannot promise room is made to give it: nothing was written there yet.
            for position in range(start, end, 1 << 20):
                length = min(1 << 20, end - position)
                if not any(self.map[position : position + length]):
                    os.pwrite(self._descriptor, bytes(length), position)
        self.reserved = end

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
