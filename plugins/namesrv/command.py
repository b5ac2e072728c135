"""``verniermq namesrv``: a name server on its own."""

from __future__ import annotations

import logging
import signal

import anyio
import click

from verniermq.kernel import SystemClock, backend_options
from verniermq.plugins.namesrv.server import NameServer


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=9876, show_default=True, help="The port; 0 takes a free one.")
def namesrv(host: str, port: int) -> None:
    """Run a name server without a broker; brokers name it in [broker] namesrv.

    Run several for safety: they know nothing of each other, and every broker registers with all of them.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    anyio.run(_run, host, port, backend_options=backend_options())


async def _run(host: str, port: int) -> None:
    server = NameServer(SystemClock())
    await server.start(host, port)
    click.echo(f"name server listening on {host}:{server.port}")
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run)
            async for _ in signals:
                tasks.cancel_scope.cancel()
    await server.stop()
