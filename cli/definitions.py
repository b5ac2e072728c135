"""``verniermq definitions``: topics and groups as a file, and back. Works on Apache's brokers too."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from verniermq.cli.client import (
    confirm,
    connection,
    dry_run_option,
    json_option,
    namesrv_option,
    print_json,
    run,
    yes_option,
)
from verniermq.cli.definitionfile import Change, DefinitionError, Definitions, compare, from_tables, read, write
from verniermq.cli.groups import is_brokers_own
from verniermq.cli.topics import is_brokers_own_topic, system_names
from verniermq.client.admin import Admin

file_argument = click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
prune_option = click.option("--prune", is_flag=True, help="Delete what FILE does not have, with its messages.")


@click.group()
def definitions() -> None:
    """Keep topics and groups in a file: export them, compare, and import the differences.

    \b
    verniermq definitions export -o cluster.toml
    verniermq definitions diff cluster.toml
    verniermq definitions import cluster.toml --dry-run

    Messages, offsets and the topics and groups that brokers keep for themselves are not among them.
    """


@definitions.command("export")
@namesrv_option
@json_option
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="Write it to this file.")
def export_definitions(namesrv: str, as_json: bool, output: Path | None) -> None:
    """Print the topics and groups of a cluster as TOML."""
    brokers, there = _fetch(namesrv)
    if as_json:
        for (kind, name, broker), settings in sorted(there.items(), key=lambda item: item[0]):
            print_json({"kind": kind, "name": name, "broker": broker, **settings})
        return
    text = write(there, brokers)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        counts = [len({name for one, name, _ in there if one == kind}) for kind in ("topic", "group")]
        click.echo(f"{output}: {counts[0]} topics, {counts[1]} groups")


@definitions.command("diff")
@file_argument
@namesrv_option
@json_option
def diff_definitions(file: Path, namesrv: str, as_json: bool) -> None:
    """Show what FILE and the cluster do not agree about. Exit code 0: nothing. 1: something. 2: it cannot be said."""
    changes = _changes(file, namesrv, prune=True)
    _show(changes, as_json)
    if not changes and not as_json:
        click.echo("the cluster is as the file says")
    raise SystemExit(1 if changes else 0)


@definitions.command("import")
@file_argument
@namesrv_option
@json_option
@prune_option
@yes_option
@dry_run_option
def import_definitions(file: Path, namesrv: str, as_json: bool, prune: bool, yes: bool, dry_run: bool) -> None:
    """Create and change topics and groups as FILE says. What would be done is shown first, and asked about.

    What is as it should be is left alone, so that a second import does nothing. Nothing is deleted without --prune.
    """
    changes = _changes(file, namesrv, prune=prune)
    _show(changes, as_json)
    if not changes:
        click.echo("the cluster is as the file says", err=as_json)
    if dry_run or not changes:
        return
    deleted = sum(change.action == "delete" for change in changes)
    confirm(f"do {len(changes)} changes, {deleted} of them deletions?", yes)

    async def work() -> None:
        async with Admin(**connection(namesrv)) as admin:
            for change in changes:
                await _apply(admin, change)

    run(work)
    click.echo(f"{len(changes)} changes are done", err=as_json)


def _show(changes: Sequence[Change], as_json: bool) -> None:
    for change in changes:
        if as_json:
            print_json(change.as_json())
        else:
            click.echo(str(change))


async def _apply(admin: Admin, change: Change) -> None:
    if change.kind == "topic":
        if change.after is None:
            await admin.drop_topic(change.broker, change.name)
        else:
            changed = change.attribute_changes().items()
            attributes = ",".join(f"{key}={value}" if key[0] == "+" else key for key, value in changed)
            await admin.put_topic(change.broker, change.name, change.members(), attributes)
    elif change.after is None:
        await admin.drop_group(change.broker, change.name)
    else:
        known = (await admin.group_configs()).get(change.broker, {}).get(change.name, {})
        await admin.put_group(change.broker, change.name, change.members(known))


def _changes(file: Path, namesrv: str, *, prune: bool) -> list[Change]:
    if str(file) == "-" and sys.stdin is None:
        raise DefinitionError("FILE - is the standard input, which is closed")
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"{file} cannot be read: {error}") from None
    brokers, there = _fetch(namesrv)
    return compare(there, read(text, brokers, str(file)), prune=prune)


def _fetch(namesrv: str) -> tuple[list[str], Definitions]:
    """The masters, and what they have; without what they keep for themselves."""

    async def work() -> tuple[list[str], Definitions]:
        async with Admin(**connection(namesrv)) as admin:
            system = await system_names(admin)
            topics, groups = await admin.topic_configs(), await admin.group_configs()
            found = {**from_tables("topic", topics), **from_tables("group", groups)}
            return sorted(topics), {
                key: settings
                for key, settings in found.items()
                if not (is_brokers_own_topic(key[1], system) if key[0] == "topic" else is_brokers_own(key[1]))
            }

    return run(work)
