"""Options that several commands share, and how flags become settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from verniermq.kernel.config import Configuration, load

Command = TypeVar("Command", bound=Callable[..., Any])

ALL = "*"


def config_options(command: Command) -> Command:
    """``--config``, ``--no-plugins`` and ``--set``."""
    options = [
        click.option(
            "--config",
            "config_path",
            type=click.Path(path_type=Path, dir_okay=False),
            help="The configuration file. Without it, every setting has its default.",
        ),
        click.option(
            "--no-plugins",
            metavar="[=A,B]",
            is_flag=False,
            flag_value=ALL,
            help="Leave out these plugins, or all of them; nothing of theirs is imported.",
        ),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="Any setting, by its dotted name: --set store.flush=sync. May be repeated.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def configuration_from(
    config_path: Path | None, no_plugins: str | None, settings: tuple[str, ...], **flags: object
) -> Configuration:
    """Read the configuration with what the flags say put over it; ``flags`` are dotted keys with ``__`` for the dot.

    Raises:
        ConfigError: something in it is wrong.
    """
    overrides: dict[str, object] = {}
    for text in settings:
        key, separator, value = text.partition("=")
        if not separator:
            raise click.UsageError(f"--set {text!r}: expected KEY=VALUE, such as store.flush=sync")
        overrides[key.strip()] = value
    overrides.update({key.replace("__", "."): value for key, value in flags.items() if value is not None})
    if no_plugins == ALL:
        overrides["plugins.enable"] = ()
    configuration = load(config_path, overrides)
    if no_plugins and no_plugins != ALL:
        names = tuple(name.strip() for name in no_plugins.split(",") if name.strip())
        overrides["plugins.disable"] = (*configuration.plugins.disable, *names)
        configuration = load(config_path, overrides)
    return configuration
