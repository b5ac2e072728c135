"""``verniermq store``: look at the files of a stopped broker, and mend them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import attrs
import click
import orjson

from verniermq.cli.backup import Copied, back_up
from verniermq.cli.backup import restore as restore_backup
from verniermq.cli.options import config_options, configuration_from
from verniermq.cli.progress import progress_of
from verniermq.cli.repair import BadRange, Report, check_store, repair_store
from verniermq.kernel import hookspecs
from verniermq.kernel.broker import Broker
from verniermq.kernel.commitlog.lock import StoreLock
from verniermq.kernel.commitlog.mapped import file_starts
from verniermq.kernel.config import Configuration, Size
from verniermq.kernel.config.schema import StoreSettings
from verniermq.kernel.errors import StoreError

folder_argument = click.argument("folder", required=False)
store_option = click.option("--store", "path", help="The same as FOLDER; without both, what the configuration says.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def store() -> None:
    """Look at the files of a stopped broker, mend them; back them up while it runs.

    \b
    verniermq store backup /backup/monday --store /var/lib/verniermq
    verniermq store check /var/lib/verniermq
    verniermq store repair --config broker.toml
    """


@store.command()
@folder_argument
@store_option
@config_options
@json_option
@click.pass_context
def check(
    context: click.Context, folder: str | None, path: str | None, config_path: Path | None, no_plugins: str | None,
    settings: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Read the whole commit log and compare the consume queues with it. Nothing is changed.

    Plugins look at files of their own, those of timed messages for instance; a start makes those again by itself.

    Exit code 0: the store is whole, or the next start puts it right by itself. 1: it is damaged, see 'store repair'.
    """
    configuration = configuration_from(config_path, no_plugins, settings, store__path=_folder(folder, path))
    with _readable(configuration.store.path):
        chosen = _settings(configuration)
        with progress_of("reading the log") as progress:
            report = check_store(chosen, progress)
        plugins = _files_of_plugins(configuration, mend=False)
    _show(chosen, report, plugins, as_json)
    if report.needs_repair and not as_json:
        click.echo("mend it with 'verniermq store repair', which keeps every whole record")
    context.exit(1 if report.needs_repair else 0)


