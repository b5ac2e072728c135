"""What an export skipped because retention was faster: how many messages of which queue, batch by batch.

A queue has one message at each offset. So what Spark says of a batch (from which offset to which) and what is in
the batch's files must agree; the difference was deleted before it was read. It is looked for only where an
export was told to go on without what is lost: otherwise the first loss stops it.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs

from verniermq.contrib.arrow.offsets import Offsets, from_json
from verniermq.contrib.spark.tables import written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@attrs.frozen(order=True)
class Skipped:
    """Messages of one queue that are in no file. Brokers that share a topic are counted together."""

    topic: str
    queue_id: int
    messages: int

    def __str__(self) -> str:
        return f"{self.messages:,} messages of {self.topic}, queue {self.queue_id}"


def skipped_in(spark: SparkSession, out: str, batch: str, source: dict[str, Any], first: Offsets) -> list[Skipped]:
    """What a batch lacks.

    :param source: what Spark says of it
    :param first: where the queues began when the export did, since Spark does not say it of the first batch
    """
    start = _offsets(source.get("startOffset")) or first
    expected: Counter[tuple[str, int]] = Counter()
    for queue, end in _offsets(source["endOffset"]).items():
        expected[queue.topic, queue.queue_id] += max(0, end - start.get(queue, 0))
    rows = written(spark, out, batch)
    found = {} if rows is None else {(r["topic"], r["queueId"]): r["count"] for r in _counts(rows)}
    missing = {key: count - found.get(key, 0) for key, count in expected.items()}
    return sorted(Skipped(topic, queue_id, count) for (topic, queue_id), count in missing.items() if count > 0)


def _counts(rows: Any) -> Any:
    return rows.groupBy("topic", "queueId").count().collect()


def _offsets(value: Any) -> Offsets:
    parsed = json.loads(value) if isinstance(value, str) else value
    return from_json(parsed) if parsed else {}
