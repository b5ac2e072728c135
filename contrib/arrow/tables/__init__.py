"""What an export's files are part of: nothing, an Iceberg table, or a Delta table, one for each topic.

The files are the same and lie in the same places. A table's commit names them and, in the same step, the batch that
they are of, so a batch that runs again after a crash finds out that it is in the table already.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from verniermq.contrib.arrow.checkpoint import ExportBatch
from verniermq.contrib.arrow.errors import BadFormat, FormatChanged, NoTableLibrary
from verniermq.kernel import DEAD_LETTER_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from verniermq.contrib.arrow.layout import DataFile

FORMATS: Final = ("parquet", "jsonl", "iceberg", "delta")
NOTE: Final = "_format"
"""A file that says of which format an export is."""


class TableFormat(Protocol):
    suffix: str
    """What the names of files end with."""

    def folder(self, topic: str) -> str:
        """What stands for a topic in the names of folders."""
        ...

    def holds(self, topic: str, batch: ExportBatch) -> bool:
        """Whether a topic's table has this batch already."""
        ...

    def commit(self, topic: str, batch: ExportBatch, files: Sequence[DataFile]) -> None:
        """Add the files of a batch to a topic's table, all or none.

        Raises:
            TableChanged: somebody else changed the table in a way that these files do not fit.
        """
        ...


class PlainFiles:
    """Files that any reader of theirs finds by itself."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix

    def folder(self, topic: str) -> str:
        return topic

    def holds(self, topic: str, batch: ExportBatch) -> bool:
        return False

    def commit(self, topic: str, batch: ExportBatch, files: Sequence[DataFile]) -> None:
        """They are there."""


def table_format(name: str, out: Path, catalog: str = "", namespace: str = "mq") -> TableFormat:
    """
    Raises:
        BadFormat: there is no such format.
        FormatChanged: the folder has an export of another one.
        NoTableLibrary: what it needs is not installed.
    """
    if name not in FORMATS:
        raise BadFormat(name, FORMATS)
    _note(name, out)
    if name in ("parquet", "jsonl"):
        return PlainFiles("zstd.parquet" if name == "parquet" else "jsonl")
    try:
        if name == "iceberg":
            from verniermq.contrib.arrow.tables.iceberg import IcebergTables

            return IcebergTables(out, catalog, namespace)
        from verniermq.contrib.arrow.tables.delta import DeltaTables

        return DeltaTables(out)
    except ImportError as error:
        raise NoTableLibrary(name, error) from error


def _note(name: str, out: Path) -> None:
    path = out / NOTE
    if path.exists():
        found = path.read_text().strip()
    else:
        # Exports before there were several formats left no note, and were Parquet.
        found = "parquet" if (out / "_checkpoint" / "offsets").is_dir() else name
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(found)
    if found != name:
        raise FormatChanged(out, found, name)


def table_name(topic: str) -> str:
    """A topic's name for a table and its folder, without a %, which addresses cannot have everywhere.

    Retries and dead letters are named after their group.
    """
    for prefix, suffix in ((DEAD_LETTER_PREFIX, "__dlq"), (RETRY_PREFIX, "__retry")):
        if topic.startswith(prefix):
            return table_name(topic.removeprefix(prefix)) + suffix
    return topic.replace("%", "_").replace("|", "_")
