"""How fast Spark reads topics, beside what else it could read, and what that costs those who send.

``python bench/spark.py`` fills a broker, then measures in one run. Java needs a while until it is fast, so everything
runs a few times before it counts; then all take turns, and the middle one of several rounds counts.

- Decoding records into Arrow columns, on one core (CPU time, since a machine may be busy with something else).
- Spark scanning a topic, from the broker and from its files, beside Spark scanning the same rows from Parquet, and with
  the ordinary pull. Once all columns of every row go through Spark, once only the bodies' lengths are summed up.
- The same for batches that are ready before the clock starts, so that nothing is fetched or decoded: what Spark itself
  takes to get rows from Python. No source in Python can be faster.
- The export into Parquet, beside Spark copying the same rows from Parquet to the same layout, and beside ready batches.
- The start of a small export until its first file is there, beside a job of Spark's own that writes one file.
- For all of these the CPU time of Java, its Pythons and the broker: here they share the cores, elsewhere they need not.
- The rate of sends without the plugin, with it, while a stream follows them, and while an export runs all the time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import count
from operator import truediv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import click
import pyarrow as pa
from cpu import WHO, Clock, Rate
from load import drive
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from rich.console import Console
from rich.table import Table
from send import frames as send_frames
from spark_rows import QUEUES, fill, first_chunk

from verniermq.contrib.arrow.decode import decode_columns
from verniermq.contrib.arrow.progress import ExportProgress
from verniermq.contrib.arrow.schema import COLUMNS, ddl
from verniermq.contrib.spark.batches import write_messages
from verniermq.contrib.spark.export import SparkExport, run
from verniermq.contrib.spark.session import session
from verniermq.kernel import Command
from verniermq.kernel.loop import backend_options
from verniermq.testing import broker_process

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

WITH_PLUGIN = '--set=plugins.enable=["default", "spark"]'
CONF = {
    "spark.driver.memory": "2g",
    # What docs/spark.md recommends for large reads.
    "spark.python.unix.domain.socket.enabled": "true",
}
PARTS = ("read", "export", "start", "send")
LARGE_FILES = ("--set=store.segment_size=1GiB", "--set=store.queue_entries=300000")


def decoding(answer: Command, table: Table) -> None:
    record_bytes = int(answer.ext["recordBytes"])

    def rate(columns: tuple[str, ...]) -> float:
        best = 0.0
        for _ in range(30):
            started = time.process_time()
            rows = sum(decode_columns(answer.body, columns, record_bytes=record_bytes).num_rows for _ in range(3))
            best = max(best, rows / (time.process_time() - started))
        return best

    number = decode_columns(answer.body, ("size",), record_bytes=record_bytes).num_rows
    without = tuple(name for name in COLUMNS if name != "properties")
    table.add_row(f"decode on one core, records of {record_bytes // number} bytes", f"{rate(COLUMNS):,.0f}")
    table.add_row("decode on one core, without the properties", f"{rate(without):,.0f}")
    table.add_section()


class Ready(DataSource):
    """Batches that lie in a file, again and again: a source that costs nothing."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return ddl(self.options["columns"].split(","))

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(dict(self.options))


class ReadyReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(QUEUES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_file(self.options["path"]) as file:
            batch = file.get_batch(0).select(self.options["columns"].split(","))
        left = int(self.options["rows"]) // QUEUES
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


def scan(frame: DataFrame) -> None:
    """Through Spark into nothing; every column of every row is made."""
    frame.write.format("noop").mode("overwrite").save()


def lengths(frame: DataFrame) -> None:
    frame.selectExpr("count(*)", "sum(length(body))").collect()


def new_table(title: str, ratio: str) -> Table:
    return Table("what", "rows/s", ratio, *(f"{who}, µs/row" for who in WHO), title=title)


def show(table: Table, found: dict[str, Rate], base: str) -> None:
    for name, rate in found.items():
        ratio = f"{rate.rows / found[base].rows:.2f}"
        table.add_row(name, f"{rate.rows:,.0f}", ratio, *(f"{rate.cpu[who]:.1f}" for who in WHO))
    table.add_section()


@attrs.frozen
class Frames:
    """The same rows from everywhere."""

    spark: SparkSession
    source: dict[str, str]
    rows: int
    folder: Path

    def topic(self, **more: str) -> DataFrame:
        return self.spark.read.format("verniermq").options(**self.source, **more).load()

    def files(self, **more: str) -> DataFrame:
        """The topic where Spark sees the broker's disk."""
        return self.topic(path=str(self.folder / "store"), **more)

    def parquet(self) -> DataFrame:
        return self.spark.read.parquet(str(self.folder / "same"))

    def ready(self, columns: Sequence[str] = COLUMNS) -> DataFrame:
        options = {"path": str(self.folder / "ready"), "columns": ",".join(columns), "rows": str(self.rows)}
        return self.spark.read.format("ready").options(**options).load()

    def prepare(self, answer: Command) -> None:
        """Write the Parquet files, and a chunk as it came from the broker as a batch that is ready."""
        self.spark.dataSource.register(Ready)
        self.topic().write.option("compression", "zstd").parquet(str(self.folder / "same"))
        batch = decode_columns(answer.body, COLUMNS, record_bytes=int(answer.ext["recordBytes"]))
        with pa.ipc.new_file(str(self.folder / "ready"), batch.schema) as file:
            file.write_batch(batch)


def reading(frames: Frames, clock: Clock, table: Table) -> None:
    found = clock.rates(
        {
            "all columns: the topic": lambda: scan(frames.topic()),
            "all columns: the topic, path=": lambda: scan(frames.files()),
            "all columns: Parquet": lambda: scan(frames.parquet()),
            "all columns: ready batches": lambda: scan(frames.ready()),
        }
    )
    once = attrs.evolve(clock, rounds=1, warm=0)
    found |= once.rates({"all columns: the topic, ordinary pulls": lambda: scan(frames.topic(reader="pull"))})
    show(table, found, "all columns: Parquet")
    found = clock.rates(
        {
            "length of bodies: the topic": lambda: lengths(frames.topic(columns="body")),
            "length of bodies: the topic, path=": lambda: lengths(frames.files(columns="body")),
            "length of bodies: Parquet": lambda: lengths(frames.parquet()),
            "length of bodies: ready batches": lambda: lengths(frames.ready(["body"])),
        }
    )
    show(table, found, "length of bodies: Parquet")


class Exports:
    """Exports of the whole topic, each into a new folder."""

    def __init__(self, name_server: str, rows: int, folder: Path) -> None:
        self._what = SparkExport(out="", name_server=name_server, topics=("rows",), batch_rows=rows)
        self._rows = rows
        self._folders = (folder / f"export-{number}" for number in count())

    def run(self, **changes: Any) -> None:
        with ExportProgress(Console(quiet=True)) as progress:
            assert run(attrs.evolve(self._what, out=str(next(self._folders)), **changes), progress) >= self._rows

    def copy(self, rows: DataFrame) -> None:
        write_messages(rows, str(next(self._folders)), "ready-0")


def exporting(frames: Frames, clock: Clock, table: Table) -> None:
    exports = Exports(frames.source["nameServer"], frames.rows, frames.folder)
    found = clock.rates(
        {
            "export into Parquet, messages only": lambda: exports.run(tables=False),
            "export into Parquet, with tables": exports.run,
            "Parquet into Parquet": lambda: exports.copy(frames.parquet()),
            "ready batches into Parquet": lambda: exports.copy(frames.ready()),
        }
    )
    show(table, found, "Parquet into Parquet")


OWN_JOB = """
import sys
from verniermq.contrib.spark.java import use_java
use_java()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.range(1).coalesce(1).write.parquet(sys.argv[2])
"""


def starting(name_server: str, master: str, rounds: int, folder: Path, console: Console) -> None:
    """Seconds from the start of a process to its first file, by turns."""
    export = [sys.executable, "-m", "verniermq.cli", "spark", "export"]
    small = ["--namesrv", name_server, "--topic", "few", "--master", master]
    own, ours = [], []
    for number in range(rounds):
        target = folder / f"own-{number}"
        own.append(until_file([sys.executable, "-c", OWN_JOB, master, str(target)], target))
        target = folder / f"small-{number}"
        ours.append(until_file([*export, str(target), *small], target / "messages"))
    table = Table("until the first file is there", "seconds", "ratio", title="the start")
    base = statistics.median(own)
    table.add_row("a job of Spark's own", f"{base:.1f}", "1.00")
    table.add_row("an export of 600 rows", f"{statistics.median(ours):.1f}", f"{statistics.median(ours) / base:.2f}")
    console.print(table)


def has_file(folder: Path) -> bool:
    """Whether readers find a file: what is half done lies in folders that they pass over."""
    return any(
        name.endswith(".parquet") and not any(part in path for part in ("staging", "_temporary"))
        for path, _, names in os.walk(folder)
        for name in names
    )


def until_file(command: list[str], folder: Path) -> float:
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not has_file(folder):
            assert process.poll() in (None, 0), f"{command} failed"
            time.sleep(0.01)
        return time.monotonic() - began
    finally:
        process.wait()


def sending(spark: SparkSession, seconds: float, rounds: int, rows: int, folder: Path, console: Console) -> None:
    def rate(address: str) -> float:
        requests = send_frames(8, 300, False)
        return anyio.run(lambda: drive(address, requests, window=1, seconds=seconds), backend_options=backend_options())

    with broker_process(None, *LARGE_FILES) as plain, broker_process(None, WITH_PLUGIN, *LARGE_FILES) as plugged:
        fill(plugged.broker, "rows", rows)

        def both() -> tuple[float, float, float]:
            """Of a broker without and with the plugin, and the ratio: one after the other, and the other way round."""
            without, with_it = [], []
            for number in range(rounds):
                for process in (plain, plugged) if number % 2 else (plugged, plain):
                    (without if process is plain else with_it).append(rate(process.broker))
            ratio = statistics.median(map(truediv, with_it, without))
            return statistics.median(without), statistics.median(with_it), ratio

        without, with_it, ratio = both()
        source = {"nameServer": plugged.namesrv, "subscribePattern": ".*", "startingOffsets": "latest"}
        stream = spark.readStream.format("verniermq").options(**source).load().writeStream.format("noop")
        following = []
        for _ in range(rounds):
            alone = rate(plugged.broker)
            query = stream.option("checkpointLocation", str(folder / f"following-{len(following)}")).start()
            rate(plugged.broker)  # until Spark has begun
            following.append((rate(plugged.broker), alone))
            query.stop()
        followed = statistics.median(there for there, _ in following)
        followed_ratio = statistics.median(there / alone for there, alone in following)
        enough = threading.Event()
        exports = Exports(plugged.namesrv, rows, folder / "meanwhile")

        def export_on() -> None:
            while not enough.is_set():
                exports.run(tables=False)

        exporter = threading.Thread(target=export_on)
        exporter.start()
        beside, meanwhile, busy_ratio = both()
        enough.set()
        exporter.join()
    table = Table("8 connections that wait for each answer", "sends/s", "ratio", title="what it costs those who send")
    table.add_row("without the plugin", f"{without:,.0f}", "1.00")
    table.add_row("with it", f"{with_it:,.0f}", f"{ratio:.2f}")
    table.add_row("with it, while a stream follows", f"{followed:,.0f}", f"{followed_ratio:.2f}")
    table.add_section()
    table.add_row("while Spark exports from another broker", f"{beside:,.0f}", "1.00")
    table.add_row("while Spark exports from this one", f"{meanwhile:,.0f}", f"{busy_ratio:.2f}")
    console.print(table)


@click.command(help=__doc__)
@click.option("--rows", default=1_000_000, show_default=True, help="Messages to read.")
@click.option("--rounds", default=3, show_default=True, help="How often; the middle one counts.")
@click.option("--warm", default=5, show_default=True, help="How often before that, until Java is fast.")
@click.option("--seconds", default=2.0, show_default=True, help="How long each measurement of sends takes.")
@click.option("--master", default="local[2]", show_default=True, help="The Spark master.")
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="A part.  [default: all]")
def main(rows: int, rounds: int, warm: int, seconds: float, master: str, only: tuple[str, ...]) -> None:
    parts = only or PARTS
    console = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory(prefix="verniermq-bench-") as name, console.status("measuring") as status:
        folder = Path(name)
        spark = session(master, CONF)
        spark.sparkContext.setLogLevel("OFF")
        if set(parts) - {"send"}:
            with broker_process(folder / "store", WITH_PLUGIN, *LARGE_FILES) as process:
                status.update("sending messages to read")
                fill(process.broker, "rows", rows)
                frames = Frames(spark, {"nameServer": process.namesrv, "subscribe": "rows"}, rows, folder)
                answer = first_chunk(process.broker, "rows")
                title = f"{rows:,} rows, Spark on {master}"
                frames.prepare(answer)
                java = spark.sparkContext._gateway.proc.pid
                clock = Clock(rows, rounds, warm, java, process.pid)
                if "read" in parts:
                    status.update("Spark reads")
                    table = new_table(title, "against Parquet")
                    decoding(answer, table)
                    reading(frames, clock, table)
                    console.print(table)
                if "export" in parts:
                    status.update("Spark exports")
                    table = new_table(title, "against the first")
                    exporting(frames, attrs.evolve(clock, warm=min(warm, 2)), table)
                    console.print(table)
                if "start" in parts:
                    status.update("Spark starts")
                    fill(process.broker, "few", 600)
                    starting(process.namesrv, master, rounds, folder, console)
        if "send" in parts:
            status.update("sending while Spark exports")
            sending(spark, seconds, rounds, min(rows, 200_000), folder, console)
        spark.stop()


if __name__ == "__main__":
    main()
