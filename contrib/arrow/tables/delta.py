"""Delta tables, by delta-rs: ``OUT/messages/topic=orders`` is a table, whose log lies beside its files.

A commit carries the export's id and the batch's number as an application transaction, which is Delta's own mark against
doing a thing twice: Spark's ``txnAppId`` and ``txnVersion`` are the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, create_table_with_add_actions

from verniermq.contrib.arrow.checkpoint import ExportBatch
from verniermq.contrib.arrow.errors import TableChanged
from verniermq.contrib.arrow.layout import DataFile
from verniermq.contrib.arrow.offsets import as_json
from verniermq.contrib.arrow.partitions import DAY, Partitions
from verniermq.contrib.arrow.tables import table_name


class DeltaTables:
    suffix = "zstd.parquet"

    def __init__(self, out: Path, partitions: Partitions) -> None:
        self._folder = out / "messages"
        self._partitions = partitions

    def folder(self, topic: str) -> str:
        return table_name(topic)

    def path(self, topic: str) -> Path:
        return self._folder / f"topic={table_name(topic)}"

    def holds(self, topic: str, batch: ExportBatch) -> bool:
        path = self.path(topic)
        if not (path / "_delta_log").is_dir():
            return False
        table = DeltaTable(path)
        if table.metadata().name != topic:
            raise TableChanged(f"Delta table {path}", batch.name, f"it is of topic {table.metadata().name}")
        version = table.transaction_version(batch.export)
        return version is not None and version >= batch.number

    def commit(self, topic: str, batch: ExportBatch, files: Sequence[DataFile]) -> None:
        if self.holds(topic, batch):
            return
        path = self.path(topic)
        properties = commit_properties(topic, batch)
        names = [column.name for column in self._partitions.columns]
        actions = [_added(path, file, self._partitions) for file in files]
        written = pq.read_schema(files[0].path)
        added = [pa.field(name, pa.date32() if name == DAY else pa.string()) for name in names]
        schema = Schema.from_arrow(pa.schema([*written.remove_metadata(), *added]))
        try:
            if (path / "_delta_log").is_dir():
                _grow(DeltaTable(path), schema)
                DeltaTable(path).create_write_transaction(
                    list(actions), "append", schema, names, commit_properties=properties
                )
            else:
                create_table_with_add_actions(
                    str(path),
                    schema,
                    actions,
                    partition_by=names,
                    name=topic,
                    commit_properties=commit_properties(topic, batch),
                )
        except DeltaError as error:
            raise TableChanged(f"Delta table {path}", batch.name, error) from error


def commit_properties(topic: str, batch: ExportBatch) -> CommitProperties:
    return CommitProperties(
        custom_metadata={
            "verniermq.export": batch.export,
            "verniermq.batch": str(batch.number),
            "verniermq.offsets": json.dumps(as_json(batch.end).get(topic, {})),
        },
        app_transactions=[Transaction(batch.export, batch.number)],
    )


def _grow(table: DeltaTable, wanted: Schema) -> None:
    """Add what values have now and had not before; Delta's log is not told of a schema that does not fit.

    Raises:
        DeltaError: a column has another type, or is gone.
    """
    missing = {field.name for field in wanted.fields} - {field.name for field in table.schema().fields} - {"value"}
    if missing:
        raise DeltaError(f"it has no {', '.join(sorted(missing))} any more")
    if table.schema().to_json() != wanted.to_json():
        table.alter.add_columns(list(wanted.fields))


def _added(table: Path, file: DataFile, partitions: Partitions) -> AddAction:
    about = file.path.stat()
    return AddAction(
        path=file.path.relative_to(table).as_posix(),
        size=about.st_size,
        partition_values=dict(zip((column.name for column in partitions.columns), file.texts, strict=True)),
        modification_time=int(about.st_mtime * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": file.rows}),
    )
