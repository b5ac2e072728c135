"""Sharing queues: B7. Groups of 1, 2 and 5 members over 8 queues, with members that join, leave and die."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest

from tests.client.place import Place, numbered, until
from verniermq.client import Message, PushConsumer, ReceivedMessage
from verniermq.client.errors import ClientError


class _Group:
    """Members of one group, and everything they consumed."""

    def __init__(self, place: Place, topic: str, **options: Any) -> None:
        self.place, self.topic, self.options = place, topic, options
        self.name = place.name("sharers")
        self.seen: Counter[int] = Counter()
        self.members: list[PushConsumer] = []

    async def join(self) -> PushConsumer:
        consumer = PushConsumer(self.name, namesrv=self.place.namesrv, start="first", **self.options)
        consumer.subscribe(self.topic)

        @consumer.on_message
        async def take(message: ReceivedMessage) -> None:
            self.seen[int(message.body)] += 1

        await consumer.start()
        self.members.append(consumer)
        return consumer

    async def leave(self) -> None:
        await self.members.pop().close()

    async def die(self) -> None:
        """What a crash looks like to everybody else: connections cut, nothing said."""
        dying = self.members.pop()
        for address in dying._pool.connected():
            connection = dying._pool.live(address)
            assert connection is not None
            connection.abort()
        await dying._end()

    async def close(self) -> None:
        while self.members:
            await self.leave()

    def is_even(self) -> bool:
        shares = [member.assignment for member in self.members]
        everything = [queue for share in shares for queue in share]
        sizes = [len(share) for share in shares]
        return len(everything) == len(set(everything)) == 8 and max(sizes) - min(sizes) <= 1


async def a_group_of_any_size_shares_the_queues_evenly(place: Place) -> None:
    topic = await place.topic("share", queues=8)
    group = _Group(place, topic)
    sent = 0

    async with place.producer() as producer:

        async def send(count: int) -> None:
            nonlocal sent
            for body in numbered(count, start=sent):
                await producer.send(Message(topic, body))
            sent += count

        for size in (1, 2, 5):
            while len(group.members) < size:
                await group.join()
            await until(group.is_even)
            await send(80)
        await group.leave()
        await until(group.is_even)
        await send(80)
        await group.die()
        await until(group.is_even)
        await send(80)
        await until(lambda: len(group.seen) == sent)
        repeats = sum(group.seen.values()) - sent
    await group.close()

    assert sorted(group.seen) == list(range(sent))
    # At least once: only what was in hand when a queue changed its owner may have come twice.
    assert repeats <= 64


async def queues_can_be_shared_by_another_strategy(place: Place) -> None:
    topic = await place.topic("circle", queues=8)
    group = _Group(place, topic, allocate="AVG_BY_CIRCLE")

    first, second = await group.join(), await group.join()
    await until(group.is_even)
    shares = sorted(sorted(queue.queue_id for queue in member.assignment) for member in (first, second))
    await group.close()

    assert shares == [[0, 2, 4, 6], [1, 3, 5, 7]]


async def a_strategy_that_nobody_knows_is_an_error_at_the_start(place: Place) -> None:
    topic = await place.topic("unknown")
    group = _Group(place, topic, allocate="AVERAGE")

    with pytest.raises(ClientError, match="AVG"):
        await group.join()


async def new_queues_of_a_topic_are_taken(place: Place) -> None:
    from verniermq.client import Admin

    topic = await place.topic("grow", queues=2)
    group = _Group(place, topic, route_interval=0.2)

    await group.join()
    await until(lambda: len(group.members[0].assignment) == 2)
    async with Admin(namesrv=place.namesrv) as admin:
        await admin.create_topic(topic, queues=6)
    await until(lambda: len(group.members[0].assignment) == 6)
    async with place.producer() as producer:
        for body in numbered(12):
            await producer.send(Message(topic, body))
    with anyio.fail_after(30):
        await until(lambda: len(group.seen) == 12)
    await group.close()
