"""How fast Spark reads topics, beside what else it could read, and what that costs those who send.

``python bench/spark.py`` fills a broker, then measures in one run, each the middle of several rounds:

- decoding records into Arrow columns, on one core (CPU time, since a machine may be busy with something else);
- Spark scanning a topic beside Spark scanning the same rows from Parquet, and beside the ordinary pull;
- the export into Parquet;
- the rate of sends without the plugin, with it, and while Spark reads all the time.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click
from load import drive
from rich.console import Console
from rich.table import Table
from send import frames

from verniermq.contrib.spark.cluster import expect
from verniermq.contrib.spark.decode import decode_columns
from verniermq.contrib.spark.export import Export, run
from verniermq.contrib.spark.progress import Progress
from verniermq.contrib.spark.schema import COLUMNS
from verniermq.contrib.spark.session import session
from verniermq.contrib.spark.sink import batch_item
from verniermq.contrib.spark.wire import Wire
from verniermq.kernel import RequestCode
from verniermq.kernel.loop import backend_options
from verniermq.kernel.testing import broker_process

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WITH_PLUGIN = '--set=plugins.enable=["default", "spark"]'
LARGE_FILES = ("--set=store.segment_size=1GiB", "--set=store.queue_entries=300000")
PER_REQUEST = 500
QUEUES = 4


def properties(number: int) -> dict[str, str]:
    """What a message of an ordinary client carries, about 150 bytes."""
    return {
        "KEYS": f"order-{number}", "TAGS": random.choice(("paid", "refunded")), "WAIT": "true",
        "UNIQ_KEY": f"{random.getrandbits(64):016X}18B4AAC2{number:08X}", "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }  # fmt: skip


def body(number: int) -> bytes:
    """An order as JSON, about 120 bytes, no two alike: columns of equal values would flatter Parquet."""
    customer, amount, place = random.getrandbits(96), random.randrange(1, 100_000), random.getrandbits(64)
    return b'{"order":%d,"customer":"%024x","cents":%d,"place":"%016x","paid":true}' % (number, customer, amount, place)


def fill(address: str, topic: str, rows: int) -> None:
    wire = Wire(address)
    fields = {
        "topic": topic, "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "perm": "6",
        "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG",
    }  # fmt: skip
    expect(wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields), RequestCode.UPDATE_AND_CREATE_TOPIC, address)
    for start in range(0, rows, PER_REQUEST):
        numbers = range(start, min(start + PER_REQUEST, rows))
        items = b"".join([batch_item(body(number), properties(number), 0) for number in numbers])
        ext = {
            "a": "bench", "b": topic, "c": "TBW102", "d": str(QUEUES), "e": str(start // PER_REQUEST % QUEUES),
            "f": "0", "g": str(int(time.time() * 1000)), "h": "0", "i": "", "j": "0", "m": "true",
        }  # fmt: skip
        expect(wire.ask(RequestCode.SEND_BATCH_MESSAGE, ext, items), RequestCode.SEND_BATCH_MESSAGE, address)
    wire.close()


def middle(rounds: int, measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(rounds))


def decoding(address: str, topic: str, table: Table) -> None:
    wire = Wire(address)
    ext = {"topic": topic, "queueId": "0", "beginOffset": "0", "endOffset": "16384"}
    answer = wire.ask(RequestCode.READ_QUEUE_RANGE, ext)
    wire.close()
    record_bytes = int(answer.ext["recordBytes"])

    def rate(columns: tuple[str, ...]) -> float:
        best = 0.0
        for _ in range(30):
            started = time.process_time()
            rows = sum(decode_columns(answer.body, columns, record_bytes=record_bytes).num_rows for _ in range(3))
            best = max(best, rows / (time.process_time() - started))
        return best

    count = decode_columns(answer.body, ("size",), record_bytes=record_bytes).num_rows
    without = tuple(name for name in COLUMNS if name != "properties")
    table.add_row(f"decode, records of {record_bytes // count} bytes, all columns", f"{rate(COLUMNS):,.0f}", "")
    table.add_row("decode, without the properties", f"{rate(without):,.0f}", "")


def scan(frame: DataFrame, rows: int) -> float:
    """Rows a second through Spark into nothing; every column is read."""
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return rows / (time.perf_counter() - started)


def reading(spark: SparkSession, source: dict[str, str], rows: int, rounds: int, folder: Path, table: Table) -> None:
    def topic(**more: str) -> DataFrame:
        return spark.read.format("verniermq").options(**source, **more).load()

    topic().write.option("compression", "zstd").parquet(str(folder / "same"))
    parquet = spark.read.parquet(str(folder / "same"))
    scan(topic(), rows)
    scan(parquet, rows)
    of_topic, of_parquet = [], []
    for _ in range(rounds):
        of_topic.append(scan(topic(), rows))
        of_parquet.append(scan(parquet, rows))
    ours, theirs = statistics.median(of_topic), statistics.median(of_parquet)
    pulled = scan(topic(reader="pull"), rows)
    table.add_row("Spark scans the topic", f"{ours:,.0f}", f"{ours / theirs:.2f}")
    table.add_row("Spark scans the same rows in Parquet", f"{theirs:,.0f}", "1.00")
    table.add_row("Spark scans the topic with ordinary pulls", f"{pulled:,.0f}", f"{pulled / theirs:.2f}")


def exporting(name_server: str, rows: int, folder: Path, console: Console, table: Table) -> None:
    def rate(name: str, **changes: Any) -> float:
        with Progress(Console(quiet=True)) as progress:
            started = time.perf_counter()
            what = Export(
                out=str(folder / name), name_server=name_server, topics=("rows",), batch_rows=rows, **changes
            )
            assert run(what, progress) == rows
        return rows / (time.perf_counter() - started)

    table.add_row("export into Parquet", f"{rate('messages-only', tables=False):,.0f}", "")
    table.add_row("export into Parquet, with tables", f"{rate('with-tables'):,.0f}", "")


def sending(spark: SparkSession, seconds: float, rounds: int, rows: int, console: Console) -> None:
    def rate(address: str) -> float:
        return anyio.run(
            lambda: drive(address, frames(8, 300, False), window=1, seconds=seconds), backend_options=backend_options()
        )

    with broker_process(None, *LARGE_FILES) as plain, broker_process(None, WITH_PLUGIN, *LARGE_FILES) as plugged:
        fill(plugged.broker, "rows", rows)
        without, with_it = [], []
        for _ in range(rounds):
            without.append(rate(plain.broker))
            with_it.append(rate(plugged.broker))
        enough = threading.Event()
        options = {"nameServer": plugged.namesrv, "subscribe": "rows"}

        def read_on() -> None:
            while not enough.is_set():
                scan(spark.read.format("verniermq").options(**options).load(), rows)

        reader = threading.Thread(target=read_on)
        reader.start()
        meanwhile = middle(rounds, lambda: rate(plugged.broker))
        beside = middle(rounds, lambda: rate(plain.broker))
        enough.set()
        reader.join()
    table = Table("8 connections that wait for each answer", "sends/s", "ratio", title="what it costs those who send")
    base = statistics.median(without)
    table.add_row("without the plugin", f"{base:,.0f}", "1.00")
    table.add_row("with it", f"{statistics.median(with_it):,.0f}", f"{statistics.median(with_it) / base:.2f}")
    table.add_row("a broker that is not read, while Spark is busy", f"{beside:,.0f}", f"{beside / base:.2f}")
    table.add_row("the one that it reads from", f"{meanwhile:,.0f}", f"{meanwhile / base:.2f}")
    console.print(table)


@click.command(help=__doc__)
@click.option("--rows", default=1_000_000, show_default=True, help="Messages to read.")
@click.option("--rounds", default=3, show_default=True, help="How often; the middle one counts.")
@click.option("--seconds", default=3.0, show_default=True, help="How long each measurement of sends takes.")
@click.option("--master", default="local[2]", show_default=True, help="The Spark master.")
def main(rows: int, rounds: int, seconds: float, master: str) -> None:
    console = Console()
    table = Table("what", "rows/s", "against Parquet", title=f"{rows:,} rows, Spark on {master}")
    with tempfile.TemporaryDirectory(prefix="verniermq-bench-") as name, console.status("measuring") as status:
        folder = Path(name)
        with broker_process(folder / "store", WITH_PLUGIN, *LARGE_FILES) as process:
            status.update("sending messages to read")
            fill(process.broker, "rows", rows)
            decoding(process.broker, "rows", table)
            status.update("Spark reads")
            spark = session(master, {"spark.driver.memory": "2g"})
            spark.sparkContext.setLogLevel("OFF")
            source = {"nameServer": process.namesrv, "subscribe": "rows"}
            reading(spark, source, rows, rounds, folder, table)
            status.update("Spark exports")
            exporting(process.namesrv, rows, folder, console, table)
        console.print(table)
        status.update("sending while Spark reads")
        sending(spark, seconds, rounds, min(rows, 200_000), console)
        spark.stop()


if __name__ == "__main__":
    main()
