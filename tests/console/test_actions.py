"""Actions: planned, confirmed, done as planned, noted; and refused to whoever should not."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.console.looking import Visitor, watched
from tests.console.scene import populate
from tests.kernel.pulling import until
from tests.metrics.test_metrics import consume
from tests.plugins.peer import Peer, peer
from verniermq.kernel import GIVEN_UP_TOPIC, Broker
from verniermq.testing import ManualClock

pytestmark = pytest.mark.anyio

ACTIVE: Final[dict[str, Any]] = {"plugins__console__read_only": False}
HIDDEN: Final = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')


@asynccontextmanager
async def acting(folder: Path, **settings: Any) -> AsyncIterator[tuple[Broker, Visitor, Peer]]:
    async with watched(folder, **{**ACTIVE, **settings}) as (broker, somebody), peer(broker.address) as client:
        yield broker, somebody, client


async def token_of(somebody: Visitor, path: str = "/topics") -> str:
    return dict(HIDDEN.findall((await somebody.get(path)).text))["token"]


async def plan(somebody: Visitor, action: str, **fields: str) -> tuple[str, dict[str, str]]:
    """The page that says what would happen, and the fields to confirm it with."""
    answer = await somebody.http.post(f"/do/{action}", data={"token": await token_of(somebody), **fields})
    assert answer.status_code == 200, answer.text
    form = answer.text[answer.text.index(f'action="/do/{action}"') :]
    return answer.text, {name: html.unescape(value) for name, value in HIDDEN.findall(form)}


async def do(somebody: Visitor, action: str, typed: str = "", **fields: str) -> str:
    """Plan it and confirm it."""
    _, confirmation = await plan(somebody, action, **fields)
    answer = await somebody.http.post(f"/do/{action}", data={**confirmation, "typed": typed})
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_topics_and_groups_are_made_and_deleted(tmp_path: Path) -> None:
    async with acting(tmp_path) as (broker, somebody, client):
        await do(somebody, "topic-create", topic="orders", queues="3")
        await do(somebody, "group-create", group="billing", retries="5")
        made = broker.topics.get("orders").write_queues, broker.groups.find("billing")
        await client.sent("orders")
        _, confirmation = await plan(somebody, "topic-delete", topic="orders")
        wrong = await somebody.http.post("/do/topic-delete", data={**confirmation, "typed": "order"})
        still = broker.topics.find("orders")
        await do(somebody, "topic-delete", typed="orders", topic="orders")
        await do(somebody, "group-delete", typed="billing", group="billing")

        assert made[0] == 3
        assert made[1] is not None
        assert made[1].retry_max_times == 5
        assert (wrong.status_code, still is not None) == (403, True)
        assert broker.topics.find("orders") is None
        assert broker.groups.find("billing") is None
        audit = await somebody.json("/audit.json")
    assert [row["action"] for row in audit["rows"]] == ["group-delete", "topic-delete", "group-create", "topic-create"]


async def test_the_preview_of_a_reset_is_what_happens(tmp_path: Path) -> None:
    async with acting(tmp_path) as (broker, somebody, client):
        for number in range(10):
            await client.sent("orders", queue=number % 2)
        await consume(client, "billing", "orders", 4, 0)
        await consume(client, "billing", "orders", 1, 1)
        before = broker.offsets.as_json()

        page, confirmation = await plan(somebody, "group-reset", group="billing", topic="orders", to="offset", at="2")
        planned = broker.offsets.as_json()
        await client.sent("orders", queue=1)
        answer = await somebody.http.post("/do/group-reset", data=confirmation)

        assert answer.status_code == 200
        assert planned == before
        assert "2 messages are consumed again, 1 are left out" in page
        assert [broker.offsets.committed("billing", "orders", queue) for queue in (0, 1)] == [2, 2]
        for to, at in (("time", "soon"), ("offset", "-1"), ("nowhere", "")):
            refused = await somebody.http.post(
                "/do/group-reset",
                data={"token": await token_of(somebody), "group": "billing", "topic": "orders", "to": to, "at": at},
            )
            assert refused.status_code == 403


async def test_a_dead_letter_that_is_sent_again_is_there_to_consume(tmp_path: Path) -> None:
    async with acting(tmp_path) as (_, somebody, client):
        await populate(client)
        letters = (await somebody.json("/dlq/billing.json"))["rows"]
        assert 'name="ids"' in (await somebody.get("/dlq/billing")).text

        page, _ = await plan(somebody, "letters-resend", group="billing", ids=letters[0]["offset_id"], rate="100")
        assert len(await client.pull("orders")) == 7
        await do(somebody, "letters-resend", group="billing", ids=letters[0]["offset_id"], rate="100", to="origin")

        found = [message for queue in range(4) for message in await client.pull("orders", queue)]
        (again,) = [message for message in found if "DLQ_RESENT_FROM" in message.properties]
        assert letters[0]["offset_id"] in page
        assert again.properties["DLQ_RESENT_FROM"] == "%DLQ%billing"
        assert again.keys == letters[0]["keys"]
        assert not any(name.startswith("RETRY_REASON") for name in again.properties)
        foreign = await somebody.http.post(
            "/do/letters-resend",
            data={"token": await token_of(somebody), "group": "other", "ids": letters[0]["offset_id"], "rate": "1"},
        )
        assert foreign.status_code == 403


async def test_a_message_is_taken_back_before_its_time(tmp_path: Path) -> None:
    clock = ManualClock()
    async with acting(tmp_path, clock=clock) as (broker, somebody, client):
        await client.sent("orders", b"now")
        await client.sent("orders", b"later", TIMER_DELIVER_MS=clock.now_ms() + 3_600_000, UNIQ_KEY="A" * 32)
        await until(lambda: broker.store.queue("rmq_sys_wheel_timer", 0) is not None)
        rows = (await somebody.json("/topics/rmq_sys_wheel_timer/messages.json"))["rows"]

        await do(somebody, "message-recall", id=rows[0]["offset_id"])
        await clock.advance(3700)

        assert await client.bodies("orders") == [b"now"]


async def test_a_transaction_that_was_given_up_is_opened_again(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = {"plugins__txn__check_max": 1, "plugins__txn__check_interval": "1s"}
    async with acting(tmp_path, clock=clock, **settings) as (broker, somebody, client):
        await client.sent("orders", b"half", flags=4, TRAN_MSG="true", PGROUP="transfers", UNIQ_KEY="B" * 32)
        for _ in range(60):
            if broker.topics.find(GIVEN_UP_TOPIC) is not None:
                break
            await clock.advance(10)
        (row,) = (await somebody.json("/transactions.json"))["given_up"]

        await do(somebody, "transaction-check", id=row["offset_id"])

        halves = (await somebody.json("/transactions.json"))["rows"]
        assert [half["id"] for half in halves] == ["B" * 32]


async def test_forms_of_other_sites_and_forged_ones_do_nothing(tmp_path: Path) -> None:
    async with acting(tmp_path) as (broker, somebody, client):
        await client.sent("orders")
        token = await token_of(somebody)
        fields = {"token": token, "topic": "made", "queues": "1"}
        _, confirmation = await plan(somebody, "topic-create", topic="made", queues="1")

        async def status(data: dict[str, str], action: str = "topic-create", **headers: str) -> int:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return (await somebody.http.post(f"/do/{action}", data=data, headers=named)).status_code

        assert await status(fields, origin="https://evil.example") == 403
        assert await status(fields, sec_fetch_site="cross-site") == 403
        assert await status({**fields, "token": ""}) == 403
        assert await status({**fields, "token": "0" * 64}) == 403
        assert await status(fields, content_type="text/plain") == 403
        assert await status({**confirmation, "seal": "0" * 64}) == 403
        assert await status({**confirmation, "steps": confirmation["steps"].replace("made", "other")}) == 403
        assert await status(confirmation, action="topic-delete") == 403
        assert await status(fields, action="unknown") == 404
        somebody.http.cookies.clear()
        assert await status(confirmation) == 403
        assert (await somebody.http.get("/do/topic-create")).status_code == 405

        assert broker.topics.find("made") is None
        assert broker.topics.find("other") is None


async def test_a_console_changes_nothing_unless_it_is_told(tmp_path: Path) -> None:
    async with watched(tmp_path) as (broker, somebody), peer(broker.address) as client:
        await populate(client)
        page = (await somebody.get("/topics/orders")).text
        cookie = somebody.http.cookies["verniermq-console"]
        token = broker.host.active["console"].instance.server.console.sessions.token(cookie)

        answer = await somebody.http.post("/do/topic-create", data={"token": token, "topic": "made", "queues": "1"})

        assert "/do/" not in page
        assert (answer.status_code, "read-only" in answer.text) == (403, True)
        assert broker.topics.find("made") is None


ACL: Final[dict[str, Any]] = {
    "plugins__enable": ["default", "acl", "console"],
    "plugins__console__authentication": "accounts",
    "plugins__console__read_only": False,
    "plugins__acl__accounts": {
        "admin": {"secret": "admin-secret", "admin": True},
        "reader": {"secret": "reader-secret"},
    },
}


async def log_in(somebody: Visitor, account: str, secret: str) -> int:
    token = await token_of(somebody, "/login")
    return (await somebody.http.post("/login", data={"token": token, "account": account, "secret": secret})).status_code


async def test_accounts_log_in_and_act_with_their_own_rights(tmp_path: Path) -> None:
    async with watched(tmp_path, **ACL) as (broker, somebody):
        first = await somebody.http.get("/")
        assert (first.status_code, first.headers["location"]) == (303, "/login")
        assert (await somebody.http.get("/topics.json")).status_code == 401
        assert (await somebody.http.get("/topics.live")).status_code == 401

        assert await log_in(somebody, "admin", "wrong") == 403
        assert await log_in(somebody, "reader", "reader-secret") == 403, "it may not list topics"
        before = somebody.http.cookies["verniermq-console"]
        assert await log_in(somebody, "admin", "admin-secret") == 303
        assert somebody.http.cookies["verniermq-console"] != before
        await do(somebody, "topic-create", topic="made", queues="1")
        assert broker.topics.find("made") is not None
        assert [row["who"] for row in (await somebody.json("/audit.json"))["rows"]] == [
            "admin", "admin", "reader", "admin",
        ]  # fmt: skip
        everything = await somebody.crawl("/")
        assert not any("-secret" in answer.text for answer in everything.values())

        token = await token_of(somebody)
        assert (await somebody.http.post("/logout", data={"token": token})).status_code == 303
        assert (await somebody.http.get("/")).status_code == 303


async def test_accounts_are_of_no_use_where_brokers_do_not_check_them(tmp_path: Path) -> None:
    settings = {**ACL, "plugins__enable": ["default", "console"]}
    del settings["plugins__acl__accounts"]
    async with watched(tmp_path, **settings) as (_, somebody):
        cookie = (await somebody.get("/login")).headers["set-cookie"].lower()

        assert await log_in(somebody, "admin", "anything") == 403
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
