"""What goes wrong around an export with Spark is told in one line, and nothing of a batch is half there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.arrow.producing import Producing
from tests.arrow.test_export import bodies_in, typed_rows
from tests.spark.conftest import Source
from tests.spark.test_export import export
from verniermq.contrib.arrow.tables.iceberg import open_catalog
from verniermq.contrib.arrow.typedtopics import parse_typed
from verniermq.contrib.spark.export import ExportFailed
from verniermq.kernel import RequestCode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_table_that_somebody_changed_is_told_and_nothing_is_added(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    producing.send_many(topic, 3)
    export(tmp_path, source, topic, format="iceberg")
    table = open_catalog(tmp_path).load_table(("mq", topic))
    with table.update_schema() as change:
        change.rename_column("body", "payload")
    producing.send(topic, b"one more")

    with pytest.raises(ExportFailed, match=r"does not fit Iceberg table .* has no body any more. Nothing") as failed:
        export(tmp_path, source, topic, format="iceberg")

    assert len(str(failed.value).splitlines()) == 1
    assert table.refresh().scan().to_arrow().num_rows == 3
    with table.update_schema() as change:
        change.rename_column("payload", "body")
    assert export(tmp_path, source, topic, format="iceberg") == 1
    assert table.refresh().scan().to_arrow().num_rows == 4


def test_a_schema_that_does_not_fit_the_table_is_told(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    out, schema = tmp_path / "out", tmp_path / "orders.ddl"
    producing.create(topic, 1)
    schema.write_text("id int")
    producing.send(topic, b'{"id": 1}')
    export(out, source, topic, format="delta", typed=parse_typed([f"{topic}={schema}"], "skip"))
    schema.write_text("id string")
    producing.send(topic, b'{"id": "two"}')

    with pytest.raises(ExportFailed, match="does not fit") as failed:
        export(out, source, topic, format="delta", typed=parse_typed([f"{topic}={schema}"], "skip"))

    assert len(str(failed.value).splitlines()) == 1
    assert [row["value"]["id"] for row in typed_rows(out, "delta", topic)] == [1]


def test_a_topic_that_disappears_is_told_and_so_is_one_of_its_name(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    bodies = producing.send_many(topic, 6)
    export(tmp_path, source, topic)
    for code in (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV):
        producing.wire.ask(code, {"topic": topic})

    with pytest.raises(ExportFailed, match="does not exist on the name server") as gone:
        export(tmp_path, source, topic)
    producing.send_many(topic, 1, queues=2)
    with pytest.raises(ExportFailed, match="the topic was made anew") as another:
        export(tmp_path, source, topic)

    assert all(len(str(failed.value).splitlines()) == 1 for failed in (gone, another))
    assert bodies_in(tmp_path, "parquet", topic) == sorted(bodies)
