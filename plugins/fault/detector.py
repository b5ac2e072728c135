"""Probes brokers that a producer knows, so that one that came back is used before a send has to dare it.

A round asks each broker whose turn it is for something small (RocketMQ: the largest offset of a queue)
within 200 ms. Success makes it reachable again; failure changes nothing, since an idle probe should not
condemn a broker that serves sends well; a broker without an address is forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from verniermq.kernel import RemotingError
from verniermq.plugins.fault.latency import LatencyTable

Resolve = Callable[[str], str | None]
"""A broker's name → the address of its master, or ``None`` when the route has none."""
Probe = Callable[[str], Awaitable[object]]
"""Ask the broker at an address for something; any answer will do."""


async def probe_once(table: LatencyTable, resolve: Resolve, probe: Probe) -> None:
    """One round, the brokers one after the other."""
    for broker_name in table.due_for_probe():
        address = resolve(broker_name)
        if address is None:
            table.forget(broker_name)
            continue
        answered = False
        with anyio.move_on_after(table.settings.detect_timeout_ms / 1000):
            try:
                await probe(address)
                answered = True
            except (RemotingError, OSError):
                pass  # still out of reach: that is what the probe was to find out
        table.probed(broker_name, answered=answered)


async def keep_probing(table: LatencyTable, resolve: Resolve, probe: Probe) -> None:
    """Round after round, until cancelled."""
    while True:
        await anyio.sleep(table.settings.detect_every_ms / 1000)
        await probe_once(table, resolve, probe)
