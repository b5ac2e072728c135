"""Consuming in order: B2, B11."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import anyio
import anyio.lowlevel

from tests.client.place import Place, eventually, numbered, until
from verniermq.client import Admin, Later, Message, PushConsumer, ReceivedMessage


def _consumer(place: Place, group: str | None = None, **options: Any) -> PushConsumer:
    return PushConsumer(group or place.name("order"), namesrv=place.namesrv, orderly=True, start="first", **options)


async def messages_of_a_queue_come_in_order(place: Place) -> None:
    topic = await place.topic("ordered", queues=4)
    consumer = _consumer(place)
    consumer.subscribe(topic)
    seen: dict[str, list[int]] = defaultdict(list)

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        await anyio.sleep(0.001 * (int(message.body) % 3))
        seen[message.properties["__SHARDINGKEY"]].append(int(message.body))

    async with place.producer() as producer:
        for number in range(60):
            await producer.send(Message(topic, b"%d" % number), sharding_key=str(number % 6))
    async with consumer:
        await until(lambda: sum(map(len, seen.values())) == 60)

    assert {key: sorted(bodies) == bodies for key, bodies in seen.items()} == {str(key): True for key in range(6)}


async def a_failed_message_is_tried_again_before_the_next(place: Place) -> None:
    topic = await place.topic("in-place", queues=1)
    consumer = _consumer(place, suspend=0.05)
    consumer.subscribe(topic)
    seen: list[tuple[bytes, int]] = []

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"1" and message.reconsume_times < 2:
            raise ValueError("not yet")

    await place.send(topic, numbered(3))
    async with consumer:
        await until(lambda: (b"2", 0) in seen)

    assert seen == [(b"0", 0), (b"1", 0), (b"1", 1), (b"1", 2), (b"2", 0)]


async def a_handler_says_how_long_its_queue_waits(place: Place) -> None:
    topic = await place.topic("waits", queues=1)
    consumer = _consumer(place, suspend=1000)
    consumer.subscribe(topic)
    seen: list[int] = []

    @consumer.on_message
    async def take(message: ReceivedMessage) -> Later | None:
        seen.append(message.reconsume_times)
        return Later(seconds=0.05) if not message.reconsume_times else None

    await place.send(topic, [b"x"])
    async with consumer:
        await until(lambda: seen == [0, 1])


async def a_message_in_order_that_fails_too_often_is_buried(place: Place) -> None:
    topic = await place.topic("bury", queues=1)
    consumer = _consumer(place, suspend=0.02, max_reconsume_times=2)
    consumer.subscribe(topic)
    seen: list[bytes] = []

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"0":
            raise ValueError("never")

    await place.send(topic, numbered(2))
    async with consumer, Admin(namesrv=place.namesrv) as admin:
        await until(lambda: b"1" in seen)
        letters = await eventually(lambda: admin.dead_letters(consumer.group))

    assert seen == [b"0", b"0", b"0", b"1"]
    assert [letter.body for letter in letters] == [b"0"]


async def order_is_kept_when_members_come_and_go(place: Place) -> None:
    topic = await place.topic("handover", queues=4)
    group = place.name("order")
    seen: dict[int, list[int]] = defaultdict(list)

    def member() -> PushConsumer:
        consumer = _consumer(place, group)
        consumer.subscribe(topic)

        @consumer.on_message
        async def take(message: ReceivedMessage) -> None:
            await anyio.sleep(0.002)
            seen[message.queue.queue_id].append(message.queue_offset)

        return consumer

    async with place.producer() as producer:
        for number in range(400):
            await producer.send(Message(topic, b"%d" % number))
    async with member() as first:
        await until(lambda: sum(map(len, seen.values())) > 50)
        async with member() as second:
            await until(lambda: len(first.assignment) == 2 and len(second.assignment) == 2)
            await until(lambda: sum(map(len, seen.values())) > 250)
        await until(lambda: all(len(set(offsets)) == 100 for offsets in seen.values()) and len(seen) == 4)

    for offsets in seen.values():
        # A repeat may begin again a little earlier, but nothing is ever skipped, and nothing overtakes.
        reached = -1
        for offset in offsets:
            assert offset <= reached + 1
            reached = max(reached, offset)


async def one_queue_is_a_global_order(place: Place) -> None:
    topic = await place.topic("global", queues=1)
    consumer = _consumer(place, concurrency=8)
    consumer.subscribe(topic)
    seen: list[int] = []

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(int(message.body))

    await place.send(topic, numbered(80))
    async with consumer:
        await until(lambda: len(seen) == 80)

    assert seen == list(range(80))
