"""The broker dies without warning: what was acknowledged is still found by its tags and its properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.peer import Peer, peer
from verniermq.kernel import RequestCode, ResponseCode, decode_records
from verniermq.testing import broker_process

pytestmark = pytest.mark.anyio


async def wanted(client: Peer, expression: str, kind: str) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        answer = await client.ask(
            RequestCode.PULL_MESSAGE, consumerGroup="readers", topic="orders", queueId=0, queueOffset=offset,
            maxMsgNums=32, sysFlag=4, commitOffset=0, suspendTimeoutMillis=0, subscription=expression,
            expressionType=kind, subVersion=0,
        )  # fmt: skip
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return found
        found += [message.body for message in decode_records(answer.body)]
        offset = int(answer.ext["nextBeginOffset"])


async def test_both_filters_find_all_that_was_acknowledged_and_nothing_else(tmp_path: Path) -> None:
    with broker_process(tmp_path / "store") as process:
        async with peer(process.broker) as client:
            for number in range(150):
                tag = ("paid", "open", "refunded")[number % 3]
                await client.sent("orders", str(number).encode(), TAGS=tag, price=number)
        process.kill()
        process.start()
        async with peer(process.broker) as client:
            by_tag = await wanted(client, "paid || refunded", "TAG")
            by_sql = await wanted(client, "TAGS <> 'open' AND price BETWEEN 30 AND 119", "SQL92")

    assert by_tag == [str(number).encode() for number in range(150) if number % 3 != 1]
    assert by_sql == [str(number).encode() for number in range(30, 120) if number % 3 != 1]
