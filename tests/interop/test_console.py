"""``verniermq console`` beside Apache's broker: every page answers, and looking changes nothing there either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.console.looking import Links, path_of, visitor
from tests.console.test_command import console_process
from verniermq.client import Admin, Producer
from verniermq.contrib.console.pages import VIEWS
from verniermq.kernel import Message

from .apache import BROKER_NAME, ApacheBroker

pytestmark = pytest.mark.timeout(300)

NOT_THERE = {"/plugins/broker-a/runtime": 404, "/dlq/billing": 404}
"""Apache's brokers have no plugins, and nobody failed."""


async def snapshot(namesrv: str) -> dict[str, Any]:
    async with Admin(namesrv=namesrv) as admin:
        return {
            "topics": sorted(await admin.topics()),
            "groups": sorted(await admin.groups()),
            "progress": await admin.progress("billing", "orders"),
            "readers": await admin.groups_of("orders"),
        }


def test_every_page_shows_what_apaches_broker_says(tmp_path: Path) -> None:
    async def look(apache: ApacheBroker, at: str) -> None:
        async with Admin(namesrv=apache.namesrv) as admin:
            await admin.create_topic("orders", queues=1)
            await admin.create_group("billing")
            async with Producer("shop", namesrv=apache.namesrv) as producer:
                for number in range(5):
                    await producer.send(Message("orders", b"%d" % number, "paid", [f"key-{number}"]))
            await admin.set_offsets("billing", dict.fromkeys(await admin.topic_offsets("orders"), 2))
        before = await snapshot(apache.namesrv)
        async with visitor(at) as somebody:
            for view in VIEWS:
                path = path_of(view).replace("/cluster/broker-a", f"/cluster/{BROKER_NAME}")
                answer = await somebody.get(path, NOT_THERE.get(path, 200))
                assert '<p class="same">' in answer.text or path in NOT_THERE
            seen = await somebody.crawl("/", "/topics?all=1")
            assert {path: one.status_code for path, one in seen.items() if one.status_code != 200} == {}
            group = await somebody.json("/groups/billing.json")
            messages = await somebody.json("/topics/orders/messages.json")
            found = await somebody.json("/messages.json?topic=orders&key=key-1")
            overview = (await somebody.get("/")).text
        assert group["lag"] == 3
        assert [row["preview"] for row in messages["rows"]] == ["4", "3", "2", "1", "0"]
        assert found["consumed"] == [{"group": "billing", "state": "consumed", "members": 0}]
        assert f"/cluster/{BROKER_NAME}" in Links(overview).links
        assert await snapshot(apache.namesrv) == before

    with ApacheBroker(tmp_path) as apache, console_process("--namesrv", apache.namesrv) as at:
        anyio.run(look, apache, at)
