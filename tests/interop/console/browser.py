"""A real browser, Debian's Chromium, and what it complains about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, async_playwright

CHROMIUM: Final = "/usr/bin/chromium"
PATIENCE_MS: Final = 60_000
DESK: Final = {"width": 1280, "height": 800}
PHONE: Final = {"width": 400, "height": 800}


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@attrs.define(eq=False, slots=False)  # Playwright keeps its wrapper of a method on the object
class Tab:
    """A page of the browser at one address, which notes everything that should not happen in it."""

    page: Page
    address: str
    wrong: list[str] = attrs.Factory(list)
    """Errors of scripts and of the content security policy, requests that failed, requests to elsewhere."""

    def watch(self) -> None:
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("request", self._asked)
        self.page.on(
            "response", lambda answer: answer.status >= 500 and self.wrong.append(f"{answer.status} {answer.url}")
        )

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(f"http://{self.address}/"):
            self.wrong.append(f"asked {request.url}")

    async def open(self, path: str) -> None:
        # Live pages go on for ever: what counts is that the page itself is there.
        await self.page.goto(f"http://{self.address}{path}", wait_until="load")

    async def sees(self, text: str) -> None:
        """Wait until the page shows a text."""
        await self.page.get_by_text(text).first.wait_for()

    async def tells(self, selector: str, text: str) -> None:
        """Wait until a part of the page has a text in it."""
        await self.page.locator(selector).filter(has_text=text).first.wait_for()


@asynccontextmanager
async def tab(browser: Browser, address: str, **options: Any) -> AsyncIterator[Tab]:
    """A tab of somebody who was never here: no cookies, nothing stored."""
    context: BrowserContext = await browser.new_context(**{"viewport": DESK, **options})
    context.set_default_timeout(PATIENCE_MS)
    try:
        found = Tab(await context.new_page(), address)
        found.watch()
        yield found
    finally:
        await context.close()
