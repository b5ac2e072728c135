"""``verniermq namesrv``: a name server on its own."""

from __future__ import annotations

import logging
import signal

import anyio
import click

from verniermq.kernel import ConfigError, SystemClock, Tls, backend_options, load_tls
from verniermq.plugins.namesrv.server import NameServer


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=9876, show_default=True, help="The port; 0 takes a free one.")
@click.option("--certificate", default="", help="A certificate (PEM), to serve TLS on the same port too.")
@click.option("--key", default="", help="The certificate's private key (PEM).")
def namesrv(host: str, port: int, certificate: str, key: str) -> None:
    """Run a name server without a broker; brokers name it in [broker] namesrv.

    Run several for safety: they know nothing of each other, and every broker registers with all of them.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        tls = load_tls("permissive" if certificate or key else "disabled", certificate, key)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    anyio.run(_run, host, port, tls, backend_options=backend_options())


async def _run(host: str, port: int, tls: Tls | None) -> None:
    server = NameServer(SystemClock(), tls)
    await server.start(host, port)
    click.echo(f"name server listening on {host}:{server.port}")
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run)
            async for _ in signals:
                tasks.cancel_scope.cancel()
    await server.stop()
