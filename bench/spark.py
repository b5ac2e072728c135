"""How fast Spark reads topics, beside what else it could read, and what that costs those who send.

``python bench/spark.py`` fills a broker, then measures in one run. Java needs a while until it is fast, so everything
runs a few times before it counts; then all take turns, and the middle one of several rounds counts.

- Decoding records into Arrow columns, on one core (CPU time, since a machine may be busy with something else).
- Spark scanning a topic, from the broker and from its files, beside Spark scanning the same rows from Parquet, and with
  the ordinary pull. Once all columns of every row go through Spark, once only the bodies' lengths are summed up.
- The same for batches that are ready before the clock starts, so that nothing is fetched or decoded: what Spark itself
  takes to get rows from Python. No source in Python can be faster.
- The values of JSON bodies, by ``valueFormat`` beside Spark's own ``from_json``; both say which bodies have none.
- The export into Parquet, beside Spark copying the same rows from Parquet to the same layout, and beside ready batches.
- For all of these the CPU time of Java, its Pythons and the broker: here they share the cores, elsewhere they need not.
- The start of a small export until its first file is there, beside a job of Spark's own that writes one file; and all
  of an export of 200,000 rows of 100 bytes, from the start of the process to its end.
- The rate of sends without the plugin, with it, while a stream follows them (each batch when the one before it ends, as
  Spark has it unless it is told otherwise; and a batch a second), and while an export runs all the time, and the
  broker's CPU time for each.

The figures are written to ``bench/results/spark.json``; those of a part, or of fewer rows or rounds, to ``partial/``.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import click
import pyarrow as pa
from cpu import WHO, Clock, Rate, cpu_seconds, used
from load import drive
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from rich.console import Console
from rich.table import Table
from send import frames as send_frames
from spark_figures import Figures, machine
from spark_rows import QUEUES, TYPES, body, fill, first_chunk

from verniermq.contrib.arrow.decode import decode_columns
from verniermq.contrib.arrow.progress import ExportProgress
from verniermq.contrib.arrow.schema import COLUMNS, ddl
from verniermq.contrib.spark.batches import write_messages
from verniermq.contrib.spark.export import SparkExport, run
from verniermq.contrib.spark.session import session
from verniermq.kernel import Command
from verniermq.kernel.loop import backend_options
from verniermq.testing import BrokerProcess, broker_process

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

WITH_PLUGIN = '--set=plugins.enable=["default", "spark"]'
CONF = {"spark.driver.memory": "2g", "spark.python.unix.domain.socket.enabled": "true"}
PARTS = ("read", "export", "start", "send")
ROWS, ROUNDS, WARM = 1_000_000, 3, 5
SMALL_ROWS, SMALL_BODY = 200_000, 100
LARGE_FILES = ("--set=store.segment_size=1GiB", "--set=store.queue_entries=300000")


def decoding(answer: Command, table: Table, figures: Figures) -> None:
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
    size = record_bytes // number
    for what, columns in ((f"records of {size} bytes", COLUMNS), ("without the properties", without)):
        found = rate(columns)
        table.add_row(f"decode on one core, {what}", f"{found:,.0f}")
        figures.note("read", f"decode on one core, {what}", rows_per_second=round(found))
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


def show(table: Table, found: dict[str, Rate], base: str, figures: Figures, part: str) -> None:
    for name, rate in found.items():
        ratio = rate.rows / found[base].rows
        table.add_row(name, f"{rate.rows:,.0f}", f"{ratio:.2f}", *(f"{rate.cpu[who]:.1f}" for who in WHO))
        figures.rate(part, name, rate, ratio)
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

    def values(self) -> DataFrame:
        """JSON as typed values, by the source."""
        return self.topic(valueFormat="json", valueSchema=TYPES, columns="value,corrupt")

    def values_by_spark(self) -> DataFrame:
        """The same by Spark's own function, which keeps a body that does not fit."""
        options = {"columnNameOfCorruptRecord": "corrupt"}
        text = f.col("body").cast("string")
        return self.topic(columns="body").select(f.from_json(text, f"{TYPES}, corrupt string", options).alias("value"))

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


