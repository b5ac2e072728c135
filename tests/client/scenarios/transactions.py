"""Transactions: A11, C3."""

from __future__ import annotations

import anyio
import pytest

from tests.client.place import Place, eventually, until
from verniermq.client import (
    Message,
    PushConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from verniermq.client.errors import BadOutcome, ClientError


class _Reader:
    """What consumers get to see of a topic."""

    def __init__(self, place: Place, topic: str) -> None:
        self.bodies: list[bytes] = []
        self.consumer = PushConsumer(place.name("readers"), namesrv=place.namesrv, start="first")
        self.consumer.subscribe(topic)

        @self.consumer.on_message
        async def take(message: ReceivedMessage) -> None:
            self.bodies.append(message.body)


def _producer(place: Place, state: TransactionState = TransactionState.UNKNOWN) -> TransactionProducer:
    return TransactionProducer(place.name("tx"), namesrv=place.namesrv, checker=lambda message: state)


async def a_committed_message_is_seen_and_not_before(place: Place) -> None:
    topic = await place.topic("commit")
    reader = _Reader(place, topic)

    async with reader.consumer, _producer(place) as producer:
        async with producer.transaction(Message(topic, b"paid", keys=["K"])) as transaction:
            assert transaction.id
            await anyio.sleep(0.3)
            before = list(reader.bodies)
        await until(lambda: reader.bodies == [b"paid"])

    assert before == []


async def an_exception_rolls_back(place: Place) -> None:
    topic = await place.topic("rollback")
    reader = _Reader(place, topic)

    async with reader.consumer, _producer(place) as producer:
        with pytest.raises(ValueError, match="no money"):
            async with producer.transaction(Message(topic, b"lost")):
                raise ValueError("no money")
        async with producer.transaction(Message(topic, b"also lost")) as transaction:
            transaction.rollback()
        async with producer.transaction(Message(topic, b"kept")):
            pass
        await until(lambda: b"kept" in reader.bodies)

    assert reader.bodies == [b"kept"]


async def the_local_transaction_runs_after_the_message_is_stored(place: Place) -> None:
    topic = await place.topic("local")
    reader = _Reader(place, topic)
    ran: list[tuple[bytes, str]] = []

    def local(message: Message, transaction_id: str) -> TransactionState:
        ran.append((message.body, transaction_id))
        return TransactionState.COMMIT

    async with reader.consumer, _producer(place) as producer:
        result, state = await producer.send_in_transaction(Message(topic, b"both"), local)
        await until(lambda: reader.bodies == [b"both"])

    assert state is TransactionState.COMMIT
    assert ran == [(b"both", result.transaction_id)]
    assert result.transaction_id == result.message_id


async def an_open_transaction_is_asked_about(place: Place) -> None:
    topic = await place.topic("asked")
    reader = _Reader(place, topic)
    asked: list[ReceivedMessage] = []
    producer = TransactionProducer(place.name("tx"), namesrv=place.namesrv)

    @producer.on_check
    async def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message)
        return TransactionState.COMMIT if message.keys == ["good"] else TransactionState.ROLLBACK

    async with reader.consumer, producer:
        for key in ("bad", "good"):
            async with producer.transaction(Message(topic, key.encode(), keys=[key])) as transaction:
                transaction.unknown()
        await _until_checked(place, lambda: b"good" in reader.bodies)

    # A broker may ask again before it has noted the answer, and a commit then delivers again.
    assert set(reader.bodies) == {b"good"}
    assert {message.body for message in asked} == {b"bad", b"good"}
    assert {message.topic for message in asked} == {topic}


async def a_fellow_answers_for_a_dead_producer(place: Place) -> None:
    topic = await place.topic("fellow")
    reader = _Reader(place, topic)
    group = place.name("tx")
    dead = TransactionProducer(group, namesrv=place.namesrv, checker=lambda message: TransactionState.UNKNOWN)
    fellow = TransactionProducer(group, namesrv=place.namesrv, checker=lambda message: TransactionState.COMMIT)

    async with reader.consumer:
        async with dead, dead.transaction(Message(topic, b"orphan")) as transaction:
            transaction.unknown()
        async with fellow:
            await fellow.queues(topic)
            await _until_checked(place, lambda: b"orphan" in reader.bodies)


async def a_producer_without_a_checker_does_not_start(place: Place) -> None:
    with pytest.raises(ClientError, match="has no checker"):
        await TransactionProducer("tx", namesrv=place.namesrv).start()


async def _until_checked(place: Place, condition: object) -> None:
    """Let the broker's checks come round."""
    assert callable(condition)
    with anyio.fail_after(100):
        while not condition():
            await place.pass_time(3)
            await anyio.sleep(0.1)


async def a_transaction_has_its_queue_and_its_arguments(place: Place) -> None:
    topic = await place.topic("chosen")
    given: list[tuple[object, ...]] = []

    def local(message: Message, transaction_id: str, *arguments: object) -> TransactionState:
        given.append(arguments)
        return TransactionState.COMMIT

    async with _producer(place) as producer:
        queue = (await producer.queues(topic))[2]
        result, state = await producer.send_in_transaction(Message(topic, b"by queue"), local, 7, "euro", queue=queue)
        async with producer.transaction(Message(topic, b"by key"), sharding_key="order-1"):
            pass
        async with producer.transaction(Message(topic, b"also by key"), sharding_key="order-1"):
            pass
        stored = await eventually(lambda: place.stored(topic), lambda messages: len(messages) == 3)

    found = {message.body: message.queue.queue_id for message in stored}
    assert (given, state, result.queue.topic) == ([(7, "euro")], TransactionState.COMMIT, topic)
    assert found[b"by queue"] == 2
    assert found[b"by key"] == found[b"also by key"]


async def a_local_transaction_that_answers_nonsense_is_told_so(place: Place) -> None:
    topic = await place.topic("nonsense")

    async with _producer(place) as producer:
        with pytest.raises(
            BadOutcome, match=r"'COMMIT_MESSAGE' \(Java's COMMIT_MESSAGE: return TransactionState.COMMIT\)"
        ):
            await producer.send_in_transaction(Message(topic, b"x"), lambda message, _id: "COMMIT_MESSAGE")
        with pytest.raises(BadOutcome, match="returned True; expected"):
            await producer.send_in_transaction(Message(topic, b"x"), lambda message, _id: True)
