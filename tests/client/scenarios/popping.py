"""Simple consumers, and push consumers that pop: receive, acknowledge, more time, dead letters."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.client.place import PATIENCE, Place, numbered, until
from verniermq.client import Later, Message, PushConsumer, ReceivedMessage, SimpleConsumer
from verniermq.client.errors import ClientError, NoRoute


def _short(place: Place) -> float:
    """Seconds of being invisible that a scenario can wait for, and that are not over by accident."""
    return 60.0 if place.advance is not None else 2.0


def _simple(place: Place, topic: str, group: str | None = None, **options: Any) -> SimpleConsumer:
    made = SimpleConsumer(group or place.name("simple"), namesrv=place.namesrv, **{"start": "first", **options})
    made.subscribe(topic)
    return made


async def _receive(consumer: SimpleConsumer, count: int) -> list[ReceivedMessage]:
    got: list[ReceivedMessage] = []
    with anyio.fail_after(PATIENCE):
        while len(got) < count:
            got += await consumer.receive(min(count - len(got), 32), wait=5)
    return got


async def _come_again(place: Place, consumer: SimpleConsumer, count: int) -> list[ReceivedMessage]:
    """What comes again when the invisible time is over."""
    got: list[ReceivedMessage] = []
    with anyio.fail_after(PATIENCE):
        while len(got) < count:
            await place.pass_time(_short(place))
            got += await consumer.receive(32, wait=0.5)
    return got


async def a_simple_consumer_receives_everything_once(place: Place) -> None:
    topic = await place.topic("simple")
    group = place.name("simple")
    await place.send(topic, numbered(40), tags="t", keys=["k"])

    async with _simple(place, topic, group) as one, _simple(place, topic, group) as other:
        first, second = await _receive(one, 25), await _receive(other, 15)
        for message in first:
            await one.ack(message)
        for message in second:
            await other.ack(message)
        nothing = await one.receive(wait=0)

    assert sorted(int(message.body) for message in first + second) == list(range(40))
    assert {(message.topic, message.tags, tuple(message.keys)) for message in first} == {(topic, "t", ("k",))}
    assert nothing == []


async def what_is_not_acknowledged_comes_again(place: Place) -> None:
    topic = await place.topic("again")

    async with _simple(place, topic, invisible=_short(place)) as consumer:
        await place.send(topic, numbered(3))
        first = await _receive(consumer, 3)
        await consumer.ack(next(message for message in first if message.body == b"1"))
        second = await _come_again(place, consumer, 2)
        for message in second:
            await consumer.ack(message)
        third = await consumer.receive(wait=0)

    assert sorted(message.body for message in second) == [b"0", b"2"]
    assert {message.reconsume_times for message in second} == {1}
    assert {message.topic for message in second} == {topic}
    assert {message.message_id for message in second} < {message.message_id for message in first}
    assert third == []


async def the_invisible_time_can_be_changed(place: Place) -> None:
    topic = await place.topic("invisible", queues=1)
    await place.send(topic, numbered(2))

    async with _simple(place, topic, invisible=600) as consumer:
        first = await _receive(consumer, 2)
        keep, give_back = first
        await consumer.change_invisible(give_back, _short(place))
        await consumer.change_invisible(keep, 36000)
        (back,) = await _come_again(place, consumer, 1)
        await consumer.ack(back)
        await consumer.ack(keep)
        with pytest.raises(ClientError, match="was not received by popping"):
            await consumer.ack((await place.stored(topic))[0])

    assert back.body == give_back.body


async def waiting_ends_with_the_first_message(place: Place) -> None:
    topic, other = await place.topic("waits"), await place.topic("waits-too")
    got: list[ReceivedMessage] = []

    async with _simple(place, topic) as consumer:
        consumer.subscribe(other)

        async def wait() -> None:
            got.extend(await consumer.receive(wait=PATIENCE))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep(0.2)
            await place.send(other, [b"woken"])
            await until(lambda: len(got) == 1)
        await consumer.ack(got[0])

    assert [(message.topic, message.body) for message in got] == [(other, b"woken")]


async def only_wanted_tags_are_received(place: Place) -> None:
    topic = await place.topic("pop-tags", queues=1)
    for tag in ("paid", "new", "refunded"):
        await place.send(topic, [tag.encode()], tags=tag)

    async with SimpleConsumer(place.name("simple"), namesrv=place.namesrv, start="first") as consumer:
        consumer.subscribe(topic, "paid || refunded")
        got = await _receive(consumer, 2)
        for message in got:
            await consumer.ack(message)
        nothing = await consumer.receive(wait=0)

    assert sorted(message.body for message in got) == [b"paid", b"refunded"]
    assert nothing == []


async def a_message_becomes_a_dead_letter_after_max_attempts(place: Place) -> None:
    topic = await place.topic("buried", queues=1)
    group = place.name("simple")

    async with _simple(place, topic, group, invisible=_short(place), max_attempts=2) as consumer:
        await place.send(topic, [b"poison"])
        (first,) = await _receive(consumer, 1)
        (second,) = await _come_again(place, consumer, 1)
        dead: list[ReceivedMessage] = []
        with anyio.fail_after(PATIENCE):
            while not dead:
                await place.pass_time(_short(place))
                assert await consumer.receive(wait=0.2) == []
                try:
                    dead = await place.stored(f"%DLQ%{group}")
                except NoRoute:
                    dead = []

    assert (first.reconsume_times, second.reconsume_times) == (0, 1)
    assert [message.body for message in dead] == [b"poison"]


async def renewal_keeps_a_message_invisible(place: Place) -> None:
    topic = await place.topic("renewed", queues=1)
    group = place.name("simple")
    await place.send(topic, [b"slow"])

    async with (
        _simple(place, topic, group, invisible=9, auto_renew=True) as consumer,
        _simple(place, topic, group) as other,
    ):
        (slow,) = await _receive(consumer, 1)
        assert slow.receipt is not None
        before = slow.receipt.pop_time
        await until(lambda: slow.receipt is not None and slow.receipt.pop_time > before)
        nobody = await other.receive(wait=0)
        await consumer.ack(slow)
    assert nobody == []


async def a_topic_that_does_not_exist_is_named_when_receiving(place: Place) -> None:
    async with SimpleConsumer(place.name("simple"), namesrv=place.namesrv) as consumer:
        with pytest.raises(ClientError, match="subscribes to nothing"):
            await consumer.receive()
        consumer.subscribe("absent")
        with pytest.raises(NoRoute, match="topic 'absent' not found"):
            await consumer.receive(wait=0)
        with pytest.raises(ClientError, match="expected 1 to 32"):
            await consumer.receive(33)


async def a_receive_that_is_cancelled_loses_nothing(place: Place) -> None:
    topic = await place.topic("cancelled", queues=1)
    await place.send(topic, numbered(30))

    async with _simple(place, topic, invisible=600) as consumer:
        got: list[ReceivedMessage] = []
        for number in range(20):
            with anyio.move_on_after(0.0005 * number):
                got += await consumer.receive(1, wait=5)
        missing = 30 - len(got)
        got += await _come_again(place, consumer, missing)
        for message in got:
            await consumer.ack(message)

    assert sorted(int(message.body) for message in got) == list(range(30))


async def a_new_group_begins_at_the_end_and_stays_there(place: Place) -> None:
    topic = await place.topic("pop-end", queues=2)
    other = await place.topic("pop-end-too")
    group = place.name("simple")
    # Enough that the queue does not count as new.
    async with place.producer() as producer:
        await producer.send(Message(topic, b"old"))

    async with SimpleConsumer(group, namesrv=place.namesrv) as consumer:
        consumer.subscribe(topic)
        consumer.subscribe(other)
        first = await consumer.receive(32, wait=0)
        for message in first:
            await consumer.ack(message)
    await place.send(topic, numbered(4))
    async with SimpleConsumer(group, namesrv=place.namesrv) as consumer:
        consumer.subscribe(topic)
        consumer.subscribe(other)
        got = await _receive(consumer, 4)
        for message in got:
            await consumer.ack(message)

    assert sorted(message.body for message in got) == numbered(4)


async def a_popping_push_consumer_handles_everything(place: Place) -> None:
    topic = await place.topic("push-pop")
    group = place.name("popping")
    got: list[bytes] = []

    def consumer() -> PushConsumer:
        made = PushConsumer(group, namesrv=place.namesrv, mode="pop", start="first", concurrency=8)
        made.subscribe(topic)

        @made.on_message
        async def handle(message: ReceivedMessage) -> None:
            got.append(message.body)

        return made

    async with consumer(), consumer():
        await place.send(topic, numbered(100))
        await until(lambda: len(got) >= 100)
    async with _simple(place, topic, group) as after:
        rest = await after.receive(wait=0)

    assert sorted(int(body) for body in got) == list(range(100))
    assert rest == []


async def what_a_popping_handler_fails_comes_again_and_dies(place: Place) -> None:
    topic = await place.topic("push-pop-fails", queues=1)
    group = place.name("popping")
    times: list[int] = []
    consumer = PushConsumer(group, namesrv=place.namesrv, mode="pop", start="first", max_reconsume_times=1)
    consumer.subscribe(topic)

    @consumer.on_message
    async def handle(message: ReceivedMessage) -> Later:
        times.append(message.reconsume_times)
        return Later(delay_level=1, reason="not today")

    dead: list[ReceivedMessage] = []
    async with consumer:
        await place.send(topic, [b"bad"])
        with anyio.fail_after(PATIENCE):
            while not dead:
                await place.pass_time(1)
                try:
                    dead = await place.stored(f"%DLQ%{group}")
                except NoRoute:
                    dead = []

    assert times == [0, 1]
    assert [message.body for message in dead] == [b"bad"]


async def a_popping_consumer_that_closes_gives_back_what_no_handler_saw(place: Place) -> None:
    topic = await place.topic("push-pop-close", queues=1)
    group = place.name("popping")
    seen: list[bytes] = []
    await place.send(topic, numbered(6))

    consumer = PushConsumer(group, namesrv=place.namesrv, mode="pop", start="first", concurrency=1, batch_size=1)
    consumer.subscribe(topic)
    async with consumer:
        async for message in consumer:
            seen.append(message.body)
            if len(seen) == 2:
                break
    async with _simple(place, topic, group) as after:
        rest = await _come_again(place, after, 4)
        for message in rest:
            await after.ack(message)

    assert sorted([*seen, *(message.body for message in rest)]) == numbered(6)


async def popping_goes_without_order_and_broadcasting(place: Place) -> None:
    with pytest.raises(ClientError, match="no order and no broadcasting"):
        PushConsumer("g", mode="pop", orderly=True)
    with pytest.raises(ClientError, match="expected 'pull' or 'pop'"):
        PushConsumer("g", mode="peek")  # type: ignore[arg-type]
