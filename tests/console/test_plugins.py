"""Plugins in the console: how they do, and the pages that they bring, from whatever broker they run in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from tests.console.looking import CONSOLE, Links, watched
from tests.console.scene import HOSTILE
from tests.kernel.enabling import enabled
from verniermq.contrib.console.pages.plugins import tables
from verniermq.kernel import Context, Declaration, NoConfig, PageAnswer, PendingMessage, Registry, hookimpl

pytestmark = pytest.mark.anyio


@attrs.define(eq=False)
class Visits:
    declaration: ClassVar = Declaration(api=1, summary=f"Counts visits. {HOSTILE}")
    config: NoConfig
    broker: Context

    def setup(self, registry: Registry) -> None:
        registry.page("/visits/today", self.visits, title="Visits")
        registry.page("/visits/text", lambda query: PageAnswer([b"<b>", b"plain"], "text/html"), title="Text")
        registry.page("/visits/hidden", lambda query: {"secret": 1})
        registry.page("/visits/broken", self.broken, title="Broken")

    async def visits(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        rooms = [{"room": HOSTILE, "visits": 3}, {"room": "hall", "since": {"day": 1}}]
        return {"asked": dict(query), "rooms": rooms, "open": True}

    def broken(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        raise LookupError("no visits")

    @hookimpl
    def before_append(self, message: PendingMessage) -> None:
        pass


async def test_plugins_and_their_pages_are_shown(tmp_path: Path) -> None:
    async with watched(tmp_path, **enabled(*CONSOLE["plugins__enable"], visits=Visits)) as (_, somebody):
        listed = await somebody.json("/plugins.json")
        page = (await somebody.get("/plugins")).text
        shown = await somebody.json("/plugins/broker-a/visits/today.json?room=hall")
        text = (await somebody.get("/plugins/broker-a/visits/text")).text
        for path in ("/plugins/broker-a/visits/hidden", "/plugins/broker-a/none", "/plugins/none/visits/today"):
            assert "there is no page" in (await somebody.get(path, 404)).text
        assert "LookupError" in (await somebody.get("/plugins/broker-a/visits/broken", 502)).text

    by_name = {row["name"]: row for row in listed["rows"]}
    assert by_name["visits"]["summary"].startswith("Counts visits.")
    assert [hook["hook"] for hook in by_name["visits"]["hooks"]] == ["before_append", "requests"]
    assert {page["title"] for page in listed["pages"]} == {"Visits", "Text", "Broken", "Runtime figures"}
    assert "/plugins/broker-a/visits/today" in Links(page).links
    assert "img" not in Links(page).tags
    assert shown["tables"] == [
        {"title": "", "columns": [], "rows": [["asked", '{"room":"hall"}'], ["open", "true"]]},
        {"title": "rooms", "columns": ["room", "visits", "since"],
         "rows": [[HOSTILE, "3", ""], ["hall", "", '{"day":1}']]},
    ]  # fmt: skip
    assert "&lt;b&gt;plain" in text


def test_whatever_a_page_gives_becomes_a_table() -> None:
    assert tables(["a", 1]) == [{"title": "", "columns": [], "rows": [["a"], ["1"]]}]
    assert tables([]) == [{"title": "", "columns": [], "rows": []}]
    assert tables({"none": [], "odd": [{"a": 1}, 2]})[0]["rows"] == [["none", "[]"], ["odd", '[{"a":1},2]']]
