"""``verniermq namesrv``: a name server on its own."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import click

from verniermq.kernel import ConfigError, FileStamps, SystemClock, backend_options, load_tls, watch_files
from verniermq.plugins.namesrv.admission import SHORTEST_SECRET, BrokerAdmission
from verniermq.plugins.namesrv.server import NameServer


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=9876, show_default=True, help="The port; 0 takes a free one.")
@click.option("--certificate", default="", help="A certificate (PEM), to serve TLS on the same port too.")
@click.option("--key", default="", help="The certificate's private key (PEM).")
@click.option("--allow", multiple=True, metavar="ADDRESS", help="From where brokers may register; may be repeated.")
@click.option(
    "--secret-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the secret that brokers have in [plugins.namesrv].",
)  # fmt: skip
def namesrv(host: str, port: int, certificate: str, key: str, allow: tuple[str, ...], secret_file: Path | None) -> None:
    """Run a name server without a broker; brokers name it in [broker] namesrv.

    Brokers are taken from the addresses that --allow names, and those that know the secret; without both options,
    from this machine only. Run several for safety: they know nothing of each other, and every broker registers with
    all of them.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stamps = FileStamps(str(file) for file in (certificate, key, secret_file) if file)
    try:
        tls = load_tls("permissive" if certificate or key else "disabled", certificate, key)
        read_peers = partial(_peers, allow, secret_file)
        server = NameServer(SystemClock(), tls, read_peers())
    except ConfigError as error:
        raise click.ClickException(str(error)) from None

    def reload() -> None:
        server.peers = read_peers()
        if tls is not None:
            tls.reload()

    anyio.run(_run, server, host, port, stamps, reload, backend_options=backend_options())


def _peers(allow: tuple[str, ...], secret_file: Path | None) -> BrokerAdmission:
    """
    Raises:
        ConfigError: an address is none, or the file holds no secret.
    """
    try:
        secret = "" if secret_file is None else secret_file.read_text().strip()
        peers = BrokerAdmission(
            allow, secret, SystemClock().now_ms, "name its address with --allow, or give it the secret"
        )
    except (OSError, ValueError) as error:
        raise ConfigError(str(error)) from None
    if secret_file is not None and len(secret) < SHORTEST_SECRET:
        raise ConfigError(f"{secret_file}: the secret has {len(secret)} characters; {SHORTEST_SECRET} or more")
    return peers


async def _run(server: NameServer, host: str, port: int, stamps: FileStamps, reload: Callable[[], None]) -> None:
    await server.start(host, port)
    click.echo(f"name server listening on {host}:{server.port}")
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run)
            tasks.start_soon(watch_files, "certificate or secret is", stamps, reload)
            async for _ in signals:
                tasks.cancel_scope.cancel()
    await server.stop()
