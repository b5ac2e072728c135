"""``verniermq broker drain``: let producers go elsewhere, then take no messages. Works on Apache's brokers too.

::

    name servers      say that the broker's topics may not be written: producers learn it within 30 s, and go elsewhere
    wait              until nothing came for a while, or the time is over; what still comes is taken
    brokerPermission  4: what comes now is refused with a code that lets clients try another broker; /readyz turns
    wait              until everything is on the disk

Consumers are served all the time. A stop after it loses nothing and refuses nothing; a start takes messages again.

Of brokers that choose their master, nothing needs to go elsewhere: another replica that is in sync becomes the master,
sends wait for it, and the one that was drained follows until it is stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import attrs
import click

from verniermq.cli.client import (
    confirm,
    connection,
    dry_run_option,
    json_option,
    namesrv_option,
    print_json,
    run,
    yes_option,
)
from verniermq.cli.durations import DURATION
from verniermq.client.admin import Admin
from verniermq.kernel import RemotingError

READ, BOTH = "4", "6"


@attrs.define
class Drained:
    """How a broker was drained."""

    broker: str
    seconds: float = 0.0
    is_quiet: bool = False
    """Whether producers had gone before it refused them."""
    is_synced: bool = False
    new_master: int | None = None
    """The replica that took over, of brokers that choose their master."""


@click.command()
@click.argument("name", metavar="BROKER")
@namesrv_option
@json_option
@click.option(
    "--quiet", type=DURATION, default="35s", show_default=True, help="How long nothing may come before it refuses."
)
@click.option(
    "--timeout", type=DURATION, default="90s", show_default=True, help="After this it refuses though messages come."
)
@click.option("--resume", is_flag=True, help="Take messages again instead.")
@yes_option
@dry_run_option
def drain(
    name: str, namesrv: str, as_json: bool, quiet: float, timeout: float, resume: bool, yes: bool, dry_run: bool
) -> None:
    """Let BROKER take no messages any more: producers go to the others, consumers are served on. Then stop it.

    Name servers say first that it may not be written, which producers learn within 30 seconds; what they send until
    then is taken. Messages that wait for their time, and retries, wait for the next start from then on.

    Of brokers that choose their master (see verniermq ha), another replica becomes it instead, and no send fails.

    Exit code 0: nothing comes any more, and all is on the disk. 1: it could not be seen that all is on the disk.
    """
    if resume:
        run(lambda: _resume(namesrv, name))
        click.echo(f"broker {name} takes messages again", err=as_json)
        return
    replica = run(lambda: _heir(namesrv, name))
    if replica is not None:
        click.echo(f"replica {replica} would become the master of {name}; sends wait for it", err=as_json)
        if not dry_run:
            confirm(f"make replica {replica} the master of {name}?", yes)
            _report(run(lambda: _switch(namesrv, name, replica)), as_json)
        return
    others = run(lambda: _others(namesrv, name))
    where = f"producers go to {', '.join(others)}" if others else "NO OTHER BROKER takes messages: sends will fail"
    click.echo(f"broker {name} would take no messages any more; {where}", err=as_json)
    if dry_run:
        return
    confirm(f"drain broker {name}?", yes)

    def say(text: str) -> None:
        click.echo(text, err=True)

    found = run(lambda: _drain(namesrv, name, quiet, timeout, say))
    _report(found, as_json)
    raise SystemExit(0 if found.is_synced else 1)


def _report(found: Drained, as_json: bool) -> None:
    if as_json:
        print_json(attrs.asdict(found))
    elif found.new_master is not None:
        click.echo(f"replica {found.new_master} is the master of {found.broker}; stop the one that was it now")
    else:
        how = "" if found.is_synced else ", but not all is on the disk yet"
        click.echo(f"broker {found.broker} is drained after {found.seconds:.0f} s{how}; stop it now")


async def _heir(namesrv: str, name: str) -> int | None:
    """Of a broker that chooses its master: the other replica in sync with the longest log.

    Raises:
        UnexpectedAnswer, RemotingError: it does not say.
    """
    async with Admin(**connection(namesrv)) as admin:
        told = await admin.replicas(name)
        if told is None:
            return None
        ready = [one for one in told["replicas"] if one["inSync"] and one["replica"] != told["master"]]
        return max(ready, key=lambda one: (one["end"] or 0, -one["replica"]))["replica"] if ready else None


async def _switch(namesrv: str, name: str, replica: int) -> Drained:
    started = time.monotonic()
    async with Admin(**connection(namesrv)) as admin:
        await admin.switch_master(name, replica)
    return Drained(name, time.monotonic() - started, True, True, replica)


async def _others(namesrv: str, name: str) -> list[str]:
    """The masters that are left.

    Raises:
        NoSuchBroker: there is none of that name.
    """
    async with Admin(**connection(namesrv)) as admin:
        await admin.broker_info(name)
        return [other for other, ids in sorted((await admin.brokers()).items()) if other != name and 0 in ids]


async def _resume(namesrv: str, name: str) -> None:
    async with Admin(**connection(namesrv)) as admin:
        await admin.update_broker_config(name, {"brokerPermission": BOTH})
        await admin.set_write_permission(name, True)


async def _drain(namesrv: str, name: str, quiet: float, timeout: float, say: Callable[[str], None]) -> Drained:
    found, started = Drained(name), time.monotonic()
    async with Admin(**connection(namesrv)) as admin:
        topics = await admin.set_write_permission(name, False)
        say(f"{topics} topics of {name} may not be written any more; waiting until nothing comes for {quiet:g} s")
        found.is_quiet = await _until_quiet(admin, name, quiet, started + timeout)
        say("nothing comes any more" if found.is_quiet else f"messages still come after {timeout:g} s; refusing them")
        await admin.update_broker_config(name, {"brokerPermission": READ})
        found.is_synced = await _until_synced(admin, name, time.monotonic() + timeout)
    found.seconds = time.monotonic() - started
    return found


async def _until_quiet(admin: Admin, name: str, quiet: float, deadline: float) -> bool:
    count, since = await _count(admin, name), time.monotonic()
    while time.monotonic() - since < quiet:
        if time.monotonic() > deadline:
            return False
        await anyio.sleep(min(1.0, quiet / 4))
        if (now := await _count(admin, name)) != count:
            count, since = now, time.monotonic()
    return True


async def _count(admin: Admin, name: str) -> str:
    return (await admin.broker_info(name)).get("putMessageTimesTotal", "")


async def _until_synced(admin: Admin, name: str, deadline: float) -> bool:
    while True:
        try:
            if (await admin.broker_info(name)).get("remainHowManyDataToFlush", "").split(" ")[0] in ("0", "0.0"):
                return True
        except RemotingError:
            return False  # somebody has stopped it already
        if time.monotonic() > deadline:
            return False
        await anyio.sleep(0.2)
