"""``verniermq spark export``: topics into Parquet, each message exactly once, and tables about them.

::

    OUT/messages/topic=orders/dt=2026-03-01/batch=1f0c2d3e-7/part-….parquet
    OUT/topics/batch=1f0c2d3e-7/…      per topic: counts, bytes, rate, delays, retries
    OUT/groups/batch=1f0c2d3e-7/…      per consumer group: how far it is, its lag, retries, dead letters
    OUT/_checkpoint/                   Spark's own: how far the export is

Spark notes a batch's offsets before the batch runs, and a batch writes folders that carry its number: repeated after a
crash it replaces what the first try left behind. So any reader sees each message once, not only one that understands
the log of Spark's own file sink. Two exports at a time would write the same folders; a lock file tells the second.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from verniermq.contrib.arrow import export as arrow
from verniermq.contrib.arrow.checkpoint import ExportCheckpoint, batch_name
from verniermq.contrib.arrow.cluster import Cluster
from verniermq.contrib.arrow.errors import BadOption, DiskFull
from verniermq.contrib.arrow.layout import clean
from verniermq.contrib.arrow.lock import ExportLock
from verniermq.contrib.arrow.losses import skipped_between
from verniermq.contrib.arrow.offsets import Offsets, as_json
from verniermq.contrib.arrow.options import ReadOptions
from verniermq.contrib.arrow.plan import Plan
from verniermq.contrib.arrow.progress import BatchDone, ExportProgress
from verniermq.contrib.arrow.tables import PlainFiles, TableFormat, table_format
from verniermq.contrib.spark.batches import BatchWriter, WrittenBatch
from verniermq.contrib.spark.errors import SparkError
from verniermq.contrib.spark.progress import batch_done, offsets_of
from verniermq.contrib.spark.session import session
from verniermq.contrib.spark.tables import counts_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

CONF: Final = {
    # Rows of several topics in one task: a writer for each, instead of sorting the rows first.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.sql.shuffle.partitions": "4",
    # A topic called 007 is not the number 7 when the files are looked at again.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # As Arrow, Iceberg and Delta have them; Spark's own default is a type of 12 bytes that Parquet has given up.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
BUSY_MACHINE: Final = "failed to connect back"
"""Spark gives the Python process of a stream ten seconds to start; on a busy machine it may need longer."""
START_ATTEMPTS: Final = 5
NO_SPACE: Final = "No space left on device"
"""What Java and Python say alike of a disk that is full."""
POLL_SECONDS: Final = 0.25


@attrs.frozen(kw_only=True)
class SparkExport(arrow.Export):
    """What to export, and where to: a folder, or an address that Spark can write to."""

    checkpoint: str = ""
    master: str | None = None
    conf: dict[str, str] = attrs.Factory(dict)
    group: str = "spark-export"

    @property
    def local_out(self) -> Path | None:
        """The output's folder, if it is on this machine."""
        return None if "://" in self.out else Path(self.out)

    @property
    def checkpoint_location(self) -> str:
        return self.checkpoint or f"{self.out.rstrip('/')}/_checkpoint"


class ExportFailed(SparkError):
    def __init__(self, why: str) -> None:
        super().__init__(f"the export stopped: {why}")


def run(export: SparkExport, progress: ExportProgress) -> int:
    """Export until everything is there, or until interrupted; return how many rows.

    Raises:
        ExportFailed: with the reason that matters.
        ExportRuns: there is one already.
        DiskFull: the output cannot be written.
    """
    # py4j logs what a batch raised with all its traces; the reason is told once, by who catches it.
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    try:
        return _run(export, progress)
    except OSError as error:
        raise DiskFull.or_else(error, export.out) from error
    except Exception as error:
        if NO_SPACE not in str(error):
            raise
        raise DiskFull(export.out, NO_SPACE) from error


def _run(export: SparkExport, progress: ExportProgress) -> int:
    lock = ExportLock(export.local_out) if export.local_out is not None else None
    if lock is not None and export.local_out is not None:
        lock.take()
        clean(export.local_out)
    spark = session(export.master, {**CONF, **export.conf}, "verniermq-export")
    spark.sparkContext.setLogLevel("OFF" if logger.getEffectiveLevel() > logging.DEBUG else "WARN")
    if lock is not None:
        lock.note(_java_pid(spark))
    cluster = Cluster(export.name_server.split(";"), 5.0)
    try:
        table = table_of(export)
        export = from_the_first(export)
        losses = None if export.fail_on_data_loss else Losses(spark, export, first_offsets(export, cluster))
        writer = BatchWriter(export, table)
        for attempt in range(START_ATTEMPTS):
            try:
                return _watch(start(spark, export, writer), writer, export, cluster, progress, losses)
            except ExportFailed as error:
                if BUSY_MACHINE not in str(error) or attempt == START_ATTEMPTS - 1:
                    raise
                logger.warning("Spark could not start a Python process in time; starting the stream again")
        raise AssertionError("the last attempt returns or raises")
    finally:
        cluster.close()
        if lock is not None:
            lock.release()


