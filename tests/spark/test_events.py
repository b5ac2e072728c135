"""Dispatch events as a table, as a stream, and as ready tables with their charts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pyarrow.parquet as pq
from click.testing import CliRunner

from tests.arrow.producing import Producing
from tests.spark.conftest import WITH_PLUGIN, Source
from tests.spark.test_source import load, run_stream
from verniermq.cli import main
from verniermq.contrib.arrow.schema import EVENT_COLUMNS
from verniermq.contrib.spark.events import TABLES
from verniermq.testing import broker_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_events_are_a_table_and_a_stream(
    spark: SparkSession, producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    producing.send_many(topic, 20, size=5000)

    table = load(spark, source(subscribe=topic, events="true"))
    batches: list[list[object]] = []
    given = source(subscribe=topic, events="true", startingOffsets="earliest", maxOffsetsPerTrigger="15")
    stream = spark.readStream.format("verniermq").options(**given).load()
    run_stream(stream, tmp_path, batches)

    assert table.columns == list(EVENT_COLUMNS)
    assert table.where("size > 5000").count() == 20
    assert sorted(map(len, batches)) == [5, 15]


def test_the_ready_tables_count_what_flows(spark: SparkSession, tmp_path: Path) -> None:
    with broker_process(tmp_path / "store", WITH_PLUGIN) as broker, Producing(broker.broker) as producing:
        producing.send_many("orders", 10)
        producing.send("orders", b"later", DELAY="18")
        producing.create("%RETRY%billing")
        producing.create("%DLQ%billing")
        for times in (1, 2, 3):
            producing.send("%RETRY%billing", b"again", times=times)
        producing.send("%DLQ%billing", b"never", times=16)
        producing.send("orders", b"half", sys_flag=4, TRAN_MSG="true", PGROUP="shop")

        arguments = ["spark", "events", str(tmp_path / "out"), "--namesrv", broker.namesrv, "--per", "day"]
        done = CliRunner().invoke(main, arguments)
        again = CliRunner().invoke(main, [*arguments, "--json"])

    assert done.exit_code == 0, done.output
    told = {row["table"]: row for row in map(json.loads, again.output.splitlines())}
    assert told["failures"] == {"table": "failures", "rows": 1, "file": str(tmp_path / "out" / "failures.parquet")}
    assert "failures.parquet: 1 rows, drawn in failures.svg" in done.output
    tables = {name: pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist() for name in TABLES}
    counts = {row["topic"]: row["messages"] for row in tables["messages"]}
    assert counts == {"orders": 10, "%RETRY%billing": 3, "%DLQ%billing": 1}
    (failed,) = tables["failures"]
    assert (failed["group"], failed["retries"], failed["deadLetters"]) == ("billing", 3, 1)
    (delayed,) = tables["delayed"]
    assert (delayed["byLevel"], delayed["atAnyTime"]) == (1, 0)
    assert 7_100_000 < delayed["averageDelayMs"] <= 7_200_000
    (transactions,) = tables["transactions"]
    assert transactions["prepared"] >= 1, "more if a check put it back"
    assert transactions["committed"] == 0
    assert all(row["mostMs"] >= row["medianMs"] for row in tables["latency"])
    drawn = ElementTree.parse(tmp_path / "out" / "failures.svg")
    assert "billing: retries" in [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]


def test_a_wrong_age_is_told() -> None:
    done = CliRunner().invoke(main, ["spark", "events", "out", "--since", "yesterday"])

    assert done.exit_code == 2
    assert "yesterday" in done.output
