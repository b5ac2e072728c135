"""A broker on which something of each kind is: messages, groups, dead letters, delays, transactions, hostile texts."""

from __future__ import annotations

from typing import Final

from tests.metrics.test_metrics import consume
from tests.plugins.peer import Peer
from verniermq.kernel import SysFlag

HOSTILE: Final = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
"""Wherever a text comes from a client, this one comes."""


async def populate(client: Peer) -> None:
    for number in range(5):
        body = b'{"id": %d, "card": "4111", "who": {"iban": "DE1"}}' % number
        await client.sent("orders", body, TAGS="paid", KEYS=f"order-{number}", UNIQ_KEY=f"{number:032X}")
    await client.sent("orders", HOSTILE.encode(), TAGS=HOSTILE, KEYS=HOSTILE.replace(" ", ""), HOSTILE=HOSTILE)
    await client.sent("orders", bytes(range(256)))
    await client.sent("orders", b"later", TIMER_DELAY_SEC=3600, UNIQ_KEY="A" * 32)
    await client.sent("orders", b"level", DELAY=18)
    await client.sent("orders", b"half", flags=SysFlag.TRANSACTION_PREPARED, TRAN_MSG="true", PGROUP="transfers")
    client.client_id = HOSTILE
    await client.heartbeat("billing", ["orders"])
    await consume(client, "billing", "orders", 2)
    for message in (await client.pull("orders"))[:2]:
        await client.fail(message, "billing", -1, failureReason=f"ValueError: {HOSTILE}")
