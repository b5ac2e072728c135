"""``verniermq export``: topics into files or tables, without Spark."""

from __future__ import annotations

import os
from pathlib import Path

import click
from rich.console import Console

from verniermq.contrib.arrow.tables import FORMATS

DEFAULT_NAME_SERVER = "127.0.0.1:9876"


@click.command()
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--namesrv",
    "name_server",
    default=lambda: os.environ.get("VERNIERMQ_NAMESRV", DEFAULT_NAME_SERVER),
    show_default=DEFAULT_NAME_SERVER,
    help="Name servers as host:port, several with ';' between.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="parquet", show_default=True)
@click.option("--topic", "topics", multiple=True, help="A topic; may be repeated.  [default: all but the brokers' own]")
@click.option("--catalog", default="", help="Of Iceberg: a name in .pyiceberg.yaml.  [default: OUT/catalog.db]")
@click.option("--namespace", default="mq", show_default=True, help="Of Iceberg's tables.")
@click.option("--continuous", is_flag=True, help="Go on as messages come, until interrupted.")
@click.option("--every", default=10.0, show_default=True, help="With --continuous: seconds between batches.")
@click.option("--batch-rows", default=1_000_000, show_default=True, help="The most messages in one batch.")
@click.option("--from", "starting", default="earliest", show_default=True, help="earliest, latest, or offsets as JSON.")
@click.option("--group", default="export", show_default=True, help="The group that shows how far the export is.")
@click.option("--skip-lost", is_flag=True, help="Go on when retention deleted messages before they were exported.")
@click.option("--no-tables", is_flag=True, help="Messages only, without the tables per topic and group.")
def export(
    out: Path, name_server: str, form: str, topics: tuple[str, ...], catalog: str, namespace: str, continuous: bool,
    every: float, batch_rows: int, starting: str, group: str, skip_lost: bool, no_tables: bool,
) -> None:  # fmt: skip
    """Export topics to the folder OUT, every message exactly once, without Spark.

    Run it again, and it goes on where it was, however it ended. `verniermq spark export` goes on from the same folder.
    """
    from verniermq.contrib.arrow.export import Export, run
    from verniermq.contrib.arrow.progress import ExportProgress

    what = Export(
        out=str(out.resolve()),
        name_server=name_server,
        topics=topics,
        format=form,
        catalog=catalog,
        namespace=namespace,
        starting=starting,
        batch_rows=batch_rows,
        interval=every if continuous else None,
        group=group,
        fail_on_data_loss=not skip_lost,
        tables=not no_tables,
    )
    with ExportProgress(Console()) as progress:
        run(what, progress)
