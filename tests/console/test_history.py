"""A day in rings, and charts of it."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import pytest

from tests.console.looking import PATIENCE, watched
from tests.metrics.test_metrics import consume
from tests.plugins.peer import peer
from verniermq.contrib.console.chart import HEIGHT, WIDTH, chart, nice, path
from verniermq.contrib.console.history import MOST_SERIES, RateHistory, TimeRing
from verniermq.contrib.console.view import BadAddress

pytestmark = pytest.mark.anyio


def test_a_ring_forgets_what_is_older_than_it_is_long() -> None:
    ring = TimeRing(5, 4)
    for at in (0, 5, 6, 10):
        ring.put(at, float(at))
    assert ring.points(12) == [(0, 0.0), (5, 6.0), (10, 10.0)]

    ring.put(25, 25.0)
    assert ring.points(26) == [(10, 10.0), (25, 25.0)]
    assert ring.points(1000) == []


def test_there_are_no_more_series_than_allowed_and_the_idle_ones_go_first() -> None:
    history = RateHistory()
    for number in range(MOST_SERIES + 10):
        history.put(("lag", "busy"), number * 5, 7.0)
        history.put(("lag", str(number)), number * 5, 1.0)

    now = (MOST_SERIES + 10) * 5
    assert len(history) == MOST_SERIES
    assert history.points(("lag", "busy"), "15m", now)
    assert history.points(("lag", "0"), "15m", now) == []


def test_a_line_is_drawn_to_scale_and_broken_where_nothing_is_known() -> None:
    drawn = path([(0, 0.0), (5, 10.0), (90, 5.0)], 0, 100, 10, 5)

    assert drawn == f"M0.0 {HEIGHT:.1f}L{WIDTH * 0.05:.1f} 0.0M{WIDTH * 0.9:.1f} {HEIGHT / 2:.1f}"
    assert [nice(value) for value in (0, 1, 1.1, 3, 6, 11, 4321)] == [1, 1, 2, 5, 10, 20, 5000]
    with pytest.raises(BadAddress):
        chart(RateHistory(), {}, "1y", 0)


async def test_the_lag_of_a_group_becomes_a_line(tmp_path: Path) -> None:
    async with watched(tmp_path) as (broker, somebody), peer(broker.address) as client:
        for _ in range(4):
            await client.sent("orders")
        await consume(client, "billing", "orders", 1)

        with anyio.fail_after(PATIENCE):
            async for kind, html in somebody.events("/groups/billing.live"):
                if kind == "main" and re.search(r'class="line line1" d="M', html):
                    break
        data = await somebody.json("/groups/billing.json?span=24h")

    assert data["chart"]["lines"][0]["points"][-1][1] == 3
    assert data["chart"]["top"] == 5
