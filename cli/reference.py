"""The page ``docs/commands.md``, made from the commands themselves: ``python -m verniermq.cli.reference``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from verniermq.cli import commands, main

HEAD: Final = """\
# Commands

Every command, as its own `--help` shows it. This page is written by `python -m verniermq.cli.reference`, and a
test compares the two. Errors are one line and exit code 2.
"""


def reference() -> str:
    """The whole page."""
    context = click.Context(main, info_name="verniermq", terminal_width=100, max_content_width=100)
    parts = [HEAD]
    for name in commands():
        command = main.get_command(context, name)
        assert command is not None
        parts.extend(_sections(command, context, name, level=2))
    return "\n".join(parts)


def _sections(command: click.Command, parent: click.Context, name: str, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent, terminal_width=100, max_content_width=100)
    yield f"{'#' * level} {context.command_path}\n\n```\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _sections(found, context, inner, level + 1)


if __name__ == "__main__":
    print(reference(), end="")
