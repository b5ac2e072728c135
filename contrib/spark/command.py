"""``verniermq spark``: export topics, try things out, and pack the source for a cluster."""

from __future__ import annotations

import code
import json
import os
import time
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from verniermq.contrib.arrow.command import (
    compact,
    delete_tag_option,
    json_option,
    key_option,
    mode_option,
    on_error_option,
    partition_by_option,
    target_file_option,
    typed_option,
    typed_topics,
)
from verniermq.kernel.config.units import parse_duration

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
SPARK_FORMATS: Final = ("parquet", "iceberg", "delta")
UNITS: Final = ("second", "minute", "hour", "day")

HINT: Final = """
Spark {version} on {master}; the name server is {name_server}.

  df = read("orders")                         # everything in a topic, as a DataFrame
  df.groupBy("tags").count().show()
  read("%DLQ%billing").select("keys", "body").show()
  spark.readStream.format("verniermq").option("nameServer", name_server).option("subscribe", "orders")
"""

name_server_option = click.option(
    "--namesrv",
    "name_server",
    default=lambda: os.environ.get("VERNIERMQ_NAMESRV", DEFAULT_NAME_SERVER),
    show_default=DEFAULT_NAME_SERVER,
    help="Name servers as host:port, several with ';' between.",
)
master_option = click.option("--master", help="local[4], spark://…, yarn, k8s://…  [default: local[*]]")
conf_option = click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark. May be repeated.")


@click.group()
def spark() -> None:
    """Topics as Spark DataFrames: export them, or try things out."""


@spark.command()
@click.argument("out")
@name_server_option
@master_option
@conf_option
@click.option(
    "--format", "form", type=click.Choice(SPARK_FORMATS), default="parquet", show_default=True, help="Of the files."
)
@click.option("--topic", "topics", multiple=True, help="A topic; may be repeated.  [default: all but the brokers' own]")
@click.option("--catalog", default="", help="Of Iceberg: a name in .pyiceberg.yaml.  [default: OUT/catalog.db]")
@click.option("--namespace", default="mq", show_default=True, help="Of Iceberg's tables.")
@typed_option
@on_error_option
@mode_option
@key_option
@delete_tag_option
@partition_by_option
@target_file_option
@click.option("--continuous", is_flag=True, help="Go on as messages come, until interrupted.")
@click.option("--every", default=10.0, show_default=True, help="With --continuous: seconds between batches.")
@click.option("--batch-rows", default=1_000_000, show_default=True, help="The most messages in one batch.")
@click.option("--from", "starting", default="earliest", show_default=True, help="earliest, latest, or offsets as JSON.")
@click.option("--group", default="spark-export", show_default=True, help="The group that shows how far the export is.")
@click.option("--checkpoint", default="", help="Where Spark keeps how far it is.  [default: OUT/_checkpoint]")
@click.option("--skip-lost", is_flag=True, help="Go on when retention deleted messages before they were exported.")
@click.option("--no-tables", is_flag=True, help="Messages only, without the tables per topic and group.")
@json_option
def export(
    out: str, name_server: str, master: str | None, conf: tuple[str, ...], form: str, topics: tuple[str, ...],
    catalog: str, namespace: str, typed: tuple[str, ...], on_error: str, mode: str, key: str, delete_tag: str,
    partition_by: tuple[str, ...], target_file: int | None, continuous: bool, every: float, batch_rows: int,
    starting: str, group: str, checkpoint: str, skip_lost: bool, no_tables: bool, as_json: bool,
) -> None:  # fmt: skip
    """Export topics to OUT as Parquet files or tables, every message exactly once.

    Run it again, and it goes on where it was, however it ended. OUT is a folder, or an address that Spark can
    write to (s3a://…, hdfs://…); tables need a folder that this machine sees.
    """
    from verniermq.contrib.arrow.progress import ExportProgress
    from verniermq.contrib.spark.export import SparkExport, run

    what = SparkExport(
        out=out if "://" in out else str(Path(out).resolve()),
        name_server=name_server,
        topics=topics,
        format=form,
        catalog=catalog,
        namespace=namespace,
        checkpoint=checkpoint,
        master=master,
        conf=_settings(conf),
        starting=starting,
        batch_rows=batch_rows,
        interval=every if continuous else None,
        group=group,
        fail_on_data_loss=not skip_lost,
        tables=not no_tables,
        typed=typed_topics(typed, on_error),
        on_error=on_error,
        mode=mode,
        key=key,
        delete_tag=delete_tag,
        partition_by=partition_by,
        target_bytes=target_file,
    )
    with ExportProgress(Console(), "starting Spark …", as_json=as_json) as progress:
        run(what, progress)


