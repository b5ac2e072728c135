"""What the commands that talk to brokers share: where the brokers are, how output looks, and asking before changing."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import anyio
import click

from verniermq.cli.contextfile import ClusterContext
from verniermq.cli.interrupt import EXIT_CODE, Interrupt
from verniermq.client.errors import ClientError
from verniermq.client.options import ConnectionOptions, name_servers
from verniermq.kernel import VernierMQError

T = TypeVar("T")

namesrv_option = click.option(
    "--namesrv",
    default=lambda: ";".join(name_servers(None)),
    show_default="$VERNIERMQ_NAMESRV, $NAMESRV_ADDR or 127.0.0.1:9876",
    help="The name server; several with ';' between them.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Do it without asking.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be done.")


def connection(namesrv: str) -> ConnectionOptions:
    """How a client of this command connects: to this name server, with what the context says of TLS and credentials."""
    chosen = click.get_current_context().find_root().obj
    options: ConnectionOptions = chosen.options() if isinstance(chosen, ClusterContext) else {}
    return {**options, "namesrv": namesrv}


def run(work: Callable[[], Coroutine[Any, Any, T]], interrupted: Callable[[], None] | None = None) -> T:
    """Do the work of a command; ``interrupted`` is called if Ctrl-C ended it."""
    interrupt = Interrupt()
    try:
        return anyio.run(interrupt.watch, work)
    except (KeyboardInterrupt, asyncio.CancelledError) as ended:
        if interrupt.came_at is None and isinstance(ended, asyncio.CancelledError):
            raise
        if interrupted is not None:
            interrupted()
        sys.exit(EXIT_CODE)
    except ExceptionGroup as group:
        # Several queues are read at a time; what went wrong with the first one is what people should see.
        # Who reads what is printed may stop early, as head does; click ends the command then, without a word.
        ours, _ = group.split((VernierMQError, BrokenPipeError))
        if ours is None:
            raise
        error: Exception = ours
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def confirm(question: str, yes: bool) -> None:
    """Ask before something is changed, naming the context; where nobody can answer, ``--yes`` has to.

    Raises:
        click.Abort: the answer is no.
        ClientError: nobody can be asked.
    """
    if yes:
        return
    chosen = click.get_current_context().find_root().obj
    if isinstance(chosen, ClusterContext):
        question = f"[{chosen.name}] {question}"
    if sys.stdin is None or not sys.stdin.isatty():
        raise ClientError(f"{question} nobody is here to ask; say --yes")
    click.confirm(question, abort=True, err=True)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def print_json(row: Mapping[str, Any]) -> None:
    click.echo(json.dumps(row, ensure_ascii=False))


def table(columns: list[str], rows: list[list[str]], *, right: tuple[str, ...] = ()) -> None:
    """Print rows below each other; the columns named in ``right`` are numbers."""
    if not rows:
        return
    # Imported here: it costs more than a send.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(table)
