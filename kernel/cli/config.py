"""``verniermq config``: look at a configuration, and check one before it is used."""

from __future__ import annotations

from pathlib import Path

import click

from verniermq.kernel.broker import Broker
from verniermq.kernel.builtin import BUILTIN
from verniermq.kernel.cli.options import config_options, configuration_from
from verniermq.kernel.config import render, render_effective
from verniermq.kernel.discovery import Candidate, load
from verniermq.kernel.host import PluginHost


@click.group()
def config() -> None:
    """Look at a configuration, or check one."""


@config.command()
@config_options
def show(config_path: Path | None, no_plugins: str | None, settings: tuple[str, ...]) -> None:
    """Print every setting as it is in effect: file, environment and flags together. Secrets are masked."""
    configuration = configuration_from(config_path, no_plugins, settings)
    host = PluginHost()
    host.load(configuration)
    configs = {plugin.name: plugin.config for plugin in host.active.values()}
    click.echo(render_effective(configuration, configs), nl=False)


@config.command()
@config_options
def check(config_path: Path | None, no_plugins: str | None, settings: tuple[str, ...]) -> None:
    """Say whether a broker would take this configuration: settings, plugins, and the address for clients."""
    configuration = configuration_from(config_path, no_plugins, settings)
    broker = Broker(configuration)
    broker.host.load(configuration)
    click.echo(
        f"{config_path or 'the defaults'}: fine; {len(broker.host.active)} plugins, "
        f"clients would be told {broker.advertised.host} ({broker.advertised.why})"
    )


@config.command()
def default() -> None:
    """Print a complete broker.toml: every setting, its default, and what it is for."""
    click.echo(default_file(), nl=False)


def default_file() -> str:
    """The text of ``broker.toml``; a test compares the one in the repository with it."""
    tables = []
    for builtin in BUILTIN.values():
        declaration = load(Candidate(builtin.name, builtin.target, "built-in")).declaration
        tables.append((builtin.name, declaration.config, declaration.summary))
    return render(plugins=tables)
