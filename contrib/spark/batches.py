"""One micro-batch of an export: Spark writes the files, and the driver does the rest in Python.

What is left after the files is small: naming them to a table, and a few figures. Where the output is a folder of this
machine that needs no job of Spark's, each of which costs a good part of a second, and no jar decides which Spark works.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import attrs

from verniermq.contrib.arrow.checkpoint import ExportBatch, ExportCheckpoint, batch_name
from verniermq.contrib.arrow.cluster import Cluster
from verniermq.contrib.arrow.errors import BadOption
from verniermq.contrib.arrow.export import CLUSTER_PATIENCE
from verniermq.contrib.arrow.figures import MEASURED, TopicFigures, group_rows, groups_table
from verniermq.contrib.arrow.layout import DataFile, write_table
from verniermq.contrib.arrow.partitions import DAY, EMPTY, HOUR, STORED, Partition, Partitions
from verniermq.contrib.arrow.rows import ALL_DIFFERENT
from verniermq.contrib.arrow.tables import PlainFiles, TableFormat
from verniermq.contrib.arrow.values import ERRORS
from verniermq.contrib.spark.tables import write_groups, write_topics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from verniermq.contrib.spark.export import SparkExport


@attrs.frozen
class FileCount:
    """How many files a batch becomes for each topic and day, at the most, and how many rows one may have."""

    tasks: int | None = None
    """``None`` for as many as Spark has processors."""
    rows: int = 0
    """0 for any number."""

    @classmethod
    def for_target(cls, target_bytes: int | None, row_bytes: float, messages: int, most: int) -> FileCount:
        """
        Args:
            row_bytes: of a row in the files of the batch before; 0 if there was none
            most: tasks that can run at a time
        """
        if target_bytes is None or not row_bytes:
            return cls()
        tasks = math.ceil(messages * row_bytes / target_bytes)
        return cls(min(max(1, tasks), most), max(1, int(target_bytes / row_bytes)))


def write_messages(
    rows: DataFrame,
    out: str,
    batch: str,
    folder: Column | None = None,
    files: FileCount | None = None,
    partitions: Partitions | None = None,
) -> None:
    """Write the messages of one batch; what an earlier try of the same batch wrote is replaced.

    Args:
        folder: what stands for the topic in the names of folders; otherwise the topic itself
    """
    from pyspark.sql import functions as f

    files = files or FileCount()
    if folder is not None:
        rows = rows.withColumn("topic", folder)
    by = partitions or Partitions()
    rows = rows.withColumns(members_of(rows, by))
    columns = {column.name: texts_of(rows, column) for column in by.columns}
    (
        rows.coalesce(files.tasks or rows.sparkSession.sparkContext.defaultParallelism)
        .withColumns(columns)
        .withColumn("batch", f.lit(batch))
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .option("compression", "zstd")
        .option("maxRecordsPerFile", str(files.rows))
        .options(**{f"parquet.enable.dictionary#{name}": "false" for name in ALL_DIFFERENT})
        .partitionBy("topic", *columns, "batch")
        .parquet(f"{out}/messages")
    )


def members_of(rows: DataFrame, partitions: Partitions) -> dict[str, Column]:
    """A column for each member of typed values that the rows have, and that is among the partitions."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    found = {}
    for column in partitions.columns:
        kind: object = rows.schema
        for name in column.path if column.is_member else ():
            kind = kind[name].dataType if isinstance(kind, StructType) and name in kind.names else None
        if column.is_member and kind is not None:
            found[column.source] = f.col(".".join(f"`{name}`" for name in column.path))
    return found


def texts_of(rows: DataFrame, column: Partition) -> Column:
    """What the name of a row's folder says; see ``Partition.texts``."""
    from pyspark.sql import functions as f

    if column.column == DAY:
        return f.to_date(STORED)
    if column.column == HOUR:
        return f.date_format(STORED, "yyyy-MM-dd-HH")
    if column.source not in rows.columns:
        return f.lit(None).cast("string")
    text = f.col(f"`{column.source}`").cast("string")
    return f.when(text == "", EMPTY).otherwise(text)


@attrs.frozen
class WrittenBatch:
    """The files of one batch in a folder of this machine."""

    files: tuple[DataFile, ...]

    @classmethod
    def find(
        cls, out: Path, batch: str, table: TableFormat, topics: Iterable[str], partitions: Partitions
    ) -> WrittenBatch:
        """
        Args:
            topics: those that the batch may have
        """
        import pyarrow.parquet as pq

        names = {table.folder(topic): topic for topic in topics}
        files = []
        levels = len(partitions.columns)
        for path in sorted((out / "messages").glob(f"topic=*/{'*/' * levels}batch={batch}/*.parquet")):
            folder = unquote(path.parts[-3 - levels].partition("=")[2])
            texts = partitions.texts_of(path.parents[1])
            files.append(DataFile(names.get(folder, folder), texts, path, pq.read_metadata(path).num_rows))
        return cls(tuple(files))

    def row_bytes(self) -> float:
        """Of a row, on average; 0 without any."""
        return sum(file.path.stat().st_size for file in self.files) / max(1, sum(file.rows for file in self.files))

    def figures(self) -> TopicFigures:
        import pyarrow.parquet as pq

        figures = TopicFigures()
        for file in self.files:
            topic = file.topic.removesuffix(ERRORS)
            for rows in pq.ParquetFile(file.path).iter_batches(columns=list(MEASURED)):
                figures.add(topic, rows)
        return figures

    def counts(self) -> Counter[tuple[str, int]]:
        """How many rows of which topic and queue."""
        import pyarrow.parquet as pq

        found: Counter[tuple[str, int]] = Counter()
        for file in self.files:
            for pair in pq.read_table(file.path, columns=["queueId"])["queueId"].value_counts().to_pylist():
                found[file.topic, pair["values"]] += pair["counts"]
        return found


