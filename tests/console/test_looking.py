"""Looking never changes anything: every page that links lead to is opened, and the broker is as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.console.looking import watched
from tests.console.scene import populate
from tests.plugins.peer import Peer, peer
from verniermq.kernel import Broker, RequestCode
from verniermq.testing import ManualClock

pytestmark = pytest.mark.anyio

MOVING = (
    "runtime", "putTps", "getTotalTps", "getFoundTps", "getMissTps", "getTransferredTps", "commitLogDirCapacity",
    "commitLogDiskRatio", "consumeQueueDiskRatio", "connections", "remainHowManyDataToFlush", "putLatency99",
    "putLatency999", "putMessageDistributeTime", "putMessageEntireTimeMax", "getMessageEntireTimeMax",
    "startAcceptSendRequestTimeStamp", "dispatchMaxBuffer",
)  # fmt: skip
"""What goes on by itself, and the console's own connection."""


async def snapshot(broker: Broker, client: Peer) -> dict[str, Any]:
    """Offsets, tables, clients and counters, as the broker has them."""
    figures = broker.host.active["admin"].instance._status.table()
    rates = broker.host.active["admin"].instance._rates
    return {
        "offsets": broker.offsets.as_json(),
        "pulled": [broker.offsets.pulled(group, "orders", 0) for group in ("billing", "TOOLS_CONSUMER")],
        "topics": broker.topics.as_json(),
        "groups": sorted(broker.groups.names()),
        "consumers": {name: sorted(group.members) for name, group in broker.clients.consumers.items()},
        "producers": {name: sorted(members) for name, members in broker.clients.producers.items()},
        "counters": {name: value for name, value in figures.items() if name not in MOVING},
        "totals": {place: rates.total(*place) for place in rates._counters},
        "log": (broker.store.start, broker.store.end),
        "missed": broker.held_pulls.missed,
        "stats": (await client.ask_well(RequestCode.GET_CONSUME_STATS, consumerGroup="billing", topic="")).body,
    }


async def test_a_look_at_every_page_leaves_everything_as_it_was(tmp_path: Path) -> None:
    async with watched(tmp_path, clock=ManualClock()) as (broker, somebody), peer(broker.address) as client:
        await populate(client)
        await somebody.get("/")
        before = await snapshot(broker, client)

        lists = ("/topics?all=1", "/groups?all=1", "/search?q=o", "/topics/orders/messages?text=x")
        seen = await somebody.crawl("/", *lists)
        async for kind, _ in somebody.events("/topics/orders/messages.live"):
            assert kind == "same"
            break
        async for kind, _ in somebody.events("/groups/billing.live"):
            assert kind == "main"
            break

        after = await snapshot(broker, client)

    assert {path: answer.status_code for path, answer in seen.items() if answer.status_code != 200} == {}
    assert len(seen) > 60
    assert after == before
