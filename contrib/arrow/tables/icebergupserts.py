"""Iceberg tables with one row for each key: a batch replaces the rows of its keys in one commit."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.expressions import BooleanExpression, In
from pyiceberg.table import Table

from verniermq.contrib.arrow.checkpoint import ExportBatch
from verniermq.contrib.arrow.errors import TableChanged
from verniermq.contrib.arrow.layout import DataFile, remove_files
from verniermq.contrib.arrow.partitions import Partitions
from verniermq.contrib.arrow.tables.iceberg import ATTEMPTS, IcebergTables, about, holds_batch, property_of
from verniermq.contrib.arrow.upserts import DELETED, KEY, UpsertKey
from verniermq.contrib.arrow.values import ERRORS


class IcebergUpserts(IcebergTables):
    def __init__(self, out: Path, catalog: str, namespace: str, partitions: Partitions, key: UpsertKey) -> None:
        super().__init__(out, catalog, namespace, partitions)
        self._key = key

    def commit(self, topic: str, batch: ExportBatch, files: Sequence[DataFile]) -> None:
        if topic.endswith(ERRORS):
            super().commit(topic, batch, files)
            return
        if not self.holds(topic, batch):
            self._merge(topic, batch, self._key.newest(topic, files))
        remove_files(files)

    def _merge(self, topic: str, batch: ExportBatch, rows: pa.Table) -> None:
        name = f"Iceberg table {self._name(topic)}"
        live = rows.filter(pc.invert(rows[DELETED])).drop_columns([DELETED]).replace_schema_metadata()
        live = live.cast(pa.schema([field.with_nullable(True) for field in live.schema]))
        for attempt in range(ATTEMPTS):
            table = self._table(topic) or self._create_for(topic, live.schema, Partitions(()))
            if holds_batch(table, batch):
                return
            try:
                _replace(table, topic, batch, rows[KEY].to_pylist(), live)
                return
            except CommitFailedException as error:
                if attempt == ATTEMPTS - 1:
                    raise TableChanged(name, batch.name, error) from error
            except (ValueError, ValidationError) as error:
                raise TableChanged(name, batch.name, error) from error


def _replace(table: Table, topic: str, batch: ExportBatch, keys: list[str], live: pa.Table) -> None:
    with table.transaction() as transaction, warnings.catch_warnings():
        # Keys that are new delete nothing, which pyiceberg warns of.
        warnings.simplefilter("ignore", UserWarning)
        transaction.set_properties({property_of(batch): str(batch.number)})
        with transaction.update_schema() as change:
            change.union_by_name(live.schema)
        if table.current_snapshot() is None:
            transaction.append(live, snapshot_properties=about(topic, batch))
        else:
            same: BooleanExpression = In(KEY, keys)  # type: ignore[call-arg, arg-type]
            transaction.overwrite(live, overwrite_filter=same, snapshot_properties=about(topic, batch))
