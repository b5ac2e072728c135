"""``verniermq console``: the console on its own, beside the brokers of VernierMQ or Apache that a name server knows."""

from __future__ import annotations

import os
import signal
import threading

import click

from verniermq.client.options import name_servers
from verniermq.contrib.console.settings import AUTHENTICATIONS, Config, check
from verniermq.kernel import ConfigError


@click.command()
@click.option(
    "--namesrv", default=lambda: ";".join(name_servers(None)),
    show_default="$VERNIERMQ_NAMESRV, $NAMESRV_ADDR or 127.0.0.1:9876",
    help="The name server; several with ';' between them.",
)  # fmt: skip
@click.option("--listen", default="127.0.0.1:8089", show_default=True, help="host:port; port 0 takes a free one.")
@click.option("--label", default="", help="The name of the environment, shown on top of every page.")
@click.option("--colour", type=click.Choice(["red", "amber", "green", "blue", "grey"]), help="The colour of the label.")
@click.option("--access-key", default="", help="For brokers with access control; the secret is in the environment.")
@click.option("--allow-changes", is_flag=True, help="Let topics, groups and messages be changed from the console.")
@click.option(
    "--authentication", type=click.Choice(AUTHENTICATIONS), default="none", show_default=True,
    help="Who may use it: none asks nobody, on loopback only; accounts are those of the brokers' access control.",
)  # fmt: skip
@click.option("--mask", multiple=True, help="A member of JSON bodies or a property that is not shown. May be repeated.")
def console(
    namesrv: str, listen: str, label: str, colour: str | None, access_key: str, allow_changes: bool,
    authentication: str, mask: tuple[str, ...],
) -> None:  # fmt: skip
    """Serve a console in the browser for the brokers that a name server knows, VernierMQ's or Apache's.

    With --access-key the brokers are asked with that account, with the secret in $VERNIERMQ_SECRET_KEY. Looking changes
    nothing on the brokers.

    \b
    verniermq console
    verniermq console --namesrv 10.0.0.1:9876 --label production --colour red
    """
    try:
        from verniermq.contrib.console.console import Console
        from verniermq.contrib.console.server import ConsoleServer
    except ImportError as error:
        if error.name is None or error.name.startswith("verniermq"):
            raise
        install = "pip install 'verniermq[console]'"
        raise click.ClickException(f"{error.name} is missing; install it with: {install}") from None
    from verniermq.protocol.peers import Peers

    secret = os.environ.get("VERNIERMQ_SECRET_KEY", "")
    try:
        config = Config(
            listen=listen, label=label, colour=colour or "", read_only=not allow_changes,
            authentication=authentication, mask=mask, access_key=access_key, secret_key=secret,
        )  # fmt: skip
        check(config)
        server = ConsoleServer(listen, lambda: Console(config, Peers(namesrv)))
        server.bind()
    except (ConfigError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"console at http://{server.address}, brokers of {namesrv}; Ctrl-C ends it")

    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    server.start()
    over.wait()
    server.stop()
    server.join()
