"""The check alone, and the plugin in a running broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from verniermq_order_numbers import CHECKED
from verniermq_order_numbers.checksum import is_valid, with_check

from verniermq.kernel import Broker, Command, RequestCode, ResponseCode, connect, format_properties
from verniermq.testing import running_broker

GOOD = with_check("A-2024-000123")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def broker_with_plugin(**settings: Any) -> AsyncIterator[Broker]:
    async with running_broker(plugins__enable=["default", "order_numbers"], **settings) as broker:
        yield broker


async def send(broker: Broker, topic: str, **properties: str) -> Command:
    connection = await connect(broker.address)
    fields = {
        "a": "shop", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0",
        "i": format_properties(properties),
    }  # fmt: skip
    try:
        return await connection.request(Command.request(RequestCode.SEND_MESSAGE_V2, fields, b"an order"))
    finally:
        connection.close()
        await connection.wait_closed()


def stored(broker: Broker, topic: str) -> list[dict[str, str]]:
    queue = broker.store.queue(topic, 0)
    entries = [] if queue is None else queue.entries(0, 100)
    found = [broker.store.message_at(position) for position, _, _ in entries]
    return [message.properties for message in found if message is not None]


def test_a_number_is_valid_with_its_check_and_with_no_other() -> None:
    assert GOOD == "A-2024-000123-88"
    assert [check for check in range(100) if is_valid(f"A-2024-000123-{check:02}")] == [88]
    assert not is_valid("A-2024-000132-88")  # two digits changed places
    assert not any(is_valid(text) for text in ("", "A", "a-2024-000123-88", "A-2024-000123", GOOD + "\n"))


async def test_a_valid_order_is_stored_and_marked() -> None:
    async with broker_with_plugin() as broker:
        answer = await send(broker, "orders", orderNumber=GOOD)

        assert answer.code == ResponseCode.SUCCESS
        assert stored(broker, "orders")[0][CHECKED] == "true"


@pytest.mark.parametrize("number", ["A-2024-000123-89", "nonsense"])
async def test_a_wrong_number_is_refused_and_nothing_is_stored(number: str) -> None:
    async with broker_with_plugin() as broker:
        answer = await send(broker, "orders", orderNumber=number)

        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert repr(number) in answer.remark
        assert stored(broker, "orders") == []


async def test_other_topics_are_none_of_its_business() -> None:
    async with broker_with_plugin(plugins__order_numbers__topics=["bills"]) as broker:
        assert (await send(broker, "orders")).code == ResponseCode.SUCCESS
        assert (await send(broker, "bills")).code == ResponseCode.MESSAGE_ILLEGAL
        assert broker.host.active["order_numbers"].instance.runtime_info() == {
            "orderNumbersChecked": "0",
            "orderNumbersRefused": "1",
        }
