"""The small files of an Iceberg table put together, and the files of snapshots that expired."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import parquet_files_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from verniermq.contrib.arrow.errors import TableChanged
from verniermq.contrib.arrow.partitions import DAY, NO_VALUE
from verniermq.contrib.arrow.rows import ParquetRows
from verniermq.contrib.arrow.tables.iceberg import address

ATTEMPTS: Final = 5
FEWEST: Final = 2
"""Files that are worth being put together."""


def merge_files(table: Table, target_bytes: int, folder: Path) -> tuple[int, int]:
    """Put the small files of each partition together; return how many there were, and how many there are instead.

    Raises:
        TableChanged: somebody else changed the table again and again.
    """
    for _ in range(ATTEMPTS):
        groups = list(_groups(table, target_bytes))
        written = [(_written(table, group, folder), group) for group in groups]
        if not written:
            return 0, 0
        try:
            _replace(table, written)
            return sum(map(len, groups)), len(groups)
        except CommitFailedException as error:
            failure = error
            for path, _ in written:
                path.unlink(missing_ok=True)
            table.refresh()
    raise TableChanged(f"Iceberg table {'.'.join(table.name())}", "of a compaction", failure)


def expire(table: Table, age: timedelta) -> int:
    """Forget older snapshots, and delete the files that only they had; return how many files that were."""
    before = _paths(table)
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC) - age).commit()
    gone = before - _paths(table.refresh())
    for path in gone:
        Path(path.removeprefix("file://")).unlink(missing_ok=True)
    return len(gone)


def _paths(table: Table) -> set[str]:
    return set(table.inspect.all_files()["file_path"].to_pylist())


def _groups(table: Table, target_bytes: int) -> Iterator[list[DataFile]]:
    """Files of one partition each that are as large as the target together."""
    by_partition: dict[Any, list[DataFile]] = defaultdict(list)
    for task in table.scan().plan_files():
        if task.file.file_size_in_bytes < target_bytes and not task.delete_files:
            by_partition[tuple(task.file.partition[at] for at in range(len(task.file.partition)))].append(task.file)
    for files in by_partition.values():
        group: list[DataFile] = []
        for file in sorted(files, key=lambda file: file.file_path):
            if group and sum(one.file_size_in_bytes for one in group) + file.file_size_in_bytes > target_bytes:
                if len(group) >= FEWEST:
                    yield group
                group = []
            group.append(file)
        if len(group) >= FEWEST:
            yield group


def _written(table: Table, group: list[DataFile], folder: Path) -> Path:
    """One file with the rows of several, in columns as the table has them now."""
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    beside = Path(group[0].file_path.removeprefix("file://")).parents[1]
    # Tables with a key have their files elsewhere, and no partitions.
    place = beside if beside.is_relative_to(folder) else folder / f"{DAY}={NO_VALUE}"
    path = place / f"compacted-{uuid.uuid4()}" / "part-00000.zstd.parquet"
    path.parent.mkdir(parents=True)
    paths = [file.file_path.removeprefix("file://") for file in group]
    rows = ParquetRows(path, schema)
    for batch in pyarrow.dataset.dataset(paths, schema=schema).to_batches():
        rows.write(batch)
    rows.close()
    return path


def _replace(table: Table, written: list[tuple[Path, list[DataFile]]]) -> None:
    with table.transaction() as transaction:
        if table.name_mapping() is None:
            transaction.set_properties({"schema.name-mapping.default": table.schema().name_mapping.model_dump_json()})
        with transaction.update_snapshot({"verniermq.compaction": "true"}).overwrite() as change:
            for path, group in written:
                for file in group:
                    change.delete_data_file(file)
                for made in parquet_files_to_data_files(table.io, transaction.table_metadata, iter([address(path)])):
                    change.append_data_file(made)
