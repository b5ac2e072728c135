"""The pages say what the brokers say: to a browser, as JSON, and live."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from tests.console.looking import PATIENCE, Links, Visitor, path_of, watched
from tests.console.scene import populate
from tests.metrics.test_metrics import consume
from tests.plugins.peer import peer
from verniermq.client import Admin, Producer
from verniermq.contrib.console.groups import pace
from verniermq.contrib.console.listing import PER_PAGE
from verniermq.contrib.console.pages import VIEWS
from verniermq.contrib.console.pages.overview import LOOKED_AT
from verniermq.kernel import Broker, Message
from verniermq.kernel.tables.groups import GroupConfig
from verniermq.protocol.versions import version_name

pytestmark = pytest.mark.anyio

Watched = tuple[Broker, Visitor]


@pytest.fixture
async def console(tmp_path: Path) -> AsyncIterator[Watched]:
    async with watched(tmp_path) as found:
        yield found


async def send(broker: Broker, topic: str, count: int) -> None:
    async with Admin(namesrv=broker.name_servers[0]) as admin:
        await admin.create_topic(topic, queues=1)
    async with Producer("shop", namesrv=broker.name_servers[0]) as producer:
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number, "paid", [f"key-{number}"]))


async def test_the_overview_says_who_is_behind_and_how_brokers_are(console: Watched) -> None:
    broker, somebody = console
    await send(broker, "orders", 5)
    async with peer(broker.address) as client:
        await consume(client, "billing", "orders", 2)

    data = await somebody.json("/index.json")
    page = await somebody.get("/")

    assert [(row["name"], row["lag"]) for row in data["worst"]] == [("billing", 3)]
    assert data["lag"] == 3
    (row,) = data["brokers"]
    assert (row["name"], row["role"], row["address"]) == ("broker-a", "master", broker.address)
    assert "/groups/billing" in Links(page.text).links


async def test_the_overview_counts_what_waits_of_more_groups_than_it_asks_about(console: Watched) -> None:
    broker, somebody = console
    await send(broker, "orders", 1)
    names = [f"group-{number:03}" for number in range(LOOKED_AT + 20)]
    for name in names:
        broker.groups.put(GroupConfig(name))
        broker.offsets.commit(name, "orders", 0, 0)

    with anyio.fail_after(PATIENCE):  # until the history was told of all, in two rounds
        while (data := await somebody.json("/index.json"))["lag"] < len(names):  # noqa: ASYNC110 - of the console
            await anyio.sleep(0.5)
    page = await somebody.get("/")

    assert (data["groups"], data["looked_at"], data["lag"]) == (len(names), LOOKED_AT, len(names))
    assert "messages, 20 groups as last seen" in page.text


async def test_a_topic_shows_its_queues_and_the_groups_that_consume_it(console: Watched) -> None:
    broker, somebody = console
    await send(broker, "orders", 5)
    async with peer(broker.address) as client:
        await consume(client, "billing", "orders", 1)

    listed = await somebody.json("/topics.json")
    data = await somebody.json("/topics/orders.json")

    assert [(row["name"], row["messages"]) for row in listed["rows"]] == [("orders", 5)]
    (queue,) = data["queues"]
    assert (queue["broker"], queue["queue"], queue["first"], queue["end"]) == ("broker-a", 0, 0, 5)
    assert 0 < queue["first_ms"] <= queue["last_ms"]
    assert [(row["name"], row["lag"]) for row in data["groups"]] == [("billing", 4)]


async def test_a_group_shows_where_it_is_and_who_its_members_are(console: Watched) -> None:
    broker, somebody = console
    await send(broker, "orders", 3)
    async with peer(broker.address) as client:
        await client.heartbeat("billing", ["orders"])
        await consume(client, "billing", "orders", 1)
        data = await somebody.json("/groups/billing.json")
        waiting = await somebody.json("/groups/billing.json?waiting=1")
        page = (await somebody.get("/groups/billing")).text

    assert [(row["topic"], row["committed"], row["end"], row["lag"]) for row in data["queues"]] == [("orders", 1, 3, 2)]
    assert data["lag"] == 2
    assert waiting["queues"] == data["queues"]
    assert [row["client"] for row in data["members"]] == ["127.0.0.1@test"]
    assert version_name(data["members"][0]["version"]) in page
    assert data["subscriptions"] == {"orders": "*"}


async def test_a_group_without_members_takes_nothing_whatever_the_brokers_average_says() -> None:
    assert pace(40, 2.0, 1) == {"per_second": 2.0, "caught_up_in_seconds": 20}
    assert pace(40, 2.0, 0) == {"per_second": None, "caught_up_in_seconds": None}


async def test_the_page_of_a_group_that_nobody_consumes_has_no_pace(console: Watched) -> None:
    broker, somebody = console
    await send(broker, "orders", 5)
    async with peer(broker.address) as client:
        await consume(client, "billing", "orders", 2)  # and is no member
        data = await somebody.json("/groups/billing.json")
        page = (await somebody.get("/groups/billing")).text

    assert (data["members"], data["lag"], data["per_second"]) == ([], 3, None)
    assert "<dt>Taken</dt><dd>–</dd>" in page


async def test_the_figures_of_the_overview_and_its_chart_agree(console: Watched) -> None:
    broker, somebody = console
    async with peer(broker.address) as client:
        await populate(client)
    with anyio.fail_after(PATIENCE):
        while not (data := await somebody.json("/index.json"))["chart"]["lines"][0]["points"]:  # noqa: ASYNC110
            await anyio.sleep(0.1)

    assert [line["last"] for line in data["chart"]["lines"]] == [data["in_per_second"], data["out_per_second"]]


async def test_a_change_is_shown_without_a_reload(console: Watched) -> None:
    broker, somebody = console
    await send(broker, "orders", 1234)
    async with peer(broker.address) as client:
        await consume(client, "billing", "orders", 0)

        seen = 0
        async for kind, html in somebody.events("/groups/billing.live"):
            if kind == "main" and "1,234" in html:
                seen += 1
                await consume(client, "billing", "orders", 234)
            if kind == "main" and "1,000" in html:
                break

    assert seen >= 1


async def test_a_long_list_comes_in_pages_and_is_filtered_and_sorted(console: Watched) -> None:
    broker, somebody = console
    async with Admin(namesrv=broker.name_servers[0]) as admin:
        for number in range(PER_PAGE + 3):
            await admin.create_topic(f"topic-{number:03}", queues=1)
    await send(broker, "topic-007", 4)

    first = await somebody.json("/topics.json")
    second = await somebody.json("/topics.json?page=2")
    fullest = await somebody.json("/topics.json?sort=messages")
    filtered = await somebody.json("/topics.json?q=IC-01")

    assert (len(first["rows"]), first["pages"], first["total"]) == (PER_PAGE, 2, PER_PAGE + 3)
    assert [row["name"] for row in second["rows"]] == ["topic-050", "topic-051", "topic-052"]
    assert fullest["rows"][0]["name"] == "topic-007"
    assert [row["name"] for row in filtered["rows"]] == [f"topic-{number:03}" for number in range(10, 20)]
    assert 'rel="next"' in (await somebody.get("/topics")).text
    await somebody.get("/topics?sort=colour", 400)
    await somebody.get("/topics?page=x", 400)


async def test_every_page_has_a_command_json_and_a_live_address(console: Watched) -> None:
    broker, somebody = console
    async with peer(broker.address) as client:
        await populate(client)

    for view in VIEWS:
        path = path_of(view)
        page = (await somebody.get(path)).text
        assert re.search(r"(Same as|Nearest to it is) <code>verniermq [a-z-]", page), path
        (json_path,) = [link for link in Links(page).links if ".json" in link]
        assert (await somebody.json(json_path))["title"]
        if view.live:
            assert re.search(r'data-live="[^"]+\.live"', page), path


async def test_what_is_not_there_is_said(console: Watched) -> None:
    _, somebody = console

    for path in ("/topics/none", "/groups/none", "/cluster/none", "/nothing", "/topics/none.json", "/static/x/y.css"):
        answer = await somebody.get(path, 404)
        assert "there is no" in answer.text
