"""The console of a broker with 10,000 topics and 3,000 groups: a page asks about what it shows, and is there soon."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser

from tests.console.looking import CONSOLE, path_of
from tests.metrics.test_metrics import consume
from tests.plugins.peer import peer
from verniermq.contrib.console.pages import VIEWS
from verniermq.kernel import Broker
from verniermq.kernel.tables.groups import GroupConfig
from verniermq.testing import running_broker

from .browser import tab
from .shop import address_of

pytestmark = pytest.mark.anyio

TOPICS: Final = 10_000
GROUPS: Final = 3_000
PAGES: Final = [path for path in map(path_of, VIEWS) if not path.startswith("/dlq/")]
PATIENCE: Final = 30.0
"""Seconds for a page on however busy a machine; on a quiet one it takes less than one, see ``bench/console.py``."""


def enlarge(broker: Broker) -> None:
    """Topics and groups in the broker's tables, each group with a place in some topics."""
    for number in range(TOPICS):
        broker.topics.restore(f"topic-{number:05}", 1)
    for number in range(GROUPS):
        broker.groups.put(GroupConfig(f"group-{number:04}"))
        for topic in range(number, number + 3):
            broker.offsets.commit(f"group-{number:04}", f"topic-{topic:05}", 0, 0)


async def test_a_page_of_a_large_cluster_comes_in_a_moment(browser: Browser, tmp_path: Path) -> None:
    async with running_broker(tmp_path, **CONSOLE) as broker, peer(broker.address) as client:
        await client.sent("orders")
        await client.heartbeat("billing", ["orders"])
        await consume(client, "billing", "orders", 0)
        enlarge(broker)
        async with tab(browser, address_of(broker)) as here:
            slow = {}
            for path in (
                *PAGES,
                "/topics?page=150",
                "/topics?q=99",
                "/groups?sort=name",
                "/search?q=topic",
            ):
                begun = time.perf_counter()
                await here.open(path)
                slow[path] = time.perf_counter() - begun
                assert await here.page.locator("tbody tr").count() <= 600, path
            await here.open("/topics")
            await here.tells(".pager", "10,001 in all")
        assert {path: seconds for path, seconds in slow.items() if seconds > PATIENCE} == {}
        assert here.wrong == []