@spark.command()
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@name_server_option
@master_option
@conf_option
@click.option("--topic", "topics", multiple=True, help="A topic; may be repeated.  [default: all that flows]")
@click.option("--since", metavar="AGE", help="Only what was stored since then, such as 6h.  [default: all]")
@click.option("--per", type=click.Choice(UNITS), default="minute", show_default=True, help="What is counted together.")
@json_option
def events(
    out: Path, name_server: str, master: str | None, conf: tuple[str, ...], topics: tuple[str, ...],
    since: str | None, per: str, as_json: bool,
) -> None:  # fmt: skip
    """Write tables and charts of what came to the folder OUT: NAME.parquet and NAME.svg.

    Messages per topic, latency from birth to store, retries and dead letters per group, delayed messages and
    transactions. Bodies are not read.
    """
    from verniermq.contrib.spark.events import save_tables
    from verniermq.contrib.spark.session import session

    options = {"nameServer": name_server, "events": "true"}
    if topics:
        options["subscribe"] = ",".join(topics)
    if since is not None:
        try:
            options["startingTimestamp"] = str(int((time.time() - parse_duration(since)) * 1000))
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    running = session(master, _settings(conf), "verniermq-events")
    running.sparkContext.setLogLevel("OFF")
    read = running.read.format("verniermq").options(**options).load()
    for name, rows in save_tables(read, out, per).items():
        if as_json:
            click.echo(json.dumps({"table": name, "rows": rows, "file": f"{out / name}.parquet"}))
        else:
            click.echo(f"{out / name}.parquet: {rows} rows, drawn in {name}.svg")


@spark.command()
@name_server_option
@master_option
@conf_option
@click.option("-c", "--command", help="Run this Python instead of asking for some.")
def shell(name_server: str, master: str | None, conf: tuple[str, ...], command: str | None) -> None:
    """A Python prompt with a Spark session that knows format("verniermq")."""
    from verniermq.contrib.spark.session import session

    running = session(master, _settings(conf), "verniermq-shell")
    running.sparkContext.setLogLevel("ERROR")

    def read(topic: str, **options: str) -> object:
        """A topic as a DataFrame."""
        source = running.read.format("verniermq").option("nameServer", name_server).option("subscribe", topic)
        return source.options(**options).load()

    names = {"spark": running, "read": read, "name_server": name_server}
    try:
        if command is not None:
            exec(compile(command, "<command>", "exec"), names)
        else:
            hint = HINT.format(version=running.version, master=running.sparkContext.master, name_server=name_server)
            code.interact(banner=hint, local=names, exitmsg="")
    finally:
        running.stop()


@spark.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def bundle(file: Path) -> None:
    """Write FILE.zip for --py-files: the source for executors that do not have VernierMQ installed."""
    from verniermq.contrib.spark.bundle import write_bundle

    count = write_bundle(file)
    click.echo(f"{file}: {count} modules; executors also need pyarrow, numpy and VernierMQ's own dependencies")


spark.add_command(compact)


def _settings(conf: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for text in conf:
        key, separator, value = text.partition("=")
        if not separator:
            raise click.UsageError(f"--conf {text!r}: expected KEY=VALUE, such as spark.executor.memory=2g")
        settings[key] = value
    return settings
