"""Faults made for real: brokers killed, name servers gone, connections cut.

Producers tell the truth, consumers lose nothing.
"""

# ruff: noqa: SIM117 - a broker and then its clients: two blocks show which is inside which

from __future__ import annotations

import asyncio
import shlex
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.client.crashes import CRASHES, consumer_of
from tests.client.place import Place, eventually, numbered, until
from tests.client.proxy import Proxy, proxy
from verniermq.client import Admin, Message, Producer, SendResult, SendStatus
from verniermq.client.errors import BrokerUnreachable, NameServerUnreachable, NoBroker, SendFailed, TooManyInFlight
from verniermq.kernel import Broker, SystemClock
from verniermq.plugins.namesrv.server import NameServer
from verniermq.testing import BrokerProcess, broker_process, running_broker

pytestmark = pytest.mark.anyio


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "store") as running:
        yield running


@pytest.mark.parametrize("crash", CRASHES)
async def test_crash(crash: str, process: BrokerProcess) -> None:
    await CRASHES[crash](process)


async def test_a_consumer_finds_a_broker_that_moved_to_another_port(process: BrokerProcess) -> None:
    seen: list[int] = []
    await Place(process.namesrv, process.broker).send("t", numbered(10))
    old = process.broker

    async with (
        consumer_of(process.namesrv, "t", seen),
        Producer("senders", namesrv=process.namesrv, send_timeout=5, retries=20) as producer,
    ):
        await producer.send(Message("t", b"10"))
        await until(lambda: len(set(seen)) == 11)
        await anyio.to_thread.run_sync(process.kill)
        process.broker = ""
        await anyio.to_thread.run_sync(process.start)
        await producer.send(Message("t", b"11"))
        await until(lambda: len(set(seen)) == 12)

    assert process.broker != old


async def test_sends_go_on_while_the_name_server_is_gone() -> None:
    async with running_broker() as broker, proxy(broker.name_servers[0]) as network:
        async with Producer("senders", namesrv=network.address, request_timeout=5) as producer:
            await producer.send(Message("t", b"1"))
            await producer.send(Message("t", b"2"))
            await network.stop()
            known = await producer.send(Message("t", b"3"))
            with pytest.raises(NameServerUnreachable, match="no name server answered"):
                await producer.send(Message("unknown", b"x"))
            await network.start()
            found = await producer.send(Message("unknown", b"x"))

    assert known.status is found.status is SendStatus.SEND_OK


async def test_another_name_server_is_asked_when_one_is_gone() -> None:
    async with running_broker() as broker, proxy(broker.name_servers[0]) as one, proxy(broker.name_servers[0]) as other:
        async with Producer("senders", namesrv=[one.address, other.address]) as producer:
            for network, topic in ((one, "a"), (other, "b")):
                await network.stop()
                result = await producer.send(Message(topic, b"x"))
                assert result.status is SendStatus.SEND_OK
                await network.start()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:9876"])
async def test_starting_without_a_name_server_is_an_error_within_the_timeout(address: str) -> None:
    started = time.monotonic()

    with pytest.raises(NameServerUnreachable) as caught:
        await Producer("senders", namesrv=address, connect_timeout=2).start()

    assert address in str(caught.value)
    assert caught.value.retriable
    assert time.monotonic() - started < 60


async def test_starting_with_a_name_server_that_never_answers_is_an_error() -> None:
    async with silent_server() as address:
        with pytest.raises(NameServerUnreachable, match="did not answer"):
            await Producer("senders", namesrv=address, request_timeout=0.3).start()


async def test_starting_without_a_broker_is_an_error() -> None:
    async with running_broker(broker__advertise="127.0.0.1:1") as broker:
        with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
            await Producer("senders", namesrv=broker.name_servers[0]).start()


async def test_a_name_server_without_brokers_says_what_to_do_and_it_works(tmp_path: Path) -> None:
    server = NameServer(SystemClock())
    await server.start("127.0.0.1", 0)
    namesrv = f"127.0.0.1:{server.port}"
    try:
        with pytest.raises(NoBroker) as caught:
            await Producer("senders", namesrv=namesrv).start()
        advised = shlex.split(str(caught.value).partition("start one with: ")[2])
        assert advised[0] == "verniermq"
        command = [*advised[1:], "--port", "0", "--store", str(tmp_path / "store")]
        broker = await anyio.open_process([sys.executable, "-m", "verniermq.cli", *command], stdout=None, stderr=None)
        try:
            with anyio.fail_after(60):
                while True:
                    try:
                        async with Producer("senders", namesrv=namesrv) as producer:
                            result = await producer.send(Message("t", b"x"))
                        break
                    except (NoBroker, BrokerUnreachable):
                        await anyio.sleep(0.1)
            assert result.status is SendStatus.SEND_OK
        finally:
            broker.terminate()
            await broker.wait()
    finally:
        await server.stop()


