"""``verniermq broker``: run a broker until it is told to stop."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Final

import anyio
import click
import orjson

from verniermq.cli.logs import set_up_logging
from verniermq.cli.options import config_options, configuration_from
from verniermq.cli.process import collect_garbage_rarely, description, raise_descriptor_limit
from verniermq.cli.progress import progress_of
from verniermq.cli.reach import unreachable
from verniermq.cli.sdnotify import Notifier
from verniermq.kernel.broker import Broker
from verniermq.kernel.config import CONFIG_VARIABLE, Configuration
from verniermq.kernel.errors import ListenFailed
from verniermq.kernel.host.permissions import open_to_anybody
from verniermq.kernel.loop import backend_options
from verniermq.kernel.remoting.address import plain_host
from verniermq.kernel.remoting.server import why_not_listening

logger = logging.getLogger(__name__)

LINE: Final = 66
"""Characters after which the list of plugins goes on in another line."""


class _Broker(click.Group):
    """``drain`` talks to a broker as a client does: it is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["drain"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "drain":
            return None
        from verniermq.cli.drain import drain

        return drain


@click.group(cls=_Broker, invoke_without_command=True)
@config_options
@click.option("--name", help="This broker's name.")
@click.option("--host", help="The address to listen on.")
@click.option("--port", type=int, help="The port to listen on; 0 takes a free one.")
@click.option("--namesrv-port", type=int, help="The embedded name server's port; 0 takes a free one.")
@click.option("--store", help="The folder of the store.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a JSON file with the addresses once the broker is ready, for whoever started it.",
)
@click.option("--until-stdin-ends", is_flag=True, hidden=True, help="Stop when the standard input ends.")
@click.option("--for-tests", is_flag=True, help="Obey the parent process: see docs/testing.md. Never in production.")
@click.pass_context
def broker(
    context: click.Context,
    config_path: Path | None,
    no_plugins: str | None,
    settings: tuple[str, ...],
    name: str | None,
    host: str | None,
    port: int | None,
    namesrv_port: int | None,
    store: str | None,
    ready_file: Path | None,
    until_stdin_ends: bool,
    for_tests: bool,
) -> None:
    """Run a broker, with its embedded name server unless the configuration names others.

    Ctrl-C or SIGTERM stops it: it answers what it has taken, writes everything to disk, and ends.

    \b
    verniermq broker                               with all defaults
    verniermq broker --config broker.toml          as the file says
    verniermq broker --port 0 --namesrv-port 0     on free ports
    verniermq broker --no-plugins=flow,schedule    without these two
    verniermq broker drain broker-a                send producers elsewhere
    """
    if context.invoked_subcommand is not None:
        from verniermq.cli import choose_context

        choose_context(context.find_root(), context.find_root().params.get("context_name"))
        return
    started = time.perf_counter()
    read = partial(
        configuration_from, config_path, no_plugins, settings,
        broker__name=name, broker__host=host, broker__port=port, plugins__namesrv__port=namesrv_port, store__path=store,
    )  # fmt: skip
    configuration = read()
    _try_ports(configuration)
    set_up_logging(configuration.log.level.upper(), configuration.log.format)
    raise_descriptor_limit()
    given = config_path or os.environ.get(CONFIG_VARIABLE)
    if given and (how := open_to_anybody(Path(given))) is not None:
        logger.warning("the configuration is not safe: %s", how)
    if for_tests:
        from verniermq.cli.for_tests import run_for_tests

        anyio.run(run_for_tests, configuration, backend_options=backend_options())
    else:
        work = partial(_run, configuration, read, ready_file, started, until_stdin_ends=until_stdin_ends)
        anyio.run(work, backend_options=backend_options())


def _try_ports(configuration: Configuration) -> None:
    """Say at once that something else listens there, before the store is opened and lines are logged.

    Raises:
        ListenFailed: a port is taken, or the address is not of this machine.
    """
    own, plugins = configuration.broker, configuration.plugins
    places = [(own.host, own.port)]
    has_name_server = {"default", "namesrv"} & set(plugins.enable) and "namesrv" not in plugins.disable
    if has_name_server and not own.namesrv:
        from verniermq.plugins.namesrv import Config as NamesrvConfig  # one that has none need not read it

        name_server = configuration.plugin("namesrv", NamesrvConfig)
        places.append((name_server.host, name_server.port))
    for host, port in places:
        try:
            family, _, _, _, address = socket.getaddrinfo(plain_host(host), port, type=socket.SOCK_STREAM)[0]
            socket.create_server(address[:2], family=family).close()
        except OSError as error:
            raise ListenFailed(host, port, why_not_listening(error)) from None


async def _run(
    configuration: Configuration,
    reread: Callable[[], Configuration],
    ready_file: Path | None,
    started: float,
    *,
    until_stdin_ends: bool = False,
) -> None:
    # Signals are ours before anybody can know that there is a broker to send one to.
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with AsyncExitStack() as stack:
            with progress_of("reading the log") as progress:
                running = await stack.enter_async_context(Broker(configuration, reread=reread, progress=progress))
            if (why := unreachable(configuration, running)) is not None:
                logger.warning("other machines do not find this broker: %s", why)
            collect_garbage_rarely()
            click.echo(_banner(running, time.perf_counter() - started), err=True)
            if ready_file is not None:
                _write_ready_file(ready_file, running)
            notifier = Notifier()
            notifier.tell(f"READY=1\nSTATUS=serving {running.address}")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_wait_for_signal, signals, running)
                if until_stdin_ends:
                    tasks.start_soon(_wait_for_stdin, running)
                tasks.start_soon(notifier.keep_alive)
                await running.stop_requested.wait()
                tasks.cancel_scope.cancel()
            notifier.tell("STOPPING=1")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_wait_for_second_signal, signals, tasks.cancel_scope)
                await running.leave()
                tasks.cancel_scope.cancel()
    if running.stop_reason:
        raise click.ClickException(running.stop_reason)


