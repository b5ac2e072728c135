"""``verniermq export``: topics into files or tables, each message exactly once, in one process and without Spark.

The layout is that of ``verniermq spark export`` (see ``layout.py``), and so is the checkpoint: whoever outgrows one
process points Spark at the same folder. A batch is noted before it runs, written where no reader looks,
moved to its places, made known to the table if there is one, and then noted as done. Wherever that ends, the next run
does the same batch again, and skips what a table has of it already.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from verniermq.contrib.arrow.checkpoint import ExportBatch, ExportCheckpoint
from verniermq.contrib.arrow.cluster import Cluster
from verniermq.contrib.arrow.errors import BadOption, DiskFull, NoArrow
from verniermq.contrib.arrow.figures import TopicFigures, group_rows, groups_table
from verniermq.contrib.arrow.lock import ExportLock
from verniermq.contrib.arrow.losses import skipped_between
from verniermq.contrib.arrow.offsets import Offsets, Span
from verniermq.contrib.arrow.options import ReadOptions
from verniermq.contrib.arrow.partitions import Partitions
from verniermq.contrib.arrow.plan import Plan, Reader, reader_of
from verniermq.contrib.arrow.progress import BatchDone, ExportProgress
from verniermq.contrib.arrow.schema import COLUMNS
from verniermq.contrib.arrow.tables import TableFormat, table_format
from verniermq.contrib.arrow.values import ERRORS, READ_COLUMNS, ValueOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from verniermq.contrib.arrow.layout import DataFile
    from verniermq.contrib.arrow.upserts import UpsertKey

logger = logging.getLogger(__name__)

EVERYTHING: Final = "[^%].*|%RETRY%.*|%DLQ%.*"
"""All topics but the brokers' own."""

PLAIN_COLUMNS: Final = tuple(name for name in COLUMNS if name != "topic")
CLUSTER_PATIENCE: Final = 5.0
"""Seconds, for what is only a courtesy."""


@attrs.frozen(kw_only=True)
class Export:
    """What to export, and where to."""

    out: str
    name_server: str
    topics: tuple[str, ...] = ()
    """Empty for all but the brokers' own."""
    format: str = "parquet"
    catalog: str = ""
    """Of Iceberg: a name in pyiceberg's configuration; empty for a file in the output's folder."""
    namespace: str = "mq"
    """Of Iceberg's tables."""
    starting: str = "earliest"
    batch_rows: int = 1_000_000
    interval: float | None = None
    """Seconds between batches of an export that does not end; ``None`` for one that ends with what is there."""
    group: str = "export"
    fail_on_data_loss: bool = True
    tables: bool = True
    """Whether there shall be tables per topic and group beside the messages."""
    retry_timeout: str = "60s"
    typed: dict[str, ValueOptions] = attrs.Factory(dict)
    """Topic → what its bodies are."""
    on_error: str = "table"
    """What becomes of a body without a value: a row in ``<topic>__errors``, nothing, or the end of the export."""
    mode: str = "append"
    """Whether a table has all messages, or with ``upsert`` the newest of each key."""
    key: str = ""
    delete_tag: str = ""
    partition_by: tuple[str, ...] = ()
    """Columns that the folders of a topic are by; the day, if there is none."""
    target_bytes: int | None = None
    """How large files shall be, about; ``None`` for as large as they become."""

    def upsert_key(self) -> UpsertKey | None:
        """
        Raises:
            BadOption: there is no key, or one that nothing uses.
        """
        if self.mode == "append":
            if self.key or self.delete_tag:
                raise BadOption("key", self.key or self.delete_tag, "nothing, without --mode upsert")
            return None
        from verniermq.contrib.arrow.upserts import UpsertKey

        if not self.topics:
            raise BadOption("mode", self.mode, "topics, whose tables have a key: --topic")
        key = UpsertKey(self.key, self.delete_tag, skip_keyless=self.on_error == "skip")
        key.check()
        return key

    def partitions(self) -> Partitions:
        """
        Raises:
            BadOption: there is no such column, or tables with a key have no partitions.
        """
        if self.partition_by and self.mode == "upsert":
            raise BadOption("partition-by", ", ".join(self.partition_by), "nothing, with --mode upsert")
        return Partitions.parse(self.partition_by, self.typed)

    def source_options(self) -> dict[str, str]:
        which = {"subscribe": ",".join(self.topics)} if self.topics else {"subscribePattern": EVERYTHING}
        return {
            **which,
            "nameServer": self.name_server,
            "startingOffsets": self.starting,
            "maxOffsetsPerTrigger": str(self.batch_rows),
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "retryTimeout": self.retry_timeout,
        }


