"""The check alone, and the plugin in a running broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from verniermq_order_numbers import CHECKED
from verniermq_order_numbers.checksum import is_valid, with_check

from verniermq.client import Message, Producer
from verniermq.kernel import Broker, UnexpectedAnswer
from verniermq.testing import running_broker

GOOD = with_check("A-2024-000123")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def broker_with_plugin(**settings: Any) -> AsyncIterator[Broker]:
    async with running_broker(plugins__enable=["default", "order_numbers"], **settings) as broker:
        yield broker


async def send(broker: Broker, topic: str, **properties: str) -> None:
    async with Producer("shop", namesrv=broker.name_servers[0]) as producer:
        await producer.send(Message(topic, b"an order", properties=properties))


def stored(broker: Broker, topic: str) -> list[dict[str, str]]:
    queues = [queue for number in range(4) if (queue := broker.store.queue(topic, number)) is not None]
    found = [broker.store.message_at(position) for queue in queues for position, _, _ in queue.entries(0, 100)]
    return [message.properties for message in found if message is not None]


def test_a_number_is_valid_with_its_check_and_with_no_other() -> None:
    assert GOOD == "A-2024-000123-88"
    assert [check for check in range(100) if is_valid(f"A-2024-000123-{check:02}")] == [88]
    assert not is_valid("A-2024-000132-88")  # two digits changed places
    assert not any(is_valid(text) for text in ("", "A", "a-2024-000123-88", "A-2024-000123", GOOD + "\n"))


async def test_a_valid_order_is_stored_and_marked() -> None:
    async with broker_with_plugin() as broker:
        await send(broker, "orders", orderNumber=GOOD)

        assert stored(broker, "orders")[0][CHECKED] == "true"


@pytest.mark.parametrize("number", ["A-2024-000123-89", "nonsense"])
async def test_a_wrong_number_is_refused_and_nothing_is_stored(number: str) -> None:
    async with broker_with_plugin() as broker:
        with pytest.raises(UnexpectedAnswer, match=repr(number)):
            await send(broker, "orders", orderNumber=number)

        assert stored(broker, "orders") == []


async def test_other_topics_are_none_of_its_business() -> None:
    async with broker_with_plugin(plugins__order_numbers__topics=["bills"]) as broker:
        await send(broker, "orders")
        with pytest.raises(UnexpectedAnswer):
            await send(broker, "bills")
        assert broker.host.active["order_numbers"].instance.runtime_info() == {
            "orderNumbersChecked": "0",
            "orderNumbersRefused": "1",
        }
