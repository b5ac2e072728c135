"""``verniermq proxy``: the gRPC port on its own, in front of brokers that have none."""

from __future__ import annotations

import logging
import os
import secrets
import signal
from pathlib import Path

import anyio
import click

from verniermq.client.credentials import Credentials
from verniermq.client.options import name_servers
from verniermq.kernel import ConfigError, backend_options

KEY_FILE = "grpcReceipts.key"


@click.command()
@click.option(
    "--namesrv", default=lambda: ";".join(name_servers(None)),
    show_default="$VERNIERMQ_NAMESRV, $NAMESRV_ADDR or 127.0.0.1:9876",
    help="The name server; several with ';' between them.",
)  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8081, show_default=True, help="The port; 0 takes a free one.")
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), default=Path("verniermq-proxy"), show_default=True,
    help="Where the proxy keeps the key of receipts, and a certificate if none is given.",
)  # fmt: skip
@click.option("--certificate", default="", help="A certificate (PEM); without one, a self-signed one is made.")
@click.option("--key", default="", help="The certificate's private key (PEM).")
@click.option("--access-key", default="", help="For brokers with access control; the secret is in the environment.")
def proxy(
    namesrv: str, host: str, port: int, folder: Path, certificate: str, key: str, access_key: str
) -> None:  # fmt: skip
    """Serve RocketMQ 5's gRPC clients in front of brokers that have no such port.

    Clients are served as by the plugin grpc, by requests to the brokers that the name server knows. With --access-key
    these are signed, with the secret in $VERNIERMQ_SECRET_KEY; clients themselves are not checked. Several proxies that
    share clients need the same key file in their folders.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        from verniermq.contrib.grpc.port import GrpcPort
        from verniermq.contrib.grpc.remote import RemoteBrokers
    except ImportError as error:
        raise click.ClickException(f"{error.name} is missing; install it with: pip install 'verniermq[grpc]'") from None
    credentials = Credentials(access_key, os.environ.get("VERNIERMQ_SECRET_KEY", "")) if access_key else None

    async def run() -> None:
        brokers = RemoteBrokers(namesrv, credentials)
        serving = GrpcPort(
            brokers=brokers, key=receipt_key(folder), folder=folder, host=host, advertised=host, port=port,
            certificate=certificate, private_key=key,
        )  # fmt: skip
        await serving.start()
        click.echo(f"gRPC proxy listening on {host}:{serving.port}, brokers of {namesrv}")
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serving.server.run)
                tasks.start_soon(serving.watch_certificate)
                async for _ in signals:
                    tasks.cancel_scope.cancel()
        await serving.stop()
        brokers.close()

    try:
        anyio.run(run, backend_options=backend_options())
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


def receipt_key(folder: Path) -> bytes:
    """What receipts are sealed with: made at the first start."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / KEY_FILE
    if not file.exists():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(secrets.token_hex(32))
    try:
        return bytes.fromhex(file.read_text().strip())
    except ValueError:
        raise click.ClickException(f"{file} holds no key in hex; remove it, and receipts in use are lost") from None
