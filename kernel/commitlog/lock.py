"""One broker per store: the ``lock`` file, and the ``abort`` mark of one that is running.

``lock`` holds the four letters ``lock``; the broker that runs has an exclusive lock on its first byte, as a Java
broker takes it, so that either keeps the other out. The kernel lets go of it when the process ends, however
that happens. ``abort`` holds the process id while a broker runs; found at start, it means that the last one
did not stop in order.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from verniermq.kernel.commitlog.mapped import sync_directory, write_all
from verniermq.kernel.errors import StoreLocked

_held: set[tuple[int, int]] = set()
"""Device and inode of the lock files held by this process: the kernel's locks do not keep it from itself."""


class StoreLock:
    """Held from construction to :meth:`release`.

    Raises:
        StoreLocked: another broker has it.
    """

    def __init__(self, root: Path) -> None:
        import fcntl  # which only Unix has: clients, which import the kernel's types, run elsewhere too

        path = root / "lock"
        try:
            stat = path.stat()
            # Looked up first: opening and closing the file once more would drop the lock of our own process.
            if (stat.st_dev, stat.st_ino) in _held:
                raise StoreLocked(root)
        except FileNotFoundError:
            pass
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(self._descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise StoreLocked(root) from None
            raise
        stat = os.fstat(self._descriptor)
        if stat.st_size == 0:
            try:
                write_all(self._descriptor, b"lock", 0)
            except OSError:
                os.close(self._descriptor)
                raise
        self._identity = (stat.st_dev, stat.st_ino)
        _held.add(self._identity)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            _held.discard(self._identity)


class AbortMark:
    """The ``abort`` file."""

    def __init__(self, root: Path) -> None:
        self._path = root / "abort"

    @property
    def is_set(self) -> bool:
        return self._path.exists()

    def set(self) -> None:
        """Say that a broker runs, durably: it must be there before the first append can be half done."""
        self._path.with_name("abort.bak").touch()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            write_all(descriptor, str(os.getpid()).encode(), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(self._path.parent)

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)
