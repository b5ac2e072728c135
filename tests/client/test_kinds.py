"""Kinds of messages as the client sends them: delays inside transactions, recall, the limits of retries."""

from __future__ import annotations

import pytest

from tests.client.place import Place, eventually, until
from verniermq.client import (
    Admin,
    Later,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from verniermq.client.errors import BadMessage
from verniermq.kernel import UnexpectedAnswer

pytestmark = pytest.mark.anyio


async def test_the_delay_of_a_transaction_begins_with_its_commit(place: Place) -> None:
    topic = await place.topic("delayed-transaction")
    producer = TransactionProducer(
        place.name("tx"), namesrv=place.namesrv, checker=lambda message: TransactionState.UNKNOWN
    )
    async with producer:
        async with producer.transaction(Message(topic, b"later", delay_level=4)):  # 30 s
            await place.pass_time(40)
        await place.pass_time(20)
        assert await place.stored(topic) == []

        await place.pass_time(15)
        (message,) = await eventually(lambda: place.stored(topic))

    assert (message.body, message.delay_level) == (b"later", 4)


async def test_a_message_with_a_delivery_time_can_be_taken_back(place: Place) -> None:
    topic = await place.topic("recalled")
    later = {"TIMER_DELAY_SEC": "60"}
    async with place.producer() as producer:
        kept = await producer.send(Message(topic, b"kept", properties=dict(later)))
        by_result = await producer.send(Message(topic, b"back", properties=dict(later)))
        by_handle = await producer.send(Message(topic, b"back too", properties=dict(later)))
        at_once = await producer.send(Message(place.name("other"), b"not delayed"))

        assert await producer.recall(by_result) == by_result.message_id
        assert await producer.recall(by_handle.recall_handle) == by_handle.message_id
        with pytest.raises(BadMessage, match="TIMER_DELAY_MS"):
            await producer.recall(at_once)
        with pytest.raises(BadMessage, match="'xyz' is no recall handle"):
            await producer.recall("xyz")
        await place.pass_time(62)
        stored = await eventually(lambda: place.stored(topic))
        with pytest.raises(UnexpectedAnswer, match="too late"):
            await producer.recall(kept)

    assert [message.body for message in stored] == [b"kept"]


async def test_without_a_limit_of_its_own_a_consumer_follows_the_groups(place: Place) -> None:
    topic, group = await place.topic("limits"), place.name("limited")
    seen: list[int] = []

    async with Admin(namesrv=place.namesrv) as admin:
        await admin.create_group(group, max_reconsume_times=1)
        consumer = PushConsumer(group, namesrv=place.namesrv, start="first")
        consumer.subscribe(topic)

        @consumer.on_message
        async def take(message: ReceivedMessage) -> Later:
            seen.append(message.reconsume_times)
            return Later(delay_level=1)

        await place.send(topic, [b"x"])
        async with consumer:
            await until(lambda: consumer._service.retried == 1)  # type: ignore[union-attr] # the broker has it back
            await place.pass_time(2)
            letters = await eventually(lambda: admin.dead_letters(group))

    assert (seen, [letter.body for letter in letters]) == ([0, 1], [b"x"])


async def test_the_delay_level_of_a_message_can_be_read(place: Place) -> None:
    topic = await place.topic("level")
    async with Producer("senders", namesrv=place.namesrv) as producer:
        await producer.send(Message(topic, b"delayed", delay_level=1))
        await producer.send(Message(topic, b"plain"))
        await place.pass_time(2)
        stored = await eventually(lambda: place.stored(topic), lambda messages: len(messages) == 2)

    assert {message.body: message.delay_level for message in stored} == {b"delayed": 1, b"plain": 0}
