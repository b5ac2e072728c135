"""What clients make of a master that goes, and of another one that comes."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
from anyio.abc import TaskGroup, TaskStatus

from tests.kernel.pulling import until
from tests.plugins.ha.pairs import ENABLED, SMALL, running_master, running_slave
from tests.plugins.ha.replicas import failover, running_replicas
from verniermq.client import Message, Producer, PushConsumer, ReceivedMessage, SendResult, SendStatus
from verniermq.client.admin import Admin
from verniermq.client.errors import NotWritable
from verniermq.kernel import Broker, SystemClock, TopicConfig, VernierMQError
from verniermq.plugins.namesrv.routes import LiveBroker
from verniermq.plugins.namesrv.server import NameServer
from verniermq.testing import broker_process, running_broker

pytestmark = pytest.mark.anyio

OK = SendStatus.SEND_OK
PATIENCE = 60.0


@attrs.define(eq=False)
class Pair:
    """A master and a slave under a name server that outlives both; each in a task of its own, to end in any order."""

    folder: Path
    tasks: TaskGroup
    server: NameServer = attrs.field(factory=lambda: NameServer(SystemClock()))
    _running: dict[str, tuple[anyio.Event, anyio.Event]] = attrs.field(factory=dict)

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def start_master(self, store: str) -> Broker:
        return await self._start(store, plugins__ha__role="async_master", broker__id=0)

    async def start_slave(self, store: str) -> Broker:
        return await self._start(store, plugins__ha__role="slave", broker__id=1)

    async def _start(self, store: str, **settings: Any) -> Broker:
        chosen = {**SMALL, "plugins__ha__metadata_interval": "100ms", "broker__namesrv": [self.namesrv], **settings}
        broker: Broker = await self.tasks.start(self._run, store, chosen)
        await until(lambda: chosen["broker__id"] in self.server.table.members(broker.name))
        return broker

    async def _run(self, store: str, settings: dict[str, Any], *, task_status: TaskStatus[Broker]) -> None:
        stop, stopped = self._running[store] = anyio.Event(), anyio.Event()
        async with running_broker(self.folder / store, plugins__enable=ENABLED, **settings) as broker:
            task_status.started(broker)
            await stop.wait()
        stopped.set()

    async def stop(self, store: str) -> None:
        stop, stopped = self._running.pop(store)
        stop.set()
        await stopped.wait()


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[Pair]:
    async with anyio.create_task_group() as tasks:
        made = Pair(folder, tasks)
        await made.server.start("127.0.0.1", 0)
        try:
            yield made
        finally:
            with anyio.CancelScope(shield=True):
                for store in list(made._running):
                    await made.stop(store)
                await made.server.stop()


async def make_topic(pair: Pair, queues: int = 1) -> None:
    async with Admin(namesrv=pair.namesrv) as admin:
        await admin.create_topic("orders", queues=queues)


async def test_a_send_waits_for_the_new_master_of_its_broker(tmp_path: Path) -> None:
    async with pair(tmp_path) as brokers:
        master = await brokers.start_master("a")
        slave = await brokers.start_slave("b")
        await make_topic(brokers)
        async with Producer("p", namesrv=brokers.namesrv) as producer:
            queue = (await producer.send(Message("orders", b"1"))).queue
            await until(lambda: slave.store.end == master.store.end and slave.topics.find("orders") is not None)
            results: list[SendResult] = []

            async def send(**how: Any) -> None:
                results.append(await producer.send(Message("orders", b"2"), timeout=PATIENCE, **how))

            await brokers.stop("a")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                tasks.start_soon(lambda: send(queue=queue))
                await brokers.stop("b")
                await brokers.start_master("b")

            assert [result.status for result in results] == [OK, OK]
            assert sorted(result.queue_offset for result in results) == [1, 2]


async def test_a_send_that_finds_no_master_in_time_says_so(tmp_path: Path) -> None:
    async with pair(tmp_path) as brokers:
        await brokers.start_master("a")
        await brokers.start_slave("b")
        await make_topic(brokers)
        async with Producer("p", namesrv=brokers.namesrv) as producer:
            await producer.send(Message("orders", b"1"))
            await brokers.stop("a")
            with pytest.raises(NotWritable, match="broker-a has no master now, only slaves") as caught:
                await producer.send(Message("orders", b"2"), timeout=1.0)

            assert caught.value.retriable


async def by_send(producer: Producer, timeout: float = PATIENCE) -> SendResult:
    return await producer.send(Message("orders", b"x"), timeout=timeout)


async def to_queue(producer: Producer) -> SendResult:
    return await producer.send(Message("orders", b"x"), queue=queue_of(producer), timeout=PATIENCE)


async def by_future(producer: Producer, timeout: float = PATIENCE) -> SendResult:
    return await (await producer.submit(Message("orders", b"x"), timeout=timeout))


def queue_of(producer: Producer) -> Any:
    route = producer._routes.known("orders")
    assert route is not None
    return route.writable[0]


@pytest.mark.parametrize("send", [by_send, to_queue, by_future])
async def test_who_is_no_master_any_more_makes_a_producer_ask_at_once(
    tmp_path: Path, send: Callable[[Producer], Any]
) -> None:
    async with (
        running_master(tmp_path / "a") as master,
        running_slave(tmp_path / "b", master) as slave,
        pair(tmp_path / "none") as told,
    ):
        master.topics.put(TopicConfig("orders", 1, 1))
        await until(lambda: slave.topics.find("orders") is not None)
        topics = [TopicConfig("orders", 1, 1)]

        def tell(address: str) -> None:
            told.server.table.register(
                LiveBroker("DefaultCluster", master.name, 0, address, "", PATIENCE, told.server._clock.monotonic(), {}),
                topics,
            )

        tell(slave.address)
        async with Producer("p", namesrv=told.namesrv) as producer:
            await producer._routes.get("orders")
            await producer._pool.open(slave.address)
            tell(master.address)

            result = await send(producer)

        assert result.status is OK
        assert master.store.max_offset("orders", 0) == 1


@pytest.mark.parametrize("send", [by_send, by_future])
async def test_a_master_that_hangs_makes_a_producer_look_at_its_routes(
    tmp_path: Path, send: Callable[[Producer], Any]
) -> None:
    with broker_process(tmp_path / "hung") as hung:
        async with running_master(tmp_path / "a") as master, pair(tmp_path / "none") as told:
            master.topics.put(TopicConfig("orders", 1, 1))

            def tell(address: str) -> None:
                now = told.server._clock.monotonic()
                told.server.table.register(
                    LiveBroker("DefaultCluster", master.name, 0, address, "", PATIENCE, now, {}),
                    [TopicConfig("orders", 1, 1)],
                )

            tell(hung.broker)
            async with Producer("p", namesrv=told.namesrv, route_interval=900) as producer:
                await send(producer)
                os.kill(hung.pid, signal.SIGSTOP)
                try:
                    tell(master.address)
                    with pytest.raises(VernierMQError):
                        await send(producer, 0.5)
                    await until(lambda: master.address in producer._routes.addresses())

                    assert (await send(producer)).status is OK
                finally:
                    os.kill(hung.pid, signal.SIGCONT)


async def test_a_closed_connection_makes_a_client_look_at_its_routes(tmp_path: Path) -> None:
    async with pair(tmp_path) as brokers:
        await brokers.start_master("a")
        slave = await brokers.start_slave("b")
        await make_topic(brokers)
        async with Producer("p", namesrv=brokers.namesrv) as producer:
            await producer.send(Message("orders", b"1"))
            await brokers.stop("a")

            def masters() -> list[str]:
                route = producer._routes.known("orders")
                return [] if route is None else list(route.brokers["broker-a"].values())

            await until(lambda: masters() == [slave.address])


async def test_consumers_go_on_at_the_slave_and_come_back_to_the_master(tmp_path: Path) -> None:
    async with pair(tmp_path) as brokers:
        master = await brokers.start_master("a")
        slave = await brokers.start_slave("b")
        await make_topic(brokers)
        got: list[bytes] = []
        consumer = PushConsumer("g", namesrv=brokers.namesrv, start="first")
        consumer.subscribe("orders")

        @consumer.on_message
        async def take(message: ReceivedMessage) -> None:
            got.append(message.body)

        async with Producer("p", namesrv=brokers.namesrv) as producer, consumer:
            await producer.send(Message("orders", b"1"))
            await until(lambda: got == [b"1"])
            consumer.pause()
            for body in (b"2", b"3"):
                await producer.send(Message("orders", body))
            await until(lambda: slave.store.end == master.store.end and slave.topics.find("orders") is not None)
            await brokers.stop("a")
            consumer.resume()
            await until(lambda: sorted(set(got)) == [b"1", b"2", b"3"])

            await brokers.start_master("a")
            await producer.send(Message("orders", b"4"), timeout=PATIENCE)
            await until(lambda: b"4" in got)
            assert list(dict.fromkeys(got)) == [b"1", b"2", b"3", b"4"]


async def until_sent(send: Callable[[], Awaitable[object]]) -> None:
    """A send to one queue fails when its broker is gone, and whoever sends tries again."""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                await send()
                return
            except VernierMQError:
                await anyio.sleep(0.05)


async def check_order(namesrv: str, switch: Callable[[], Awaitable[None]]) -> None:
    """Two members of a group consume two queues in order while another master comes."""
    handled: dict[int, list[int]] = {0: [], 1: []}
    busy: set[int] = set()
    overlaps: list[int] = []

    def consumer(name: str) -> PushConsumer:
        made = PushConsumer("g", namesrv=namesrv, start="first", orderly=True, instance=name)
        made.subscribe("orders")

        @made.on_message
        async def take(message: ReceivedMessage) -> None:
            queue = message.queue.queue_id
            if queue in busy:
                overlaps.append(queue)
            busy.add(queue)
            await anyio.sleep(0.002)
            busy.discard(queue)
            handled[queue].append(int(message.body))

        return made

    async with Producer("p", namesrv=namesrv) as producer:
        await producer._routes.get("orders")
        queues = producer._routes.known("orders").writable  # type: ignore[union-attr]

        async def send(first: int, last: int) -> None:
            for number in range(first, last):
                for queue in queues:
                    message = Message("orders", b"%d" % number)
                    await until_sent(lambda message=message, queue=queue: producer.send(message, queue=queue))  # type: ignore[misc]

        async with consumer("one") as one, consumer("two") as two:
            await until(lambda: len(one.assignment) == 1 and len(two.assignment) == 1)
            await send(0, 50)
            await switch()
            await send(50, 100)
            await until(lambda: all(99 in numbers for numbers in handled.values()))

    assert overlaps == []
    for numbers in handled.values():
        assert list(dict.fromkeys(numbers)) == list(range(100))


async def test_ordered_consumers_keep_the_order_when_a_slaves_store_becomes_the_master(tmp_path: Path) -> None:
    async with pair(tmp_path) as brokers:
        master = await brokers.start_master("a")
        slave = await brokers.start_slave("b")
        await make_topic(brokers, queues=2)

        async def switch() -> None:
            await until(lambda: slave.store.end == master.store.end and slave.topics.find("orders") is not None)
            await brokers.stop("a")
            await brokers.stop("b")
            await brokers.start_master("b")

        await check_order(brokers.namesrv, switch)


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "the master is gone"])
async def test_ordered_consumers_keep_the_order_over_an_election(tmp_path: Path, planned: bool) -> None:
    async with running_replicas(tmp_path, plugins__ha__ttl="20s") as replicas:
        await replicas.start(1, 2, 3)
        first = await replicas.master()
        await replicas.all_in_sync()
        table = replicas.names.host.active["namesrv"].instance.embedded.table
        replicas.brokers[first].topics.for_send("orders", "TBW102", 2, "127.0.0.1")
        await until(lambda: table.route("orders") is not None)
        second = next(number for number in replicas.brokers if number != first)

        async def switch() -> None:
            if planned:
                await failover(replicas.brokers[first]).switch(second)
            else:
                await replicas.stop(first)

        await check_order(replicas.namesrv, switch)
        assert await replicas.master() != first
