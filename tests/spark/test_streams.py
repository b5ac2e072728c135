"""What exports and streams told of their batches, where people look for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest
from rich.console import Console

from tests.arrow.producing import Producing
from tests.plugins.watching import look
from tests.spark.test_plugin import broker_and_peer
from verniermq.contrib.arrow import export as arrow
from verniermq.contrib.arrow.progress import ExportProgress
from verniermq.contrib.arrow.requests import ReportStream
from verniermq.contrib.spark.export import SparkExport
from verniermq.contrib.spark.export import run as run_with_spark
from verniermq.contrib.spark.streams import MOST_STREAMS, Streams
from verniermq.kernel import RequestCode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.anyio

WATCHED: dict[str, Any] = {
    "plugins__enable": ["default", "http", "metrics", "spark"],
    "plugins__http__listen": "127.0.0.1:0",
    "plugins__metrics__listen": "127.0.0.1:0",
}


async def test_batches_are_metrics_and_a_page_of_the_console() -> None:
    async with broker_and_peer(**WATCHED) as (broker, peer):
        for batch in (1, 2):
            await peer.ask_well(
                RequestCode.REPORT_STREAM, group="spark-export", batch=batch, rows=500, milliseconds=250, behind=70
            )

        metrics = (await look(broker, "/metrics")).text
        page = json.loads((await look(broker, "/spark")).text)

    told = {line.partition("{")[0]: line for line in metrics.splitlines() if line.startswith("verniermq_spark")}
    assert {name: float(line.rpartition(" ")[2]) for name, line in told.items()} == {
        "verniermq_spark_rows_total": 1000, "verniermq_spark_batches_total": 2,
        "verniermq_spark_batch_seconds": 0.25, "verniermq_spark_behind_messages": 70,
    }  # fmt: skip
    assert all('group="spark-export"' in line for line in told.values())
    assert [(one["group"], one["batch"], one["rows"]) for one in page] == [("spark-export", 2, 1000)]


@pytest.mark.parametrize("with_spark", [False, True], ids=["one process", "Spark"])
async def test_what_an_export_does_is_a_metric(spark: SparkSession, tmp_path: Path, with_spark: bool) -> None:
    async with broker_and_peer(**WATCHED) as (broker, _):
        name_server = f"127.0.0.1:{broker.host.active['namesrv'].instance.embedded.port}"

        def export() -> None:
            with Producing(broker.address) as producing:
                producing.send_many("orders", 12)
            kind, run = (SparkExport, run_with_spark) if with_spark else (arrow.Export, arrow.run)
            what = kind(out=str(tmp_path), name_server=name_server, topics=("orders",), group="exporters")
            with ExportProgress(Console(quiet=True)) as progress:
                run(what, progress)

        await anyio.to_thread.run_sync(export)
        metrics = (await look(broker, "/metrics")).text

    told = {line.partition("{")[0]: line for line in metrics.splitlines() if line.startswith("verniermq_spark")}
    assert 'group="exporters"' in told["verniermq_spark_rows_total"]
    assert float(told["verniermq_spark_rows_total"].rpartition(" ")[2]) == 12
    assert float(told["verniermq_spark_behind_messages"].rpartition(" ")[2]) == 0
    assert float(told["verniermq_spark_batch_seconds"].rpartition(" ")[2]) > 0


def test_those_that_say_nothing_for_long_are_forgotten() -> None:
    streams = Streams()
    for number in range(MOST_STREAMS + 5):
        streams.note(ReportStream(group=f"g{number}", batch=0, rows=1, milliseconds=1, behind=-3), 0.0)
        streams.note(ReportStream(group="first", batch=number, rows=1, milliseconds=1, behind=0), 0.0)

    found = {one["group"]: one for one in streams.as_json()}
    assert len(found) == MOST_STREAMS
    assert found["first"]["rows"] == MOST_STREAMS + 5
    assert found[f"g{MOST_STREAMS + 4}"]["behind"] == 0
