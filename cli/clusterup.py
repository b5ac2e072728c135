"""``verniermq cluster up``: several brokers on one machine, each a process, under one name server.

The name server is part of this process; the brokers are its children. They get no Ctrl-C of their own, so that they
stop in an order: masters, then slaves, then the name server. Each of them ends when its standard input does: should
this process be killed, none is left behind.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import click

from verniermq.cli.client import table
from verniermq.cli.clusterplan import MOST_BROKERS, ClusterMember, ClusterPlan
from verniermq.cli.logs import set_up_logging
from verniermq.kernel import (
    Command,
    RemotingError,
    RequestCode,
    SystemClock,
    VernierMQError,
    backend_options,
    load_tls,
    parse_answer,
)
from verniermq.kernel.config import Configuration
from verniermq.kernel.remoting.tls import load_outgoing_tls
from verniermq.plugins.namesrv import Config as NamesrvConfig
from verniermq.plugins.namesrv.server import NameServer
from verniermq.protocol.peers import Peers

LOOK_SECONDS: Final = 0.02
TELL_SECONDS: Final = 3.0
LAST_LINES: Final = 15
"""Of the log of a broker that ended."""


class MemberEnded(VernierMQError):
    """A broker ended that should not have."""

    def __init__(self, member: ClusterMember, code: int) -> None:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        tail = member.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        said = "\n".join(f"    {line}" for line in tail)
        super().__init__(f"{member.title} {how}; {member.log} ends with\n{said}")


@attrs.define(eq=False)
class Running:
    """One broker's process."""

    member: ClusterMember
    process: subprocess.Popen[bytes]
    address: str = ""
    is_told: bool = False
    """Whether it was said that it is gone."""

    def is_registered(self, server: NameServer) -> bool:
        """Whether clients would find it, and a master of its name."""
        members = server.table.members(self.member.name)
        return 0 in members and any(member.address == self.address for member in members.values())

    def is_master(self, server: NameServer) -> bool:
        """By settings, or elected last."""
        if self.member.role != "replica":
            return self.member.role == "master"
        master = server.table.members(self.member.name).get(0)
        return master is not None and master.address == self.address

    def role(self, server: NameServer) -> str:
        return "master" if self.is_master(server) else "slave"

    def facts(self, server: NameServer) -> dict[str, Any]:
        member = self.member
        return {
            "broker": member.name, "id": member.broker_id, "role": self.role(server), "address": self.address,
            "pid": self.process.pid, "store": str(member.folder), "log": str(member.log),
        }  # fmt: skip

    def is_ready(self) -> bool:
        """
        Raises:
            MemberEnded: it will never be.
        """
        if self.process.poll() is not None:
            raise MemberEnded(self.member, self.process.returncode)
        if not self.address and self.member.ready_file.exists():
            self.address = json.loads(self.member.ready_file.read_bytes())["broker"]
            self.member.ready_file.unlink()
        return bool(self.address)


@click.command("up")
@click.option("--brokers", type=click.IntRange(1, MOST_BROKERS), default=3, show_default=True, help="How many names.")
@click.option(
    "--replicas", type=click.IntRange(1, 9), default=1, show_default=True,
    help="How many copies of each log: with 2, every broker has a slave, and a send waits until it has the message.",
)  # fmt: skip
@click.option(
    "--etcd", multiple=True, metavar="URL",
    help="A server of etcd, such as http://127.0.0.1:2379: the copies elect their master through it. May be repeated.",
)  # fmt: skip
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), default=Path("cluster"), show_default=True,
    help="Where their stores and logs go; kept when the cluster stops.",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65000), default=10911, show_default=True,
    help="The first broker's port; the next ones are 10 further each. 0 takes free ones.",
)  # fmt: skip
@click.option(
    "--namesrv-port", type=click.IntRange(0, 65535), default=9876, show_default=True, help="The name server's port."
)
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="A configuration file for all of them.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE",
    help="A setting for all of them; {number} in the value is 1, 2, 3 … May be repeated.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON when all are ready.")
