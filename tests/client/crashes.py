"""What becomes of sends and deliveries when a broker is killed and comes back, for either kind of broker.

The name of a function is the sentence that is true when it passes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio
import anyio.to_thread

from tests.client.place import Place, numbered, until
from verniermq.client import Message, Producer, PushConsumer, ReceivedMessage, SendStatus
from verniermq.client.errors import SendFailed
from verniermq.kernel import RemotingError, VernierMQError


class Crashable(Protocol):
    """A broker in a process of its own."""

    broker: str
    namesrv: str

    def kill(self) -> None: ...

    def start(self) -> None: ...


def consumer_of(namesrv: str, topic: str, seen: list[int], **options: Any) -> PushConsumer:
    consumer = PushConsumer(f"{topic}-readers", namesrv=namesrv, start="first", **options)
    consumer.subscribe(topic)

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        seen.append(int(message.body))

    return consumer


async def _restart(process: Crashable) -> None:
    await anyio.to_thread.run_sync(process.kill)
    await anyio.to_thread.run_sync(process.start)


async def every_acknowledged_message_survives_a_broker_killed_during_sends(process: Crashable) -> None:
    place = Place(process.namesrv, process.broker)
    topic = await place.topic("sends")
    acknowledged: list[bytes] = []
    failed: list[bytes] = []

    async with Producer("senders", namesrv=process.namesrv, send_timeout=2) as producer:

        async def send(start: int) -> None:
            for body in numbered(150, start):
                try:
                    await producer.send(Message(topic, body))
                    acknowledged.append(body)
                except VernierMQError:
                    failed.append(body)

        async with anyio.create_task_group() as group:
            for start in (0, 1000, 2000):
                group.start_soon(send, start)
            await until(lambda: len(acknowledged) > 60)
            await _restart(process)
        after = await producer.send(Message(topic, b"after"), timeout=30)
    stored = {message.body for message in await place.stored(topic)}

    assert after.status is SendStatus.SEND_OK
    assert len(acknowledged) + len(failed) == 450
    assert set(acknowledged) <= stored


async def asynchronous_sends_all_come_to_an_end_when_the_broker_is_killed(process: Crashable) -> None:
    place = Place(process.namesrv, process.broker)
    topic = await place.topic("flights")

    async with Producer("senders", namesrv=process.namesrv, send_timeout=1, async_retries=1) as producer:
        await producer.send(Message(topic, b"first"))
        futures = [await producer.submit(Message(topic, body)) for body in numbered(200)]
        await anyio.to_thread.run_sync(process.kill)
        ended = 0
        acknowledged = []
        for number, future in enumerate(futures):
            try:
                await future
                acknowledged.append(b"%d" % number)
            except (SendFailed, RemotingError):
                pass
            ended += 1
        await anyio.to_thread.run_sync(process.start)
    stored = {message.body for message in await place.stored(topic)}

    assert ended == 200
    assert set(acknowledged) <= stored


async def a_consumer_loses_nothing_when_the_broker_is_killed(process: Crashable) -> None:
    place = Place(process.namesrv, process.broker)
    topic = await place.topic("deliveries")
    seen: list[int] = []
    await place.send(topic, numbered(300))

    async with consumer_of(process.namesrv, topic, seen, pull_batch=4, concurrency=2):
        await until(lambda: len(seen) > 20)
        await _restart(process)
        await place.send(topic, numbered(50, start=300))
        await until(lambda: len(set(seen)) == 350, seconds=90)  # Apache's broker alone takes 20 s to come back

    assert set(seen) == set(range(350))


CRASHES: dict[str, Callable[[Crashable], Awaitable[None]]] = {
    crash.__name__: crash
    for crash in (
        every_acknowledged_message_survives_a_broker_killed_during_sends,
        asynchronous_sends_all_come_to_an_end_when_the_broker_is_killed,
        a_consumer_loses_nothing_when_the_broker_is_killed,
    )
}
