"""Iceberg tables, by pyiceberg: the files of an export are added to the table of their topic as they are.

Without a catalog there is a file ``OUT/catalog.db``; ``OUT/iceberg`` has the tables' metadata. One transaction adds a
batch's files and sets a property of the table, ``verniermq.batch.<export>``, to the batch's number; the snapshot says
the same, with the offsets, but snapshots expire.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationError
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, Transform

from verniermq.contrib.arrow.checkpoint import ExportBatch
from verniermq.contrib.arrow.errors import TableChanged
from verniermq.contrib.arrow.layout import DataFile
from verniermq.contrib.arrow.offsets import as_json
from verniermq.contrib.arrow.partitions import DAY, HOUR, Partitions
from verniermq.contrib.arrow.tables import table_name

TOPIC: Final = "verniermq.topic"
"""A property of a table: what it is of."""
TRANSFORMS: Final[dict[str, tuple[Transform[Any, Any], str]]] = {
    DAY: (DayTransform(), "storeDay"),
    HOUR: (HourTransform(), "storeHour"),
}
"""Partition → what Iceberg makes of the time at which a message was stored, and how it is called."""
ATTEMPTS: Final = 5
"""Somebody else may commit at the same time; then the newest table is taken, and it is tried again."""


class IcebergTables:
    suffix = "zstd.parquet"

    def __init__(self, out: Path, catalog: str, namespace: str, partitions: Partitions) -> None:
        self._partitions = partitions
        self._metadata = out / "iceberg"
        self._namespace = namespace
        self._catalog: Catalog = load_catalog(catalog) if catalog else open_catalog(out)
        self._catalog.create_namespace_if_not_exists(namespace)

    def folder(self, topic: str) -> str:
        return table_name(topic)

    def holds(self, topic: str, batch: ExportBatch) -> bool:
        table = self._table(topic)
        if table is not None and table.properties.get(TOPIC) != topic:
            why = f"it is of topic {table.properties.get(TOPIC)}"
            raise TableChanged(f"Iceberg table {self._name(topic)}", batch.name, why)
        return table is not None and holds_batch(table, batch)

    def commit(self, topic: str, batch: ExportBatch, files: Sequence[DataFile]) -> None:
        for attempt in range(ATTEMPTS):
            table = self._table(topic) or self._create_for(topic, _nullable(files[0]), self._partitions)
            if holds_batch(table, batch):
                return
            missing = set(_nullable(files[0]).names) - set(table.schema().as_arrow().names) - {"value"}
            if missing:
                why = f"it has no {', '.join(sorted(missing))} any more"
                raise TableChanged(f"Iceberg table {self._name(topic)}", batch.name, why)
            try:
                _add(table, topic, batch, files)
                return
            except CommitFailedException as error:
                if attempt == ATTEMPTS - 1:
                    raise TableChanged(f"Iceberg table {self._name(topic)}", batch.name, error) from error
            except (ValueError, ValidationError) as error:
                raise TableChanged(f"Iceberg table {self._name(topic)}", batch.name, error) from error

    def _name(self, topic: str) -> tuple[str, str]:
        return self._namespace, table_name(topic)

    def _table(self, topic: str) -> Table | None:
        try:
            return self._catalog.load_table(self._name(topic))
        except NoSuchTableError:
            return None

    def _create_for(self, topic: str, schema: pa.Schema, partitions: Partitions) -> Table:
        """A table for files with these columns. Every column may be null: a later batch may lack it."""
        location = address(self._metadata / self._namespace / table_name(topic))
        with (
            self._catalog.create_table_transaction(
                self._name(topic), schema, location, properties={TOPIC: topic}
            ) as transaction,
            transaction.update_spec() as spec,
        ):
            for column in partitions.columns:
                # The table of errors lacks most columns, and one without types all members of values.
                if column.source in schema.names:
                    transform, name = TRANSFORMS.get(column.column, (IdentityTransform(), column.name))
                    spec.add_field(column.source, transform, name)
        return self._catalog.load_table(self._name(topic))


def open_catalog(out: Path) -> SqlCatalog:
    """The catalog of an export's folder, for whoever reads it too."""
    return SqlCatalog("verniermq", uri=f"sqlite:///{out.resolve()}/catalog.db", warehouse=address(out))


def address(path: Path) -> str:
    """A path as Iceberg writes it: readers take it as it is, so nothing in it is quoted."""
    return f"file://{path.resolve()}"


def _nullable(file: DataFile) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in pq.read_schema(file.path).remove_metadata()])


def property_of(batch: ExportBatch) -> str:
    return f"verniermq.batch.{batch.export}"


def holds_batch(table: Table, batch: ExportBatch) -> bool:
    return int(table.properties.get(property_of(batch), "-1")) >= batch.number


def about(topic: str, batch: ExportBatch) -> dict[str, str]:
    """What a snapshot says of the batch that it added."""
    return {
        "verniermq.export": batch.export,
        "verniermq.batch": str(batch.number),
        "verniermq.offsets": json.dumps(as_json(batch.end).get(topic, {})),
    }


def _add(table: Table, topic: str, batch: ExportBatch, files: Sequence[DataFile]) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({property_of(batch): str(batch.number)})
        # Values that grew: new members are added and narrow ones widened, in the same commit. Never the other way.
        with transaction.update_schema() as change:
            change.union_by_name(_nullable(files[0]))
        # What was there before is another batch's folder, so there is nothing to compare these paths with.
        paths = [address(file.path) for file in files]
        transaction.add_files(paths, snapshot_properties=about(topic, batch), check_duplicate_files=False)
