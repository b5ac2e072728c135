"""The broker dies without warning between any two steps of a transaction, and nothing wrong comes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

import anyio
import pytest

from tests.plugins.txn import peers
from tests.plugins.txn.peers import HalfSent, Peer
from verniermq.kernel import ResponseCode
from verniermq.testing import BrokerProcess, broker_process

pytestmark = pytest.mark.anyio

COMMIT, ROLLBACK = 8, 12


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    with broker_process() as process:
        yield process


def peer(broker: BrokerProcess) -> AbstractAsyncContextManager[Peer]:
    """The process lives in real time, and so do the messages that it gets."""
    return peers.peer(broker.broker, born=time.time_ns() // 1_000_000)


def crash(broker: BrokerProcess) -> None:
    broker.kill()
    broker.start()


async def nothing_is_asked(producer: Peer, broker: BrokerProcess) -> None:
    """A transaction that is open would be asked about now; the one sent last is the proof that a round took place."""
    marker = await producer.send_half("marker", b"marker")
    broker.advance(40)
    request, shown = await producer.checked()
    assert shown.body == b"marker"
    half = HalfSent(int(request.ext["tranStateTableOffset"]), int(request.ext["commitLogOffset"]), request)
    assert (await producer.end(half, ROLLBACK, fromTransactionCheck="true")).code == 0
    assert (await producer.end(marker, COMMIT)).code == ResponseCode.SYSTEM_ERROR
    assert producer.checks.statistics().current_buffer_used == 0


async def test_after_the_half_message(broker: BrokerProcess) -> None:
    async with peer(broker) as producer:
        await producer.send_half("orders", b"paid")
    crash(broker)
    async with peer(broker) as producer:
        assert await producer.bodies("orders") == []
        await producer.join(producers=("P",))
        broker.advance(40)

        request, shown = await producer.checked()

        assert shown.body == b"paid"
        half = HalfSent(int(request.ext["tranStateTableOffset"]), int(request.ext["commitLogOffset"]), request)
        assert (await producer.end(half, COMMIT, fromTransactionCheck="true")).code == 0
        assert await producer.bodies("orders") == [b"paid"]


async def test_after_the_commit(broker: BrokerProcess) -> None:
    async with peer(broker) as producer:
        half = await producer.send_half("orders", b"paid")
        assert (await producer.end(half, COMMIT)).code == 0
    crash(broker)
    async with peer(broker) as producer:
        await producer.join(producers=("P",))
        assert await producer.bodies("orders") == [b"paid"]
        await nothing_is_asked(producer, broker)
        assert await producer.bodies("orders") == [b"paid"]


async def test_after_the_rollback(broker: BrokerProcess) -> None:
    async with peer(broker) as producer:
        half = await producer.send_half("orders", b"cancelled")
        assert (await producer.end(half, ROLLBACK)).code == 0
    crash(broker)
    async with peer(broker) as producer:
        await producer.join(producers=("P",))
        assert (await producer.end(half, COMMIT)).code == ResponseCode.SYSTEM_ERROR
        await nothing_is_asked(producer, broker)
        assert await producer.bodies("orders") == []


async def test_between_the_check_and_its_answer(broker: BrokerProcess) -> None:
    async with peer(broker) as producer:
        await producer.join(producers=("P",))
        await producer.send_half("orders", b"paid")
        broker.advance(40)
        request, _ = await producer.checked()
    crash(broker)
    async with peer(broker) as producer:
        await producer.join(producers=("P",))
        half = HalfSent(int(request.ext["tranStateTableOffset"]), int(request.ext["commitLogOffset"]), request)
        assert (await producer.end(half, COMMIT, fromTransactionCheck="true")).code == 0
        assert await producer.bodies("orders") == [b"paid"]
        await nothing_is_asked(producer, broker)
        assert await producer.bodies("orders") == [b"paid"]


async def test_in_the_middle_of_many(broker: BrokerProcess) -> None:
    """Killed while commits and rollbacks fly: what was acknowledged holds, what was not is asked about."""
    acknowledged: dict[bytes, int] = {}
    halves: dict[bytes, HalfSent] = {}

    async def one(producer: Peer, number: int) -> None:
        body, outcome = str(number).encode(), ROLLBACK if number % 2 else COMMIT
        half = await producer.send_half("orders", body)
        halves[body] = half
        if (await producer.end(half, outcome)).code == 0:
            acknowledged[body] = outcome
        if len(acknowledged) == 40:
            broker.kill()

    async with peer(broker) as producer:
        with anyio.CancelScope() as scope:
            producer.connection.on_close.append(lambda _: scope.cancel())
            for number in range(10_000):
                await one(producer, number)
                if len(acknowledged) >= 40:
                    await anyio.sleep_forever()  # until the connection breaks
    broker.start()
    async with peer(broker) as producer:
        committed = {body for body, outcome in acknowledged.items() if outcome == COMMIT}
        first = await producer.pull("orders")
        assert {message.body for message in first} == committed
        assert len(first) == len(committed)
