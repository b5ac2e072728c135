"""The console in a real browser: what it shows, what it does by itself, and that nothing in it goes wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import anyio
import pytest
from playwright.async_api import Browser, Page

from tests.console.looking import path_of
from tests.console.scene import populate
from tests.console.test_command import console_process
from tests.console.test_mounted import MOUNTED
from tests.metrics.test_metrics import consume
from tests.plugins.peer import peer
from tests.plugins.watching import address_of as page_address
from verniermq.client import PullConsumer
from verniermq.contrib.console.pages import VIEWS
from verniermq.kernel import Broker, MessageQueue
from verniermq.testing import broker_process
from verniermq.testing.ports import held_port

from .browser import PHONE, Tab, tab
from .shop import address_of, shop, trade

pytestmark = pytest.mark.anyio

PAGES: Final = [path_of(view) for view in VIEWS]
PICTURES: Final = Path(__file__).parents[3] / "docs" / "console"
"""Made anew with CONSOLE_PICTURES=1 in the environment."""
PICTURED: Final = {
    "overview": "/", "topics": "/topics", "topic": "/topics/orders", "group": "/groups/billing",
    "messages": "/topics/orders/messages", "message": "/messages?topic=orders&key=order-1001",
    "dead-letters": "/dlq/billing", "plugins": "/plugins",
}  # fmt: skip


async def is_dark(page: Page) -> bool:
    colour = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3])) < 3 * 128


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_page_is_shown_without_a_complaint(theme: str, browser: Browser, tmp_path: Path) -> None:
    async with shop(tmp_path) as broker, tab(browser, address_of(broker), color_scheme=theme) as here:
        async with peer(broker.address) as client:
            await populate(client)  # names and bodies that would be programs, if they were not text
        for path in PAGES:
            await here.open(path)
            assert await here.page.locator("h1").count() == 1, path
            assert await is_dark(here.page) == (theme == "dark"), path
            assert await here.page.locator("script").count() == 1, path
        await here.open("/groups")
        await here.page.get_by_label("Dark or light").click()
        assert await is_dark(here.page) == (theme == "light")
        await here.open("/topics")
        assert await is_dark(here.page) == (theme == "light"), "the choice is not kept"
    assert here.wrong == []


async def test_pages_fit_a_narrow_screen(browser: Browser, tmp_path: Path) -> None:
    async with shop(tmp_path) as broker, tab(browser, address_of(broker), viewport=PHONE) as here:
        for path in PAGES:
            await here.open(path)
            wide = await here.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= PHONE["width"], f"{path} is {wide} px wide"
    assert here.wrong == []


async def test_lag_is_seen_to_change(browser: Browser, tmp_path: Path) -> None:
    async with shop(tmp_path) as broker, tab(browser, address_of(broker)) as here, peer(broker.address) as client:
        await here.open("/groups/billing")
        await here.tells(".figure", "16 messages")
        for queue in range(4):
            await consume(client, "billing", "orders", 15, queue)
        await here.tells(".figure", "0 messages")

        await here.page.keyboard.press(".")
        await here.tells("#live", "paused")
        await here.open("/topics/orders/messages")
        await here.tells("#live", "live")
        await client.sent("orders", b"it came while somebody looked", queue=1)
        await here.tells("tbody tr", "it came while somebody looked")
    assert here.wrong == []


async def test_it_is_the_same_where_http_serves_its_pages(browser: Browser, tmp_path: Path) -> None:
    async with shop(tmp_path, **MOUNTED) as broker, tab(browser, page_address(broker, "/readyz")) as here:
        for path in PAGES:
            await here.open(path)
            assert await here.page.locator("h1").count() == 1, path
        await here.open("/groups/billing")
        await here.tells(".figure", "16 messages")
        async with peer(broker.address) as client:
            for queue in range(4):
                await consume(client, "billing", "orders", 15, queue)
        await here.tells(".figure", "0 messages")
    assert here.wrong == []


async def test_a_page_survives_the_broker(browser: Browser, tmp_path: Path) -> None:
    """The console's own process stays; the broker is killed under an open page, and comes back."""
    with broker_process(tmp_path / "store") as broker:
        async with peer(broker.broker) as client:
            await client.sent("orders")
            await consume(client, "billing", "orders", 0)
        with console_process("--namesrv", broker.namesrv) as address:
            async with tab(browser, address) as here:
                await here.open("/groups/billing")
                await here.tells(".figure", "1 message")
                broker.kill()
                await here.tells("#live", "no answer")
                broker.start()
                async with peer(broker.broker) as client:
                    await client.sent("orders")
                    await consume(client, "billing", "orders", 0)  # it may not have been on the disk
                await here.tells("#live", "live")
                await here.tells(".figure", "2 messages")
                assert here.wrong == []


