"""``verniermq export``: topics into files or tables, without Spark."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import attrs
import click
from rich.console import Console

from verniermq.contrib.arrow.errors import NoArrow
from verniermq.contrib.arrow.tables import FORMATS
from verniermq.contrib.arrow.values import ValueOptions
from verniermq.kernel.config.units import parse_duration, parse_size

DEFAULT_NAME_SERVER = "127.0.0.1:9876"
ON_ERROR = ("table", "skip", "stop")


def parse_target(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """A size as settings have them."""
    try:
        return None if text is None else max(1, parse_size(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


typed_option = click.option(
    "--typed",
    multiple=True,
    metavar="TOPIC=FILE",
    help="The schema of a topic's bodies: FILE.avsc, FILE.desc#MESSAGE, columns as in SQL for JSON, or a registry.",
)
on_error_option = click.option(
    "--on-error", type=click.Choice(ON_ERROR), default="table", show_default=True, help="Of bodies that do not fit."
)
mode_option = click.option(
    "--mode",
    type=click.Choice(["append", "upsert"]),
    default="append",
    show_default=True,
    help="Of tables: every message, or the newest of each key.",
)
target_file_option = click.option(
    "--target-file", metavar="SIZE", callback=parse_target, help="About how large files shall be, such as 128MiB."
)
partition_by_option = click.option(
    "--partition-by",
    multiple=True,
    metavar="COLUMN",
    help="dt, hour, value:MEMBER or a column such as tags; may be repeated.  [default: dt]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
key_option = click.option("--key", default="", help="With upsert: keys, property:NAME or value:member.")
delete_tag_option = click.option(
    "--delete-tag", default="", help="With upsert: messages with this tag delete their key."
)


@click.command()
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--namesrv",
    "name_server",
    default=lambda: os.environ.get("VERNIERMQ_NAMESRV", DEFAULT_NAME_SERVER),
    show_default=DEFAULT_NAME_SERVER,
    help="Name servers as host:port, several with ';' between.",
)
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="parquet", show_default=True, help="Of the files."
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
@click.option("--group", default="export", show_default=True, help="The group that shows how far the export is.")
@click.option("--skip-lost", is_flag=True, help="Go on when retention deleted messages before they were exported.")
@click.option("--no-tables", is_flag=True, help="Messages only, without the tables per topic and group.")
@json_option
def export(
    out: Path, name_server: str, form: str, topics: tuple[str, ...], catalog: str, namespace: str,
    typed: tuple[str, ...], on_error: str, mode: str, key: str, delete_tag: str,
    partition_by: tuple[str, ...], target_file: int | None, continuous: bool, every: float, batch_rows: int,
    starting: str, group: str, skip_lost: bool, no_tables: bool, as_json: bool,
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
        typed=typed_topics(typed, on_error),
        on_error=on_error,
        mode=mode,
        key=key,
        delete_tag=delete_tag,
        partition_by=partition_by,
        target_bytes=target_file,
    )
    with ExportProgress(Console(), as_json=as_json) as progress:
        run(what, progress)


def typed_topics(given: tuple[str, ...], on_error: str) -> dict[str, ValueOptions]:
    """What ``--typed`` says, topic by topic.

    Raises:
        NoArrow: pyarrow is not installed.
        BadOption: a text or a schema is wrong.
    """
    if not given:
        return {}
    try:
        from verniermq.contrib.arrow.typedtopics import parse_typed
    except ImportError as error:
        raise NoArrow(error) from error
    return parse_typed(given, on_error)


@click.command()
@click.argument("out", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--topic", "topics", multiple=True, help="A topic; may be repeated.  [default: all]")
@click.option("--target-file", default="128MiB", show_default=True, help="Files below this size are put together.")
@click.option("--expire", metavar="AGE", help="Forget older snapshots, such as 7d, and delete what only they had.")
@click.option("--catalog", default="", help="Of Iceberg: a name in .pyiceberg.yaml.  [default: OUT/catalog.db]")
@click.option("--namespace", default="mq", show_default=True, help="Of Iceberg's tables.")
@json_option
def compact(
    out: Path, topics: tuple[str, ...], target_file: str, expire: str | None, catalog: str, namespace: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Put the small files of an export's Iceberg or Delta tables together.

    Readers see each row once meanwhile, and an export may go on. Old files stay until their snapshots expire.
    """
    from verniermq.contrib.arrow import compaction

    try:
        size = parse_size(target_file)
        age = None if expire is None else timedelta(seconds=parse_duration(expire))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    for done in compaction.compact(out.resolve(), topics, size, age, catalog, namespace):
        if as_json:
            click.echo(json.dumps(attrs.asdict(done)))
        else:
            click.echo(f"{done.table}: {done.before} files became {done.after}, {done.removed} old ones were deleted")
