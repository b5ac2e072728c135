"""A browser without a screen: pages of a console as a person gets them, links, forms and live changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin

import anyio
import httpx2

from verniermq.contrib.console.view import View
from verniermq.kernel import Broker
from verniermq.testing import running_broker

PATIENCE: Final = 30.0

CONSOLE: Final[dict[str, Any]] = {
    "plugins__enable": ["default", "console"],
    "plugins__console__listen": "127.0.0.1:0",
}


NAMES: Final = {"cluster": "broker-a", "plugins": "broker-a", "topics": "orders"}


def path_of(view: View) -> str:
    """An address of a view where there is something to see, if there is a topic ``orders`` and a group ``billing``."""
    name = NAMES.get(view.path.split("/")[1], "billing")
    return view.path.replace("{name}", name).replace("{page:path}", "runtime")


class Links(HTMLParser):
    """The addresses that a page links to, and the texts between its tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if tag == "a" and name == "href"]


class Visitor:
    def __init__(self, address: str, client: httpx2.AsyncClient) -> None:
        self.address = address
        self.http = client

    async def get(self, path: str, status: int = 200, **headers: str) -> httpx2.Response:
        answer = await self.http.get(path, headers=headers)
        assert answer.status_code == status, answer.text
        return answer

    async def json(self, path: str) -> Any:
        return (await self.get(path)).json()

    async def crawl(self, *begin: str) -> dict[str, httpx2.Response]:
        """Every page that links lead to."""
        waiting, seen = list(begin), {}
        while waiting:
            path = waiting.pop()
            if path in seen:
                continue
            seen[path] = answer = await self.http.get(path)
            if answer.headers["content-type"].startswith("text/html"):
                found = [urljoin(path, link).partition("#")[0] for link in Links(answer.text).links]
                assert all(link.startswith("/") for link in found), found
                waiting += found
        return seen

    async def events(self, path: str) -> AsyncIterator[tuple[str, str]]:
        """Live changes of a page: the kind of each and its text."""
        async with self.http.stream("GET", path) as answer:
            kind, lines = "", list[str]()
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data:"):
                    lines.append(line.removeprefix("data:").removeprefix(" "))
                elif not line:
                    yield kind, "\n".join(lines)
                    kind, lines = "", []

    async def until(self, path: str, text: str) -> str:
        """The first live change that shows a text."""
        with anyio.fail_after(PATIENCE):
            async for _, html in self.events(path):
                if text in html:
                    return html
        raise AssertionError("the page ended")


@asynccontextmanager
async def visitor(address: str) -> AsyncIterator[Visitor]:
    async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=PATIENCE) as client:
        yield Visitor(address, client)


@asynccontextmanager
async def watched(folder: Path, **settings: Any) -> AsyncIterator[tuple[Broker, Visitor]]:
    """A broker with a console in it, and somebody who looks."""
    async with running_broker(folder, **{**CONSOLE, **settings}) as broker:
        address = broker.host.active["console"].instance.server.address
        async with visitor(address) as somebody:
            yield broker, somebody
