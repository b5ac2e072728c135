"""``verniermq txn resume``: a transaction that was given up is opened again, from a terminal."""

from __future__ import annotations

import json

import anyio
import click

from verniermq.kernel import parse_offset_message_id
from verniermq.protocol.peers import Peers
from verniermq.protocol.transaction import ResumeCheck


@click.group()
def txn() -> None:
    """Open transactions again that brokers gave up."""


@txn.command()
@click.argument("message_id", metavar="ID")
@click.option("--broker", help="The broker, host:port, if the address inside the id cannot be reached from here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a sentence.")
def resume(message_id: str, broker: str | None, as_json: bool) -> None:
    """Have a transaction checked again that nobody ended, and that was moved to TRANS_CHECK_MAX_TIME_TOPIC.

    ID is the one that the broker's log names, and the offset_id that the tail below prints.

    \b
    verniermq tail TRANS_CHECK_MAX_TIME_TOPIC --from-start --no-wait --json
    verniermq txn resume 7F00000100002A9F0000000000001000
    """
    try:
        address, _ = parse_offset_message_id(message_id)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    anyio.run(_resume, broker or address, message_id)
    if as_json:
        click.echo(json.dumps({"id": message_id, "broker": broker or address, "open": True}))
    else:
        click.echo("open again; its producer is asked at the next round of checks")


async def _resume(address: str, message_id: str) -> None:
    async with Peers() as peers:
        await peers.ask(address, ResumeCheck(message_id=message_id).command())
