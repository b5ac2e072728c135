"""Pull and lite pull: B3, B4."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from tests.client.place import Place, numbered, until
from verniermq.client import LitePullConsumer, PullConsumer, PullStatus, ReceivedMessage
from verniermq.client.errors import ClientError, NoRoute


def _lite(place: Place, group: str | None = None, **options: Any) -> LitePullConsumer:
    return LitePullConsumer(group or place.name("lite"), namesrv=place.namesrv, **{"start": "first", **options})


async def any_queue_can_be_read_at_any_offset(place: Place) -> None:
    topic = await place.topic("pull", queues=1)
    await place.send(topic, numbered(10))

    async with PullConsumer(place.name("pullers"), namesrv=place.namesrv) as consumer:
        (queue,) = await consumer.queues(topic)
        middle = await consumer.pull(queue, 4, max_messages=3)
        end = await consumer.pull(queue, 10)
        beyond = await consumer.pull(queue, 99)
        bounds = await consumer.min_offset(queue), await consumer.max_offset(queue)

    assert [message.body for message in middle.messages] == [b"4", b"5", b"6"]
    assert middle.next_offset == 7
    assert end.status is PullStatus.NO_NEW_MESSAGE
    assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, 10)
    assert bounds == (0, 10)


async def a_waiting_pull_is_woken_by_a_message(place: Place) -> None:
    topic = await place.topic("wait", queues=1)
    results = []

    async with PullConsumer(namesrv=place.namesrv) as consumer:
        (queue,) = await consumer.queues(topic)

        async def wait() -> None:
            results.append(await consumer.pull(queue, 0, wait=25))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep(0.1)
            await place.send(topic, [b"woken"])
            await until(lambda: len(results) == 1, seconds=20)

    assert [message.body for message in results[0].messages] == [b"woken"]


async def offsets_are_committed_and_found_by_time(place: Place) -> None:
    topic = await place.topic("places", queues=1)
    await place.send(topic, numbered(3))
    middle = datetime.fromtimestamp(await place.now_ms(topic) / 1000, UTC)
    await place.send(topic, numbered(3))

    async with PullConsumer(place.name("pullers"), namesrv=place.namesrv) as consumer:
        (queue,) = await consumer.queues(topic)
        before = await consumer.committed(queue)
        await consumer.commit(queue, 5)
        after = await consumer.committed(queue)
        by_time = await consumer.offset_at(queue, middle)

    assert (before, after, by_time) == (None, 5, 3)


async def a_topic_that_is_not_there_is_named(place: Place) -> None:
    async with PullConsumer(namesrv=place.namesrv) as consumer:
        with pytest.raises(NoRoute, match=r"topic 'absent' not found at .*; create it with: verniermq topic create"):
            await consumer.queues("absent")


async def polling_hands_out_everything_once(place: Place) -> None:
    topic = await place.topic("poll")
    await place.send(topic, numbered(50))
    got: list[ReceivedMessage] = []
    group = place.name("lite")

    async with _lite(place, group) as consumer:
        consumer.subscribe(topic)
        while len(got) < 50:
            polled = await consumer.poll(timeout=30, max_messages=7)
            assert 0 < len(polled) <= 7
            got += polled
        nothing = await consumer.poll(timeout=0.1)
    async with _lite(place, group) as again:
        again.subscribe(topic)
        rest = await again.poll(timeout=0.5)

    assert sorted(int(message.body) for message in got) == list(range(50))
    assert nothing == []
    assert rest == []


async def assigned_queues_are_read_and_sought(place: Place) -> None:
    topic = await place.topic("assign", queues=2)
    await place.send(topic, numbered(20))

    async with _lite(place) as consumer:
        first, _ = await consumer.queues(topic)
        await consumer.assign([first])
        ahead = await _poll(consumer, 10)
        await consumer.seek(first, 8)
        sought = await _poll(consumer, 2)
        await consumer.seek_to_begin(first)
        begin = await _poll(consumer, 10)
        with pytest.raises(ClientError, match="no offset 99"):
            await consumer.seek(first, 99)
        with pytest.raises(ClientError, match="either assign or subscribe"):
            consumer.subscribe(topic)

    assert {message.queue for message in ahead} == {first}
    assert [message.queue_offset for message in ahead] == list(range(10))
    assert [message.queue_offset for message in sought] == [8, 9]
    assert [message.queue_offset for message in begin] == list(range(10))


async def a_paused_queue_is_not_handed_out(place: Place) -> None:
    topic = await place.topic("lite-pause", queues=1)

    async with _lite(place) as consumer:
        (queue,) = await consumer.queues(topic)
        await consumer.assign([queue])
        consumer.pause(queue)
        await place.send(topic, numbered(3))
        paused = await consumer.poll(timeout=0.4)
        consumer.resume(queue)
        resumed = await _poll(consumer, 3)

    assert paused == []
    assert [message.body for message in resumed] == numbered(3)


async def without_auto_commit_only_commit_saves(place: Place) -> None:
    topic = await place.topic("manual", queues=1)
    group = place.name("lite")
    await place.send(topic, numbered(10))

    async with _lite(place, group, auto_commit=False) as consumer:
        consumer.subscribe(topic)
        first = await _poll(consumer, 4)
        await consumer.commit()
        second = await _poll(consumer, 3)
    async with _lite(place, group) as again:
        again.subscribe(topic)
        rest = await _poll(again, 6)

    assert [message.body for message in first + second] == numbered(7)
    assert [message.body for message in rest] == numbered(6, start=4)


async def lite_pull_consumers_share_a_topic(place: Place) -> None:
    topic = await place.topic("lite-share", queues=4)
    group = place.name("lite")

    async with _lite(place, group) as first, _lite(place, group) as second:
        first.subscribe(topic)
        second.subscribe(topic)
        await until(lambda: len(first.assignment) == 2 and len(second.assignment) == 2)
        await place.send(topic, numbered(40))
        mine, theirs = await _poll(first, 20), await _poll(second, 20)

    assert sorted(int(message.body) for message in mine + theirs) == list(range(40))


async def _poll(consumer: LitePullConsumer, count: int) -> list[ReceivedMessage]:
    got: list[ReceivedMessage] = []
    with anyio.fail_after(30):
        while len(got) < count:
            got += await consumer.poll(timeout=5, max_messages=count - len(got))
    return got