def up(
    brokers: int, replicas: int, etcd: tuple[str, ...], data: Path, port: int, namesrv_port: int, config: Path | None,
    settings: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Start a cluster on this machine: brokers, each a process, under one name server. Ctrl-C stops all of it.

    One broker uses one core for its loop, so several use several: a topic has its queues on all of them, and clients,
    which are told the name server alone, spread over them. It is also the quickest way to see what clients do when a
    broker goes away: end one by its pid. The line that starts it again is printed then.

    \b
    verniermq cluster up                 three brokers, name server on 9876
    verniermq cluster up --replicas 2    each with a slave
    verniermq cluster up --brokers 1 --replicas 3 --etcd http://127.0.0.1:2379
    verniermq cluster up --set plugins.enable=default,http \\
      --set plugins.http.listen=127.0.0.1:808{number}

    \b
    verniermq topic create orders        elsewhere: queues on every broker
    verniermq cluster                    who is there, and how busy
    """
    if etcd and replicas == 1:
        raise click.UsageError("--etcd is for copies that elect their master: say --replicas 2 or more")
    plan = ClusterPlan(brokers, replicas, data.resolve(), port, config, settings, etcd)
    common = plan.common()
    set_up_logging("WARNING", common.log.format)
    anyio.run(_run, plan, common, namesrv_port, as_json, backend_options=backend_options())


async def _run(plan: ClusterPlan, configuration: Configuration, namesrv_port: int, as_json: bool) -> None:
    started = time.perf_counter()
    tls = configuration.tls
    outgoing = load_outgoing_tls(tls.outgoing, tls.server_ca, tls.certificate, tls.key)
    server = NameServer(SystemClock(), load_tls(tls.mode, tls.certificate, tls.key, tls.client_ca))
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        host = configuration.plugin("namesrv", NamesrvConfig).host
        await server.start(host, namesrv_port)
        reached = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        plan = attrs.evolve(
            plan, namesrv=f"[{reached}]:{server.port}" if ":" in reached else f"{reached}:{server.port}"
        )
        members = plan.members()
        cluster: list[Running] = []
        try:
            for member in members:
                member.configuration()  # what does not fit is better said before anything is started
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.run)
                tasks.start_soon(_stop_on_signal, signals, tasks.cancel_scope)
                async with Peers(tls=lambda: outgoing) as peers, anyio.create_task_group() as telling:
                    telling.start_soon(_tell_what_is_waited_for, plan, cluster, server, peers)
                    for role in ("master", "slave", "replica"):  # a slave asks for its master when it starts
                        cluster.extend(_start(member) for member in members if member.role == role)
                        await _wait_until_ready(cluster, server)
                    await _wait_until_followed(cluster, server, peers, plan.replicas - 1)
                    telling.cancel_scope.cancel()
                cluster.sort(key=lambda running: running.member.number)
                _say_ready(plan, cluster, server, time.perf_counter() - started, as_json)
                await _watch(cluster)
        except* VernierMQError as group:
            error: Exception = group
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            raise error from None
        finally:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_kill_on_signal, signals, cluster)
                    await _stop(cluster, server)
                    tasks.cancel_scope.cancel()
                await server.stop()


def _start(member: ClusterMember) -> Running:
    member.folder.mkdir(parents=True, exist_ok=True)
    member.ready_file.unlink(missing_ok=True)
    command = [*member.command(), "--ready-file", str(member.ready_file), "--until-stdin-ends"]
    with member.log.open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )  # fmt: skip
    return Running(member, process)


async def _wait_until_ready(cluster: list[Running], server: NameServer) -> None:
    """Until each of them serves, and clients would find it.

    Raises:
        MemberEnded: one of them will not.
    """
    waiting = list(cluster)
    while waiting:
        waiting = [running for running in waiting if not running.is_ready() or not running.is_registered(server)]
        await anyio.sleep(LOOK_SECONDS)


async def _wait_until_followed(cluster: list[Running], server: NameServer, peers: Peers, slaves: int) -> None:
    """Until each master has its slaves: the first send would have to do without them.

    Raises:
        MemberEnded: one of them will not.
    """
    names = sorted({running.member.name for running in cluster}) if slaves else []
    while names:
        for running in cluster:
            running.is_ready()
        master = server.table.members(names[0]).get(0)
        if master is not None:
            try:
                answer = await peers.ask(master.address, Command.request(RequestCode.GET_BROKER_HA_STATUS))
            except RemotingError as error:
                click.echo(f"whether slaves follow {names[0]} is not known: {error}", err=True)
                return
            status = parse_answer(answer.body, master.address, "GET_BROKER_HA_STATUS")
            if status.get("inSyncSlaveNums", 0) >= slaves:
                names.pop(0)
                continue
        await anyio.sleep(LOOK_SECONDS)


async def _tell_what_is_waited_for(plan: ClusterPlan, cluster: list[Running], server: NameServer, peers: Peers) -> None:
    """Whenever it is something else; a start that takes no longer than usual says nothing."""
    said = ""
    while True:
        await anyio.sleep(TELL_SECONDS)
        why = await _what_is_waited_for(plan, cluster, server, peers)
        if why != said:
            click.echo(f"waiting {why}", err=True)
        said = why


async def _what_is_waited_for(plan: ClusterPlan, cluster: list[Running], server: NameServer, peers: Peers) -> str:
    for running in cluster:
        if not running.address:
            return f"for {running.member.title} to start; its log is {running.member.log}"
    for running in cluster:
        if 0 not in server.table.members(running.member.name):
            return await _why_no_master(plan, running, peers)
    return f"for slaves to follow their masters; the logs are in {plan.data}"


async def _why_no_master(plan: ClusterPlan, running: Running, peers: Peers) -> str:
    """As the replica itself says it, and as ``verniermq ha status`` does."""
    name = running.member.name
    try:
        answer = await peers.ask(running.address, Command.request(RequestCode.GET_REPLICAS))
        problem = parse_answer(answer.body, running.address, "GET_REPLICAS").get("problem", "")
    except RemotingError as error:
        problem = str(error)
    why = f"for {name} to have a master: {problem or 'none is elected yet'}\n"
    if running.member.role == "replica":
        why += (
            "  for a new cluster beside what the coordinator knows: --set broker.cluster=NAME, and a new --data\n"
            f"  who is there: verniermq ha status --namesrv {plan.namesrv}\n"
        )
    return f"{why}  the log: {running.member.log}"


def _say_ready(plan: ClusterPlan, cluster: list[Running], server: NameServer, seconds: float, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"namesrv": plan.namesrv, "brokers": [running.facts(server) for running in cluster]}))
        return
    click.echo(
        f"{len(cluster)} brokers are ready after {seconds:.2f} s; clients use the name server {plan.namesrv}\n"
        f"stores and logs are in {plan.data}"
    )
    rows = [
        [running.member.title, running.role(server), running.address, str(running.process.pid)] for running in cluster
    ]
    table(["broker", "role", "address", "pid"], rows)
    click.echo(
        f'try   verniermq send greetings "hello" --count 6 --namesrv {plan.namesrv}\n'
        f"      verniermq tail greetings --from-start --namesrv {plan.namesrv}\n"
        "Ctrl-C stops all of them"
    )


async def _watch(cluster: list[Running]) -> None:
    """Say who goes away; the others go on without it, as they would on machines of their own.

    Raises:
        MemberEnded: it was the last one.
    """
    while True:
        for running in cluster:
            if running.is_told or running.process.poll() is None:
                continue
            running.is_told = True
            gone = MemberEnded(running.member, running.process.returncode)
            if all(other.process.poll() is not None for other in cluster):
                raise gone
            click.echo(f"{gone}\n  to start it again: {running.member.command_line()}", err=True)
        await anyio.sleep(0.2)


async def _stop(cluster: list[Running], server: NameServer) -> None:
    """In order: who takes messages first, whom they go to afterwards. Where a master is elected, it is the last: the
    others would only elect another one.
    """
    masters = [running for running in cluster if running.is_master(server)]
    others = [running for running in cluster if running not in masters]
    elects = any(running.member.role == "replica" for running in cluster)
    for ending in (others, masters) if elects else (masters, others):
        left = [running for running in ending if running.process.poll() is None]
        for running in left:
            running.process.terminate()
        while left:
            left = [running for running in left if running.process.poll() is None]
            await anyio.sleep(LOOK_SECONDS)
    for running in cluster:
        running.member.ready_file.unlink(missing_ok=True)


async def _stop_on_signal(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    async for number in signals:
        click.echo(f"{signal.Signals(number).name}: stopping the brokers; once more ends them at once", err=True)
        scope.cancel()
        return


async def _kill_on_signal(signals: AsyncIterator[signal.Signals], cluster: list[Running]) -> None:
    async for _ in signals:
        for running in cluster:
            running.process.kill()