async def _wait_for_signal(signals: AsyncIterator[signal.Signals], running: Broker) -> None:
    async for number in signals:
        name = signal.Signals(number).name
        click.echo(f"{name}: stopping; everything taken is answered and written first", err=True)
        running.stop_requested.set()
        return


async def _wait_for_second_signal(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    async for number in signals:
        click.echo(f"{signal.Signals(number).name} again: stopping at once", err=True)
        scope.cancel()
        return


async def _wait_for_stdin(running: Broker) -> None:
    """Whoever started us has the other end; it closes when they end, however they do."""
    while True:
        await anyio.wait_readable(sys.stdin)
        if not os.read(sys.stdin.fileno(), 4096):
            break
    click.echo("the standard input ended: stopping", err=True)
    running.stop_requested.set()


def _banner(running: Broker, seconds: float) -> str:
    """Where it listens, what it keeps where, and a line to try."""
    name_servers = ", ".join(running.name_servers) or "none (the plugin namesrv is not active)"
    active = ", ".join(plugin.name for plugin in running.host.active.values()) or "none"
    rows = [
        (click.style("VernierMQ", bold=True) + "  ", f"broker {running.name} is ready after {seconds:.2f} s"),
        ("clients use", f"{name_servers}  (name server)"),
        ("broker", f"{running.address}  ({running.advertised.why})"),
    ]
    if running.advertised.is_loopback:
        rows.append(("", "reachable from this machine only; to change that,"))
        rows.append(("", "set [broker] host and advertise"))
    rows += [("store", str(Path(running.store.path).resolve())), ("path", running.path)]
    rows += [("" if number else "plugins", line) for number, line in enumerate(wrap(active, LINE))]
    if running.name_servers:
        first = running.name_servers[0]
        command = _command()
        rows.append(("try", f'{command} send greetings "hello" --namesrv {first}'))
        rows.append(("", f"{command} tail greetings --from-start --namesrv {first}"))
    return "\n".join(f"{label:11}  {text}" for label, text in rows)


def _command() -> str:
    """Our own name as it can be typed here: the command of an environment that is not active is on no path."""
    called = sys.argv[0]
    if os.path.basename(called) != "verniermq" or not os.path.exists(called):
        return "verniermq"
    on_path = (os.path.join(folder, "verniermq") for folder in os.get_exec_path())
    found = next((path for path in on_path if os.access(path, os.X_OK)), None)
    return "verniermq" if found is not None and os.path.samefile(found, called) else shlex.quote(called)


def _write_ready_file(path: Path, running: Broker) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(orjson.dumps(description(running)))
    temporary.rename(path)