def reading(frames: Frames, clock: Clock, table: Table, figures: Figures) -> None:
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
    show(table, found, "all columns: Parquet", figures, "read")
    found = clock.rates(
        {
            "length of bodies: the topic": lambda: lengths(frames.topic(columns="body")),
            "length of bodies: the topic, path=": lambda: lengths(frames.files(columns="body")),
            "length of bodies: Parquet": lambda: lengths(frames.parquet()),
            "length of bodies: ready batches": lambda: lengths(frames.ready(["body"])),
        }
    )
    show(table, found, "length of bodies: Parquet", figures, "read")
    found = clock.rates(
        {
            "values of JSON: valueFormat": lambda: scan(frames.values()),
            "values of JSON: from_json": lambda: scan(frames.values_by_spark()),
        }
    )
    show(table, found, "values of JSON: from_json", figures, "read")


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


def exporting(frames: Frames, clock: Clock, table: Table, figures: Figures) -> None:
    exports = Exports(frames.source["nameServer"], frames.rows, frames.folder)
    found = clock.rates(
        {
            "export into Parquet, messages only": lambda: exports.run(tables=False),
            "export into Parquet, with tables": exports.run,
            "Parquet into Parquet": lambda: exports.copy(frames.parquet()),
            "ready batches into Parquet": lambda: exports.copy(frames.ready()),
        }
    )
    show(table, found, "Parquet into Parquet", figures, "export")


OWN_JOB = """
import sys
from verniermq.contrib.spark.java import use_java
use_java()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.range(1).coalesce(1).write.parquet(sys.argv[2])
"""


