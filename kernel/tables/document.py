"""Writing the broker's tables to disk, soon after they changed and never on the loop.

A table that changes a thousand times in a moment is written once: the document notes that it is stale, and
its task writes the newest state in a worker thread, at most once per interval.

A table that cannot be written, for whatever reason, is tried again after a pause that grows (1, 2, 4 … 30 s). It
never ends the broker and never keeps the other tables from the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from verniermq.kernel.errors import TableNotSaved

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0


class TableFile(Protocol):
    """Where a table goes: a :class:`~verniermq.kernel.tables.jsonfile.JsonFile`, or a format of a plugin's own."""

    path: Path

    def save(self, data: Mapping[str, Any], /) -> None:
        """Write it and return when it is on the disk. Called in a worker thread, never twice at the same time.

        Raises:
            OSError: the disk refused; it is called again a little later.
        """
        ...


class Document:
    """One table and its file. ``snapshot`` is called on the loop and must return something nobody changes."""

    def __init__(
        self,
        file: TableFile,
        snapshot: Callable[[], Mapping[str, Any]],
        interval: float,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``prepare`` is awaited before ``snapshot``, for a table so large that it is made in steps."""
        self._file = file
        self._prepare = prepare
        self._snapshot = snapshot
        self._interval = interval
        self.failures = 0
        """How often it could not be written."""
        self._changes = 0
        self._written = 0
        self._changed = anyio.Event()
        self._tried = anyio.Event()
        """Set after each attempt to write."""
        self._error: Exception | None = None
        """Of the last attempt."""
        self._tried_changes = 0
        """Those that the last attempt was to write."""

    @property
    def path(self) -> Path:
        return self._file.path

    def touch(self) -> None:
        """Note that the table changed."""
        self._changes += 1
        self._changed.set()

    @property
    def changes(self) -> int:
        """How often the table changed so far."""
        return self._changes

    def has_saved(self, changes: int) -> bool:
        """Whether the disk has the table as it was after so many changes, or as it became since."""
        return self._written >= changes

    def failure(self, changes: int) -> TableNotSaved | None:
        """Why the last attempt could not write the table as it was after so many changes, if it was to.

        It is tried again sooner now: somebody wants it.
        """
        if self._error is None or not self._written < changes <= self._tried_changes:
            return None
        self._changed.set()
        return TableNotSaved(self._file.path, self._error)

    async def saved(self, changes: int | None = None) -> None:
        """Wait until the disk has the table as it was after so many changes, or with everything up to now.

        Raises:
            TableNotSaved: it could not be written; it is tried again all the same.
        """
        wanted = self._changes if changes is None else changes
        while self._written < wanted:
            await self._tried.wait()
            if self._error is not None:
                raise TableNotSaved(self._file.path, self._error)

    async def run(self) -> None:
        pause = RETRY_SECONDS
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            try:
                if self._prepare is not None:
                    await self._prepare()
                changes = self._tried_changes = self._changes
                await anyio.to_thread.run_sync(self._file.save, self._snapshot())
            except Exception as error:
                self._failed(error, f"trying again in {pause:g} s")
                self._end_attempt(error)
                await self._wait_to_retry(pause)
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)
                continue
            pause = RETRY_SECONDS
            self._written = changes
            self._end_attempt(None)
            await anyio.sleep(self._interval)

    def _end_attempt(self, error: Exception | None) -> None:
        self._error = error
        self._tried.set()
        self._tried = anyio.Event()

    async def _wait_to_retry(self, pause: float) -> None:
        """A new change ends a long pause, and so does one that is asked for: somebody waits for it."""
        await anyio.sleep(RETRY_SECONDS)
        with anyio.move_on_after(pause - RETRY_SECONDS):
            await self._changed.wait()
        self._changed.set()

    def save_now(self) -> None:
        """Write what is not written yet; for the end, when the tasks are gone. Nobody is left to try again."""
        if self._written < self._changes:
            try:
                self._file.save(self._snapshot())
                self._written = self._changes
            except Exception as error:
                self._failed(error, "what changed since it was written last is lost")

    def _failed(self, error: Exception, what_now: str) -> None:
        self.failures += 1
        # The disk's refusal says it all; anything else is a mistake of ours that somebody has to find.
        cause = None if isinstance(error, OSError) else error
        logger.error(
            "cannot write %s: %s; %s failures=%d", self._file.path, error, what_now, self.failures, exc_info=cause
        )


class Documents:
    """The documents of one broker."""

    def __init__(self) -> None:
        self._documents: list[Document] = []
        self._task_group: TaskGroup | None = None

    def add(
        self,
        file: TableFile,
        snapshot: Callable[[], Mapping[str, Any]],
        interval: float = 0.0,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> Document:
        document = Document(file, snapshot, interval, prepare)
        self._documents.append(document)
        if self._task_group is not None:
            self._task_group.start_soon(document.run)
        return document

    @property
    def paths(self) -> set[Path]:
        """The files that are kept."""
        return {document.path for document in self._documents}

    def start(self, task_group: TaskGroup) -> None:
        self._task_group = task_group
        for document in self._documents:
            task_group.start_soon(document.run)

    def save_now(self) -> None:
        for document in self._documents:
            document.save_now()

    @property
    def failures(self) -> int:
        """How often one of them could not be written."""
        return sum(document.failures for document in self._documents)
