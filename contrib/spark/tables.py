"""The tables beside the messages, where only Spark can write to the output: what each topic got, how far each group is.

They are made from what was just written, so they cost one look at a few columns and no second read from the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP_COLUMNS: Final = (
    "group string, topic string, committed bigint, `end` bigint, lag bigint, retries bigint, deadLetters bigint"
)


def written(spark: SparkSession, out: str, batch: str, levels: int) -> DataFrame | None:
    """The messages of one batch as they were written; ``None`` if it had none, for then it has no folder.

    Args:
        levels: of folders between a topic's and a batch's
    """
    from pyspark.errors import AnalysisException

    try:
        return (
            spark.read.option("basePath", f"{out}/messages")
            .option("recursiveFileLookup", "false")
            .parquet(f"{out}/messages/topic=*/{'*/' * levels}batch={batch}")
        )
    except AnalysisException:
        return None


def counts_in(spark: SparkSession, out: str, batch: str, levels: int) -> dict[tuple[str, int], int]:
    """How many rows a batch has of which topic and queue."""
    rows = written(spark, out, batch, levels)
    counts = [] if rows is None else rows.groupBy("topic", "queueId").count().collect()
    return {(row["topic"], row["queueId"]): row["count"] for row in counts}


def write_topics(spark: SparkSession, out: str, batch: str, levels: int) -> dict[str, int]:
    """The table ``topics`` of one batch; returns how many messages each topic got."""
    from pyspark.sql import functions as f

    messages = written(spark, out, batch, levels)
    if messages is None:
        return {}
    delay = f.unix_millis("storeTimestamp") - f.unix_millis("bornTimestamp")
    seconds = (f.unix_millis(f.max("storeTimestamp")) - f.unix_millis(f.min("storeTimestamp"))) / 1000
    table = messages.groupBy(f.col("topic").cast("string").alias("topic")).agg(
        f.count("*").alias("messages"),
        f.sum("size").cast("bigint").alias("bytes"),
        f.min("storeTimestamp").alias("first"),
        f.max("storeTimestamp").alias("last"),
        (f.count("*") / f.greatest(seconds, f.lit(0.001))).alias("rate"),
        f.avg(delay).alias("delayMsAverage"),
        f.percentile_approx(delay, 0.95).alias("delayMs95"),
        f.max(delay).alias("delayMsMost"),
        f.sum((f.col("reconsumeTimes") > 0).cast("int")).cast("bigint").alias("retried"),
    )
    rows = table.collect()
    (
        spark.createDataFrame(rows, table.schema)
        .coalesce(1)
        .withColumn("batch", f.lit(batch))
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy("batch")
        .parquet(f"{out}/topics")
    )
    return {row["topic"]: row["messages"] for row in rows}


def write_groups(spark: SparkSession, out: str, batch: str, rows: list[dict[str, Any]]) -> None:
    """The table ``groups`` of one batch."""
    from pyspark.sql import functions as f

    if rows:
        (
            spark.createDataFrame([tuple(row.values()) for row in rows], GROUP_COLUMNS)
            .coalesce(1)
            .withColumn("batch", f.lit(batch))
            .write.mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy("batch")
            .parquet(f"{out}/groups")
        )