@store.command()
@folder_argument
@store_option
@config_options
@json_option
@click.pass_context
def repair(
    context: click.Context, folder: str | None, path: str | None, config_path: Path | None, no_plugins: str | None,
    settings: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Mend what keeps a store from opening, or messages from being read.

    Every whole record stays; damaged bytes are kept aside.

    Exit code 0: a broker can open it now. 1: it is still damaged.
    """
    configuration = configuration_from(config_path, no_plugins, settings, store__path=_folder(folder, path))
    with _readable(configuration.store.path):
        chosen = _settings(configuration)
        with progress_of("reading the log") as progress:
            report = repair_store(chosen, progress)
        plugins = _files_of_plugins(configuration, mend=True)
    _show(chosen, report, plugins, as_json)
    context.exit(1 if report.needs_repair else 0)


@store.command()
@click.argument("target", type=click.Path(path_type=Path))
@store_option
@config_options
@json_option
@click.option("--no-links", is_flag=True, help="Copy full segments too, instead of linking to them.")
def backup(
    target: Path, path: str | None, config_path: Path | None, no_plugins: str | None, settings: tuple[str, ...],
    as_json: bool, no_links: bool,
) -> None:  # fmt: skip
    """Copy a store to the folder TARGET, while its broker runs or when it is stopped.

    The copy has every message that was acknowledged before the command began. Full segments are links on the same file
    system, which protects from mistakes but not from a broken disk: copy TARGET elsewhere, or say --no-links.
    """
    configuration = configuration_from(config_path, no_plugins, settings, store__path=path)
    copied = _told(lambda: back_up(Path(configuration.store.path), target, link=not no_links))
    _show_copied(copied, configuration.store.path, str(target), as_json)


@store.command()
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@store_option
@config_options
@json_option
def restore(
    source: Path, path: str | None, config_path: Path | None, no_plugins: str | None, settings: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    """Copy BACKUP to where a broker will find it; there must be no store yet. The backup stays as it is.

    The first start reads the log as after a crash. 'store check' does so without a broker.
    """
    configuration = configuration_from(config_path, no_plugins, settings, store__path=path)
    copied = _told(lambda: restore_backup(source, Path(configuration.store.path)))
    _show_copied(copied, str(source), configuration.store.path, as_json)


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """
    Raises:
        StoreError: the system refused something.
    """
    try:
        yield
    except OSError as error:
        advice = "; run this as the user that its broker runs as" if isinstance(error, PermissionError) else ""
        raise StoreError(f"the store {path} cannot be used: {error}{advice}") from error


def _told(work: Callable[[], Copied]) -> Copied:
    try:
        return work()
    except OSError as error:
        raise StoreError(f"the disk refused: {error}; what was copied is not whole") from error


def _show_copied(copied: Copied, source: str, target: str, as_json: bool) -> None:
    if as_json:
        click.echo(orjson.dumps({"from": source, "to": target, **attrs.asdict(copied)}))
    else:
        links = f"{copied.linked} of them links"
        click.echo(f"{source} → {target}: {copied.files} files, {links}, {copied.bytes} bytes written")


def _folder(folder: str | None, path: str | None) -> str | None:
    if folder is not None and path is not None:
        raise click.UsageError(f"FOLDER {folder} and --store {path} are two stores; say one")
    return folder or path


def _settings(configuration: Configuration) -> StoreSettings:
    chosen = configuration.store
    # Files are named after their first byte, so two neighbours tell the size whatever the configuration says.
    gaps = {following - start for start, following in pairwise(file_starts(Path(chosen.path) / "commitlog"))}
    size = min(gaps, default=chosen.segment_size)
    if size < chosen.segment_size:
        click.echo(f"the segments of this store have {size} bytes", err=True)
        largest = Size(min(chosen.max_message_size, size // 2))
        chosen = attrs.evolve(chosen, segment_size=Size(size), max_message_size=largest)
    return chosen


def _files_of_plugins(configuration: Configuration, *, mend: bool) -> dict[str, list[str]]:
    """What the active plugins say of their own files, by their names."""
    path, host = Path(configuration.store.path), Broker(configuration).host
    host.load(configuration)
    lock = StoreLock(path)
    try:
        calls = host.calls(hookspecs.check_files)
        found = {call.plugin.name: list(call(path, mend) or ()) for call in calls}
    finally:
        lock.release()
    return {name: lines for name, lines in found.items() if lines}


def _show(settings: StoreSettings, report: Report, plugins: dict[str, list[str]], as_json: bool) -> None:
    if as_json:
        click.echo(orjson.dumps({"store": settings.path, **attrs.asdict(report), "plugins": plugins}))
        return
    for name, lines in plugins.items():
        for line in lines:
            click.echo(f"plugin {name}: {line}")
    click.echo(f"{settings.path}: {_written_by(report)}")
    for line in report.mended:
        click.echo(f"mended: {line}")
    click.echo(f"{settings.path}: {report.records} records in {report.segments} segments, up to offset {report.end}")
    for damage in report.damage:
        click.echo(f"damaged: {damage}")
    if report.torn_tail is not None:
        click.echo(f"torn: {_torn(report.torn_tail)}; the next start cuts it off")
    if report.missing_entries:
        click.echo(f"{report.missing_entries} records are not in their consume queue; the next start adds them")
    if report.lost_entries:
        click.echo(f"damaged: {report.lost_entries} records are not in their consume queue; no start looks for them")
    if report.without_queue:
        why = "their topics were deleted"
        if not report.queues_counted:
            why += ", or its files are missing; without the folder 'consumequeue' a start makes all queues again"
        click.echo(f"{report.without_queue} records have no consume queue: {why}")
    if not report.needs_repair:
        click.echo("no damage: a broker can open it")


def _written_by(report: Report) -> str:
    version = report.version
    if version is None:
        return "written by VernierMQ 0.1, or by an Apache broker"
    return f"written by VernierMQ {version.written_by}, readable from version {version.readable_from} on"


def _torn(tail: BadRange) -> str:
    return f"a record at offset {tail.start} was not written to its end ({tail.why})"
