"""All kinds of rounds."""

from __future__ import annotations

from tests.campaign import access, corruption, disk, failover, fuzz, hostile, kill, network, power, soak, tables
from tests.campaign.outcome import Kind

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        kill.KIND,
        power.KIND,
        disk.KIND,
        corruption.KIND,
        hostile.KIND,
        fuzz.KIND,
        access.KIND,
        soak.KIND,
        failover.KIND,
        network.KIND,
        tables.KIND,
    )
}
