"""What browsers are told and which requests are let in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.console.looking import Links, watched
from verniermq.contrib.console.headers import ALWAYS
from verniermq.contrib.console.render import HERE, STATIC

pytestmark = pytest.mark.anyio


async def test_every_answer_carries_the_policy(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, somebody):
        style = re.search(r'href="(/static/[^"]+\.css)"', (await somebody.get("/")).text)
        assert style is not None
        for path, status in (("/", 200), ("/index.json", 200), ("/none", 404), (style[1], 200)):
            headers = (await somebody.get(path, status)).headers
            assert {name: headers[name] for name in ALWAYS} == ALWAYS
        assert (await somebody.get("/")).headers["cache-control"] == "no-store"
        assert "immutable" in (await somebody.get(style[1])).headers["cache-control"]


async def test_a_foreign_name_for_this_machine_gets_nothing(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, somebody):
        for host in ("evil.example", "evil.example:8089", "127.0.0.1.evil.example", ""):
            assert (await somebody.get("/", 421, host=host)).text.startswith("this console is not at")
        for known in ("localhost", "localhost:8089", "127.0.0.1", "[::1]:8089"):
            await somebody.get("/", host=known)


async def test_path_tricks_lead_nowhere(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, somebody):
        for path in (
            "/static/x/../app.py", "/static/x/..%2fapp.py", "/static/x/%2e%2e/app.py", "/topics/..%2f..%2fetc", "/.%00",
        ):  # fmt: skip
            assert "import" not in (await somebody.get(path, 404)).text


async def test_other_methods_and_long_addresses_are_refused(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, somebody):
        assert (await somebody.http.post("/topics")).status_code in (403, 405)
        assert (await somebody.http.delete("/topics/orders")).status_code == 405
        assert (await somebody.http.get("/topics?q=" + "x" * 5000)).status_code == 414


def test_templates_have_nothing_inline_and_ask_for_nothing_elsewhere() -> None:
    for file in (HERE / "templates").glob("*.html"):
        text = file.read_text()
        assert not re.search(r"\son\w+=|style=|javascript:|<style|\|\s*safe", text), file.name
        assert "script" not in Links(text).tags or 'src="{{ static' in text, file.name
        assert not re.search(r"https?://", text), file.name
    for file in STATIC.iterdir():
        elsewhere = r"https?://(?!www\.w3\.org/2000/svg)|eval\(|@import|innerHTML\s*=[^=]"
        assert not re.search(elsewhere, file.read_text()), file.name
