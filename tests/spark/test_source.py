"""What Spark sees: tables, streams and sinks, with one session for all tests."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.functions import udf

from tests.arrow.producing import Producing
from tests.spark.conftest import Source
from verniermq.contrib.arrow import scan
from verniermq.contrib.arrow.schema import COLUMNS, ddl
from verniermq.kernel import Property
from verniermq.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def load(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("verniermq").options(**options).load()


def run_stream(frame: DataFrame, checkpoint: Path, batches: list[list[Any]]) -> list[dict[str, Any]]:
    """Run a stream to its end; note the rows of each batch, and return what Spark said of each."""

    def note(rows: DataFrame, number: int) -> None:
        batches.append(rows.collect())

    query = (
        frame.writeStream.foreachBatch(note)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [json.loads(one.json) if hasattr(one, "json") else one for one in query.recentProgress]


def test_a_topic_is_a_table(spark: SparkSession, producing: Producing, topic: str, source: Source) -> None:
    bodies = producing.send_many(topic, 20, TAGS="paid")

    table = load(spark, source(subscribe=topic))
    rows = table.orderBy("queueOffset", "queueId").collect()

    assert table.columns == list(COLUMNS)
    assert [bytes(row.body) for row in rows] == bodies
    assert {(row.topic, row.tags, row.properties["TAGS"]) for row in rows} == {(topic, "paid", "paid")}
    assert [row["keys"] for row in rows] == [f"key-{number}" for number in range(20)]
    assert all(row.storeTimestamp >= row.bornTimestamp for row in rows)


def test_an_empty_topic_is_an_empty_table(
    spark: SparkSession, producing: Producing, topic: str, source: Source
) -> None:
    producing.create(topic)

    assert load(spark, source(subscribe=topic)).count() == 0


def test_columns_are_those_asked_for(spark: SparkSession, producing: Producing, topic: str, source: Source) -> None:
    producing.send_many(topic, 2, queues=1)

    by_option = load(spark, source(subscribe=topic, columns="queueOffset,keys"))
    by_schema = spark.read.format("verniermq").options(**source(subscribe=topic)).schema(ddl(["keys"])).load()

    assert [tuple(row) for row in by_option.collect()] == [(0, "key-0"), (1, "key-1")]
    assert sorted(row["keys"] for row in by_schema.collect()) == ["key-0", "key-1"]
    assert "properties" not in load(spark, source(subscribe=topic, includeHeaders="false")).columns


def test_only_columns_that_can_be_null_are_nullable_unless_a_schema_says_so(
    spark: SparkSession, producing: Producing, topic: str, source: Source
) -> None:
    producing.send_many(topic, 1, queues=1)
    reader = spark.read.format("verniermq").options(**source(subscribe=topic))

    nullable = {field.name for field in reader.load().schema.fields if field.nullable}
    relaxed = reader.schema("queueId int, tags string").load()

    assert nullable == {"tags", "keys", "uniqueKey", "bornTimestamp", "storeTimestamp"}
    assert relaxed.schema["queueId"].nullable
    assert [tuple(row) for row in relaxed.collect()] == [(0, None)]
    with pytest.raises(Exception, match="tags string NOT NULL"):
        reader.schema("tags string NOT NULL").load().collect()


def test_filters_save_reading(spark: SparkSession, producing: Producing, topic: str, source: Source) -> None:
    producing.send_many(topic, 30, queues=3, TAGS="even")
    producing.send(topic, b"odd", 1, TAGS="odd")
    table = load(spark, source(subscribe=topic, pushFilters="true"))

    chosen = table.where("queueId = 1 and queueOffset >= 8 and tags in ('odd', 'even')")

    assert [row.queueOffset for row in chosen.orderBy("queueOffset").collect()] == [8, 9, 10]
    assert [bytes(row.body) for row in table.where("tags = 'odd'").collect()] == [b"odd"]
    assert table.where("queueId = 1").rdd.getNumPartitions() == 1
    assert table.where("queueOffset > 100").count() == 0
    assert table.where("storeTimestamp >= timestamp'2100-01-01'").count() == 0


def test_system_topics_are_readable_when_named(
    spark: SparkSession, producing: Producing, topic: str, source: Source, shared_broker: BrokerProcess
) -> None:
    producing.create(topic)
    producing.send(topic, b"later", DELAY="18")
    producing.send(f"%RETRY%{topic}", b"again", times=1)

    delayed = load(spark, source(subscribe="SCHEDULE_TOPIC_XXXX")).where(f"properties['REAL_TOPIC'] = '{topic}'")
    retried = load(spark, source(subscribe=f"%RETRY%{topic}")).collect()
    matching = load(spark, source(subscribePattern=".*")).where("topic like '%RETRY%'")

    row = delayed.collect()[0]
    assert bytes(row.body) == b"later"
    assert row.tagsCode > row.storeTimestamp.timestamp() * 1000  # when it will be delivered
    assert [(bytes(row.body), row.reconsumeTimes) for row in retried] == [(b"again", 1)]
    assert matching.count() == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscribe": "nobody"}, "topic 'nobody' does not exist"),
        ({"subscribe": "a", "assign": "{}"}, "one of subscribe, subscribePattern or assign"),
        ({"subscribe": "a", "startingOffsets": "newest"}, "expected earliest, latest"),
        ({"subscribe": "a", "subscripe": "b"}, "did you mean 'subscribe'"),
        ({"subscribe": "a", "nameServer": "127.0.0.1:1", "retryTimeout": "100ms"}, "cannot reach 127.0.0.1:1"),
    ],
)
def test_mistakes_are_told_clearly(spark: SparkSession, source: Source, options: dict[str, str], expected: str) -> None:
    with pytest.raises(Exception, match=expected):
        load(spark, source(**options)).count()


def test_a_stream_reads_everything_once_in_batches_of_the_limit_and_finds_topics_that_come_later(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    bodies = producing.send_many(f"{topic}-one", 25)
    options = source(
        subscribePattern=f"{topic}-.*", startingOffsets="earliest", maxOffsetsPerTrigger="10", columns="body"
    )
    stream = spark.readStream.format("verniermq").options(**options).load()
    batches: list[list[Any]] = []

    run_stream(stream, tmp_path / "checkpoint", batches)
    first = [len(batch) for batch in batches]
    bodies += producing.send_many(f"{topic}-two", 3)
    bodies += [b"later"]
    producing.send(f"{topic}-one", b"later")
    progress = run_stream(stream, tmp_path / "checkpoint", batches)

    assert first == [10, 10, 5]
    assert sorted(bytes(row.body) for batch in batches for row in batch) == sorted(bodies)
    assert f"{topic}-two" in str(progress[-1]["sources"][0]["endOffset"])


def test_rows_become_messages_that_know_their_row(
    spark: SparkSession, producing: Producing, topic: str, source: Source
) -> None:
    rows = spark.range(2500).selectExpr(
        "concat('order ', id) as body", "if(id % 2 = 0, 'even', 'odd') as tags", "cast(id as string) as keys",
        "map('n', cast(id as string)) as properties",
    )  # fmt: skip

    rows.write.format("verniermq").options(**source(topic=topic, writeId="load-7")).mode("append").save()
    found = load(spark, source(subscribe=topic)).collect()

    assert sorted(int(row["keys"]) for row in found) == list(range(2500))
    assert all(bytes(row.body) == b"order %d" % int(row["keys"]) for row in found)
    assert all(row.properties["n"] == row["keys"] for row in found)
    assert len({row.properties["SPARK_ROW"] for row in found}) == len({row.uniqueKey for row in found}) == 2500
    assert {row.properties["SPARK_ROW"].split("/")[0] for row in found} == {"load-7"}


def test_a_sink_sends_delayed_messages_and_to_chosen_queues(
    spark: SparkSession, producing: Producing, topic: str, source: Source
) -> None:
    producing.create(topic, 4)
    rows = spark.createDataFrame(
        [(topic, b"third", 3, None), (topic, b"later", 0, {Property.DELAY: "18"})],
        "topic string, body binary, queueId int, properties map<string,string>",
    )

    rows.write.format("verniermq").options(**source()).mode("append").save()

    assert [(bytes(row.body), row.queueId) for row in load(spark, source(subscribe=topic)).collect()] == [(b"third", 3)]


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ("'x' as text", {"topic": "orders"}, "'text'.*columns of body"),
        ("1 as body", {"topic": "orders"}, "'body int'.*binary or string"),
        ("'x' as body", {}, "the name of a topic"),
        ("'x' as body", {"topic": "no such topic"}, "has a character that is not allowed"),
    ],
)
def test_rows_that_are_no_messages_are_refused(
    spark: SparkSession, source: Source, columns: str, options: dict[str, str], expected: str
) -> None:
    with pytest.raises(Exception, match=expected):
        spark.range(1).selectExpr(columns).write.format("verniermq").options(**source(**options)).mode("append").save()


def test_a_stream_can_end_in_a_topic_and_repeats_can_be_told(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    bodies = producing.send_many(topic, 12)
    producing.create(f"{topic}-copy")
    stream = spark.readStream.format("verniermq").options(
        **source(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    )
    query = (
        stream.load()
        .select("body")
        .writeStream.format("verniermq")
        .options(**source(topic=f"{topic}-copy"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    copied = load(spark, source(subscribe=f"{topic}-copy")).collect()

    assert sorted(bytes(row.body) for row in copied) == sorted(bodies)
    places = [row.properties["SPARK_ROW"].split("/") for row in copied]
    assert {place[0] for place in places} == {str(query.id)}
    assert {place[1] for place in places} == {"0", "1"}


def test_a_batch_that_failed_halfway_sends_no_row_twice(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    producing.send_many(topic, 300)
    producing.create(f"{topic}-copy", 1)
    stream = spark.readStream.format("verniermq").options(**source(subscribe=topic, startingOffsets="earliest")).load()

    def copy(queue: str) -> StreamingQuery:
        return (
            stream.selectExpr("body", "keys", f"{queue} as queueId")
            .writeStream.format("verniermq")
            .options(**source(topic=f"{topic}-copy", batchSize="2000"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    with pytest.raises(Exception, match="queueId"):
        copy("if(queueId = 1 and queueOffset = 100, 9, 0)").awaitTermination()
    half = load(spark, source(subscribe=f"{topic}-copy")).count()
    copy("0").awaitTermination()

    keys = [row["keys"] for row in load(spark, source(subscribe=f"{topic}-copy")).collect()]
    assert 0 < half < 300
    assert sorted(keys) == sorted(f"key-{number}" for number in range(300))


def test_a_task_that_is_killed_halfway_sends_no_row_twice(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    """By ``kill -9`` of the Python that the rows come from, once the broker has some of them."""
    producing.send_many(topic, 300, queues=1, size=2000)
    copied, marker = f"{topic}-copy", tmp_path / "killed"
    producing.create(copied, 1)
    name_server = source()["nameServer"]

    def kill_once(body: bytes, key: str) -> bytes:
        if key == "key-250" and not marker.exists():
            marker.touch()
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                if scan(copied, name_server, columns="queueId").read_all().num_rows:
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(0.05)
        return body

    def copy() -> StreamingQuery:
        options = source(subscribe=topic, startingOffsets="earliest")
        stream = spark.readStream.format("verniermq").options(**options).load()
        return (
            stream.select(through("body", "keys").alias("body"), "keys")
            .writeStream.format("verniermq")
            .options(**source(topic=copied, batchSize="2000"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    through = udf(kill_once, "binary", useArrow=False)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    try:
        with pytest.raises(Exception, match=r"Python worker|EOF"):
            copy().awaitTermination()
        half = load(spark, source(subscribe=copied)).count()
        copy().awaitTermination()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    keys = [row["keys"] for row in load(spark, source(subscribe=copied)).collect()]
    assert 0 < half < 300
    assert sorted(keys) == sorted(f"key-{number}" for number in range(300))
