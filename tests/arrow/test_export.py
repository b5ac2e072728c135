"""An export without Spark: every message once in files or tables, whatever cuts it short."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from rich.console import Console

from tests.arrow.conftest import WITH_PLUGIN, Source
from tests.arrow.producing import Producing
from tests.arrow.test_fetch import SMALL_SEGMENTS, delete_oldest_messages
from tests.arrow.test_values import avro, registry
from verniermq.cli import main
from verniermq.contrib.arrow import layout
from verniermq.contrib.arrow.checkpoint import BadCheckpoint, ExportCheckpoint
from verniermq.contrib.arrow.errors import BadOption, DataLost, FormatChanged, TableChanged
from verniermq.contrib.arrow.export import Export, ExportJob, run
from verniermq.contrib.arrow.partitions import escaped
from verniermq.contrib.arrow.progress import ExportProgress
from verniermq.contrib.arrow.tables import table_name
from verniermq.contrib.arrow.tables.delta import DeltaTables
from verniermq.contrib.arrow.tables.iceberg import IcebergTables, open_catalog
from verniermq.contrib.arrow.typedtopics import parse_typed
from verniermq.contrib.arrow.values.registry import RegistryFailed
from verniermq.contrib.arrow.values.typed import CorruptValue
from verniermq.kernel import RequestCode
from verniermq.testing import broker_process

FORMATS = ["parquet", "jsonl", "iceberg", "delta"]


def export(out: Path, source: Source, *topics: str, **changes: Any) -> int:
    with ExportProgress(Console(quiet=True)) as shown:
        return run(Export(out=str(out), name_server=source()["nameServer"], topics=topics, **changes), shown)


def bodies_in(out: Path, form: str, topic: str) -> list[bytes]:
    """What readers of each format find, by their own libraries."""
    if form == "parquet":
        table = pyarrow.dataset.dataset(out / "messages", partitioning="hive").to_table()
        rows = [row["body"] for row in table.to_pylist() if row["topic"] == topic]
    elif form == "jsonl":
        files = (out / "messages").glob(f"topic={escaped(topic)}/dt=*/batch=*/*.jsonl")
        rows = [orjson.loads(line)["body"].encode() for file in files for line in file.read_bytes().splitlines()]
    elif form == "delta":
        reader = DeltaTable(out / "messages" / f"topic={table_name(topic)}").to_pyarrow_table()
        rows = reader["body"].to_pylist()
    else:
        rows = open_catalog(out).load_table(("mq", table_name(topic))).scan().to_arrow()["body"].to_pylist()
    return sorted(rows)


@pytest.mark.parametrize("form", FORMATS)
def test_every_message_is_there_once_and_the_next_run_goes_on(
    producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    bodies = producing.send_many(topic, 30)
    dead = f"%DLQ%{topic}"
    producing.create(dead, 1)
    producing.send(dead, b"given up", times=16)

    first = export(tmp_path, source, topic, dead, format=form, batch_rows=20, group="exporters")
    bodies.append(b"later")
    producing.send(topic, b"later")
    second = export(tmp_path, source, topic, dead, format=form, group="exporters")
    third = export(tmp_path, source, topic, dead, format=form, group="exporters")

    assert (first, second, third) == (31, 1, 0)
    assert bodies_in(tmp_path, form, topic) == sorted(bodies)
    assert bodies_in(tmp_path, form, dead) == [b"given up"]
    queue = {"consumerGroup": "exporters", "topic": topic, "queueId": "0"}
    assert producing.wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, queue).ext["offset"] == "16"
    topics = pyarrow.dataset.dataset(tmp_path / "topics", partitioning="hive").to_table().to_pylist()
    assert sum(row["messages"] for row in topics if row["topic"] == topic) == 31
    assert sum(row["retried"] for row in topics) == 1
    assert not (tmp_path / "_export.lock").exists()


class Killed(BaseException):
    """What a kill is to the code that it meets: nothing behind it runs."""


MOMENTS = {
    "before the files": (layout.BatchFiles, "publish"),
    "between files": (layout, "move_folder"),
    "before the commit": (ExportJob, "_write_figures"),
    "before the end is noted": (ExportCheckpoint, "commit"),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("moment", [*MOMENTS, "in the commit"])
def test_a_run_that_is_cut_short_leaves_nothing_twice(
    producing: Producing, topic: str, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    form: str, moment: str,
) -> None:  # fmt: skip
    bodies = producing.send_many(topic, 20)
    other = f"{topic}-2"
    others = producing.send_many(other, 5, queues=1)
    in_commit = {"iceberg": (IcebergTables, "commit"), "delta": (DeltaTables, "commit")}.get(
        form, (ExportCheckpoint, "commit")
    )
    target, name = MOMENTS.get(moment, in_commit)
    original = getattr(target, name)
    calls = 0

    def cut(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        # The second topic's turn, where there are turns: one is done, one is not.
        if calls == (2 if name in ("move_folder", "commit") and target is not ExportCheckpoint else 1):
            raise Killed
        return original(*arguments, **more)

    monkeypatch.setattr(target, name, cut)
    with pytest.raises(Killed):
        export(tmp_path, source, topic, other, format=form, tables=moment == "before the commit")
    monkeypatch.undo()
    producing.send(topic, b"after the crash")
    export(tmp_path, source, topic, other, format=form)

    assert bodies_in(tmp_path, form, topic) == sorted([*bodies, b"after the crash"])
    assert bodies_in(tmp_path, form, other) == sorted(others)
    assert not list((tmp_path / "messages").glob(".*"))


def test_an_iceberg_table_is_queried_with_duckdb(
    producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    producing.send_many(topic, 12, TAGS="paid")
    export(tmp_path, source, topic, format="iceberg")
    table = open_catalog(tmp_path).load_table(("mq", topic))

    orders = table.scan(row_filter="queueOffset < 3", selected_fields=("tags", "queueOffset")).to_arrow_batch_reader()

    found = duckdb.from_arrow(orders).aggregate("tags, count(*)", "tags").fetchall()
    assert found == [("paid", 6)]
    about = table.metadata.snapshots[-1].summary
    assert about is not None
    assert about["verniermq.batch"] == "0"
    assert json.loads(about["verniermq.offsets"] or "") == {"broker-a": {"0": 6, "1": 6}}


def test_a_table_that_somebody_changed_is_told_and_nothing_is_added(
    producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    producing.send_many(topic, 3)
    export(tmp_path, source, topic, format="iceberg")
    table = open_catalog(tmp_path).load_table(("mq", topic))
    with table.update_schema() as change:
        change.rename_column("body", "payload")
    producing.send(topic, b"one more")

    with pytest.raises(TableChanged, match=r"batch .*-1 does not fit Iceberg table .* has no body any more. Nothing"):
        export(tmp_path, source, topic, format="iceberg")

    assert table.refresh().scan().to_arrow().num_rows == 3
    with table.update_schema() as change:
        change.rename_column("payload", "body")
    assert export(tmp_path, source, topic, format="iceberg") == 1
    assert table.refresh().scan().to_arrow().num_rows == 4


def test_the_command_says_what_retention_took(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with broker_process(tmp_path / "store", WITH_PLUGIN, *SMALL_SEGMENTS) as process:
        arguments = ["export", str(out), "--namesrv", process.namesrv, "--topic", "orders", "--no-tables"]
        with Producing(process.broker) as producing:
            producing.send_many("orders", 50, queues=1, size=500)
        well = CliRunner().invoke(main, arguments)
        with Producing(process.broker) as producing:
            producing.send_many("orders", 30, queues=1, size=500)
        again = CliRunner().invoke(main, [*arguments, "--json"])
        with Producing(process.broker) as producing:
            producing.send_many("orders", 400, queues=1, size=500)
        delete_oldest_messages(process)
        stopped = CliRunner().invoke(main, arguments)
        going_on = CliRunner().invoke(main, [*arguments, "--skip-lost", "--json"])

    assert well.exit_code == 0, well.output
    assert "50 rows" in well.output
    told = [json.loads(line) for line in again.output.splitlines()]
    assert [(row["batch"], row["rows"], row["waiting"]) for row in told if "batch" in row] == [(1, 30, 0)]
    (end,) = [row for row in told if "done" in row]
    assert (end["rows"], end["lost"]) == (30, 0)
    assert isinstance(stopped.exception, DataLost) or "are lost" in stopped.output
    assert going_on.exit_code == 0, going_on.output
    rows = pyarrow.dataset.dataset(out / "messages", partitioning="hive").to_table().to_pylist()
    assert len({row["queueOffset"] for row in rows}) == len(rows) < 480
    (skipped, *_) = [json.loads(line) for line in going_on.output.splitlines() if "skipped" in line]
    assert skipped == {"skipped": 480 - len(rows), "topic": "orders", "queue": 0}


def test_mistakes_are_one_line(producing: Producing, topic: str, source: Source, tmp_path: Path) -> None:
    producing.send_many(topic, 1)
    export(tmp_path, source, topic)

    with pytest.raises(FormatChanged, match="has an export as parquet; to export as delta"):
        export(tmp_path, source, topic, format="delta")
    (tmp_path / "_checkpoint" / "offsets" / "0").write_text("v9\n{}\n{}")
    with pytest.raises(BadCheckpoint, match=r"offsets/0 is not what .* found \['v9', "):
        export(tmp_path, source, topic)


def test_files_are_as_spark_writes_them(producing: Producing, topic: str, source: Source, tmp_path: Path) -> None:
    producing.send_many(topic, 4, TAGS="a")
    export(tmp_path, source, topic)

    (file,) = (tmp_path / "messages").glob(f"topic={topic}/dt=*/batch=*-0/part-*.zstd.parquet")
    metadata = pq.read_metadata(file)
    kinds = {metadata.row_group(0).column(at).compression for at in range(metadata.num_columns)}
    assert kinds == {"ZSTD"}
    assert escaped("%DLQ%a/b") == "%25DLQ%25a%2Fb"
    assert table_name("%DLQ%a") == "a__dlq"


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_two_topics_of_one_table_name_are_told_apart(
    producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    group = topic[:40]
    producing.send_many(f"{group}__dlq", 1)
    producing.send_many(f"%DLQ%{group}", 1)
    with pytest.raises(TableChanged, match=f"it is of topic (%DLQ%{group}|{group}__dlq)"):
        export(tmp_path / "at-once", source, f"{group}__dlq", f"%DLQ%{group}", format=form)
    export(tmp_path, source, f"{group}__dlq", format=form)

    with pytest.raises(TableChanged, match=f"it is of topic {group}__dlq"):
        export(tmp_path, source, f"%DLQ%{group}", format=form)


def typed_rows(out: Path, form: str, topic: str) -> list[dict[str, Any]]:
    if form == "parquet":
        schema = pa.unify_schemas(
            [pq.read_schema(file) for file in (out / "messages").glob(f"topic={topic}/dt=*/batch=*/*.parquet")],
            promote_options="permissive",
        )
        table = pyarrow.dataset.dataset(out / "messages" / f"topic={topic}", schema=schema).to_table()
    elif form == "delta":
        table = DeltaTable(out / "messages" / f"topic={topic}").to_pyarrow_table()
    else:
        table = open_catalog(out).load_table(("mq", topic)).scan().to_arrow()
    return sorted(table.to_pylist(), key=lambda row: row["queueOffset"])


@pytest.mark.parametrize("form", ["parquet", "iceberg", "delta"])
def test_typed_topics_have_a_table_of_errors_and_schemas_that_grow(
    producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    producing.create(topic, 1)
    producing.send(topic, b'{"id": 1}')
    producing.send(topic, b"poison")
    schema = tmp_path / "orders.ddl"
    schema.write_text("id int")
    typed = [f"{topic}={schema}"]
    out = tmp_path / "out"

    export(out, source, topic, format=form, typed=parse_typed(typed, "table"))
    producing.send(topic, b'{"id": 2, "note": "new"}')
    schema.write_text("id int, note string")
    export(out, source, topic, format=form, typed=parse_typed(typed, "table"))

    rows = typed_rows(out, form, topic)
    assert [row["value"] for row in rows] == [{"id": 1, "note": None}, {"id": 2, "note": "new"}]
    assert "body" not in rows[0]
    (error,) = typed_rows(out, form, f"{topic}__errors")
    assert (error["queueOffset"], error["body"]) == (1, b"poison")
    assert "cannot be parsed" in error["corrupt"]


def test_a_topic_can_be_typed_by_a_registry(producing: Producing, topic: str, source: Source, tmp_path: Path) -> None:
    old = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    new = {**old, "fields": [*old["fields"], {"name": "note", "type": "string", "default": "-"}]}
    producing.create(topic, 1)
    for number, body in ((1, avro({"id": 1}, old)), (2, avro({"id": 2, "note": "n"}, new)), (99, b"?")):
        producing.send(topic, b"\0" + struct.pack(">i", number) + body)
    known = {"/schemas/ids/1": old, "/schemas/ids/2": new, "/subjects/shop/versions/latest": new}

    with registry(known) as at:
        typed = parse_typed([f"{topic}={at}#shop"], "table")
        export(tmp_path, source, topic, format="iceberg", typed=typed)
        with pytest.raises(BadOption, match="only Avro's"):
            parse_typed([f"{topic}=json:{at}"], "table")
        with pytest.raises(RegistryFailed, match=f"subjects/{topic}-value/versions/latest .*404"):
            parse_typed([f"{topic}={at}"], "table")

    rows = typed_rows(tmp_path, "iceberg", topic)
    assert [row["value"] for row in rows] == [{"id": 1, "note": "-"}, {"id": 2, "note": "n"}]
    (error,) = typed_rows(tmp_path, "iceberg", f"{topic}__errors")
    assert error["corrupt"] == "the schema registry knows no schema 99, which it names"


def test_a_member_of_an_iceberg_table_becomes_wider(
    producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    producing.create(topic, 1)
    schema = tmp_path / "orders.ddl"
    for body, text in ((b'{"id": 1}', "id int"), (b'{"id": 5000000000}', "id long")):
        producing.send(topic, body)
        schema.write_text(text)
        export(tmp_path / "out", source, topic, format="iceberg", typed=parse_typed([f"{topic}={schema}"], "table"))

    rows = typed_rows(tmp_path / "out", "iceberg", topic)
    assert [row["value"] for row in rows] == [{"id": 1}, {"id": 5_000_000_000}]


@pytest.mark.parametrize("form", ["iceberg", "delta"])
def test_a_schema_that_does_not_fit_the_table_is_told(
    producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    producing.create(topic, 1)
    schema = tmp_path / "orders.ddl"
    schema.write_text("id int")
    producing.send(topic, b'{"id": 1}')
    export(tmp_path / "out", source, topic, format=form, typed=parse_typed([f"{topic}={schema}"], "skip"))
    schema.write_text("id string")
    producing.send(topic, b'{"id": "two"}')

    with pytest.raises(TableChanged, match="does not fit"):
        export(tmp_path / "out", source, topic, format=form, typed=parse_typed([f"{topic}={schema}"], "skip"))

    assert [row["value"]["id"] for row in typed_rows(tmp_path / "out", form, topic)] == [1]


def test_bodies_that_do_not_fit_stop_an_export_or_are_left_out(
    producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    producing.create(topic, 1)
    schema = tmp_path / "orders.ddl"
    schema.write_text("id int")
    for body in (b'{"id": 1}', b"poison", b'{"id": 3}'):
        producing.send(topic, body)
    typed = parse_typed([f"{topic}={schema}"], "stop")

    with pytest.raises(CorruptValue, match="at offset 1 has no value"):
        export(tmp_path / "out", source, topic, typed=typed, on_error="stop")
    assert not list((tmp_path / "out" / "messages").glob("*"))
    export(tmp_path / "out", source, topic, typed=parse_typed([f"{topic}={schema}"], "skip"), on_error="skip")

    assert [row["value"]["id"] for row in typed_rows(tmp_path / "out", "parquet", topic)] == [1, 3]
    assert not (tmp_path / "out" / "messages" / f"topic={topic}__errors").exists()


@pytest.mark.parametrize("text", ["orders", "orders=", "=x.ddl", "orders=/no/such.ddl"])
def test_typed_topics_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(BadOption, match="option 'typed'"):
        parse_typed([text], "table")


@pytest.mark.parametrize("form", ["parquet", "jsonl", "iceberg"])
def test_files_are_about_as_large_as_the_target(
    producing: Producing, topic: str, source: Source, tmp_path: Path, form: str
) -> None:
    bodies = producing.send_many(topic, 60, queues=2)
    base = ["export", str(tmp_path), "--namesrv", source()["nameServer"], "--topic", topic, "--format", form]

    done = CliRunner().invoke(main, [*base, "--target-file", "100"])
    wrong = CliRunner().invoke(main, [*base, "--target-file", "many"])

    assert done.exit_code == 0, done.output
    files = sorted(path.name for path in (tmp_path / "messages").rglob("part-*"))
    assert [name[:10] for name in files] == ["part-00000", "part-00001"]  # one of each queue: batches are not cut
    assert bodies_in(tmp_path, form, topic) == sorted(bodies)
    assert wrong.exit_code == 2


def test_an_export_that_finds_no_name_server_says_so_at_once(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["export", str(tmp_path / "out"), "--namesrv", "127.0.0.1:1"])

    assert refused.exit_code == 2
    assert "no name server answered: cannot reach 127.0.0.1:1: Connection refused; start one with" in refused.stderr
