"""``verniermq flow rules`` and ``verniermq flow stats``: the flow control of running brokers, from a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import anyio
import click
from rich import box
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
    every = [(name, told["resources"]) for name, told in _ask(namesrv, broker).items()]
    if as_json:
        for name, resources in every:
            for resource in resources:
                click.echo(json.dumps({"broker": name, **resource}))
        return
    if not any(resources for _, resources in every):
        click.echo("no resource with a rule was called so far")
    for name, resources in every:
        if resources:
            click.echo(f"broker {name}")
            Console(highlight=False).print(_stats(resources))


COUNTS: Final = {
    "passed": "passed",
    "refused": "blocked",
    "pass/s": "pass_qps",
    "refuse/s": "block_qps",
    "run": "running",
}
"""Column → figure."""


def _stats(resources: Sequence[Mapping[str, Any]]) -> Table:
    """Fits into 80 columns; breakers have one only if there are any."""
    has_breakers = any(resource["breakers"] for resource in resources)
    numbers = [Column(title, justify="right", no_wrap=True) for title in (*COUNTS, "mean ms")]
    table = Table(
        Column("resource", overflow="fold"), *numbers, *(["breakers"] if has_breakers else []),
        box=box.SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    for resource in resources:
        figures = [str(resource[figure]) for figure in COUNTS.values()]
        table.add_row(
            escape(resource["name"]), *figures, f"{resource['average_rt_ms']:.1f}",
            *([", ".join(resource["breakers"])] if has_breakers else []),
        )  # fmt: skip
    return table


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