@pytest.mark.parametrize("direction", ["cut_requests_after", "cut_answers_after"])
@pytest.mark.parametrize("size", [150, 501, 2003])
async def test_a_connection_cut_in_the_middle_of_a_frame_loses_nothing(direction: str, size: int) -> None:
    async with behind_a_proxy() as (broker, network):
        acknowledged: list[bytes] = []
        seen: list[int] = []
        async with (
            Producer("senders", namesrv=broker.name_servers[0]) as producer,
            consumer_of(broker.name_servers[0], "t", seen),
        ):
            await producer.send(Message("t", b"0"))
            for body in numbered(40, start=1):
                if body == b"10":
                    setattr(network, direction, size)
                if (await producer.send(Message("t", body))).status is SendStatus.SEND_OK:
                    acknowledged.append(body)
            await until(lambda: set(seen) == set(range(41)))
        stored = [message.body for message in await Place(broker.name_servers[0], broker.address).stored("t")]

    assert acknowledged == numbered(40, start=1)
    assert set(stored) == set(numbered(41))
    assert network.connections > 2


async def test_a_consumer_goes_on_after_its_connections_were_cut() -> None:
    async with behind_a_proxy() as (broker, network):
        seen: list[int] = []
        place = Place(broker.name_servers[0], broker.address)
        await place.send("t", numbered(30))
        async with consumer_of(broker.name_servers[0], "t", seen):
            await until(lambda: len(set(seen)) == 30)
            network.cut()
            await place.send("t", numbered(30, start=30))
            await until(lambda: len(set(seen)) == 60)
            network.cut()
            await place.send("t", numbered(30, start=60))
            await until(lambda: len(set(seen)) == 90)

    assert set(seen) == set(range(90))


async def test_a_slow_broker_is_an_error_when_the_time_is_over_and_not_before() -> None:
    async with behind_a_proxy() as (broker, network):
        async with Producer("senders", namesrv=broker.name_servers[0], retries=1) as producer:
            await producer.send(Message("t", b"quick"))
            await producer.send(Message("t", b"quick"))
            network.delay = 0.2
            slow = await producer.send(Message("t", b"slow"), timeout=30)
            network.delay = 3
            started = time.monotonic()
            with pytest.raises(SendFailed, match="did not answer"):
                await producer.send(Message("t", b"too slow"), timeout=0.4)
            took = time.monotonic() - started
            network.delay = 0.0

    assert slow.status is SendStatus.SEND_OK
    assert took >= 0.4


async def test_the_bound_on_sends_under_way_is_kept() -> None:
    async with behind_a_proxy() as (broker, network):
        async with Producer("senders", namesrv=broker.name_servers[0], max_in_flight=2) as producer:
            await producer.send(Message("t", b"1"))
            await producer.send(Message("t", b"2"))
            network.delay = 2.0
            futures = [await producer.submit(Message("t", body)) for body in numbered(2)]
            with pytest.raises(TooManyInFlight, match="2 sends were waiting"):
                await producer.submit(Message("t", b"one too many"), timeout=0.05)
            futures.append(await producer.submit(Message("t", b"waits for its place")))
            results = [await future for future in futures]

    assert {result.status for result in results} == {SendStatus.SEND_OK}


async def test_a_retry_goes_to_another_broker() -> None:
    async with two_brokers() as (first, _second, network):
        async with Producer("senders", namesrv=first.name_servers[0], default_queues=2) as producer:
            for body in numbered(8):
                await producer.send(Message("t", body))
            await network.stop()
            results = [await producer.send(Message("t", body)) for body in numbered(8, start=8)]

    assert {result.queue.broker_name for result in results} == {first.name}


async def test_an_asynchronous_retry_stays_at_its_broker() -> None:
    async with two_brokers() as (first, _second, network):
        async with Producer("senders", namesrv=first.name_servers[0], default_queues=2) as producer:
            for body in numbered(8):
                await producer.send(Message("t", body))
            await network.stop()
            futures = [await producer.submit(Message("t", body)) for body in numbered(8, start=8)]
            results = await asyncio.gather(*futures, return_exceptions=True)

    sent = [result for result in results if isinstance(result, SendResult)]
    failed = [result for result in results if isinstance(result, SendFailed)]
    assert (len(sent), len(failed)) == (4, 4)
    assert {result.queue.broker_name for result in sent} == {first.name}
    assert all(len(error.tries) == 3 and network.address in error.tries[-1] for error in failed)


