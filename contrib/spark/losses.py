"""What a batch of Spark's lacks, by what Spark says of it and by what is in its files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from verniermq.contrib.arrow.losses import Skipped, skipped_between
from verniermq.contrib.arrow.offsets import Offsets, from_json
from verniermq.contrib.spark.tables import written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def skipped_in(spark: SparkSession, out: str, batch: str, source: dict[str, Any], first: Offsets) -> list[Skipped]:
    """What a batch lacks.

    :param source: what Spark says of it
    :param first: where the queues began when the export did, since Spark does not say it of the first batch
    """
    start = _offsets(source.get("startOffset")) or first
    rows = written(spark, out, batch)
    counts = [] if rows is None else rows.groupBy("topic", "queueId").count().collect()
    found = {(row["topic"], row["queueId"]): row["count"] for row in counts}
    return skipped_between(start, _offsets(source["endOffset"]), found)


def _offsets(value: Any) -> Offsets:
    parsed = json.loads(value) if isinstance(value, str) else value
    return from_json(parsed) if parsed else {}