def run(export: Export, progress: ExportProgress) -> int:
    """Export until everything is there, or until interrupted; return how many rows.

    Raises:
        TableError: with what went wrong; the next run goes on from the last whole batch.
    """
    try:
        from verniermq.contrib.arrow.layout import clean
    except ImportError as error:
        raise NoArrow(error) from error
    out = Path(export.out)
    lock = ExportLock(out)
    lock.take()
    try:
        clean(out)
        by = export.partitions()
        table = table_format(export.format, out, export.catalog, export.namespace, export.upsert_key(), by)
        options = ReadOptions.parse(export.source_options(), streaming=True)
        cluster = Cluster(options.name_servers, options.retry_seconds)
        try:
            cluster.expect_name_server()
            job = ExportJob(export, options, cluster, table, ExportCheckpoint(out / "_checkpoint"), progress)
            job.run()
        except KeyboardInterrupt:
            progress.interrupted()
        except OSError as error:
            raise DiskFull.or_else(error, out) from error
        finally:
            cluster.close()
        progress.done()
        return progress.rows
    finally:
        lock.release()


@attrs.frozen
class ExportJob:
    export: Export
    options: ReadOptions
    cluster: Cluster
    table: TableFormat
    checkpoint: ExportCheckpoint
    progress: ExportProgress

    def run(self) -> None:
        plan = Plan(self.options, self.cluster)
        target = plan.ends()
        for queue in target:
            if queue.topic.removesuffix(ERRORS) in self.export.typed and queue.topic.endswith(ERRORS):
                raise BadOption("typed", queue.topic, "no topic that is called as the table of errors")
        if (half := self.checkpoint.cut_short()) is not None:
            self.write(plan, half, target)
        while True:
            begin = self.checkpoint.reached()
            if begin is None:
                begin = plan.starting(self.cluster.bounds(plan.queues()))
            end = plan.following(begin, target, self.options.max_offsets_per_trigger)
            if end != begin:
                self.write(plan, self.checkpoint.begin(begin, end), target)
            elif self.export.interval is None:
                return
            if self.export.interval is not None:
                time.sleep(self.export.interval)
                target = plan.ends()

    def write(self, plan: Plan, batch: ExportBatch, target: Offsets) -> None:
        """All of a batch: its files, its tables, its end in the checkpoint."""
        started = time.monotonic()
        figures = TopicFigures()
        found: Counter[tuple[str, int]] = Counter()
        files = self._write_messages(plan, batch, figures, found)
        for topic in sorted({file.topic for file in files}):
            self.table.commit(topic, batch, [file for file in files if file.topic == topic])
        if self.export.tables:
            self._write_figures(batch, figures)
        self.checkpoint.commit(batch)
        if not self.export.fail_on_data_loss:
            for skipped in skipped_between(batch.start, batch.end, found):
                self.progress.skipped(skipped)
        rows = sum(found.values())
        lag = sum(max(0, stop - batch.end.get(queue, 0)) for queue, stop in target.items())
        done = BatchDone(batch.number, rows, time.monotonic() - started, lag)
        self.progress.batch(done)
        self._publish(batch.end, done)

    def _write_messages(
        self, plan: Plan, batch: ExportBatch, figures: TopicFigures, found: Counter[tuple[str, int]]
    ) -> list[DataFile]:
        from verniermq.contrib.arrow.layout import BatchFiles
        from verniermq.contrib.arrow.typedtopics import SortedRows

        out = Path(self.export.out)
        target = self.export.target_bytes
        by = self.export.partitions()
        files, errors = (BatchFiles(out, batch, self.table, by, part, target) for part in ("rows", "errors"))
        reader = reader_of(self.options)
        try:
            for span in plan.between(batch.start, batch.end):
                topic = span.queue.topic
                for rows in self._rows(reader, span):
                    figures.add(topic, rows)
                    found[topic, span.queue.queue_id] += rows.num_rows
                    if topic not in self.export.typed:
                        files.write(topic, rows)
                        continue
                    both = SortedRows.of(rows)
                    if both.good.num_rows:
                        files.write(topic, both.good)
                    if both.bad.num_rows and self.export.on_error == "table":
                        errors.write(topic + ERRORS, both.bad)
            return files.publish() + errors.publish()
        except BaseException:
            files.discard()
            errors.discard()
            raise
        finally:
            reader.close()

    def _rows(self, reader: Reader, span: Span) -> Iterator[pa.RecordBatch]:
        """The rows of a span; with values, if the topic has them."""
        value = self.export.typed.get(span.queue.topic)
        if value is None:
            return reader.batches(span, PLAIN_COLUMNS)
        from verniermq.contrib.arrow.values.typed import TypedReader

        return TypedReader(reader, value).batches(span, READ_COLUMNS)

    def _write_figures(self, batch: ExportBatch, figures: TopicFigures) -> None:
        from verniermq.contrib.arrow.layout import write_table

        out = Path(self.export.out)
        if figures.counts:
            write_table(out, "topics", batch.name, figures.table())
        brokers = Cluster(self.options.name_servers, CLUSTER_PATIENCE)
        try:
            groups = group_rows(brokers, figures.counts)
        finally:
            brokers.close()
        if groups:
            write_table(out, "groups", batch.name, groups_table(groups))

    def _publish(self, end: Offsets, done: BatchDone) -> None:
        """Tell the brokers how far the export is; its lag is then seen where people look for it."""
        try:
            self.cluster.commit(self.export.group, end)
            self.cluster.report(self.export.group, done)
        except Exception as error:  # only a courtesy: the checkpoint is what counts
            logger.warning("the offsets of group %s could not be published: %s", self.export.group, error)
