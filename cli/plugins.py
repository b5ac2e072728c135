"""``verniermq plugins``: which there are, which would run, in what order they are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import attrs
import click
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.tree import Tree

from verniermq.cli.inventory import Inventory, PluginEntry, take_inventory
from verniermq.cli.options import config_options, configuration_from

COLOURS: Final = {"active": "green", "inactive": "dim", "failed": "red"}


@click.command()
@config_options
@click.option("--json", "as_json", is_flag=True, help="Everything, for programs.")
@click.option("--graph", is_flag=True, help="Per hook, the plugins in the order in which they are called.")
def plugins(
    config_path: Path | None, no_plugins: str | None, settings: tuple[str, ...], as_json: bool, graph: bool
) -> None:
    """List every plugin: built in, installed or named in broker.toml; active, inactive or failed, and why.

    Exit code 1 if one failed, so that a deployment notices before the broker does.
    """
    inventory = take_inventory(configuration_from(config_path, no_plugins, settings))
    if as_json:
        click.echo(json.dumps(attrs.asdict(inventory), indent=2, default=str))
    elif graph:
        Console().print(_graph(inventory))
    else:
        console = Console(highlight=False)
        for entry in inventory.entries:
            _show(console, entry)
    if any(entry.state == "failed" for entry in inventory.entries):
        raise SystemExit(1)


def _show(console: Console, entry: PluginEntry) -> None:
    """A line with name, state and origin; under it what the plugin does, its hooks, and a line for each setting."""
    colour = COLOURS[entry.state]
    origin = entry.origin if entry.version in entry.origin else f"{entry.origin} {entry.version}"
    console.print(f"[bold]{escape(entry.name)}[/bold]  [{colour}]{entry.state}[/{colour}]  {escape(origin)}")
    lines = [entry.summary or entry.reason]
    if entry.hooks:
        lines.append(f"hooks: {', '.join(entry.hooks)}")
    lines += [f"{key} = {value!r}" for key, value in entry.settings.items()]
    console.print(Padding(escape("\n".join(lines)), (0, 0, 0, 4), expand=False))


def _graph(inventory: Inventory) -> Tree:
    tree = Tree("hooks, and who is called in which order")
    for hook, names in inventory.order.items():
        branch = tree.add(f"[bold]{hook}[/bold]")
        for name in names:
            branch.add(escape(name))
    return tree
