"""The listener: each batch of a user's own stream is told, and its offsets are on the brokers."""

from __future__ import annotations

import json
import queue
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.arrow.producing import Producing
from tests.spark.conftest import Source
from tests.spark.test_source import run_stream
from verniermq.contrib.spark.listener import ProgressListener, StreamBatch, stream_batch
from verniermq.kernel import MessageQueue, RequestCode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_batch_is_told_and_its_offsets_are_published(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    producing.send_many(topic, 12, queues=1)
    told: queue.Queue[StreamBatch] = queue.Queue()
    listener = ProgressListener(told.put, group=f"{topic}-stream", name_server=source()["nameServer"])
    options = source(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="8", columns="body")
    stream = spark.readStream.format("verniermq").options(**options).load()
    batches: list[list[Any]] = []

    spark.streams.addListener(listener)
    try:
        run_stream(stream, tmp_path / "checkpoint", batches)
        first, second = (told.get(timeout=60) for _ in batches)
    finally:
        spark.streams.removeListener(listener)

    assert [(one.done.number, one.done.rows, one.done.lag) for one in (first, second)] == [(0, 8, 4), (1, 4, 0)]
    assert list(second.end.values()) == [12]
    assert second.done.seconds > 0
    asked = {"consumerGroup": f"{topic}-stream", "topic": topic, "queueId": "0"}
    assert producing.wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, asked).ext["offset"] == "12"


def progress(**source: Any) -> dict[str, Any]:
    full = {"startOffset": None, "endOffset": None, **source}
    return {
        "id": "1f0c", "name": "fraud", "batchId": 3, "numInputRows": 5, "durationMs": {"triggerExecution": 2500},
        "sources": [{"startOffset": 1, "endOffset": 2}, full],
    }  # fmt: skip


def test_a_batch_of_ours_is_found_among_other_sources() -> None:
    end = {"orders": {"a": {"0": 9}}}

    found = stream_batch(progress(endOffset=json.dumps(end), latestOffset=json.dumps({"orders": {"a": {"0": 1009}}})))

    assert found is not None
    assert str(found) == "fraud, batch 3: 5 rows in 2.5 s, 2 rows/s, 1,000 to come"
    assert found.end == {MessageQueue("orders", "a", 0): 9}


def test_a_look_that_found_nothing_is_no_batch_nor_is_that_of_another_source() -> None:
    same = json.dumps({"orders": {"a": {"0": 9}}})

    assert stream_batch(progress(startOffset=same, endOffset=same)) is None
    assert stream_batch(progress(endOffset='{"logOffset": 3}')) is None
    assert stream_batch(progress(endOffset='{"orders": {"0": 3}}')) is None  # Kafka's