async def test_an_ordered_send_is_not_retried_elsewhere() -> None:
    async with two_brokers() as (first, second, network):
        async with Producer("senders", namesrv=first.name_servers[0], default_queues=2) as producer:
            for body in numbered(8):
                await producer.send(Message("t", body))
            queue = next(queue for queue in await producer.queues("t") if queue.broker_name == second.name)
            await network.stop()
            with pytest.raises(SendFailed, match="after 1 try"):
                await producer.send(Message("t", b"ordered"), queue=queue, timeout=0.5)


async def test_the_latency_strategy_keeps_away_from_a_broker_that_failed() -> None:
    async with (
        two_brokers() as (first, _second, network),
        Producer(
            "senders", namesrv=first.name_servers[0], default_queues=2, fault="latency", send_timeout=10
        ) as producer,
    ):
        for body in numbered(8):
            await producer.send(Message("t", body))
        await network.stop()
        await producer.send(Message("t", b"learns"))
        for body in numbered(4):
            await producer.send(Message("t", body))
        connections = network.connections
        results = [await producer.send(Message("t", body)) for body in numbered(12)]

    assert {result.queue.broker_name for result in results} == {first.name}
    assert network.connections == connections


NOT_COPIED = """
from typing import ClassVar
import attrs
from verniermq.kernel import Appended, Context, Declaration, NoConfig, ResponseCode, hookimpl

async def late() -> ResponseCode:
    return ResponseCode.FLUSH_SLAVE_TIMEOUT

@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(api=1, summary="No slave ever confirms.")
    config: NoConfig
    broker: Context

    @hookimpl
    def confirm_append(self, appended: Appended):
        return late()
"""


@pytest.mark.parametrize("try_another", [False, True])
async def test_another_broker_is_tried_when_one_stored_badly_if_asked_for(tmp_path: Path, try_another: bool) -> None:
    plugin = tmp_path / "not_copied.py"
    plugin.write_text(NOT_COPIED)
    async with (
        two_brokers(plugins__enable=("default", str(plugin))) as (good, _bad, _),
        Producer(
            "senders",
            namesrv=good.name_servers[0],
            default_queues=2,
            retry_another_broker_when_not_store_ok=try_another,
        ) as producer,
    ):
        results = [await producer.send(Message("t", body)) for body in numbered(12)]

    statuses = {result.status for result in results}
    if try_another:
        assert statuses == {SendStatus.SEND_OK}
        assert {result.queue.broker_name for result in results} == {good.name}
    else:
        assert statuses == {SendStatus.SEND_OK, SendStatus.FLUSH_SLAVE_TIMEOUT}


async def test_with_one_broker_that_stores_badly_a_message_is_stored_once(tmp_path: Path) -> None:
    plugin = tmp_path / "not_copied.py"
    plugin.write_text(NOT_COPIED)
    async with running_broker(plugins__enable=("default", str(plugin))) as broker:
        async with Producer(
            "senders", namesrv=broker.name_servers[0], retry_another_broker_when_not_store_ok=True
        ) as producer:
            result = await producer.send(Message("t", b"once"))
        stored = await Place(broker.name_servers[0], broker.address).stored("t")

    assert result.status is SendStatus.FLUSH_SLAVE_TIMEOUT
    assert [message.body for message in stored] == [b"once"]


# --- places ------------------------------------------------------------------------------------


@asynccontextmanager
async def behind_a_proxy() -> AsyncIterator[tuple[Broker, Proxy]]:
    """A broker that tells clients to come through a proxy."""
    async with proxy() as network, running_broker(broker__advertise=network.address) as broker:
        network.target = f"127.0.0.1:{broker.server.addresses[0][1]}"
        yield broker, network


@asynccontextmanager
async def two_brokers(**of_second: Any) -> AsyncIterator[tuple[Broker, Broker, Proxy]]:
    """Two brokers under the name server of the first; the second is reached through a proxy."""
    async with (
        running_broker(broker__name="broker-a") as first,
        proxy() as network,
        running_broker(
            broker__name="broker-b",
            broker__namesrv=(first.name_servers[0],),
            broker__advertise=network.address,
            **of_second,
        ) as second,
    ):
        network.target = f"127.0.0.1:{second.server.addresses[0][1]}"
        async with Admin(namesrv=first.name_servers[0]) as admin:
            await eventually(admin.brokers, lambda brokers: len(brokers) == 2)
            await admin.create_topic("t", queues=2)
        yield first, second, network


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
