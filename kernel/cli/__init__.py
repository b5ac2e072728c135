"""The command ``verniermq``: a table of names; the module of a command is imported when the command is used.

Commands live with what they talk about: the broker's here, the client's and the plugins' with them.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import click

from verniermq.kernel.errors import VernierMQError

COMMANDS: Final = {
    "broker": "verniermq.kernel.cli.broker:broker",
    "namesrv": "verniermq.plugins.namesrv.command:namesrv",
    "config": "verniermq.kernel.cli.config:config",
    "plugins": "verniermq.kernel.cli.plugins:plugins",
    "plugin": "verniermq.kernel.cli.template:plugin",
    "topic": "verniermq.client.cli:topic",
    "send": "verniermq.client.cli:send",
    "tail": "verniermq.client.cli:tail",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Errors of ours are one line and exit code 2; a traceback would only hide what to do."""
        try:
            return super().invoke(ctx)
        except VernierMQError as error:
            click.echo(f"verniermq: {error}", err=True)
            ctx.exit(2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="verniermq", prog_name="verniermq")
def main() -> None:
    """VernierMQ: a message broker that speaks Apache RocketMQ's protocol and writes its files.

    Start one with:  verniermq broker

    Then, in another terminal:  verniermq send greetings "hello"  and  verniermq tail greetings
    """
