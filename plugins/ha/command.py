"""``verniermq ha``: which replica of a broker is the master, and another one made it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verniermq.kernel import (
    Command,
    RemotingError,
    RequestCode,
    ResponseCode,
    StoreLock,
    UnexpectedAnswer,
    VernierMQError,
    parse_answer,
)
from verniermq.protocol.peers import MASTER, START_ONE, NoNameServer, Peers
from verniermq.protocol.replicas import SwitchMaster

T = TypeVar("T")
SWITCH_TIMEOUT: Final = 15.0

namesrv_option = click.option(
    "--namesrv",
    envvar=["VERNIERMQ_NAMESRV", "NAMESRV_ADDR"],
    default="127.0.0.1:9876",
    show_default="$VERNIERMQ_NAMESRV, $NAMESRV_ADDR or 127.0.0.1:9876",
    help="The name server.",
)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a sentence.")


class NoSuchReplica(VernierMQError):
    """The name server does not know it."""


class NobodyToAsk(VernierMQError):
    """A question, where no terminal is."""


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return anyio.run(work)
    except NoNameServer as error:
        raise VernierMQError(f"{error}; {START_ONE}") from None


def _confirm(question: str, yes: bool) -> None:
    """Ask before something is changed; where nobody can answer, ``--yes`` has to.

    Raises:
        click.Abort: the answer is no.
        NobodyToAsk: nobody can be asked.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise NobodyToAsk(f"{question} nobody is here to ask; say --yes")
    click.confirm(question, abort=True, err=True)


async def _addresses(peers: Peers) -> dict[str, dict[str, str]]:
    """Broker name → id → address."""
    told = await peers.ask_name_server(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO))
    return {name: dict(data["brokerAddrs"]) for name, data in (told.get("brokerAddrTable") or {}).items()}


@click.group()
def ha() -> None:
    """See and change which replica of a broker is its master, where brokers choose it themselves.

    \b
    verniermq ha status
    verniermq ha switch broker-a --to 2
    """


@ha.command()
@namesrv_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per broker name.")
def status(namesrv: str, as_json: bool) -> None:
    """Show the replicas of each broker: who is the master, who is in sync, how far their logs go."""

    async def work() -> list[dict[str, Any]]:
        async with Peers(namesrv) as peers:
            found = []
            for name, addresses in sorted((await _addresses(peers)).items()):
                told = await _first_answer(peers, addresses)
                if told is not None:
                    found.append({**told, "broker": name})
            return found

    found = _run(work)
    for one in found:
        if as_json:
            click.echo(json.dumps(one))
        else:
            _show(one)
    if not found and not as_json:
        click.echo(f"no broker at {namesrv} chooses its master; see docs/replication.md")


async def _first_answer(peers: Peers, addresses: dict[str, str]) -> dict[str, Any] | None:
    """What one of the replicas says; ``None`` if they are none."""
    trouble: RemotingError | None = None
    for _, address in sorted(addresses.items()):
        try:
            answer = await peers.ask(address, Command.request(RequestCode.GET_REPLICAS))
            return parse_answer(answer.body, address, "GET_REPLICAS")
        except UnexpectedAnswer as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                trouble = error
        except RemotingError as error:
            trouble = error
    if trouble is not None:
        raise trouble
    return None


def _show(one: dict[str, Any]) -> None:
    last = one.get("elected")
    nobody = f"none now; replica {last} was elected last" if last else "none yet"
    master = f"replica {one['master']}" if one["master"] else nobody
    click.echo(f"broker {one['broker']}, term {one['term']}, master: {master}")
    table = Table("replica", "role", "address", "in sync", "epoch", "log end", "confirmed", box=box.SIMPLE_HEAD)
    for replica in one["replicas"]:
        numbers = [replica["epoch"], replica["end"], replica["confirmed"]]
        table.add_row(
            str(replica["replica"]), replica["role"], escape(replica["address"]), "yes" if replica["inSync"] else "no",
            *("-" if number is None else str(number) for number in numbers),
        )  # fmt: skip
    Console(highlight=False, width=80).print(table)
    if one.get("problem"):
        click.echo(f"problem: {one['problem']}")


@ha.command()
@click.argument("broker")
@click.option("--to", type=int, required=True, help="The number of the replica that becomes the master.")
@json_option
@namesrv_option
@click.option("--yes", "-y", is_flag=True, help="Do it without asking.")
def switch(broker: str, to: int, as_json: bool, namesrv: str, yes: bool) -> None:
    """Make another replica the master. Sends wait for it; none fails. It must be in sync."""
    _confirm(f"make replica {to} the master of {broker}?", yes)

    async def work() -> None:
        async with Peers(namesrv) as peers:
            address = await _address(peers, broker, MASTER, "has no master now")
            await peers.ask(address, SwitchMaster(replica=to).command(), timeout=SWITCH_TIMEOUT)

    _run(work)
    _tell(as_json, f"replica {to} is the master of {broker}", broker=broker, master=to)


@ha.command()
@click.argument("broker")
@click.option("--replica", type=int, required=True, help="The number of the replica that becomes the master.")
@click.option("--accept-loss", is_flag=True, help="Needed: what only the others have is given up, for ever.")
@json_option
@namesrv_option
def force(broker: str, replica: int, accept_loss: bool, as_json: bool, namesrv: str) -> None:
    """Make a replica the master that may lack what was acknowledged, when those that have it do not come back."""
    if not accept_loss:
        raise click.UsageError(
            "messages that were acknowledged and that this replica lacks would be lost; add --accept-loss"
        )

    async def work() -> int:
        async with Peers(namesrv) as peers:
            address = await _address(peers, broker, str(replica), f"has no replica {replica} at the name server")
            answer = await peers.ask(address, Command.request(RequestCode.FORCE_MASTER), timeout=SWITCH_TIMEOUT)
            return int(parse_answer(answer.body, address, "FORCE_MASTER")["term"])

    term = _run(work)
    done = f"replica {replica} of {broker} counts alone now, and becomes the master"
    _tell(as_json, done, broker=broker, replica=replica, term=term)


def _tell(as_json: bool, sentence: str, **values: Any) -> None:
    click.echo(json.dumps(values) if as_json else sentence)


async def _address(peers: Peers, broker: str, broker_id: str, why: str) -> str:
    known = await _addresses(peers)
    address = known.get(broker, {}).get(broker_id)
    if address is None:
        names = ", ".join(sorted(known)) or "none"
        raise NoSuchReplica(f"broker {broker!r} {why}; the name server knows {names}; try 'verniermq ha status'")
    return address


@ha.command()
@click.option("--store", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True,
              help="The store of a stopped replica.")  # fmt: skip
@json_option
def resync(store: Path, as_json: bool) -> None:
    """Begin a replica anew: its store is put aside, and the next start copies everything from the master.

    The broker must be stopped. What was put aside may be removed once the replica is in sync.
    """
    lock = StoreLock(store)
    try:
        aside = store.with_name(f"{store.name}.before-resync-{time.strftime('%Y%m%d-%H%M%S')}")
        store.rename(aside)
    finally:
        lock.release()
    done = f"{store} is put aside as {aside}; start the broker, and 'verniermq ha status' shows when it is in sync"
    _tell(as_json, done, store=str(store), aside=str(aside))
