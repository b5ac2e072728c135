"""Writing the broker's tables to disk, soon after they changed and never on the loop.

A table that changes a thousand times in a moment is written once: the document notes that it is stale, and
its task writes the newest state in a worker thread, at most once per interval.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class TableFile(Protocol):
    """Where a table goes: a :class:`~verniermq.kernel.jsonfile.JsonFile`, or a format of a plugin's own."""

    path: Path

    def save(self, data: Mapping[str, Any], /) -> None:
        """Write it and return when it is on the disk. Called in a worker thread, never twice at the same time.

        Raises:
            OSError: the disk refused; it is called again a little later.
        """
        ...


class Document:
    """One table and its file. ``snapshot`` is called on the loop and must return something nobody changes."""

    def __init__(self, file: TableFile, snapshot: Callable[[], Mapping[str, Any]], interval: float) -> None:
        self._file = file
        self._snapshot = snapshot
        self._interval = interval
        self._changes = 0
        self._written = 0
        self._changed = anyio.Event()
        self._saved = anyio.Event()

    def touch(self) -> None:
        """Note that the table changed."""
        self._changes += 1
        self._changed.set()

    async def saved(self) -> None:
        """Wait until everything up to now is on disk."""
        wanted = self._changes
        while self._written < wanted:
            await self._saved.wait()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            changes, data = self._changes, self._snapshot()
            try:
                await anyio.to_thread.run_sync(self._file.save, data)
            except OSError as error:
                logger.error("cannot write %s: %s; trying again in %g s", self._file.path, error, RETRY_SECONDS)
                self._changed.set()
                await anyio.sleep(RETRY_SECONDS)
                continue
            self._written = changes
            self._saved.set()
            self._saved = anyio.Event()
            await anyio.sleep(self._interval)

    def save_now(self) -> None:
        """Write what is not written yet; for the end, when the tasks are gone."""
        if self._written < self._changes:
            self._file.save(self._snapshot())
            self._written = self._changes


class Documents:
    """The documents of one broker."""

    def __init__(self) -> None:
        self._documents: list[Document] = []
        self._task_group: TaskGroup | None = None

    def add(self, file: TableFile, snapshot: Callable[[], Mapping[str, Any]], interval: float = 0.0) -> Document:
        document = Document(file, snapshot, interval)
        self._documents.append(document)
        if self._task_group is not None:
            self._task_group.start_soon(document.run)
        return document

    def start(self, task_group: TaskGroup) -> None:
        self._task_group = task_group
        for document in self._documents:
            task_group.start_soon(document.run)

    def save_now(self) -> None:
        for document in self._documents:
            document.save_now()
