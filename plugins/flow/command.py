"""``verniermq flow rules`` and ``verniermq flow stats``: the flow control of running brokers, from a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import click
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from verniermq.kernel import Command, RequestCode, parse_answer
from verniermq.protocol.peers import Peers

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _options(command: Decorated) -> Decorated:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line."),
        click.option("--broker", help="Ask this broker, host:port, instead of all that the name server knows."),
        click.option(
            "--namesrv",
            envvar=["VERNIERMQ_NAMESRV", "NAMESRV_ADDR"],
            default="127.0.0.1:9876",
            show_default="$VERNIERMQ_NAMESRV, $NAMESRV_ADDR or 127.0.0.1:9876",
            help="The name server.",
        ),
    ):
        command = option(command)
    return command


@click.group()
def flow() -> None:
    """See the flow control of running brokers: which rules there are, and what they did."""


@flow.command()
@_options
def rules(namesrv: str, broker: str | None, as_json: bool) -> None:
    """Show the rules, as the brokers apply them now."""
    table = Table("broker", "rule")
    for name, told in _ask(namesrv, broker).items():
        for rule in told["rules"]:
            if as_json:
                click.echo(json.dumps({"broker": name, "rule": rule}))
            table.add_row(escape(name), escape(rule))
    _show(table, as_json, "no rules; write some in [[plugins.flow.rules]] of broker.toml, no restart is needed")


@flow.command()
@_options
def stats(namesrv: str, broker: str | None, as_json: bool) -> None:
    """Show what passed and what was refused, for every resource that a rule concerns."""
    table = Table("broker", "resource", *(_right(title) for title in (
        "passed", "refused", "passed/s", "refused/s", "running", "mean ms",
    )), "breakers")  # fmt: skip
    for name, told in _ask(namesrv, broker).items():
        for resource in told["resources"]:
            if as_json:
                click.echo(json.dumps({"broker": name, **resource}))
            counts = ("passed", "blocked", "pass_qps", "block_qps", "running")
            table.add_row(
                escape(name), escape(resource["name"]), *(str(resource[count]) for count in counts),
                f"{resource['average_rt_ms']:.1f}", ", ".join(resource["breakers"]),
            )  # fmt: skip
    _show(table, as_json, "no resource with a rule was called so far")


def _right(title: str) -> Column:
    return Column(title, justify="right")


def _show(table: Table, as_json: bool, nothing: str) -> None:
    if as_json:
        return
    if table.row_count:
        Console().print(table)
    else:
        click.echo(nothing)


def _ask(namesrv: str, broker: str | None) -> dict[str, dict[str, Any]]:
    """What each broker tells, by its name.

    Raises:
        UnexpectedAnswer: one has no flow control.
        RemotingError: one cannot be reached.
    """
    return anyio.run(_ask_all, namesrv, broker)


async def _ask_all(namesrv: str, broker: str | None) -> dict[str, dict[str, Any]]:
    request = Command.request(RequestCode.GET_FLOW_FIGURES)
    async with Peers(namesrv) as peers:
        addresses = {broker: broker} if broker else await peers.masters()
        return {
            name: parse_answer((await peers.ask(address, request)).body, address, "GET_FLOW_FIGURES")
            for name, address in sorted(addresses.items())
        }
