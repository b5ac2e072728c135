"""``verniermq cluster`` and ``verniermq health``: what brokers say of themselves, for people and for scripts."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from verniermq.cli.client import connection, json_option, namesrv_option, run, table
from verniermq.client.admin import Admin, BrokerStatus
from verniermq.client.consumer.pull import PullConsumer
from verniermq.client.errors import ClientError
from verniermq.client.producer import Producer
from verniermq.kernel import Message, VernierMQError, format_duration

TRIAL_SECONDS = 10.0


class _Cluster(click.Group):
    """``up`` brings a name server along, which the view does without: it is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["up"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "up":
            return None
        from verniermq.cli.clusterup import up

        return up


@click.group(cls=_Cluster, invoke_without_command=True)
@namesrv_option
@json_option
@click.pass_context
def cluster(ctx: click.Context, namesrv: str, as_json: bool) -> None:
    """Show the brokers: where they are, their versions, rates, disk and uptime. Exit code 1 if one does not answer.

    With the command up: start a cluster on this machine.
    """
    if ctx.invoked_subcommand is not None:
        return

    async def work() -> list[BrokerStatus]:
        async with Admin(**connection(namesrv)) as admin:
            return await admin.broker_statuses()

    found = run(work)
    if as_json:
        for one in found:
            click.echo(json.dumps({**_facts(one), "figures": dict(one.figures)}))
    else:
        for name in sorted({one.cluster for one in found}):
            click.echo(f"cluster {name}")
            _show([one for one in found if one.cluster == name])
        if not found:
            click.echo(f"no brokers at {namesrv}")
    if not found or any(one.trouble for one in found):
        raise SystemExit(1)


def _show(found: list[BrokerStatus]) -> None:
    """The table of one cluster; what went wrong is below it, since a sentence would break every line."""
    table(["broker", "role", "address", "version", "in/s", "out/s", "disk", "up"], [
        [
            one.name, one.role, one.address, one.figures.get("brokerVersionDesc", "no answer"),
            f"{one.rate('putTps'):.1f}", f"{one.rate('getTransferredTps'):.1f}", disk_text(one), uptime_text(one),
        ]
        for one in found
    ])  # fmt: skip
    for one in found:
        if one.trouble:
            click.echo(f"{one.name} {one.role} {one.address}: {one.trouble}")


def _facts(one: BrokerStatus) -> dict[str, Any]:
    return {
        "cluster": one.cluster, "broker": one.name, "id": one.broker_id, "role": one.role, "address": one.address,
        "trouble": one.trouble,
    }  # fmt: skip


def disk_text(one: BrokerStatus) -> str:
    ratio = one.figures.get("commitLogDiskRatio")
    return "-" if ratio is None else f"{float(ratio):.0%}"


def uptime_text(one: BrokerStatus) -> str:
    started = int(one.figures.get("bootTimestamp") or 0)
    return "-" if not started else format_duration(float(max(1, round(time.time() - started / 1000))))


@click.command()
@namesrv_option
@json_option
@click.option("--topic", help="Send a message to this topic too, and read it again.")
def health(namesrv: str, as_json: bool, topic: str | None) -> None:
    """Say whether the name servers and all brokers answer. Exit code 0: they do. 1: one does not.

    With --topic a message is sent and read as well; nothing else is ever changed.
    """
    checks: list[dict[str, Any]] = []

    def note(what: str, why: str = "") -> None:
        checks.append({"check": what, "ok": not why, "why": why})

    async def work() -> None:
        for address in namesrv.split(";"):
            try:
                async with Admin(**connection(address)) as admin:
                    brokers = await admin.brokers()
                note(f"name server {address}", "" if brokers else "it knows no broker")
            except VernierMQError as error:
                note(f"name server {address}", str(error))
        async with Admin(**connection(namesrv)) as admin:
            for one in await admin.broker_statuses():
                note(f"broker {one.name} {one.role} {one.address}", one.trouble)
        if topic is not None:
            await trial(topic)

    async def trial(name: str) -> None:
        started = time.perf_counter()
        async with Producer("verniermq-health", **connection(namesrv)) as producer:
            sent = await producer.send(Message(name, b"verniermq health"))
        async with PullConsumer(**connection(namesrv)) as consumer:
            read = await consumer.pull(sent.queue, sent.queue_offset, wait=TRIAL_SECONDS)
        if sent.message_id not in [message.message_id for message in read.messages]:
            raise ClientError(f"the message {sent.message_id} was sent to {name} and not found again")
        note(f"a message through {name}, {1000 * (time.perf_counter() - started):.0f} ms")

    try:
        run(work)
    except VernierMQError as error:
        note("the cluster", str(error))
    is_well = all(check["ok"] for check in checks)
    if as_json:
        click.echo(json.dumps({"ok": is_well, "checks": checks}))
    else:
        for check in checks:
            click.echo(
                f"{'ok ' if check['ok'] else 'NOT OK'} {check['check']}{': ' if check['why'] else ''}{check['why']}"
            )
    raise SystemExit(0 if is_well else 1)
