"""Ready tables of dispatch events: what came in each minute, how late, and what became of it.

::

    events = spark.read.format("verniermq").option("events", "true").load()
    messages(events).show()

Each takes the events and gives a table with a column ``minute``, or another unit of time that Spark knows.
An event says where a message is and when it came, not what is in it, so groups, delays and transactions are told by
the topics that messages go through.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from verniermq.contrib.spark.charts import Points, lines_of, save_chart
from verniermq.kernel import DEAD_LETTER_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, SysFlag

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData


MINUTE: Final = "minute"


def _counted(events: DataFrame, per: str, *keys: str | Column) -> GroupedData:
    from pyspark.sql import functions as f

    return events.groupBy(*keys, f.date_trunc(per, "storeTimestamp").alias(per))


def _ordinary(events: DataFrame) -> DataFrame:
    """What producers sent, and what came back to consumers; not where the brokers keep messages meanwhile."""
    from pyspark.sql import functions as f

    return events.where(~f.col("topic").isin(SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC))


def messages(events: DataFrame, per: str = MINUTE) -> DataFrame:
    """``topic, minute, messages, bytes``"""
    from pyspark.sql import functions as f

    counted = _counted(_ordinary(events), per, "topic")
    return counted.agg(f.count("*").alias("messages"), f.sum("size").alias("bytes"))


def latency(events: DataFrame, per: str = MINUTE) -> DataFrame:
    """``topic, minute, messages, averageMs, medianMs, p95Ms, mostMs``: from birth at the producer to store.

    Clocks of producers may differ from the broker's; what would be less than nothing is.
    """
    from pyspark.sql import functions as f

    delay = f.unix_millis("storeTimestamp") - f.unix_millis("bornTimestamp")
    timed = _ordinary(events).where("bornTimestamp is not null").withColumn("delay", delay)
    return _counted(timed, per, "topic").agg(
        f.count("*").alias("messages"),
        f.avg("delay").alias("averageMs"),
        f.percentile_approx("delay", 0.5).alias("medianMs"),
        f.percentile_approx("delay", 0.95).alias("p95Ms"),
        f.max("delay").alias("mostMs"),
    )


def failures(events: DataFrame, per: str = MINUTE) -> DataFrame:
    """``group, minute, retries, deadLetters``: messages that came back to a consumer group, and that it gave up on."""
    from pyspark.sql import functions as f

    topic = f.col("topic")
    back, dead = topic.startswith(RETRY_PREFIX), topic.startswith(DEAD_LETTER_PREFIX)
    group = f.regexp_replace(topic, f"^({RETRY_PREFIX}|{DEAD_LETTER_PREFIX})", "").alias("group")
    counted = _counted(events.where(back | dead), per, group)
    return counted.agg(f.count_if(back).alias("retries"), f.count_if(dead).alias("deadLetters"))


def delayed(events: DataFrame, per: str = MINUTE) -> DataFrame:
    """``minute, byLevel, atAnyTime, averageDelayMs``: messages that were put aside for later.

    The delay is of those with a level; of the others only their properties tell.
    """
    from pyspark.sql import functions as f

    level = f.col("topic") == SCHEDULE_TOPIC
    delay = f.when(level, f.col("tagsCode") - f.unix_millis("storeTimestamp"))
    counted = _counted(events.where(f.col("topic").isin(SCHEDULE_TOPIC, TIMER_TOPIC)), per)
    return counted.agg(
        f.count_if(level).alias("byLevel"), f.count_if(~level).alias("atAnyTime"), f.avg(delay).alias("averageDelayMs")
    )


def transactions(events: DataFrame, per: str = MINUTE) -> DataFrame:
    """``minute, prepared, committed``: halves, with those that were put back to be asked again, and what became whole.

    What was prepared and is not committed was rolled back, or is still open.
    """
    from pyspark.sql import functions as f

    half = f.col("topic") == HALF_TOPIC
    kind = f.col("sysFlag").bitwiseAND(int(SysFlag.TRANSACTION_MASK))
    committed = ~half & (kind == int(SysFlag.TRANSACTION_COMMIT))
    counted = _counted(events.where(half | committed), per)
    return counted.agg(f.count_if(half).alias("prepared"), f.count_if(committed).alias("committed"))


@attrs.frozen
class EventTable:
    """A table, and the lines that are drawn of it."""

    make: Callable[[DataFrame, str], DataFrame]
    title: str
    columns: tuple[str, ...]
    by: str = ""
    """A column of names; each has lines of its own."""

    def lines(self, rows: list[dict[str, Any]], per: str = MINUTE) -> dict[str, Points]:
        lines: dict[str, Points] = {}
        for column in self.columns:
            for name, points in lines_of(rows, per, column, self.by).items():
                lines[name if len(self.columns) == 1 or not self.by else f"{name}: {column}"] = points
        return lines


TABLES: Final = {
    "messages": EventTable(messages, "Messages", ("messages",), "topic"),
    "latency": EventTable(latency, "From birth to store, ms: 95 of 100 messages take no longer", ("p95Ms",), "topic"),
    "failures": EventTable(failures, "Retries and dead letters", ("retries", "deadLetters"), "group"),
    "delayed": EventTable(delayed, "Delayed messages", ("byLevel", "atAnyTime")),
    "transactions": EventTable(transactions, "Transactions", ("prepared", "committed")),
}


def save_tables(events: DataFrame, out: Path, per: str = MINUTE) -> dict[str, int]:
    """Write each table as ``NAME.parquet`` and its chart as ``NAME.svg``; return how many rows each has.

    The events are read once: what is made of them is small, and stays in memory meanwhile.
    """
    import pyarrow.parquet as pq

    out.mkdir(parents=True, exist_ok=True)
    kept = events.cache()
    try:
        counts = {}
        for name, table in TABLES.items():
            rows = table.make(kept, per).orderBy(per).toArrow()
            pq.write_table(rows, out / f"{name}.parquet", compression="zstd")
            save_chart(out / f"{name}.svg", f"{table.title}, per {per}", table.lines(rows.to_pylist(), per))
            counts[name] = rows.num_rows
        return counts
    finally:
        kept.unpersist()