class BatchWriter:
    """Writes one micro-batch; Spark calls it, again with the same number after a crash."""

    def __init__(self, export: SparkExport, table: TableFormat) -> None:
        self._export = export
        self._table = table
        self._partitions = export.partitions()
        self._query_id = ""
        self._is_started = threading.Event()
        self.found: dict[int, Counter[tuple[str, int]]] = {}
        """Batch → its messages of each topic and queue, where Spark does not count them."""
        self._row_bytes = 0.0
        if export.local_out is None or "://" in export.checkpoint_location:
            needed = "a folder that this machine sees, for OUT and for the checkpoint"
            if not isinstance(table, PlainFiles):
                raise BadOption("format", export.format, needed)
            if export.typed:
                raise BadOption("typed", ", ".join(export.typed), needed)

    def started(self, query_id: str) -> None:
        """The query's id, which is the same after every restart from the same checkpoint."""
        self._query_id = query_id
        self._is_started.set()

    def __call__(self, rows: DataFrame, number: int) -> None:
        self._is_started.wait()
        if self._export.local_out is None:
            self._write_elsewhere(rows, batch_name(self._query_id, number))
        else:
            self._write_here(rows, number, self._export.local_out)

    def _write_here(self, rows: DataFrame, number: int, out: Path) -> None:
        batch = ExportBatch(self._query_id, number, {}, {})
        if not isinstance(self._table, PlainFiles) or self._export.typed or self._export.target_bytes:
            batch = ExportCheckpoint(Path(self._export.checkpoint_location)).batch(number)
        topics = sorted({queue.topic for queue in batch.end})
        if self._export.typed:
            from verniermq.contrib.spark.typedbatches import TypedBatch

            self.found[number] = TypedBatch(rows.sparkSession, self._export, self._table, batch).write()
            topics += [topic + ERRORS for topic in self._export.typed]
        else:
            self._write_stream(rows, topics, batch, out)
        written = WrittenBatch.find(out, batch.name, self._table, topics, self._partitions)
        self._row_bytes = written.row_bytes() or self._row_bytes
        # Before the tables' commits: a merge leaves no files of a batch.
        figures = written.figures() if self._export.tables else TopicFigures()
        if self._export.mode == "upsert" and not self._export.fail_on_data_loss:
            self.found.setdefault(number, written.counts())
        for topic in sorted({file.topic for file in written.files}):
            self._table.commit(topic, batch, [file for file in written.files if file.topic == topic])
        if self._export.tables:
            if figures.counts:
                write_table(out, "topics", batch.name, figures.table())
            if groups := self._groups(figures.counts):
                write_table(out, "groups", batch.name, groups_table(groups))

    def _write_stream(self, rows: DataFrame, topics: list[str], batch: ExportBatch, out: Path) -> None:
        """The rows of all topics in one pass, but for those that their table has already."""
        from pyspark.sql import functions as f

        held = [topic for topic in topics if self._table.holds(topic, batch)]
        if held:
            rows = rows.where(~f.col("topic").isin(held))
        renamed = {topic: self._table.folder(topic) for topic in topics if self._table.folder(topic) != topic}
        names = f.create_map(*(f.lit(word) for pair in renamed.items() for word in pair)) if renamed else None
        folder = None if names is None else f.coalesce(names[f.col("topic")], f.col("topic"))
        messages = sum(stop - batch.start.get(queue, 0) for queue, stop in batch.end.items())
        most = rows.sparkSession.sparkContext.defaultParallelism
        files = FileCount.for_target(self._export.target_bytes, self._row_bytes, messages, most)
        write_messages(rows, str(out), batch.name, folder, files, self._partitions)

    def _write_elsewhere(self, rows: DataFrame, batch: str) -> None:
        out = self._export.out.rstrip("/")
        write_messages(rows, out, batch, partitions=self._partitions)
        if self._export.tables:
            counts = write_topics(rows.sparkSession, out, batch, len(self._partitions.columns))
            write_groups(rows.sparkSession, out, batch, self._groups(counts))

    def _groups(self, counts: dict[str, int]) -> list[dict[str, object]]:
        cluster = Cluster(self._export.name_server.split(";"), CLUSTER_PATIENCE)
        try:
            return group_rows(cluster, counts)
        finally:
            cluster.close()
