"""The command ``verniermq``: a table of names; the module of a command is imported when the command is used.

Commands live with what they talk about: the broker's here, the client's and the plugins' with them.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import click

from verniermq.kernel.errors import VernierMQError

COMMANDS: Final = {
    "broker": ("verniermq.kernel.cli.broker:broker", "Run a broker, with its embedded name server."),
    "namesrv": ("verniermq.plugins.namesrv.command:namesrv", "Run a name server on its own."),
    "config": ("verniermq.kernel.cli.config:config", "Look at a configuration, or check one."),
    "plugins": ("verniermq.kernel.cli.plugins:plugins", "List every plugin, and why one is not active."),
    "plugin": ("verniermq.kernel.cli.template:plugin", "Write plugins."),
    "topic": ("verniermq.client.cli:topic", "List, create and delete topics."),
    "send": ("verniermq.client.cli:send", "Send a message."),
    "message": ("verniermq.plugins.query.command:message", "Find messages by id or by key."),
    "tail": ("verniermq.client.cli:tail", "Print messages as they come."),
    "dlq": ("verniermq.plugins.retry.command:dlq", "Look at dead letters, and send them again."),
    "store": ("verniermq.kernel.cli.store:store", "Look at the files of a stopped broker, and mend them."),
    "spark": ("verniermq.contrib.spark.command:spark", "Export topics with Spark, or look at them."),
    "flow": ("verniermq.plugins.flow.command:flow", "See the flow control of running brokers."),
}
"""Name → where it is, and its line in the help, which must not cost the import of all of them."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

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
