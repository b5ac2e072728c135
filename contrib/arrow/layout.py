"""The folders of an export, and the files of one batch in them.

::

    OUT/messages/topic=orders/dt=2026-03-01/batch=1f0c2d3e-7/part-00000.zstd.parquet
    OUT/topics/batch=1f0c2d3e-7/…
    OUT/groups/batch=1f0c2d3e-7/…

A batch is written beside them, in a folder that readers pass over, and moved to its places when it is whole. One that
runs again replaces what its first try left: its folders carry its number.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import pyarrow as pa

from verniermq.contrib.arrow.checkpoint import ExportBatch
from verniermq.contrib.arrow.errors import TableChanged, TooManyFolders
from verniermq.contrib.arrow.partitions import Partitions, Texts, escaped
from verniermq.contrib.arrow.rows import RowFile, open_rows
from verniermq.contrib.arrow.tables import TableFormat

STAGING: Final = ".export-staging"
MOST_FOLDERS: Final = 500
"""Of one topic in one batch: each has a file that is open, and a process may have 1,024."""


@attrs.frozen
class DataFile:
    """A file of one batch, where readers find it."""

    topic: str
    texts: Texts
    """What the names of its folders say."""
    path: Path
    rows: int


def clean(out: Path) -> None:
    """Remove what a killed export left half written, this one or Spark's."""
    for folder in ("messages", "topics", "groups"):
        for left in (*(out / folder).glob(".spark-staging-*"), *(out / folder).glob(f"{STAGING}-*")):
            shutil.rmtree(left, ignore_errors=True)


class BatchFiles:
    """Writes the messages of one batch, by topic and partition. Topics have to come one after the other."""

    def __init__(
        self,
        out: Path,
        batch: ExportBatch,
        table: TableFormat,
        partitions: Partitions,
        part: str = "rows",
        target_bytes: int | None = None,
    ) -> None:
        self._folder = out / "messages"
        self._staging = self._folder / f"{STAGING}-{batch.name}-{part}"
        self._batch = batch
        self._table = table
        self._partitions = partitions
        self._topic = ""
        self._is_held = False
        self._folders: dict[str, str] = {}
        self._target = target_bytes
        """A file that is as large is followed by another."""
        self._parts: Counter[str] = Counter()
        self._open: dict[Texts, tuple[Path, RowFile]] = {}
        self._done: list[DataFile] = []
        shutil.rmtree(self._staging, ignore_errors=True)

    def write(self, topic: str, rows: pa.RecordBatch) -> None:
        """Rows of one topic, with the columns that say where they belong.

        Nothing is done for a topic whose table has this batch already.

        Raises:
            TableChanged: the table is of another topic.
            TooManyFolders: a column has too many values to have a folder for each.
        """
        if topic != self._topic:
            self._close_files()
            self._topic = topic
            other = self._folders.setdefault(self._table.folder(topic), topic)
            if other != topic:
                raise TableChanged(f"the table of topic {topic}", self._batch.name, f"it is of topic {other}")
            self._is_held = self._table.holds(topic, self._batch)
        if self._is_held:
            return
        for texts, some in self._partitions.split(self._partitions.with_members(rows)):
            if texts not in self._open:
                if len(self._open) == MOST_FOLDERS:
                    raise TooManyFolders(topic, self._batch.name, self._partitions.text, MOST_FOLDERS)
                name = escaped(self._table.folder(topic))
                folder = f"topic={name}/{self._partitions.folder(texts)}/batch={self._batch.name}"
                (self._staging / folder).mkdir(parents=True, exist_ok=True)
                path = Path(folder, f"part-{self._parts[folder]:05}.{self._table.suffix}")
                self._parts[folder] += 1
                self._open[texts] = path, open_rows(self._staging / path, some.schema)
            path, file = self._open[texts]
            file.write(some)
            if self._target is not None and file.size >= self._target:
                del self._open[texts]
                self._done.append(DataFile(self._topic, texts, self._folder / path, file.close()))

    def publish(self) -> list[DataFile]:
        """Move the files to where readers look; those of an earlier try go."""
        self._close_files()
        for folder in dict.fromkeys(file.path.parent for file in self._done):
            move_folder(self._staging / folder.relative_to(self._folder), folder)
        shutil.rmtree(self._staging, ignore_errors=True)
        return self._done

    def discard(self) -> None:
        """Leave nothing behind."""
        for _, file in self._open.values():
            file.abort()
        shutil.rmtree(self._staging, ignore_errors=True)

    def _close_files(self) -> None:
        for texts, (path, file) in self._open.items():
            self._done.append(DataFile(self._topic, texts, self._folder / path, file.close()))
        self._open.clear()


def write_table(out: Path, name: str, batch: str, table: pa.Table) -> None:
    """A small table of one batch."""
    staging = out / name / f"{STAGING}-{batch}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    file = open_rows(staging / "part-00000.zstd.parquet", table.schema)
    for rows in table.to_batches():
        file.write(rows)
    file.close()
    move_folder(staging, out / name / f"batch={batch}")


def move_folder(source: Path, target: Path) -> None:
    """Put a folder in the place of another, if there is one, and have both on the disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    source.rename(target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_files(files: Sequence[DataFile]) -> None:
    """Remove the files of a batch that a table does not need, with the folders that were theirs."""
    for file in files:
        file.path.unlink(missing_ok=True)
    for folder in {file.path.parent for file in files}:
        shutil.rmtree(folder, ignore_errors=True)
