"""What an export's files are part of: nothing, an Iceberg table, or a Delta table, one for each topic.

The files are the same and lie in the same places. A table's commit names them and, in the same step, the batch that
they are of, so a batch that runs again after a crash finds out that it is in the table already.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from verniermq.contrib.arrow.checkpoint import ExportBatch
from verniermq.contrib.arrow.errors import BadFormat, FormatChanged, NoTableLibrary, PartitionsChanged
from verniermq.contrib.arrow.partitions import Partitions
from verniermq.kernel import DEAD_LETTER_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from verniermq.contrib.arrow.layout import DataFile
    from verniermq.contrib.arrow.upserts import UpsertKey

FORMATS: Final = ("parquet", "jsonl", "iceberg", "delta")
NOTE: Final = "_format"
"""A file that says of which format an export is."""
MODE_NOTE: Final = "_mode"
"""One that says by which key its tables are, if they have one row for each."""
PARTITIONS_NOTE: Final = "_partitions"
"""One that says by which columns its folders are, if not by day alone."""


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


def table_format(
    name: str,
    out: Path,
    catalog: str = "",
    namespace: str = "mq",
    key: UpsertKey | None = None,
    partitions: Partitions | None = None,
) -> TableFormat:
    """
    Args:
        key: of a table with one row for each key
        partitions: by what its files are in folders; by day, if it is not told

    Raises:
        BadFormat: there is no such format, or it has no keys.
        FormatChanged: the folder has an export of another one.
        PartitionsChanged: the folder has an export by other columns.
        NoTableLibrary: what it needs is not installed.
    """
    if name not in FORMATS:
        raise BadFormat(name, FORMATS)
    if key is not None and name not in ("iceberg", "delta"):
        raise BadFormat(f"{name} with --mode upsert", ("iceberg", "delta"))
    _note(out / NOTE, "parquet" if (out / "_checkpoint" / "offsets").is_dir() else name, name)
    if key is not None or (out / MODE_NOTE).exists():
        before = "append" if (out / "_checkpoint" / "offsets").is_dir() else ""
        mode = "append" if key is None else f"upsert by {key.text}"
        _note(out / MODE_NOTE, before or mode, mode)
    by = partitions or Partitions()
    note_partitions(out, by)
    if name in ("parquet", "jsonl"):
        return PlainFiles("zstd.parquet" if name == "parquet" else "jsonl")
    try:
        if name == "iceberg":
            from verniermq.contrib.arrow.tables.iceberg import IcebergTables
            from verniermq.contrib.arrow.tables.icebergupserts import IcebergUpserts

            if key is not None:
                return IcebergUpserts(out, catalog, namespace, by, key)
            return IcebergTables(out, catalog, namespace, by)
        from verniermq.contrib.arrow.tables.delta import DeltaTables
        from verniermq.contrib.arrow.tables.deltaupserts import DeltaUpserts

        if key is not None:
            return DeltaUpserts(out, by, key)
        return DeltaTables(out, by)
    except ImportError as error:
        raise NoTableLibrary(name, error) from error


def _note(path: Path, at_first: str, name: str) -> None:
    """Note what an export is, and see that it is still the same. Exports before there were notes were Parquet."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(at_first)
    found = path.read_text().strip()
    if found != name:
        raise FormatChanged(path.parent, found, name)


def note_partitions(out: Path, by: Partitions) -> None:
    """Note by which columns an export is, and see that it is still by the same. Without a note it is by day."""
    path, usual = out / PARTITIONS_NOTE, Partitions().text
    if by.text != usual and not path.exists() and not (out / "_checkpoint" / "offsets").is_dir():
        path.write_text(by.text)
    found = path.read_text().strip() if path.exists() else usual
    if found != by.text:
        raise PartitionsChanged(out, found, by.text)


def table_name(topic: str) -> str:
    """A topic's name for a table and its folder, without a %, which addresses cannot have everywhere.

    Retries and dead letters are named after their group.
    """
    for prefix, suffix in ((DEAD_LETTER_PREFIX, "__dlq"), (RETRY_PREFIX, "__retry")):
        if topic.startswith(prefix):
            return table_name(topic.removeprefix(prefix)) + suffix
    return topic.replace("%", "_").replace("|", "_")
