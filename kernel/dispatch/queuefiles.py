"""The open files of all consume queues: a store may have a hundred thousand, and a process only so many open.

Files are made at their full length, sparse, and read and written at a position. A file that is not in use is
closed when others are needed; one in use by another thread stays open until that thread has done.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path

from verniermq.kernel.commitlog.mapped import sync_data, sync_directory, sync_filesystem

SYNCED_ONE_BY_ONE = 64
"""A sync of more files than this asks the file system to sync everything, which is one call."""


class _Handle:
    """An open file that is closed when nobody holds it any more, so that no thread closes it under another."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class QueueFiles:
    """The open files of all consume queues of a store: at most ``limit``, the least recently used goes first."""

    def __init__(self, root: Path, file_size: int, limit: int) -> None:
        self.file_size = file_size
        self._root = root
        self._limit = limit
        self._handles: OrderedDict[str, _Handle] = OrderedDict()
        self.new_directories: set[str] = set()
        """Where files were made since the last sync: their names are not durable yet."""
        self.copying = threading.Lock()
        """Held for the moment in which the newest entries are copied, or let go of."""
        self.deleting = threading.Lock()
        """Held while files are made or removed, so that a deleted topic does not come back half."""

    def get(self, path: str) -> _Handle | None:
        """The file if it exists."""
        handle = self._handles.get(path)
        if handle is None:
            try:
                handle = _Handle(os.open(path, os.O_RDWR))
            except FileNotFoundError:
                return None
            self._keep(path, handle)
        else:
            try:
                self._handles.move_to_end(path)
            except KeyError:
                pass  # another thread just made room; ours is still open
        return handle

    def create(self, path: str) -> _Handle:
        """The file, made at its full length if need be."""
        handle = self.get(path)
        if handle is None:
            directory = os.path.dirname(path)
            try:
                os.mkdir(directory)
            except FileExistsError:
                pass
            except FileNotFoundError:
                os.makedirs(directory, exist_ok=True)
            topic = os.path.dirname(directory)
            self.new_directories.update((directory, topic, os.path.dirname(topic)))
            handle = _Handle(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))
            os.ftruncate(handle.descriptor, self.file_size)
            self._keep(path, handle)
        return handle

    def sync(self, paths: set[str]) -> None:
        """Make files and the names of new ones durable. For a worker thread.

        Raises:
            OSError: the disk failed.
        """
        directories, self.new_directories = self.new_directories, set()
        try:
            if len(paths) + len(directories) > SYNCED_ONE_BY_ONE:
                sync_filesystem(self._root)
                return
            for path in paths:
                handle = self.get(path)
                if handle is not None:
                    sync_data(handle.descriptor)
            for directory in directories:
                try:
                    sync_directory(Path(directory))
                except FileNotFoundError:
                    pass  # its topic was deleted meanwhile
        except OSError:
            self.new_directories |= directories
            raise

    def forget(self, path: str) -> None:
        self._handles.pop(path, None)

    def close(self) -> None:
        self._handles.clear()

    def _keep(self, path: str, handle: _Handle) -> None:
        self._handles[path] = handle
        if len(self._handles) > self._limit:
            self._handles.popitem(last=False)