def starting(name_server: str, master: str, rounds: int, folder: Path, console: Console, figures: Figures) -> None:
    """Seconds from the start of a process to its first file, by turns; and to its end, of an export of more rows."""

    def export(topic: str) -> tuple[list[str], Path]:
        target = folder / f"{topic}-{number}"
        options = ["--namesrv", name_server, "--topic", topic, "--master", master]
        return [sys.executable, "-m", "verniermq.cli", "spark", "export", str(target), *options], target / "messages"

    own, first, whole = [], [], []
    for number in range(rounds):
        target = folder / f"own-{number}"
        own.append(until_file([sys.executable, "-c", OWN_JOB, master, str(target)], target))
        first.append(until_file(*export("few")))
        began = time.monotonic()
        subprocess.run(export("small")[0], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        whole.append(time.monotonic() - began)
    table = Table("the start", "seconds", "ratio", title="from the start of a process")
    base = statistics.median(own)
    for name, seconds in (
        ("a job of Spark's own, until its file is there", own),
        ("an export of 600 rows, until its first file is there", first),
        (f"an export of {SMALL_ROWS:,} rows of {SMALL_BODY} bytes, until it ends", whole),
    ):
        middle = statistics.median(seconds)
        table.add_row(name, f"{middle:.1f}", f"{middle / base:.2f}")
        each = [round(one, 2) for one in seconds]
        figures.note("start", name, seconds=round(middle, 2), ratio=round(middle / base, 3), each=each)
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


@attrs.frozen
class Sends:
    per_second: float
    cpu: float
    """Microseconds of the broker's processor time for each, with whatever else it did meanwhile."""


def sending(
    spark: SparkSession, seconds: float, rounds: int, rows: int, folder: Path, console: Console, figures: Figures
) -> None:
    java = spark.sparkContext._gateway.proc.pid

    def rate(process: BrokerProcess) -> Sends:
        requests = send_frames(8, 300, False)
        before = cpu_seconds(java, process.pid)["broker"]
        per_second = anyio.run(
            lambda: drive(process.broker, requests, window=1, seconds=seconds, warm_up=0.0),
            backend_options=backend_options(),
        )
        cpu = used(before, cpu_seconds(java, process.pid)["broker"])
        return Sends(per_second, cpu * 1e6 / (per_second * seconds))

    with broker_process(None, *LARGE_FILES) as plain, broker_process(None, WITH_PLUGIN, *LARGE_FILES) as plugged:
        fill(plugged.broker, "rows", rows)

        def both() -> list[tuple[Sends, Sends]]:
            """Of a broker without and with the plugin: one after the other, and the other way round."""
            found = []
            for number in range(rounds):
                if number % 2:
                    without, with_it = rate(plain), rate(plugged)
                else:
                    with_it, without = rate(plugged), rate(plain)
                found.append((without, with_it))
            return found

        idle = both()
        source = {"nameServer": plugged.namesrv, "subscribePattern": ".*", "startingOffsets": "latest"}
        stream = spark.readStream.format("verniermq").options(**source).load().writeStream.format("noop")

        def followed(interval: str) -> list[tuple[Sends, Sends]]:
            """Alone, and while a stream reads what comes."""
            found = []
            for number in range(rounds):
                alone = rate(plugged)
                place = str(folder / f"following-{interval}-{number}")
                query = stream.option("checkpointLocation", place).trigger(processingTime=interval).start()
                while query.isActive and query.lastProgress is None:
                    rate(plugged)  # until Spark has begun
                found.append((alone, rate(plugged)))
                assert query.isActive, query.exception()
                query.stop()
            return found

        following, each_second = followed("0 seconds"), followed("1 second")
        enough = threading.Event()
        exports = Exports(plugged.namesrv, rows, folder / "meanwhile")

        def export_on() -> None:
            while not enough.is_set():
                exports.run(tables=False)

        exporter = threading.Thread(target=export_on)
        exporter.start()
        busy = both()
        enough.set()
        exporter.join()
    title = "what it costs those who send"
    table = Table("8 connections that wait for each answer", "sends/s", "ratio", "broker, µs/send", title=title)
    for names, pairs in (
        (("without the plugin", "with it"), idle),
        (("with it, alone", "with it, while a stream follows, batch after batch"), following),
        (("with it, alone again", "with it, while a stream follows, a batch a second"), each_second),
        (("while Spark exports from another broker", "while Spark exports from this one"), busy),
    ):
        ratio = statistics.median(there.per_second / base.per_second for base, there in pairs)
        for name, sends, of_base in zip(names, zip(*pairs, strict=True), (1.0, ratio), strict=True):
            per_second = statistics.median(one.per_second for one in sends)
            cpu = statistics.median(one.cpu for one in sends)
            table.add_row(name, f"{per_second:,.0f}", f"{of_base:.2f}", f"{cpu:.1f}")
            figures.note(
                "send", name, sends_per_second=round(per_second), ratio=round(of_base, 3), broker_us=round(cpu, 2)
            )
        table.add_section()
    console.print(table)


@click.command(help=__doc__)
@click.option("--rows", default=ROWS, show_default=True, help="Messages to read.")
@click.option("--rounds", default=ROUNDS, show_default=True, help="How often; the middle one counts.")
@click.option("--warm", default=WARM, show_default=True, help="How often before that, until Java is fast.")
@click.option("--seconds", default=2.0, show_default=True, help="How long each measurement of sends takes.")
@click.option("--master", default="local[2]", show_default=True, help="The Spark master.")
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="A part.  [default: all]")
def main(rows: int, rounds: int, warm: int, seconds: float, master: str, only: tuple[str, ...]) -> None:
    parts = only or PARTS
    # Installed packages are compiled already; what runs from a checkout is only if Python may keep what it compiled.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    console = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory(prefix="verniermq-bench-") as name, console.status("measuring") as status:
        folder = Path(name)
        spark = session(master, CONF)
        spark.sparkContext.setLogLevel("OFF")
        options = {"rows": rows, "rounds": rounds, "warm": warm, "seconds": seconds, "master": master, "conf": CONF}
        figures = Figures(machine(spark), options)
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
                    decoding(answer, table, figures)
                    reading(frames, clock, table, figures)
                    console.print(table)
                if "export" in parts:
                    status.update("Spark exports")
                    table = new_table(title, "against the first")
                    exporting(frames, attrs.evolve(clock, warm=min(warm, 2)), table, figures)
                    console.print(table)
                if "start" in parts:
                    status.update("Spark starts")
                    fill(process.broker, "few", 600)
                    fill(process.broker, "small", SMALL_ROWS, lambda number: body(number)[:SMALL_BODY])
                    starting(process.namesrv, master, rounds, folder, console, figures)
        if "send" in parts:
            status.update("sending while Spark exports")
            sending(spark, seconds, rounds, min(rows, 200_000), folder, console, figures)
        spark.stop()
    path = figures.write(whole=not only and rows >= ROWS and rounds >= ROUNDS and warm >= WARM)
    console.print(f"written: {path}")


if __name__ == "__main__":
    main()
