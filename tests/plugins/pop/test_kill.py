"""The broker dies without warning: what was popped comes again, what was acknowledged does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.plugins.pop.popper import Consumer, consumer
from verniermq.testing import BrokerProcess, broker_process

pytestmark = pytest.mark.anyio


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    with broker_process() as process:
        yield process


def crash(broker: BrokerProcess) -> None:
    broker.kill()
    broker.start()


async def all_bodies(it: Consumer) -> list[bytes]:
    """Everything that is visible or comes within some seconds."""
    return sorted(one.body for one in await it.pop(pollTime=20_000, invisibleTime=600_000))


async def test_between_pop_and_acknowledgement(broker: BrokerProcess) -> None:
    async with consumer(broker.broker) as it:
        for body in (b"acknowledged", b"open", b"never popped"):
            assert (await it.peer.send(it.topic, body)).code == 0
        acknowledged, _ = await it.pop(maxMsgNums=2)
        assert (await it.ack(acknowledged)).code == 0
    crash(broker)
    async with consumer(broker.broker) as it:
        assert await all_bodies(it) == [b"never popped"]

        broker.advance(61)

        assert await all_bodies(it) == [b"open"]


async def test_after_the_message_came_again(broker: BrokerProcess) -> None:
    async with consumer(broker.broker) as it:
        await it.peer.send(it.topic, b"m")
        await it.pop(invisibleTime=10_000)
        broker.advance(11)
        (again,) = await it.pop(pollTime=20_000, invisibleTime=10_000)
        assert again.message.reconsume_times == 1
    crash(broker)
    async with consumer(broker.broker) as it:
        broker.advance(30)  # a process that was killed forgets that its time was moved ahead
        (third,) = await it.pop(pollTime=20_000, invisibleTime=10_000)
        assert (third.body, third.message.reconsume_times) == (b"m", 2)
        assert (await it.ack(third)).code == 0
    crash(broker)
    async with consumer(broker.broker) as it:
        broker.advance(3600)
        await it.peer.send(it.topic, b"the last")
        assert await all_bodies(it) == [b"the last"]


async def test_after_the_invisible_time_was_changed(broker: BrokerProcess) -> None:
    async with consumer(broker.broker) as it:
        await it.peer.send(it.topic, b"m")
        (m,) = await it.pop(invisibleTime=5_000)
        changed = await it.change(m, 100_000)
        renewed = it.renewed(m, changed)
    crash(broker)
    async with consumer(broker.broker) as it:
        broker.advance(50)
        await it.peer.send(it.topic, b"other")
        assert await all_bodies(it) == [b"other"]
        assert (await it.ack(renewed)).code == 0
        broker.advance(100)
        await it.peer.send(it.topic, b"the last")
        assert await all_bodies(it) == [b"the last"]
