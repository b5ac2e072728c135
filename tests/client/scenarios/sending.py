"""Sending: A1 to A5, A7 to A10, A12."""

from __future__ import annotations

import pytest

from tests.client.place import Place, numbered, until
from verniermq.client import (
    Admin,
    Message,
    MessageQueue,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    SendStatus,
)
from verniermq.client.batch import split
from verniermq.client.compression import FLAGS
from verniermq.client.errors import BadBatch, BadMessage, MessageTooLarge, NoReply, NotWritable, SendFailed
from verniermq.kernel import BadName, NoPermission, SysFlag, UnexpectedAnswer
from verniermq.kernel.traffic import Sending


async def a_message_arrives_as_it_was_sent(place: Place) -> None:
    topic = await place.topic("whole")
    properties = {"price": "10", "who": "Jürgen"}
    message = Message(topic, "Grüße 订单".encode(), tags="paid", keys=["K1", "K2"], properties=properties, flag=7)

    async with place.producer() as producer:
        result = await producer.send(message)
    (stored,) = await place.stored(topic)

    assert result.status is SendStatus.SEND_OK
    assert result.stored_as_wished
    assert stored.body == message.body
    assert (stored.tags, stored.keys, stored.flag) == ("paid", ["K1", "K2"], 7)
    assert stored.properties["price"] == "10"
    assert stored.properties["who"] == "Jürgen"
    assert stored.message_id == result.message_id
    assert stored.offset_message_id == result.offset_message_id
    assert (stored.queue, stored.queue_offset) == (result.queue, result.queue_offset)


async def messages_go_round_the_queues(place: Place) -> None:
    topic = await place.topic("round", queues=4)

    async with place.producer() as producer:
        results = [await producer.send(Message(topic, body)) for body in numbered(8)]

    assert [result.queue.queue_id for result in results[:4]] != [results[0].queue.queue_id] * 4
    assert sorted(result.queue.queue_id for result in results) == [0, 0, 1, 1, 2, 2, 3, 3]


async def the_first_message_creates_its_topic(place: Place) -> None:
    topic = place.name("made")

    async with place.producer(default_queues=3) as producer, Admin(namesrv=place.namesrv) as admin:
        await producer.send(Message(topic, b"first"))
        await producer.send(Message(topic, b"second"))
        info = await admin.topic(topic)

    assert info.queues == 3
    assert sorted(message.body for message in await place.stored(topic)) == [b"first", b"second"]


async def many_messages_are_under_way_at_a_time(place: Place) -> None:
    topic = await place.topic("flight")
    called: list[SendResult | None] = []

    async with place.producer(max_in_flight=50) as producer:
        futures = [
            await producer.submit(Message(topic, body), callback=lambda result, error: called.append(result))
            for body in numbered(300)
        ]
        await producer.flush()
        results = [await future for future in futures]

    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert len({result.message_id for result in results}) == 300
    assert len(called) == 300
    assert len(await place.stored(topic)) == 300


async def an_asynchronous_send_reports_its_error_by_the_future(place: Place) -> None:
    topic = await place.topic("refused", queues=1)
    outside = MessageQueue(topic, (await _queue(place, topic)).broker_name, 99)
    heard: list[BaseException | None] = []

    async with place.producer() as producer:
        future = await producer.submit(
            Message(topic, b"nowhere"), queue=outside, callback=lambda result, error: heard.append(error)
        )
        with pytest.raises(UnexpectedAnswer) as caught:
            await future

    assert heard == [caught.value]


async def a_one_way_message_arrives(place: Place) -> None:
    topic = await place.topic("oneway")

    async with place.producer() as producer:
        for body in numbered(20):
            await producer.send_oneway(Message(topic, body))
        await producer.send(Message(topic, b"end"))
    bodies = {message.body for message in await place.stored(topic)}

    assert bodies == {*numbered(20), b"end"}


async def a_batch_lies_in_one_queue_in_order(place: Place) -> None:
    topic = await place.topic("batch")

    async with place.producer() as producer:
        result = await producer.send_batch([Message(topic, body, tags=f"t{body.decode()}") for body in numbered(10)])
    stored = await place.stored(topic)

    assert [message.body for message in stored] == numbered(10)
    assert [message.queue_offset for message in stored] == list(range(10))
    assert [message.tags for message in stored] == [f"t{number}" for number in range(10)]
    assert result.message_id.split(",") == [message.message_id for message in stored]
    assert {message.queue for message in stored} == {result.queue}


