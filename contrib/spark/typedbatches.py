"""A batch of an export with typed topics: each is read from its brokers as a table of its own.

A stream has one schema for all that it reads, and every typed topic has another. So the stream only says from which
offset to which a batch goes. What fits the schema is written in one pass, which also counts the rows of each queue and
those without a value; only if there are some are they read again, for the table of errors.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from verniermq.contrib.arrow.checkpoint import ExportBatch
from verniermq.contrib.arrow.errors import BadOption
from verniermq.contrib.arrow.offsets import EARLIEST, as_json
from verniermq.contrib.arrow.tables import TableFormat
from verniermq.contrib.arrow.typedtopics import ERROR_COLUMNS
from verniermq.contrib.arrow.values import ERRORS, READ_COLUMNS, TYPED_COLUMNS, ValueOptions
from verniermq.contrib.spark.batches import write_messages
from verniermq.kernel import MessageQueue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from verniermq.contrib.spark.export import SparkExport


@attrs.frozen
class TypedBatch:
    """Writes the messages of one batch."""

    spark: SparkSession
    export: SparkExport
    table: TableFormat
    batch: ExportBatch

    def write(self) -> Counter[tuple[str, int]]:
        """Write them; return how many there were of which topic and queue, with a value or without."""
        found: Counter[tuple[str, int]] = Counter()
        topics = sorted({queue.topic for queue in self._queues()})
        for topic in topics:
            if topic.endswith(ERRORS) and topic.removesuffix(ERRORS) in self.export.typed:
                raise BadOption("typed", topic, "no topic that is called as the table of errors")
        for topic in topics:
            found += self._write_topic(topic, self.export.typed.get(topic))
        return found

    def _queues(self) -> list[MessageQueue]:
        """Those that have something new."""
        start = self.batch.start
        return [queue for queue in sorted(self.batch.end) if self.batch.end[queue] > start.get(queue, -1)]

    def _write_topic(self, topic: str, value: ValueOptions | None) -> Counter[tuple[str, int]]:
        from pyspark.sql import functions as f

        queues = [queue for queue in self._queues() if queue.topic == topic]
        if value is None:
            counted = CountedRows.of(self._rows(queues, {}), topic, queues)
            self._write_rows(counted.rows, topic)
            return counted.counts()
        rows = self._rows(queues, {**value.as_options(), "columns": ",".join(("topic", *READ_COLUMNS))})
        counted = CountedRows.of(rows, topic, queues)
        good = counted.rows.where(f.col("corrupt").isNull())
        self._write_rows(good.select("topic", *TYPED_COLUMNS), topic)
        if counted.bad() and self.export.on_error == "table":
            bad = rows.where(f.col("corrupt").isNotNull())
            self._write_rows(bad.select("topic", *ERROR_COLUMNS), topic + ERRORS)
        return counted.counts()

    def _write_rows(self, rows: DataFrame, topic: str) -> None:
        """Those of a table that has this batch already are read, to be counted, and not written."""
        from pyspark.sql import functions as f

        if self.table.holds(topic, self.batch):
            rows.write.format("noop").mode("overwrite").save()
        else:
            folder, by = f.lit(self.table.folder(topic)), self.export.partitions()
            write_messages(rows, self.export.out, self.batch.name, folder, partitions=by)

    def _rows(self, queues: Sequence[MessageQueue], more: dict[str, str]) -> DataFrame:
        start = {queue: self.batch.start.get(queue, EARLIEST) for queue in queues}
        end = {queue: self.batch.end[queue] for queue in queues}
        assigned: dict[str, dict[str, list[int]]] = {}
        for queue in queues:
            assigned.setdefault(queue.topic, {}).setdefault(queue.broker_name, []).append(queue.queue_id)
        options = {
            "nameServer": self.export.name_server,
            "assign": json.dumps(assigned),
            "startingOffsets": json.dumps(as_json(start)),
            "endingOffsets": json.dumps(as_json(end)),
            "failOnDataLoss": str(self.export.fail_on_data_loss).lower(),
            "retryTimeout": self.export.retry_timeout,
            **more,
        }
        return self.spark.read.format("verniermq").options(**options).load()


class CountedRows:
    """Rows of one topic that are counted as they go by."""

    def __init__(self, rows: DataFrame, topic: str, queue_ids: Iterable[int]) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        self._topic = topic
        self._queue_ids = sorted(set(queue_ids))
        self._observed = Observation()
        counts = [f.count_if(f.col("queueId") == number).alias(f"queue{number}") for number in self._queue_ids]
        bad = f.count("corrupt") if "corrupt" in rows.columns else f.count(f.lit(None))
        self.rows = rows.observe(self._observed, bad.alias("bad"), *counts)

    @classmethod
    def of(cls, rows: DataFrame, topic: str, queues: Iterable[MessageQueue]) -> CountedRows:
        return cls(rows, topic, (queue.queue_id for queue in queues))

    def bad(self) -> int:
        """Rows without a value; waits for those that were written."""
        return int(self._observed.get["bad"])

    def counts(self) -> Counter[tuple[str, int]]:
        seen = self._observed.get
        return Counter({(self._topic, number): int(seen[f"queue{number}"]) for number in self._queue_ids})
