"""One export at a time into a folder: a file names the processes that write there.

Killed with -9, the Python of an export may be gone before its Java is, which then still writes for a moment.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Final

from verniermq.contrib.arrow.errors import TableError

POLL_SECONDS: Final = 0.25
WAIT_SECONDS: Final = 30.0


class ExportRuns(TableError):
    def __init__(self, lock: Path, pids: object) -> None:
        super().__init__(f"another export writes there already (processes {pids}, see {lock}); stop it first")


class ExportLock:
    """The file, in the folder that is written to."""

    def __init__(self, out: Path) -> None:
        self._path = out / "_export.lock"

    def take(self) -> None:
        """
        Raises:
            ExportRuns: another export does not end.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + WAIT_SECONDS
        while alive := [pid for pid in self._pids() if pid != os.getpid() and _runs(pid)]:
            if time.monotonic() > deadline or _is_export(alive[0]):
                raise ExportRuns(self._path, alive)
            time.sleep(POLL_SECONDS)
        self.note(0)

    def note(self, java: int) -> None:
        self._path.write_text(json.dumps([pid for pid in (os.getpid(), java) if pid]))

    def _pids(self) -> list[int]:
        try:
            return [int(pid) for pid in json.loads(self._path.read_text())]
        except (OSError, ValueError):
            return []

    def release(self) -> None:
        self._path.unlink(missing_ok=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True


def _is_export(pid: int) -> bool:
    """Whether it is the Python of an export, which will not end by itself, and not the Java that outlived it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"export" in words