async def a_long_list_is_cut_into_legal_batches(place: Place) -> None:
    topic = await place.topic("long")
    messages = [Message(topic, b"x" * 1000, keys=[str(number)]) for number in range(300)]

    async with place.producer() as producer:
        results = await producer.send_all(messages, batch_bytes=64 * 1024)

    assert len(results) == len(list(split(messages, 64 * 1024))) > 3
    assert {message.keys[0] for message in await place.stored(topic)} == {str(number) for number in range(300)}


async def of_a_list_the_message_that_is_too_large_is_named_and_none_is_sent(place: Place) -> None:
    topic = await place.topic("large")
    messages = [Message(topic, b"small"), Message(topic, b"x" * 5000), Message(topic, b"small")]

    async with place.producer(max_message_size=4096) as producer:
        with pytest.raises(MessageTooLarge) as caught:
            await producer.send_all(messages)

    assert caught.value.index == 1
    assert await place.stored(topic) == []


async def a_message_too_large_for_a_batch_is_sent_with_the_list(place: Place) -> None:
    topic = await place.topic("legal")
    sizes = [10, 1_200_000, 3_000_000, 10, 10]

    async with place.producer(send_timeout=20, compress_over=0) as producer:
        results = await producer.send_all([Message(topic, b"x" * size) for size in sizes])

    assert len(results) == 4
    assert sorted(len(message.body) for message in await place.stored(topic)) == sorted(sizes)


async def a_batch_that_may_not_be_one_is_refused_with_the_reason(place: Place) -> None:
    topic = await place.topic("mixed")

    async with place.producer() as producer:
        for second, why in (
            (Message("another", b"b"), "another"),
            (Message(topic, b"b", delay_level=3), "delayed"),
            (Message(topic, b"b", wait_store_ok=False), "wait_store_ok"),
            (Message(topic, b"b", properties={"TRAN_MSG": "true"}), "transaction"),
        ):
            with pytest.raises(BadBatch, match=f"message 1 .*{why}"):
                await producer.send_batch([Message(topic, b"a"), second])

    assert await place.stored(topic) == []


async def messages_of_one_sharding_key_keep_their_order(place: Place) -> None:
    topic = await place.topic("sharded", queues=4)

    async with place.producer() as producer:
        for number in range(40):
            await producer.send(Message(topic, b"%d" % number), sharding_key=f"order-{number % 5}")
    stored = await place.stored(topic)

    for key in range(5):
        mine = [message for message in stored if message.properties["__SHARDINGKEY"] == f"order-{key}"]
        assert [int(message.body) for message in mine] == list(range(key, 40, 5))
        assert len({message.queue for message in mine}) == 1


async def a_selector_chooses_the_queue(place: Place) -> None:
    topic = await place.topic("chosen", queues=4)

    async with place.producer() as producer:
        results = [
            await producer.send(Message(topic, b"x", flag=n), selector=lambda queues, message: queues[message.flag])
            for n in range(4)
        ]
        to_last = await producer.send(Message(topic, b"y"), queue=(await producer.queues(topic))[3])

    assert [result.queue.queue_id for result in results] == [0, 1, 2, 3]
    assert to_last.queue.queue_id == 3


async def a_large_body_travels_compressed(place: Place) -> None:
    topic = await place.topic("compressed")
    body = b"compress me " * 1000

    async with place.producer() as producer:
        await producer.send(Message(topic, body))
        await producer.send(Message(topic, b"short"))
    large, short = sorted(await place.stored(topic), key=lambda message: -message.size)

    assert large.sys_flag & SysFlag.COMPRESSED
    assert large.size < len(body) / 10
    assert large.body == body
    assert not short.sys_flag & SysFlag.COMPRESSED


async def a_body_travels_in_every_kind_of_compression(place: Place) -> None:
    topic = await place.topic("kinds-of-compression", queues=1)
    body = b"compress me " * 1000

    for kind in FLAGS:
        async with place.producer(compression=kind) as producer:
            await producer.send(Message(topic, body, keys=[kind]))
            await (await producer.submit(Message(topic, body, keys=[kind])))
    stored = await place.stored(topic)

    assert [message.keys for message in stored] == [[kind] for kind in FLAGS for _ in range(2)]
    for message in stored:
        assert message.sys_flag & FLAGS[message.keys[0]] == FLAGS[message.keys[0]]  # type: ignore[index]
        assert message.size < len(body) / 10
        assert message.body == body