async def test_a_page_survives_the_console(browser: Browser, tmp_path: Path) -> None:
    """With the console inside the broker, both go and come back, and the page goes on."""
    port = held_port(browser)
    settings = ['--set=plugins.enable=["default", "console"]', f"--set=plugins.console.listen=127.0.0.1:{port}"]
    with broker_process(tmp_path / "store", *settings) as broker:
        async with peer(broker.broker) as client:
            await client.sent("orders")
            await consume(client, "billing", "orders", 0)
        async with tab(browser, f"127.0.0.1:{port}") as here:
            await here.open("/groups/billing")
            await here.tells("#live", "live")
            broker.kill()
            await here.tells("#live", "no answer")
            broker.start()
            async with peer(broker.broker) as client:
                await client.sent("orders")
                await consume(client, "billing", "orders", 0)  # it may not have been on the disk
            await here.tells(".figure", "2 messages")
            # The browser itself says that the address did not answer; nothing else may be said.
            assert [line for line in here.wrong if "ERR_" not in line] == []


async def test_a_dead_letter_is_sent_again_and_consumed(browser: Browser, tmp_path: Path) -> None:
    async with shop(tmp_path) as broker, tab(browser, address_of(broker)) as here:
        before = ends(broker)
        await here.open("/dlq/billing")
        letter = here.page.locator(".letter").first
        key = await letter.locator("a.mono").inner_text()
        await letter.get_by_label("choose").check()
        await here.page.get_by_role("button", name="See what would happen").click()
        await here.tells("main", key)
        assert ends(broker) == before, "a preview sends nothing"
        await here.page.get_by_role("button", name="Do it").click()
        await here.tells("h1", "Done")

        after = ends(broker)
        (queue,) = [queue for queue, end in after.items() if end > before[queue]]
        async with PullConsumer("checks", namesrv=broker.name_servers[0]) as consumer:
            found = await consumer.pull(MessageQueue("orders", broker.name, queue), before[queue])
        (again,) = found.messages
        assert (again.keys, again.properties["DLQ_RESENT_FROM"]) == ([key], "%DLQ%billing")
        await here.open("/audit")
        await here.tells("tbody tr", "letters-resend")
    assert here.wrong == []


def ends(broker: Broker) -> dict[int, int]:
    return {queue.queue_id: queue.max_offset for queue in broker.store.queues() if queue.topic == "orders"}


async def test_a_reset_does_what_its_preview_says(browser: Browser, tmp_path: Path) -> None:
    async with shop(tmp_path) as broker, tab(browser, address_of(broker)) as here:
        await here.open("/groups/billing")
        await here.page.get_by_text("Send it elsewhere").click()
        form = here.page.locator('form[action="/do/group-reset"]')
        await form.locator('select[name="to"]').select_option("offset")
        await form.locator('input[name="at"]').fill("7")
        await form.get_by_role("button").click()
        await here.tells("main", "group billing")
        rows = await here.page.locator("tbody tr").all_inner_texts()
        planned = {int(cells[1]): int(cells[3]) for cells in (row.split("\t") for row in rows)}
        before = {queue: broker.offsets.committed("billing", "orders", queue) for queue in range(4)}
        await here.page.get_by_role("button", name="Do it").click()
        await here.tells("h1", "Done")
        after = {queue: broker.offsets.committed("billing", "orders", queue) for queue in range(4)}

    assert len(planned) == 4
    assert after == planned == dict.fromkeys(range(4), 7)
    assert before != after
    assert here.wrong == []


