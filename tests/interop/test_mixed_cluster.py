"""A VernierMQ broker and one of Apache's in the same cluster, at Apache's name server, with a topic over both.

Java and Python producers and consumers use the topic while first the one broker is stopped and started again, then
the other. Whatever was acknowledged reaches both groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import attrs
import pytest

from tests.client.place import until
from verniermq.client import Message, Producer, PushConsumer, ReceivedMessage

from .apache import BROKER_NAME, ApacheBroker
from .drivers import Driver
from .toolchains import driver_command
from .verniermq_process import VernierMQBroker
from .wire import GET_ROUTEINFO_BY_TOPIC, create_topic, request

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

TOPIC = "mixed"
OURS, THEIRS = "broker-a", BROKER_NAME
FROM_JAVA, FROM_PYTHON = 300, 200
"""Messages of a wave; of both, more than it takes to notice that a broker is gone."""


@attrs.frozen
class Cluster:
    apache: ApacheBroker
    verniermq: VernierMQBroker

    @property
    def namesrv(self) -> str:
        return self.apache.namesrv


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ApacheBroker(tmp_path) as apache:
        config = tmp_path / "broker.toml"
        config.write_text(f'[broker]\nnamesrv = ["{apache.namesrv}"]\n')
        with VernierMQBroker(tmp_path, config=config) as verniermq:
            create_topic(apache.broker, apache.namesrv, TOPIC)
            create_topic(verniermq.broker, apache.namesrv, TOPIC)
            yield Cluster(apache, verniermq)


@pytest.fixture
def java(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver("java5", driver_command("java5"), tmp_path)
    yield driver
    driver.close()


@attrs.define
class Wave:
    """Messages from Java, and then as many again from Python, from a number on."""

    cluster: Cluster
    java: Driver
    first: int
    used: set[str] = attrs.Factory(set)
    """The brokers that took the ones from Python."""

    @property
    def end(self) -> int:
        return self.first + FROM_JAVA + FROM_PYTHON

    async def send(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Send it all, every one acknowledged; ``meanwhile`` begins when the first one has been."""
        to = {"namesrv": self.cluster.namesrv, "topic": TOPIC, "group": "java-senders"}
        from_java = self.java.start("produce", **to, start=self.first, count=FROM_JAVA)
        await anyio.to_thread.run_sync(from_java.wait_for, "sent", 30)
        async with anyio.create_task_group() as tasks:
            if meanwhile:
                tasks.start_soon(anyio.to_thread.run_sync, meanwhile)
            await self._send_from_python(self.first + FROM_JAVA)
        await anyio.to_thread.run_sync(from_java.finish)
        assert {event["status"] for event in from_java.events("sent")} == {"SEND_OK"}

    async def _send_from_python(self, first: int) -> None:
        async with Producer("python-senders", namesrv=self.cluster.namesrv) as producer:
            for index in range(first, first + FROM_PYTHON):
                result = await producer.send(sample(index))
                assert result.stored_as_wished, result
                self.used.add(result.queue.broker_name)


def sample(index: int) -> Message:
    """Message number ``index`` as the drivers know it."""
    size = 5000 + index % 1000 if index % 10 == 0 else 64 + index % 200
    body = (f"message {index};".encode() * size)[:size]
    properties = {"index": str(index), "text": f"Grüße 消息 🚀 №{index}"}
    return Message(TOPIC, body, tags=f"Tag{'ABC'[index % 3]}", keys=[f"key-{index}"], properties=properties)


def brokers_of_topic(namesrv: str) -> set[str]:
    route = request(namesrv, GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}).body
    return {name for name in (OURS, THEIRS) if f'"{name}"'.encode() in route}


async def test_nothing_is_lost_when_either_broker_is_stopped(cluster: Cluster, java: Driver) -> None:
    assert brokers_of_topic(cluster.namesrv) == {OURS, THEIRS}
    waves = [Wave(cluster, java, number * (FROM_JAVA + FROM_PYTHON)) for number in range(4)]
    total = waves[-1].end
    to = {"namesrv": cluster.namesrv, "topic": TOPIC}
    java_reader = java.start("consume", **to, group="java-readers", expect=total, start=0, timeout=150)
    python_saw: set[int] = set()
    python_read_from: set[str] = set()
    python_reader = PushConsumer("python-readers", namesrv=cluster.namesrv, start="first", route_interval=2)
    python_reader.subscribe(TOPIC)

    @python_reader.on_message
    async def take(message: ReceivedMessage) -> None:
        python_saw.add(int(message.properties["index"]))
        python_read_from.add(message.queue.broker_name)

    async with python_reader:
        await waves[0].send()
        await waves[1].send(meanwhile=cluster.verniermq.stop)
        await anyio.to_thread.run_sync(cluster.verniermq.start)
        await until(lambda: brokers_of_topic(cluster.namesrv) == {OURS, THEIRS})
        await waves[2].send(meanwhile=cluster.apache.stop)
        await anyio.to_thread.run_sync(cluster.apache.start)
        await waves[3].send()
        await until(lambda: len(python_saw) == total, 60)
        await anyio.to_thread.run_sync(java_reader.finish, 120)

    assert waves[0].used == {OURS, THEIRS}
    assert python_saw == set(range(total))
    assert python_read_from == {OURS, THEIRS}
    received = java_reader.events("received")
    assert {event["index"] for event in received} == set(range(total))
    assert all(event["bodyOk"] and event["textOk"] for event in received)