async def a_namespace_keeps_names_apart(place: Place) -> None:
    plain = place.name("shared")
    got: list[ReceivedMessage] = []
    consumer = PushConsumer(place.name("readers"), namesrv=place.namesrv, namespace="ns1", start="first")
    consumer.subscribe(plain)

    @consumer.on_message
    async def take(message: ReceivedMessage) -> None:
        got.append(message)

    async with place.producer(namespace="ns1") as inside, place.producer() as outside:
        await inside.send(Message(plain, b"inside"))
        await outside.send(Message(plain, b"outside"))
        async with consumer:
            await until(lambda: len(got) == 1)

    assert [(message.topic, message.body) for message in got] == [(plain, b"inside")]
    assert [message.body for message in await place.stored(f"ns1%{plain}")] == [b"inside"]


async def hooks_run_before_and_after_a_send(place: Place) -> None:
    topic = await place.topic("hooked")
    seen: list[tuple[str, Sending]] = []
    producer = place.producer()

    @producer.before_send
    def stamp(sending: Sending) -> None:
        sending.message.properties["stamp"] = "hook"
        seen.append(("before", sending))
        if sending.message.body == b"forbidden":
            raise NoPermission("not this one")

    @producer.after_send
    async def note(sending: Sending) -> None:
        seen.append(("after", sending))

    async with producer:
        result = await producer.send(Message(topic, b"allowed"))
        with pytest.raises(NoPermission):
            await producer.send(Message(topic, b"forbidden"))

    assert [moment for moment, _ in seen] == ["before", "after", "before", "after"]
    assert seen[1][1].result == result
    assert seen[1][1].message_id == result.message_id
    assert isinstance(seen[3][1].error, NoPermission)
    assert [message.properties["stamp"] for message in await place.stored(topic)] == ["hook"]


async def a_request_is_answered_by_a_consumer(place: Place) -> None:
    topic = await place.topic("questions")
    consumer = PushConsumer(place.name("answerers"), namesrv=place.namesrv, start="first")
    consumer.subscribe(topic)

    async with place.producer("askers") as asker, place.producer("repliers") as replier:

        @consumer.on_message
        async def answer(message: ReceivedMessage) -> None:
            await replier.reply(message, b"re: " + message.body)

        async with consumer:
            replies = [await asker.request(Message(topic, body), timeout=30) for body in numbered(3)]

    assert [reply.body for reply in replies] == [b"re: 0", b"re: 1", b"re: 2"]


async def a_request_that_nobody_answers_ends_in_time(place: Place) -> None:
    topic = await place.topic("silence")

    async with place.producer() as producer:
        with pytest.raises(NoReply, match="silence"):
            await producer.request(Message(topic, b"anybody?"), timeout=0.3)


async def a_message_that_cannot_be_sent_says_why(place: Place) -> None:
    topic = await place.topic("wrong")

    async with place.producer(max_message_size=1000) as producer:
        with pytest.raises(MessageTooLarge, match="1001 bytes"):
            await producer.send(Message(topic, b"x" * 1001))
        with pytest.raises(BadMessage, match="empty"):
            await producer.send(Message(topic, b""))
        with pytest.raises(BadMessage, match=r"encode text with text.encode"):
            await producer.send(Message(topic, "text"))  # type: ignore[arg-type]
        with pytest.raises(BadName, match="not allowed"):
            await producer.send(Message("no spaces", b"x"))
        with pytest.raises(NoPermission):
            await producer.send(Message("SCHEDULE_TOPIC_XXXX", b"x"))
        with pytest.raises(BadMessage, match="U\\+0001"):
            await producer.send(Message(topic, b"x", properties={"a": "b\x01c"}))

    assert await place.stored(topic) == []


async def a_topic_that_takes_no_messages_is_named(place: Place) -> None:
    topic = place.name("read-only")
    async with Admin(namesrv=place.namesrv) as admin:
        await admin.create_topic(topic, queues=2, perm=4)

    async with place.producer() as producer:
        with pytest.raises(NotWritable, match=f"write permission with: verniermq topic create {topic} --perm 6"):
            await producer.send(Message(topic, b"x"))


async def a_message_for_a_queue_that_is_not_there_is_refused(place: Place) -> None:
    topic = await place.topic("narrow", queues=1)
    outside = MessageQueue(topic, (await _queue(place, topic)).broker_name, 50)

    async with place.producer() as producer:
        with pytest.raises((UnexpectedAnswer, SendFailed)):
            await producer.send(Message(topic, b"x"), queue=outside)


async def _queue(place: Place, topic: str) -> MessageQueue:
    async with place.producer() as producer:
        return (await producer.queues(topic))[0]
