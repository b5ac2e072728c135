"""``verniermq plugins``: which there are, which would run, in what order they are called."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
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
from verniermq.kernel import PluginError, nearest

COLOURS: Final = {"active": "green", "inactive": "dim", "failed": "red"}
TERMINAL: Final = {"active": "green", "inactive": "bright_black", "failed": "red"}


@click.group(invoke_without_command=True)
@config_options
@click.option("--json", "as_json", is_flag=True, help="Everything, for programs.")
@click.option("--graph", is_flag=True, help="Per hook, the plugins in the order in which they are called.")
@click.pass_context
def plugins(
    context: click.Context,
    config_path: Path | None,
    no_plugins: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    graph: bool,
) -> None:
    """List every plugin: built in, installed or named in broker.toml; active, inactive or failed, and why.

    Exit code 1 if one failed, so that a deployment notices before the broker does.

    \b
    verniermq plugins                    a line for each
    verniermq plugins show schedule      its hooks and its settings
    verniermq plugins --graph            who is called in which order
    """
    if context.invoked_subcommand is not None:
        return
    inventory = take_inventory(configuration_from(config_path, no_plugins, settings))
    if as_json:
        click.echo(json.dumps(attrs.asdict(inventory), indent=2, default=str))
    elif graph:
        Console().print(_graph(inventory))
    else:
        _list(inventory.entries)
    if any(entry.state == "failed" for entry in inventory.entries):
        raise SystemExit(1)


@plugins.command("show")
@click.argument("name")
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show_plugin(
    name: str, config_path: Path | None, no_plugins: str | None, settings: tuple[str, ...], as_json: bool
) -> None:
    """Show one plugin: what it does, where it comes from, its hooks and its settings."""
    inventory = take_inventory(configuration_from(config_path, no_plugins, settings))
    for entry in inventory.entries:
        if entry.name == name:
            if as_json:
                click.echo(json.dumps(attrs.asdict(entry), indent=2, default=str))
            else:
                _show(Console(highlight=False), entry)
            raise SystemExit(1 if entry.state == "failed" else 0)
    raise PluginError(f"there is no plugin {name!r}; {nearest(name, [entry.name for entry in inventory.entries])}")


def _list(entries: Sequence[PluginEntry]) -> None:
    """A line for each, cut where the terminal ends."""
    width = max((len(entry.name) for entry in entries), default=0)
    columns = shutil.get_terminal_size().columns
    for entry in entries:
        state = f"{entry.state:<8}"
        words = entry.summary or entry.reason
        # A failure is the one thing that must be read to its end.
        room = max(20, columns - width - len(state) - 4) if entry.state != "failed" else len(words)
        text = words if len(words) <= room else words[: room - 1] + "…"
        click.echo(f"{entry.name:<{width}}  {click.style(state, fg=TERMINAL[entry.state])}  {text}")


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
