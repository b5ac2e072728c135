"""The command ``verniermq``. The module of a command is imported when the command is used.

Commands live with what they talk about: the broker's and the client's here, the plugins' with them. Those come by
entry points, ours as well as other packages'::

    [project.entry-points."verniermq.commands"]
    dlq = "verniermq.plugins.retry.command:dlq"
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Final

import click

from verniermq.kernel.errors import VernierMQError, nearest

GROUP: Final = "verniermq.commands"
"""The entry points that bring commands; a package that ships a plugin brings its commands the same way."""

OWN: Final = {
    "broker": "verniermq.cli.broker:broker",
    "config": "verniermq.cli.config:config",
    "plugins": "verniermq.cli.plugins:plugins",
    "plugin": "verniermq.cli.template:plugin",
    "cluster": "verniermq.cli.cluster:cluster",
    "health": "verniermq.cli.cluster:health",
    "top": "verniermq.cli.top:top",
    "topic": "verniermq.cli.topics:topic",
    "group": "verniermq.cli.groups:group",
    "send": "verniermq.cli.send:send",
    "tail": "verniermq.cli.tail:tail",
    "bench": "verniermq.cli.bench:bench",
    "trace": "verniermq.cli.trace:trace",
    "definitions": "verniermq.cli.definitions:definitions",
    "store": "verniermq.cli.store:store",
    "context": "verniermq.cli.contexts:context",
    "debug": "verniermq.cli.debug:debug",
    "completion": "verniermq.cli.completion:completion",
}
"""Name → where it is; imported when the command is used."""

LOCAL: Final = frozenset(
    {"broker", "config", "plugins", "plugin", "store", "context", "completion", "namesrv", "proxy", "compact"}
)
"""What is not about a cluster that a context could name."""


def commands() -> dict[str, str]:
    """Every command that is installed, and where it is. Nothing of theirs is imported for that."""
    from importlib.metadata import entry_points  # 1.5 MB that `verniermq broker` does without

    found = dict(OWN)
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name, entry.value)
    return found


def imported(target: str) -> click.Command:
    module, _, attribute = target.partition(":")
    command: click.Command = getattr(importlib.import_module(module), attribute)
    return command


def _open_standard_streams() -> None:
    """Whoever started us may have closed them: what is opened next would get their numbers, a socket that others then
    take for the standard input. A closed standard input stays none for whoever wants to read it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            if os.open(os.devnull, os.O_RDWR) != number:
                continue
            os.set_inheritable(number, True)
            if name != "stdin":
                setattr(sys, name, os.fdopen(number, "w", closefd=False))


class _Commands(click.Group):
    def main(self, *args: Any, **extra: Any) -> Any:
        _open_standard_streams()
        return super().main(*args, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = OWN.get(cmd_name) or commands().get(cmd_name)
        return None if target is None else imported(target)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"there is no command {args[0]!r}; {nearest(args[0], commands())}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name, target in commands().items():
            try:
                line = imported(target).get_short_help_str(limit=160)
            except Exception as error:  # another package's; the others are shown all the same
                line = f"(cannot be imported: {error})"
            rows.append((name, line))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Errors of ours are one line and exit code 2; a traceback would only hide what to do."""
        try:
            return super().invoke(ctx)
        except VernierMQError as error:
            from verniermq.cli.rocketmqconf import told

            click.echo(f"verniermq: {told(error)}", err=True)
            ctx.exit(2)


def choose_context(context: click.Context, name: str | None) -> None:
    """Let commands be about a cluster that has a name. It is as if its address stood in ``VERNIERMQ_NAMESRV``.

    One that is named goes before the environment; one that was only selected goes behind it.

    Raises:
        ContextError: there is none of that name.
    """
    is_addressed = bool(os.environ.get("VERNIERMQ_NAMESRV") or os.environ.get("NAMESRV_ADDR"))
    if is_addressed and not name:
        return
    from verniermq.cli.contextfile import Contexts, default_path

    if not name and not default_path().exists():
        return
    known = Contexts.load()
    if name or known.current:
        context.obj = known.get(name or known.current)
        before = os.environ.get("VERNIERMQ_NAMESRV")
        os.environ["VERNIERMQ_NAMESRV"] = context.obj.namesrv

        @context.call_on_close
        def restore() -> None:
            if before is None:
                del os.environ["VERNIERMQ_NAMESRV"]
            else:
                os.environ["VERNIERMQ_NAMESRV"] = before


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="verniermq", prog_name="verniermq")
@click.option(
    "--context",
    "context_name",
    metavar="NAME",
    envvar="VERNIERMQ_CONTEXT",
    help="A cluster by its name: see verniermq context.",
)
@click.pass_context
def main(context: click.Context, context_name: str | None) -> None:
    """VernierMQ: a message broker that speaks Apache RocketMQ's protocol and writes its files.

    Start one, then try it in another terminal:

    \b
      verniermq broker
      verniermq send greetings "hello"
      verniermq tail greetings --from-start
    """
    if context.invoked_subcommand not in LOCAL:
        choose_context(context, context_name)
