"""An invented shop, so that pictures of the console show something: topics, groups, dead letters, delays."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import orjson

from tests.console.looking import CONSOLE
from tests.metrics.test_metrics import consume
from tests.plugins.peer import Peer, peer
from verniermq.client import Admin
from verniermq.contrib.console.console import Console
from verniermq.kernel import Broker, SysFlag
from verniermq.testing import running_broker

SETTINGS: Final[dict[str, Any]] = {
    **CONSOLE,
    "plugins__console__label": "staging",
    "plugins__console__colour": "blue",
    "plugins__console__read_only": False,
    "plugins__flow__rules": [{"resource": "billing:orders", "count": 50.0}, {"topic": "invoices", "count": 2.0}],
}
TOPICS: Final = {"orders": 60, "payments": 40, "shipments": 24, "invoices": 12, "stock-changes": 30, "mails": 16}
MEMBERS: Final = {
    "billing": ("orders", 44), "fraud-check": ("payments", 40), "warehouse": ("orders", 60), "mailer": ("mails", 2),
    "reports": ("orders", 12), "stock": ("stock-changes", 28),
}  # fmt: skip
"""Group → its topic, and how many messages of it are consumed."""
OFFLINE: Final = "reports"
REASONS: Final = ("TimeoutError: bank did not answer within 5 s", "ValueError: amount is negative", "KeyError: 'iban'")


@asynccontextmanager
async def shop(folder: Path, **settings: Any) -> AsyncIterator[Broker]:
    """A broker with a console, and clients that stay connected."""
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(running_broker(folder, **{**SETTINGS, **settings}))
        client = await stack.enter_async_context(peer(broker.address, "10.2.0.7@4711"))
        async with Admin(namesrv=broker.name_servers[0]) as admin:
            for topic in TOPICS:
                await admin.create_topic(topic, queues=4)
        await fill(client)
        for number, (group, (topic, _)) in enumerate(MEMBERS.items()):
            for twin in range(1 + number % 2):
                if group != OFFLINE:
                    name = f"10.2.0.{10 + number}@{4000 + twin}"
                    member = await stack.enter_async_context(peer(broker.address, name))
                    await member.heartbeat(group, [topic])
        remember(console_of(broker))
        yield broker


async def trade(client: Peer) -> None:
    """Orders that go on coming, and are read, until it is cancelled."""
    number = 0
    while True:
        number += 1
        order = orjson.dumps({"order": 3000 + number, "customer": f"c-{number % 97}", "amount": "12.50"})
        await client.sent(
            "stock-changes", order, queue=number % 4, born=now_ms(), TAGS="sent", KEYS=f"order-{3000 + number}"
        )
        if number % 20 == 0:
            await client.pull("mails", number % 4)
        await anyio.sleep(0.04)


def now_ms() -> int:
    return int(time.time() * 1000)


def console_of(broker: Broker) -> Console:
    console: Console = broker.host.active["console"].instance.server.console
    return console


def address_of(broker: Broker) -> str:
    address: str = broker.host.active["console"].instance.server.address
    return address


async def fill(client: Peer) -> None:
    for topic, count in TOPICS.items():
        for number in range(count):
            order = {"order": 1000 + number, "customer": f"c-{number * 37 % 101}", "amount": f"{number * 7 % 90}.90"}
            tag = ("created", "paid", "sent")[number % 3]
            await client.send(  # a rule refuses some of the invoices
                topic, orjson.dumps(order), queue=number % 4, born=now_ms(), TAGS=tag, KEYS=f"order-{1000 + number}",
                UNIQ_KEY=f"{topic.encode().hex().upper():0<16}{number:016X}",
            )  # fmt: skip
    for group, (topic, consumed) in MEMBERS.items():
        for queue in range(4):
            await consume(client, group, topic, (consumed + 3 - queue) // 4, queue)
    for number, message in enumerate((await client.pull("orders", 0))[:7]):
        await client.fail(message, "billing", -1, failureReason=REASONS[number * number % 3])
    for number in range(5):
        reminder = orjson.dumps({"remind": f"c-{number}", "of": "invoice"})
        await client.sent(
            "mails", reminder, born=now_ms(), TIMER_DELAY_SEC=90 + 1700 * number, KEYS=f"reminder-{number}"
        )
        await client.sent("mails", reminder, born=now_ms(), DELAY=16 + number % 3)
    for number in range(2):
        half = orjson.dumps({"order": 2000 + number, "amount": "19.90"})
        await client.sent(
            "payments", half, born=now_ms(), flags=SysFlag.TRANSACTION_PREPARED, TRAN_MSG="true", PGROUP="checkout",
            KEYS=f"order-{2000 + number}", UNIQ_KEY=f"{number:032X}",
        )  # fmt: skip


def remember(console: Console) -> None:
    """A quarter of an hour that was not waited for: waves of rates and lag, for the charts, up to what there is now."""
    now = time.time()
    behind = {group: TOPICS[topic] - consumed for group, (topic, consumed) in MEMBERS.items()}
    for step in range(180):
        at = now - 5 * (180 - step)
        wave = math.sin(step / 17) + 0.25 * math.sin(step / 3)
        console.history.put(("in", ""), at, 24 + 9 * wave)
        console.history.put(("out", ""), at, 16 + 7 * math.sin((step - 6) / 17))
        for number, topic in enumerate(TOPICS):
            console.history.put(("topic", topic), at, 5 + 2 * math.sin(step / (11 + number)))
        for number, (group, lag) in enumerate(behind.items()):
            swing = 1 + 0.6 * math.sin((step - 180) / (15 + number)) + 0.2 * math.sin((step - 180) / 4)
            console.history.put(("lag", group), at, round(lag * swing))