def start(spark: SparkSession, export: SparkExport, writer: BatchWriter) -> StreamingQuery:
    """Start the query; batches run in the background."""
    reader = spark.readStream.format("verniermq").options(**export.source_options())
    stream = reader.load().writeStream.foreachBatch(writer).option("checkpointLocation", export.checkpoint_location)
    if export.interval is None:
        stream = stream.trigger(availableNow=True)
    else:
        stream = stream.trigger(processingTime=f"{export.interval:g} seconds")
    query = stream.start()
    writer.started(str(query.id))
    return query


def table_of(export: SparkExport) -> TableFormat:
    key = export.upsert_key()
    if export.local_out is None:
        if key is not None:
            raise BadOption("mode", export.mode, "a folder that this machine sees, for OUT")
        return PlainFiles("parquet")
    return table_format(export.format, export.local_out, export.catalog, export.namespace, key, export.partitions())


def from_the_first(export: SparkExport) -> SparkExport:
    """The export with the offsets at which its first batch begins, the same however often that one has to be repeated.

    Spark asks for them anew each time: after a crash "the newest" would be another place, and what lies between lost.
    """
    if "://" in export.checkpoint_location:
        return export
    checkpoint = ExportCheckpoint(Path(export.checkpoint_location))
    if checkpoint.reached() is None:
        options = ReadOptions.parse(export.source_options(), streaming=True)
        cluster = Cluster(options.name_servers, options.retry_seconds)
        try:
            checkpoint.note_first(first_offsets(export, cluster))
        finally:
            cluster.close()
    first = checkpoint.first()
    if first is None or checkpoint.is_under_way:
        return export
    return attrs.evolve(export, starting=json.dumps(as_json(first)))


def first_offsets(export: SparkExport, cluster: Cluster) -> Offsets:
    """Where an export begins that never ran before."""
    plan = Plan(ReadOptions.parse(export.source_options(), streaming=True), cluster)
    return plan.starting(cluster.bounds(plan.queues()))


@attrs.frozen
class Losses:
    """Looks for what batches lack, in an export that goes on without what is lost."""

    spark: SparkSession
    export: SparkExport
    first: Offsets

    def tell(
        self, one: dict[str, Any], query_id: str, counted: Counter[tuple[str, int]] | None, progress: ExportProgress
    ) -> None:
        """
        Args:
            counted: how many rows of which topic and queue there were, if that is known
        """
        start, end = (offsets_of(one["sources"][0].get(name)) for name in ("startOffset", "endOffset"))
        batch = batch_name(query_id, one["batchId"])
        found: Mapping[tuple[str, int], int]
        if counted is not None:
            found = counted
        elif self.export.local_out is None:
            found = counts_in(self.spark, self.export.out.rstrip("/"), batch, len(self.export.partitions().columns))
        else:
            topics = {queue.topic for queue in end}
            by = self.export.partitions()
            found = WrittenBatch.find(self.export.local_out, batch, table_of(self.export), topics, by).counts()
        for skipped in skipped_between(start or self.first, end, found):
            progress.skipped(skipped)


def _watch(
    query: StreamingQuery,
    writer: BatchWriter,
    export: SparkExport,
    cluster: Cluster,
    progress: ExportProgress,
    losses: Losses | None,
) -> int:
    seen = -1
    try:
        while True:
            active = query.isActive
            for one in query.recentProgress:
                source = one["sources"][0]
                # A look that found nothing is told too, under the number of the batch that will be next.
                if one["batchId"] > seen and source["endOffset"] != source["startOffset"]:
                    seen = one["batchId"]
                    counted = writer.found.pop(seen, None)
                    if losses is not None:
                        losses.tell(one, str(query.id), counted, progress)
                    done = batch_done(one, counted)
                    _publish(export, cluster, source, done)
                    progress.batch(done)
            if not active:
                break
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        query.stop()
        progress.interrupted()
    error = query.exception()
    if error is not None:
        raise ExportFailed(reason_of(str(error)))
    progress.done()
    return progress.rows


def _publish(export: SparkExport, cluster: Cluster, source: dict[str, Any], done: BatchDone) -> None:
    """Tell the brokers how far the export is; its lag is then seen where people look for it."""
    try:
        cluster.commit(export.group, offsets_of(source["endOffset"]))
        cluster.report(export.group, done)
    except Exception as error:  # only a courtesy: Spark's checkpoint is what counts
        logger.warning("the offsets of group %s could not be published: %s", export.group, error)


def reason_of(text: str) -> str:
    """What went wrong, out of a text that has Java's and Python's stack traces in it."""
    for told in (r"verniermq\.[\w.]+: (.+)", r"Caused by: (?:[\w.$]+: )*(.+)"):
        if found := re.findall(told, text):
            return str(found[-1]).strip()
    return next((line.strip() for line in text.splitlines() if line.strip()), "Spark gave no reason")


def _java_pid(spark: SparkSession) -> int:
    process = getattr(spark.sparkContext._gateway, "proc", None)
    return 0 if process is None else int(process.pid)
