"""Brokers that choose their master: nothing acknowledged is lost, and nothing that was read changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel.pulling import until
from tests.plugins.ha.pairs import log_files
from tests.plugins.ha.replicas import Replicas, failover, running_replicas
from verniermq.client import Message, Producer, SendStatus

pytestmark = pytest.mark.anyio

OK = SendStatus.SEND_OK


async def send(replicas: Replicas, *numbers: int) -> list[SendStatus]:
    async with Producer("p", namesrv=replicas.namesrv) as producer:
        return [(await producer.send(Message("orders", b"%06d" % number))).status for number in numbers]


async def create_topic(replicas: Replicas, master: int) -> None:
    """So that clients find it at the name server at once."""
    broker = replicas.brokers[master]
    broker.topics.for_send("orders", "TBW102", 4, "127.0.0.1")
    await until(lambda: _knows(replicas, broker.address))


def _knows(replicas: Replicas, address: str) -> bool:
    table = replicas.names.host.active["namesrv"].instance.embedded.table
    route = table.route("orders")
    return route is not None and route["brokerDatas"][0]["brokerAddrs"].get("0") == address


async def equal(replicas: Replicas) -> None:
    """All logs are the same, and all queues know all of it."""
    stores = [broker.store for broker in replicas.brokers.values()]
    await until(lambda: len({store.end for store in stores} | {store.dispatched_end for store in stores}) == 1)
    files = [log_files(broker) for broker in replicas.brokers.values()]
    assert all(found == files[0] for found in files)


async def test_three_replicas_choose_a_master_and_copy_it(tmp_path: Path) -> None:
    async with running_replicas(tmp_path) as replicas:
        await replicas.start(1, 2)
        assert replicas.masters() == []
        await replicas.start(3)
        master = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, master)

        assert await send(replicas, *range(50)) == [OK] * 50

        await equal(replicas)
        assert failover(replicas.brokers[master]).members.term == 1


async def test_another_one_takes_over_and_the_old_master_follows_it(tmp_path: Path) -> None:
    async with running_replicas(tmp_path) as replicas:
        await replicas.start(1, 2, 3)
        first = await replicas.master()
        await replicas.all_in_sync()
        await create_topic(replicas, first)
        assert await send(replicas, *range(20)) == [OK] * 20

        await replicas.stop(first)
        second = await replicas.master()
        assert second != first
        await create_topic(replicas, second)
        assert await send(replicas, *range(20, 40)) == [OK] * 20

        await replicas.start(first)
        await replicas.all_in_sync()
        assert await send(replicas, *range(40, 60)) == [OK] * 20
        await equal(replicas)
        broker = replicas.brokers[first]
        assert sum(broker.store.max_offset("orders", queue) for queue in range(4)) == 60
