"""``format("verniermq")``: what Spark asks a data source for.

Everything here is pickled and sent to Spark's Python workers, so options are kept as Spark gave them, and all else is
made where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)

from verniermq.contrib.arrow.errors import BadOption
from verniermq.contrib.arrow.offsets import Span, packed
from verniermq.contrib.arrow.options import ReadOptions
from verniermq.contrib.arrow.plan import Plan, place_of, reader_of, with_schema
from verniermq.contrib.arrow.schema import OPTIONAL, TYPES, ddl, typed_schema
from verniermq.contrib.arrow.values import VALUE_COLUMNS
from verniermq.contrib.spark.worker import settle
from verniermq.contrib.spark.writeoptions import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME = "verniermq"

Nullable = dict[str, bool]
"""The columns to read, and whether Spark was told that each may be null: what it gets must say the same."""


class SpanPartition(InputPartition):
    """What one task reads, one after the other."""

    def __init__(self, spans: Sequence[Span]) -> None:
        super().__init__(spans)


class VernierMQSource(DataSource):
    """Topics as tables, and tables as messages."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        options = dict(self.options)
        for write_only in ("topic", "producerGroup", "batchSize", "writeId"):
            options.pop(write_only.lower(), None)
        parsed = with_schema(ReadOptions.parse(options, streaming=False))
        return ddl(parsed.columns, parsed.value)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = _with_values(ReadOptions.parse(self.options, streaming=False), schema)
        columns = _checked(schema)
        if options.push_filters:
            # Only then: Spark refuses a reader that could push filters while its own setting for that is off.
            from verniermq.contrib.spark.pushdown import PushingReader

            return PushingReader(options, columns)
        return BatchReader(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from verniermq.contrib.spark.stream import StreamReader

        options = _with_values(ReadOptions.parse(self.options, streaming=True), schema)
        return StreamReader(options, _checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from verniermq.contrib.spark.sink import BatchSink

        if overwrite:
            raise BadOption("mode", "overwrite", "append: messages that were sent cannot be replaced")
        return BatchSink(WriteOptions.parse(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from verniermq.contrib.spark.sink import StreamSink

        return StreamSink(WriteOptions.parse(self.options), schema)


def _with_values(options: ReadOptions, schema: StructType) -> ReadOptions:
    """The options with the type that Spark has planned with: the next look might find another."""
    value = options.value
    if value is None or not value.infer or "value" not in schema.names:
        return options
    from pyspark.sql.pandas.types import to_arrow_type

    from verniermq.contrib.arrow.ddl import type_text

    text = type_text(to_arrow_type(schema["value"].dataType)).removeprefix("struct<").removesuffix(">")
    return attrs.evolve(options, value=attrs.evolve(value, schema=text.encode()))


def _checked(schema: StructType) -> Nullable:
    """The columns of a schema that the user gave; they may be fewer than all, but not of other types."""
    columns = {}
    for field in schema.fields:
        found = field.dataType.simpleString()
        if field.name in VALUE_COLUMNS:
            columns[field.name] = True
            continue
        if TYPES.get(field.name) != found:
            known = f"{TYPES[field.name]}" if field.name in TYPES else f"a column of {', '.join(TYPES)}"
            raise BadOption("schema", f"{field.name} {found}", known)
        if field.name in OPTIONAL and not field.nullable:
            raise BadOption("schema", f"{field.name} {found} NOT NULL", "a schema where it may be null")
        columns[field.name] = field.nullable
    return columns


def partitions_of(spans: Sequence[Span], options: ReadOptions) -> list[InputPartition]:
    return [SpanPartition(some) for some in packed(spans, options.min_partitions)]


def read_spans(options: ReadOptions, columns: Nullable, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Runs in a task. Spark makes a partition without a value of it when there is nothing to read."""
    if partition.value is None:
        return
    settle()
    import pyarrow as pa

    names = tuple(columns)
    schema = typed_schema(names, frozenset(name for name in names if columns[name]), options.value)
    reader = reader_of(options)
    try:
        for span in partition.value:
            for batch in reader.batches(span, names):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    finally:
        reader.close()


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, columns: Nullable) -> None:
        self.options = options
        self.columns = columns

    def spans(self) -> list[Span]:
        place = place_of(self.options)
        try:
            return Plan(self.options, place).batch(self.narrowed)
        finally:
            place.close()

    def narrowed(self, span: Span) -> Span | None:
        """What filters leave of a span; here there are none."""
        return span

    def partitions(self) -> Sequence[InputPartition]:
        return partitions_of(self.spans(), self.options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_spans(self.options, self.columns, partition)
