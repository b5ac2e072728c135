"""A disk with little room left: writes become short and then fail, as on a real one."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest


class FullDisk:
    """While in place, ``os.pwrite`` writes ``room`` bytes more, the last ones short, and then refuses.

    What has its room on the disk already can be written over at any time.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        """``None``: as much as one likes."""
        self._pwrite = os.pwrite
        self._ends: dict[int, int] = {}
        patch.setattr(os, "pwrite", self._write)

    def _write(self, descriptor: int, data: Any, position: int) -> int:
        inode = os.fstat(descriptor).st_ino
        end = self._ends.get(inode, 0)
        free = len(data) if self.room is None else max(end - position, 0) + self.room
        if not free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._pwrite(descriptor, bytes(data)[:free], position)
        self._ends[inode] = max(end, position + written)
        if self.room is not None:
            self.room -= self._ends[inode] - max(end, position)
        return written
