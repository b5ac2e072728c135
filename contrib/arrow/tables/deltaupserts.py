"""Delta tables with one row for each key: the files of a batch are merged into the table in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from verniermq.contrib.arrow.checkpoint import ExportBatch
from verniermq.contrib.arrow.errors import TableChanged
from verniermq.contrib.arrow.layout import DataFile, remove_files
from verniermq.contrib.arrow.partitions import Partitions
from verniermq.contrib.arrow.tables.delta import DeltaTables, commit_properties
from verniermq.contrib.arrow.upserts import DELETED, KEY, UpsertKey
from verniermq.contrib.arrow.values import ERRORS


class DeltaUpserts(DeltaTables):
    def __init__(self, out: Path, partitions: Partitions, key: UpsertKey) -> None:
        super().__init__(out, partitions)
        self._key = key

    def commit(self, topic: str, batch: ExportBatch, files: Sequence[DataFile]) -> None:
        if topic.endswith(ERRORS):
            super().commit(topic, batch, files)
            return
        if not self.holds(topic, batch):
            self._merge(topic, batch, files)
        remove_files(files)

    def _merge(self, topic: str, batch: ExportBatch, files: Sequence[DataFile]) -> None:
        path = self.path(topic)
        rows = self._key.newest(topic, files)
        try:
            if not (path / "_delta_log").is_dir():
                schema = rows.drop_columns([DELETED]).schema.remove_metadata()
                DeltaTable.create(path, Schema.from_arrow(schema), name=topic)
            (
                DeltaTable(path)
                .merge(
                    rows,
                    f"t.{KEY} = s.{KEY}",
                    source_alias="s",
                    target_alias="t",
                    merge_schema=True,
                    commit_properties=commit_properties(topic, batch),
                )
                .when_matched_delete(f"s.{DELETED}")
                .when_matched_update_all(except_cols=[DELETED])
                .when_not_matched_insert_all(f"not s.{DELETED}", except_cols=[DELETED])
                .execute()
            )
        except DeltaError as error:
            raise TableChanged(f"Delta table {path}", batch.name, error) from error