async def test_the_keyboard_is_enough(browser: Browser, tmp_path: Path) -> None:
    async with shop(tmp_path) as broker, tab(browser, address_of(broker)) as here:
        page = here.page
        await here.open("/")
        await page.keyboard.press("g")
        await page.keyboard.press("t")
        await page.wait_for_url("**/topics")
        for _ in range(3):
            await page.keyboard.press("j")
        await page.keyboard.press("k")
        chosen = await page.locator('tr[aria-selected="true"] a').inner_text()
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**/topics/{chosen}")
        await page.keyboard.press("/")
        await page.keyboard.type("billing")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/search?q=billing")
        for _ in range(60):  # whatever can be clicked is reached with the tabulator
            await page.keyboard.press("Tab")
            if await page.evaluate("document.activeElement.getAttribute('href')") == "/groups/billing":
                break
        assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/groups/billing")
        await page.keyboard.press("?")
        await page.wait_for_url("**/keys")
        await page.keyboard.press("g")
        await page.keyboard.press("d")
        await page.wait_for_url("**/dlq")
    assert here.wrong == []


async def test_it_works_without_javascript(browser: Browser, tmp_path: Path) -> None:
    async with shop(tmp_path) as broker, tab(browser, address_of(broker), java_script_enabled=False) as here:
        page = here.page
        for path in PAGES:
            await here.open(path)
            assert await page.locator("h1").count() == 1, path
            assert await page.locator("#live:visible").count() == 0, "it is not live"
        await here.open("/")
        await page.get_by_role("link", name="Topics", exact=True).click()
        await page.get_by_label("Filter by name").fill("ord")
        await page.get_by_role("button", name="Filter").click()
        await page.get_by_role("link", name="orders", exact=True).click()
        await here.tells("h1", "orders")
        await here.open("/topics")
        await page.get_by_text("Create a topic").click()
        form = page.locator('form[action="/do/topic-create"]')
        await form.get_by_label("Name").fill("made")
        await form.get_by_role("button").click()
        await page.get_by_role("button", name="Do it").click()
        await here.tells("h1", "Done")
        assert broker.topics.find("made") is not None
    assert here.wrong == []


async def test_pictures_are_of_the_main_pages(browser: Browser, tmp_path: Path) -> None:
    """They are taken each time, so that they can be taken; those in the documentation change on request."""
    folder = PICTURES if os.environ.get("CONSOLE_PICTURES") else tmp_path / "pictures"
    folder.mkdir(exist_ok=True)
    async with (
        shop(tmp_path / "store", plugins__console__label="") as broker,
        peer(broker.address) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(trade, client)
        if folder is PICTURES:
            await anyio.sleep(25)  # rates are over some seconds
        for theme in ("light", "dark"):
            async with tab(browser, address_of(broker), color_scheme=theme) as here:
                for name, path in PICTURED.items():
                    if theme == "light":
                        await picture(here, path, folder / f"{name}.png")
                    elif name == "overview":
                        await picture(here, path, folder / f"{name}-dark.png")
                assert here.wrong == []
        tasks.cancel_scope.cancel()
    assert {file.stem for file in PICTURES.glob("*.png")} == {*PICTURED, "overview-dark"}
    assert all(file.stat().st_size > 10_000 for file in folder.glob("*.png"))


async def picture(here: Tab, path: str, file: Path) -> None:
    await here.open(path)
    with anyio.fail_after(60):
        await here.page.screenshot(path=file)
