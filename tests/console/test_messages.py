"""Messages, where they are and what became of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.console.looking import PATIENCE, Links, watched
from tests.console.scene import HOSTILE, populate
from tests.plugins.peer import peer
from verniermq.contrib.console.bodies import MASK, hex_lines, masked
from verniermq.contrib.console.pages.deadletters import ages

pytestmark = pytest.mark.anyio


async def test_messages_are_found_by_place_tag_key_text_and_id(tmp_path: Path) -> None:
    async with watched(tmp_path) as (broker, somebody), peer(broker.address) as client:
        await populate(client)

        async def offsets(query: str) -> list[int]:
            found = await somebody.json(f"/topics/orders/messages.json{query}")
            return [row["offset"] for row in found["rows"]]

        assert await offsets("") == [6, 5, 4, 3, 2, 1, 0]
        assert await offsets("?start=oldest") == [0, 1, 2, 3, 4, 5, 6]
        assert await offsets("?start=offset&at=4&queue=broker-a/0") == [4, 5, 6]
        assert await offsets("?start=time&at=2000-01-01") == [0, 1, 2, 3, 4, 5, 6]
        assert await offsets("?tag=paid&start=oldest") == [0, 1, 2, 3, 4]
        assert await offsets("?key=order-3") == [3]
        assert await offsets("?text=onerror") == [5]
        for wrong in ("?start=now", "?start=offset&at=x", "?start=time&at=soon"):
            await somebody.get(f"/topics/orders/messages{wrong}", 400)

        (row,) = (await somebody.json("/topics/orders/messages.json?key=order-1"))["rows"]
        by_key = await somebody.json("/messages.json?topic=orders&key=order-1")
        page = (await somebody.get("/messages?topic=orders&key=order-1")).text
        by_offset_id = await somebody.json(f"/messages.json?id={row['offset_id']}")
        by_unique_key = await somebody.json(f"/messages.json?topic=orders&id={1:032X}")
        foreign = await somebody.json("/messages.json?id=" + "7F00000100000001" + "0" * 16)

    assert by_key["message"] == by_offset_id["message"] == by_unique_key["message"]
    assert by_key["message"]["properties"]["TAGS"] == "paid"
    body_size, stored_size = by_key["message"]["body_size"], by_key["message"]["size"]
    assert body_size == row["body_size"] < stored_size
    assert f"{body_size} B</small></h2>" in page
    assert f"<dt>Size as stored</dt><dd>{stored_size} B</dd>" in page
    assert by_key["consumed"] == [{"group": "billing", "state": "consumed", "members": 1}]
    assert (foreign["asked"], foreign["message"]) == (True, None)


async def test_who_has_not_consumed_a_message_is_said(tmp_path: Path) -> None:
    async with watched(tmp_path) as (broker, somebody), peer(broker.address) as client:
        await populate(client)

        data = await somebody.json("/messages.json?topic=orders&key=order-3")

    assert data["consumed"] == [{"group": "billing", "state": "waiting", "members": 1}]


async def test_new_messages_come_by_themselves(tmp_path: Path) -> None:
    async with watched(tmp_path) as (broker, somebody), peer(broker.address) as client:
        await client.sent("orders", b"before")
        seen: list[str] = []
        with anyio.fail_after(PATIENCE):
            async for kind, html in somebody.events("/topics/orders/messages.live"):
                if kind == "rows":
                    seen.append(html)
                    break
                await client.sent("orders", b"while looking")

    assert "while looking" in seen[0]
    assert "before" not in seen[0]


async def test_dead_letters_say_why_and_delayed_and_open_ones_are_listed(tmp_path: Path) -> None:
    async with watched(tmp_path) as (broker, somebody), peer(broker.address) as client:
        await populate(client)

        groups = await somebody.json("/dlq.json")
        letters = await somebody.json("/dlq/billing.json")
        scheduled = await somebody.json("/scheduled.json")
        transactions = await somebody.json("/transactions.json")
        clients = await somebody.json("/clients.json")

    assert [(row["group"], row["messages"]) for row in groups["rows"]] == [("billing", 2)]
    assert letters["why"] == [{"why": f"ValueError: {HOSTILE}", "count": 2}]
    assert letters["origins"] == [{"topic": "orders", "count": 2}]
    assert [(row["goes_to"], row["preview"]) for row in scheduled["rows"]] == [("orders", "later")]
    assert scheduled["levels"] == [{"level": 18, "waiting": 1}]
    assert [(row["goes_to"], row["group"], row["preview"]) for row in transactions["rows"]] == [
        ("orders", "transfers", "half")
    ]
    assert [(row["group"], row["client"]) for row in clients["consumers"]] == [("billing", HOSTILE)]


async def test_what_is_masked_is_neither_shown_nor_found(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"plugins__console__mask": ["card", "who.iban", "HOSTILE"]}
    async with watched(tmp_path, **settings) as (broker, somebody), peer(broker.address) as client:
        await populate(client)

        seen = await somebody.crawl("/topics/orders/messages", "/messages?topic=orders&key=order-1")
        found = await somebody.json("/topics/orders/messages.json?text=4111")

    everything = "".join(answer.text for answer in seen.values())
    assert "4111" not in everything
    assert "DE1" not in everything
    assert MASK in everything
    assert found["rows"] == []


async def test_whatever_clients_write_is_shown_as_text(tmp_path: Path) -> None:
    async with watched(tmp_path) as (broker, somebody), peer(broker.address) as client:
        await populate(client)

        seen = await somebody.crawl("/", f"/search?q={HOSTILE}", f"/topics?q={HOSTILE}", f"/messages?id={HOSTILE}")

    shown = 0
    for path, answer in seen.items():
        if answer.headers["content-type"].startswith("text/html"):
            links = Links(answer.text)
            assert links.tags.count("script") == 1, path
            assert "img" not in links.tags, path
            shown += "&lt;script&gt;" in answer.text
    assert shown >= 8


def test_a_mask_reaches_into_lists_and_bytes_are_shown_in_lines() -> None:
    value = {"a": [{"card": 1, "b": {"card": 2}}], "b": {"c": 3}}
    assert masked(value, ["card", "b.c"]) == {"a": [{"card": MASK, "b": {"card": MASK}}], "b": {"c": MASK}}
    assert hex_lines(b"A\x00") == "00000000  41 00" + " " * 42 + "  A."
    assert [row["count"] for row in ages([-5.0, 1000.0, 700_000.0, 10.0**12])] == [2, 1, 0, 0, 1]
