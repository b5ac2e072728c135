"""``verniermq context``: clusters by name, and which one commands are about."""

from __future__ import annotations

import sys
from typing import Any

import attrs
import click

from verniermq.cli.client import confirm, json_option, print_json, table, yes_option
from verniermq.cli.contextfile import ClusterContext, Contexts


@click.group()
def context() -> None:
    """Give clusters names, and choose the one that commands are about.

    The one chosen is used where neither --namesrv, --context, $VERNIERMQ_CONTEXT nor $VERNIERMQ_NAMESRV says another.

    \b
    verniermq context add prod --namesrv 10.0.0.5:9876 --access-key operator
    verniermq context select prod
    verniermq --context prod group list
    """


@context.command("list")
@json_option
def list_contexts(as_json: bool) -> None:
    """Show the contexts; * marks the one that is chosen."""
    found = Contexts.load()
    for one in found.contexts.values() if as_json else ():
        print_json({"context": one.name, "current": one.name == found.current, **_shown(one)})
    if not as_json:
        table(["", "context", "name server", "access key", "tls", "namespace"], [
            ["*" if one.name == found.current else "", one.name, one.namesrv, one.access_key or "-",
             "yes" if one.tls else "-", one.namespace or "-"] for one in found.contexts.values()
        ])  # fmt: skip
        if not found.contexts:
            click.echo("no contexts; add one with: verniermq context add NAME --namesrv HOST:PORT")


def _shown(one: ClusterContext) -> dict[str, str | bool]:
    return {**one.settings(), **({"secret_key": "********"} if one.secret_key else {})}


@context.command("add")
@click.argument("name")
@click.option("--namesrv", help="The name server; several with ';' between them.")
@click.option("--access-key", help="For brokers with access control; the secret is asked for, or read as one line.")
@click.option("--tls/--no-tls", default=None, help="Speak TLS.")
@click.option("--ca-file", help="The certificates of the authorities to believe, instead of the system's.")
@click.option("--namespace", help="Put before every topic and group.")
@json_option
def add_context(
    name: str, namesrv: str | None, access_key: str | None, tls: bool | None, ca_file: str | None,
    namespace: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Add a context, or change what is said of one that is there.

    A secret is never an option, which others could see in the list of processes: it is asked for, or is the first
    line of the standard input.
    """
    found = Contexts.load()
    given = {
        "namesrv": namesrv, "access_key": access_key, "tls": tls, "ca_file": ca_file, "namespace": namespace,
    }  # fmt: skip
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if access_key:
        changes["secret_key"] = _secret(access_key)
    before = found.contexts.get(name)
    after = attrs.evolve(before or ClusterContext(name=name), **changes)
    if not after.namesrv:
        raise click.UsageError(f"context {name!r} needs its name server: --namesrv HOST:PORT")
    after.options()
    found.contexts[name] = after
    found.save()
    if as_json:
        print_json({"context": name, "new": before is None, "file": str(found.path)})
    else:
        click.echo(f"context {name} is {'changed' if before else 'added'} in {found.path}")


def _secret(access_key: str) -> str:
    if sys.stdin.isatty():
        return str(click.prompt(f"secret key of {access_key}", hide_input=True))
    secret = sys.stdin.readline().strip()
    if not secret:
        raise click.UsageError(f"the secret key of {access_key} is expected as one line on the standard input")
    return secret


@context.command("select")
@click.argument("name")
@json_option
def select_context(name: str, as_json: bool) -> None:
    """Use this context from now on, where nothing else is said."""
    found = Contexts.load()
    found.get(name)
    found.current = name
    found.save()
    if as_json:
        print_json({"context": name, "current": True})
    else:
        click.echo(f"commands are about {name} now")


@context.command("remove")
@click.argument("name")
@yes_option
@json_option
def remove_context(name: str, yes: bool, as_json: bool) -> None:
    """Forget a context, with its secret."""
    found = Contexts.load()
    found.get(name)
    confirm(f"forget context {name}?", yes)
    del found.contexts[name]
    if found.current == name:
        found.current = ""
    found.save()
    if as_json:
        print_json({"context": name, "forgotten": True})
    else:
        click.echo(f"context {name} is forgotten")
