"""Noticing that files have changed: by their times and sizes, which costs one call each."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import anyio

from verniermq.kernel.errors import VernierMQError

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0


Stamp = tuple[int, int, int]


class FileStamps:
    """What some files looked like when :meth:`changed` was last asked. One that is being replaced looks as before.

    Args:
        files: their paths; with stamps, if these were taken before
    """

    def __init__(self, files: Iterable[str] | Mapping[str, Stamp | None]) -> None:
        self.stamps: dict[str, Stamp | None] = dict(files) if isinstance(files, Mapping) else dict.fromkeys(files)
        if not isinstance(files, Mapping):
            self.changed()

    def changed(self) -> bool:
        """Whether one of them is another than at the last call."""
        changed = False
        for path, before in self.stamps.items():
            try:
                status = os.stat(path)
            except OSError:
                continue  # an editor is replacing it, or it cannot be read just now
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != before:
                self.stamps[path] = stamp
                changed = True
        return changed


async def watch_files(what: str, stamps: FileStamps, reload: Callable[[], None]) -> None:
    """Look at files every second, for ever, and have them read again when they change.

    ``stamps`` are made before the files are read for the first time, so that no change is missed.

    If they cannot be used (``reload`` raises), a line says so, and what there was stays. Two files that belong together
    do not fit between the one's change and the other's: that is said, and mended by the next look. No error of
    ``reload`` ends the watch.
    """
    while True:
        await anyio.sleep(LOOK_SECONDS)
        if stamps.changed():
            try:
                reload()
            except VernierMQError as error:
                logger.error("the changed %s not used, what there was stays: %s", what, error)
            except Exception:
                logger.exception("the changed %s not used, what there was stays", what)
