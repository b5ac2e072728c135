"""``verniermq config``: look at a configuration, and check one before it is used."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import click

from verniermq.cli.client import json_option, print_json
from verniermq.cli.options import config_options, configuration_from
from verniermq.cli.reach import unreachable
from verniermq.cli.render import effective, render, render_effective
from verniermq.cli.rocketmqconf import import_conf
from verniermq.kernel.broker import Broker
from verniermq.kernel.config import configuration_of
from verniermq.kernel.host.builtin import BROKER_PLUGINS
from verniermq.kernel.host.discovery import built_in, load


@click.group()
def config() -> None:
    """Look at a configuration, check one, or translate one of RocketMQ."""


file_argument = click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))


@config.command()
@file_argument
@config_options
@json_option
def show(
    file: Path | None, config_path: Path | None, no_plugins: str | None, settings: tuple[str, ...], as_json: bool
) -> None:  # fmt: skip
    """Print every setting as it is in effect: FILE, environment and flags together. Secrets are masked."""
    configuration = configuration_from(_one(file, config_path), no_plugins, settings)
    host = Broker(configuration).host
    host.load(configuration)
    configs = {plugin.name: plugin.config for plugin in host.active.values()}
    if as_json:
        click.echo(json.dumps(effective(configuration, configs), default=str))
    else:
        click.echo(render_effective(configuration, configs), nl=False)


@config.command()
@file_argument
@config_options
@json_option
def check(
    file: Path | None, config_path: Path | None, no_plugins: str | None, settings: tuple[str, ...], as_json: bool
) -> None:  # fmt: skip
    """Say whether a broker would take this configuration: settings, plugins, and the address for clients.

    It warns where name servers on other machines would be told an address of this one alone.

    Exit code 0: it would. 2: it would not, and one line says why.
    """
    path = _one(file, config_path)
    configuration = configuration_from(path, no_plugins, settings)
    broker = Broker(configuration)
    broker.host.load(configuration)
    plugins, advertised, warning = list(broker.host.active), broker.advertised, unreachable(configuration, broker)
    # A plugin's settings may be right and yet hardly meant: a method notes() of their class says so.
    notes = [note for found in broker.host.active.values() for note in getattr(found.config, "notes", tuple)()]
    if as_json:
        told = {"file": str(path or ""), "plugins": plugins, "address": advertised.host, "warning": warning or ""}
        click.echo(json.dumps({**told, "notes": notes}))
    else:
        verdict = "fine" if warning is None else "valid, with a warning"
        address = f"clients would be told {advertised.host} ({advertised.why})"
        click.echo(f"{path or 'the defaults'}: {verdict}; {len(plugins)} plugins, {address}")
        for note in notes:
            click.echo(f"note: {note}")
        if warning is not None:
            click.echo(f"warning: {warning}", err=True)


def _one(file: Path | None, config_path: Path | None) -> Path | None:
    if file is not None and config_path is not None:
        raise click.UsageError("FILE and --config say the same; give one of them")
    return file or config_path


@config.command()
def default() -> None:
    """Print a complete broker.toml: every setting, its default, and what it is for."""
    click.echo(default_file(), nl=False)


@config.command("import")
@click.argument("conf", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="Write it to this file.")
@json_option
def import_file(conf: Path, output: Path | None, as_json: bool) -> None:
    """Translate a broker.conf of RocketMQ to a broker.toml. What has no setting here is named in comments.

    The result is checked as a broker would check it.
    """
    imported = import_conf(conf.read_text(encoding="utf-8", errors="replace"))
    document = tomllib.loads(imported.toml)
    configuration = configuration_of(document, str(conf))
    Broker(configuration).host.load(configuration)
    if output is not None:
        output.write_text(imported.toml, encoding="utf-8")
    if as_json:
        left_out = [{"name": name, "why": why} for name, why in imported.left_out]
        print_json(
            {"file": str(output or ""), "settings": document, "left_out": left_out, "notes": list(imported.notes)}
        )
    elif output is None:
        click.echo(imported.toml, nl=False)
    else:
        click.echo(f"{output}: {sum(map(len, imported.tables.values()))} settings, {len(imported.left_out)} left out")
        for note in imported.notes:
            click.echo(f"warning: {note}", err=True)


def default_file() -> str:
    """The text of ``broker.toml``; a test compares the one in the repository with it."""
    tables = []
    for name in BROKER_PLUGINS.builtin:
        declaration = load(built_in(name, BROKER_PLUGINS)).declaration
        tables.append((name, declaration.config, declaration.summary))
    return render(plugins=tables)
