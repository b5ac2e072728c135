"""Typed bodies as Spark sees them: a struct column in each format, bodies that do not fit, and the typed export."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from tests.arrow.producing import Producing
from tests.arrow.test_partitions import REGIONS, typed_orders
from tests.arrow.test_values import AVRO, avro, descriptors, order_message, registry
from tests.spark.conftest import Source
from tests.spark.test_export import parquet
from tests.spark.test_source import load, run_stream
from verniermq.cli import main
from verniermq.contrib.arrow.ddl import parse_fields
from verniermq.contrib.arrow.tables.iceberg import open_catalog
from verniermq.contrib.arrow.typedtopics import parse_typed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DDL = "id long, amount decimal(9,2), at timestamp, who struct<name: string, tags: array<string>>"
ORDER = {"id": 7, "amount": "12.50", "at": "2026-03-01T12:00:00Z", "who": {"name": "Ada", "tags": ["a", "b"]}}


def test_a_schema_can_be_the_json_of_a_dataframe_s(spark: SparkSession, tmp_path: Path) -> None:
    text = f"{DDL}, by map<string, array<int>>, note string not null"
    file = tmp_path / "schema.json"
    file.write_text(spark.createDataFrame([], text).schema.json())

    assert parse_fields(file.read_text()) == parse_fields(text)
    assert parse_typed([f"orders={file}"], "table")["orders"].format == "json"


def plain(value: Any) -> Any:
    """Rows as dictionaries, and times as moments: Spark's are those of this process's zone."""
    return value.asDict(recursive=True) if hasattr(value, "asDict") else value


def test_json_and_messagepack_are_structs_and_what_does_not_fit_says_why(
    spark: SparkSession, producing: Producing, topic: str, source: Source
) -> None:
    producing.create(topic, 2)
    producing.send(topic, json.dumps(ORDER).encode(), 0)
    producing.send(topic, msgspec.msgpack.encode({**ORDER, "at": NOON}), 1)
    typed = {"subscribe": topic, "valueSchema": DDL, "columns": "queueId,value,corrupt"}

    for form, fits in (("json", 0), ("msgpack", 1)):
        rows = load(spark, source(valueFormat=form, **typed)).orderBy("queueId").collect()
        other = 1 - fits
        assert rows[fits].corrupt is None
        assert rows[fits].value.at.astimezone(UTC) == NOON
        assert plain(rows[fits].value.who) == ORDER["who"]
        assert (rows[fits].value.id, rows[fits].value.amount) == (7, Decimal("12.50"))
        assert rows[other].value is None
        assert rows[other].corrupt


def test_avro_and_protobuf_are_structs(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    order = {"id": 7, "note": None, "at": NOON, "counts": {"a": 1}, "kind": "SALE"}
    producing.create(topic, 2)
    producing.send(topic, avro(order), 0)
    producing.send(topic, order_message()(id=2**64 - 1, items=[{"name": "a"}], counts={"x": 3}).SerializeToString(), 1)
    (tmp_path / "shop.desc").write_bytes(descriptors())
    queues = json.dumps({topic: {"broker-a": [0]}}), json.dumps({topic: {"broker-a": [1]}})

    by_avro = load(spark, source(assign=queues[0], valueFormat="avro", valueSchema=json.dumps(AVRO)))
    by_protobuf = load(
        spark,
        source(
            assign=queues[1],
            valueFormat="protobuf",
            valueSchemaFile=str(tmp_path / "shop.desc"),
            valueMessage="shop.Order",
        ),
    )

    assert plain(by_avro.selectExpr("value.id", "value.note", "value.counts", "value.kind", "corrupt").first()) == {
        "id": 7, "note": None, "counts": {"a": 1}, "kind": "SALE", "corrupt": None,
    }  # fmt: skip
    found = by_protobuf.selectExpr("value.id", "value.items[0].name as name", "value.counts", "corrupt").first()
    assert plain(found) == {"id": Decimal(2**64 - 1), "name": "a", "counts": {"x": 3}, "corrupt": None}


def test_a_registry_is_asked_by_planner_and_tasks(
    spark: SparkSession, producing: Producing, topic: str, source: Source
) -> None:
    old = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    new = {**old, "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "-"}]}
    producing.create(topic, 1)
    producing.send(topic, b"\0" + struct.pack(">i", 1) + avro({"id": 1}, old))
    producing.send(topic, b"\0" + struct.pack(">i", 2) + avro({"id": 2, "note": "n"}, new))

    with registry(
        {"/schemas/ids/1": old, "/schemas/ids/2": new, f"/subjects/{topic}-value/versions/latest": new}
    ) as at:
        rows = load(spark, source(subscribe=topic, valueFormat="avro", schemaRegistry=at)).selectExpr("value.*")
        found = [tuple(row) for row in rows.orderBy("id").collect()]

    assert found == [(1, "-"), (2, "n")]


def test_modes_and_found_schemas_work_in_tables_and_streams(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    producing.create(topic, 1)
    for body in (b'{"id": 1, "who": {"name": "Ada"}}', b"poison", b'{"id": 3, "price": 1.5}'):
        producing.send(topic, body)
    found = {"subscribe": topic, "valueFormat": "json", "inferSchema": "true", "columns": "queueOffset,value,corrupt"}

    table = load(spark, source(**found))
    stream = spark.readStream.format("verniermq").options(**source(**found, startingOffsets="earliest")).load()
    batches: list[list[Any]] = []
    run_stream(stream, tmp_path / "checkpoint", batches)
    kept = load(spark, source(**found, mode="dropMalformed")).collect()

    assert table.schema["value"].dataType.simpleString() == ("struct<id:bigint,who:struct<name:string>,price:double>")
    permissive = table.orderBy("queueOffset").collect()
    assert [row.value and row.value.id for row in permissive] == [1, None, 3]
    assert [row.corrupt is None for row in permissive] == [True, False, True]
    assert batches == [permissive]
    assert sorted(row.queueOffset for row in kept) == [0, 2]
    with pytest.raises(Exception, match=r"at offset 1 has no value: it cannot be parsed"):
        load(spark, source(**found, mode="failfast")).collect()


def test_a_typed_value_can_be_chosen_alone_and_by_a_schema(
    spark: SparkSession, producing: Producing, topic: str, source: Source
) -> None:
    producing.create(topic, 1)
    producing.send(topic, b'{"id": 1}')
    typed = source(subscribe=topic, valueFormat="json", valueSchema="id int")

    chosen = spark.read.format("verniermq").options(**typed).schema("value struct<id: int>").load()

    assert [plain(row) for row in chosen.collect()] == [{"value": {"id": 1}}]
    with pytest.raises(Exception, match="lng"):
        load(spark, {**typed, "valueSchema": "id lng"}).count()


def send_orders(producing: Producing, topic: str) -> None:
    producing.create(topic, 2)
    for number in range(10):
        producing.send(topic, b'{"id": %d, "note": "n"}' % number if number != 4 else b"poison", number % 2)


def test_a_typed_export_has_values_errors_and_the_other_topics(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    send_orders(producing, topic)
    others = producing.send_many(f"{topic}-plain", 4)
    (tmp_path / "schema.ddl").write_text("id int")
    arguments = [
        "spark", "export", str(tmp_path / "out"), "--namesrv", source()["nameServer"], "--format", "iceberg",
        "--topic", topic, "--topic", f"{topic}-plain", "--typed", f"{topic}={tmp_path / 'schema.ddl'}",
    ]  # fmt: skip

    first = CliRunner().invoke(main, arguments)
    # A batch that runs again, since only its end was not noted; and a schema that has grown since.
    for left in (tmp_path / "out" / "_checkpoint" / "commits").iterdir():
        left.unlink()
    (tmp_path / "schema.ddl").write_text("id long, note string")
    producing.send(topic, b'{"id": 8589934592, "note": "new"}')
    second = CliRunner().invoke(main, arguments)

    assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
    assert "14 rows" in first.output
    catalog = open_catalog(tmp_path / "out")
    typed, plain_rows, errors = (
        catalog.load_table(("mq", f"{topic}{suffix}")).scan().to_arrow().to_pylist()
        for suffix in ("", "-plain", "__errors")
    )
    assert {row["value"]["id"]: row["value"]["note"] for row in typed} == {
        **dict.fromkeys({*range(10)} - {4}), 2**33: "new",
    }  # fmt: skip
    assert len(typed) == 10
    assert sorted(row["body"] for row in plain_rows) == sorted(others)
    assert [(row["queueId"], row["queueOffset"], row["body"]) for row in errors] == [(0, 2, b"poison")]
    assert "cannot be parsed" in errors[0]["corrupt"]
    counted = [row["messages"] for row in parquet(tmp_path / "out" / "topics") if row["topic"] == topic]
    assert sum(counted) == 11


def test_bodies_that_do_not_fit_are_skipped_or_stop_the_export_as_told(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    send_orders(producing, topic)
    (tmp_path / "shop.desc").write_bytes(descriptors())
    (tmp_path / "schema.ddl").write_text("id int")

    def run(name: str, schema: str, *more: str) -> Any:
        base = ["spark", "export", str(tmp_path / name), "--namesrv", source()["nameServer"], "--topic", topic]
        return CliRunner().invoke(main, [*base, "--typed", f"{topic}={tmp_path / schema}", *more])

    stopped = run("stopped", "schema.ddl", "--on-error", "stop")
    skipped = run("skipped", "schema.ddl", "--on-error", "skip", "--skip-lost")
    other = run("other", "shop.desc#shop.Order", "--no-tables")

    assert stopped.exit_code == 2
    assert f"{topic}@broker-a:0 at offset 2 has no value" in stopped.output + stopped.stderr
    assert not list((tmp_path / "stopped" / "messages").glob("topic=*"))
    assert skipped.exit_code == 0, skipped.output
    assert "skipped:" not in skipped.output
    kept = parquet(tmp_path / "skipped" / "messages")
    assert sorted(row["value"]["id"] for row in kept) == sorted({*range(10)} - {4})
    assert {row["topic"] for row in kept} == {topic}
    assert other.exit_code == 0, other.output
    assert {row["topic"] for row in parquet(tmp_path / "other" / "messages")} == {f"{topic}__errors"}


@pytest.mark.parametrize("form", ["parquet", "iceberg", "delta"])
def test_partitions_are_those_of_an_export_without_spark(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    typed = ["--typed", typed_orders(producing, topic, tmp_path), "--topic", topic, "--format", form]
    columns = ["--partition-by", "value:at.region", "--partition-by", "tags", "--partition-by", "hour"]
    arguments = ["--namesrv", source()["nameServer"], *typed, *columns]
    small, large = tmp_path / "small", tmp_path / "large"

    alone = CliRunner().invoke(main, ["export", str(small), *arguments])
    first = CliRunner().invoke(main, ["spark", "export", str(large), *arguments])
    producing.send(topic, b'{"id": 3, "at": {"region": "north"}}', TAGS="sale")
    second = CliRunner().invoke(main, ["spark", "export", str(small), *arguments])
    other = CliRunner().invoke(main, ["spark", "export", str(small), *arguments, "--partition-by", "queueId"])

    assert (alone.exit_code, first.exit_code, second.exit_code) == (0, 0, 0), alone.output + first.output
    assert "has an export by value:at.region, tags, hour" in f"{other.output}{other.exception}"

    def layout(out: Path) -> dict[tuple[str, ...], pa.Schema]:
        files = (out / "messages").glob("topic=*/by_value_at_region=*/by_tags=*/hour=*/batch=*-0/*.parquet")
        return {path.relative_to(out / "messages").parts[:4]: pq.read_schema(path).remove_metadata() for path in files}

    assert layout(small) == layout(large)
    assert len(layout(small)) == 6
    if form == "iceberg":
        table = open_catalog(small).load_table(("mq", topic))
        assert len(list(table.scan(row_filter="value_at_region = 'north'").plan_files())) == 2
        rows = table.scan().to_arrow()
    elif form == "delta":
        rows = DeltaTable(small / "messages" / f"topic={topic}").to_pyarrow_table()
    else:
        rows = pyarrow.dataset.dataset(small / "messages" / f"topic={topic}", partitioning="hive").to_table()
    found = [(row["value"]["id"], row["value_at_region"], row["tags"]) for row in rows.to_pylist()]
    assert sorted(found, key=str) == sorted(
        [*((1, region, "sale") for region in REGIONS), (2, None, "refund"), (3, "north", "sale")], key=str
    )
