"""Wrong use of each public name says what right use is, as somebody who ports a Java program would meet it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.client.place import Place
from verniermq import client
from verniermq.client import (
    Admin,
    Consumed,
    Credentials,
    Later,
    Limits,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    SendStatus,
    SimpleConsumer,
    Sql,
    TransactionProducer,
    TransactionState,
    sync,
)
from verniermq.client.errors import BadSelector, ClientError, MessageNotFound, NoSuchBroker, NotRunning, SendFailed
from verniermq.client.java import ANSWERS, CALLS, CLASSES, OPTIONS

pytestmark = pytest.mark.anyio

ANY: Any = None
"""For what no type checker would let pass."""


def _not_started(make: Callable[..., Any]) -> Any:
    return make("g", namesrv="127.0.0.1:1")


def _subscribing() -> PushConsumer:
    return PushConsumer("g", namesrv="127.0.0.1:1")


def _decorated(handler: Any) -> None:
    _subscribing().on_message(handler)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        # options of every client
        (lambda: Producer("g", send_timout=1), "Producer has no option 'send_timout'; did you mean 'send_timeout'?"),
        (lambda: PushConsumer("g", oderly=True), "PushConsumer has no option 'oderly'; did you mean 'orderly'?"),
        (lambda: sync.PushConsumer("g", oderly=True), "did you mean 'orderly'?"),
        (lambda: Admin(name_server="a:1"), "Admin has no option 'name_server'"),
        (lambda: SimpleConsumer("g", invisble=1), "did you mean 'invisible'?"),
        (lambda: LitePullConsumer("g", autocommit=True), "did you mean 'auto_commit'?"),
        (lambda: TransactionProducer("g", cheker=1), "did you mean 'checker'?"),
        (lambda: Producer("g", namesrv_addr="a:1"), "Java's namesrvAddr is namesrv='host:9876' here"),
        (lambda: PushConsumer("g", consumeThreadMax=64), "Java's consumeThreadMax is concurrency="),
        (lambda: PushConsumer("g", message_model="BROADCASTING"), "broadcasting=True for BROADCASTING"),
        (lambda: Producer("g", namesrv="localhost"), "'localhost' is no host:port, such as '127.0.0.1:9876'"),
        (lambda: Producer("g", namesrv="http://mq:9876"), "is no host:port"),
        (lambda: Producer("g", namesrv=9876), "namesrv=9876, expected 'host:port'"),
        (lambda: Producer("g", credentials=("a", "b")), "expected Credentials(access_key, secret_key)"),
        (lambda: Producer("g", tls="ca.pem"), "tls='ca.pem', expected True, or an ssl.SSLContext"),
        (lambda: Producer("g", instance=5), "instance=5, expected a text"),
        # numbers, and times in milliseconds
        (lambda: Producer("g", send_timeout=3000), "times are in seconds here: 3000 ms are 3"),
        (lambda: Producer("g", connect_timeout=3000), "3000 ms are 3"),
        (lambda: Producer("g", send_timeout=0), "send_timeout=0, expected seconds, more than 0"),
        (lambda: Producer("g", retries=-1), "retries=-1, expected at least 0"),
        (lambda: Producer("g", max_in_flight="many"), "max_in_flight='many', expected a whole number"),
        (lambda: PushConsumer("g", concurrency=0), "concurrency=0, expected at least 1"),
        (lambda: PushConsumer("g", concurrency="20"), "concurrency='20', expected a whole number"),
        (lambda: PushConsumer("g", limits=1000), "limits=1000, expected Limits(messages=…"),
        (lambda: PushConsumer("g", allocate=print), "expected the name of a strategy, such as 'AVG'"),
        (lambda: PushConsumer("g", start="CONSUME_FROM_FIRST_OFFSET"), "expected 'last', 'first'"),
        (lambda: PushConsumer("g", on_conflict="ignore"), "expected 'raise' or 'warn'"),
        (lambda: Limits(messages=0), "messages=0, expected at least 1"),
        (lambda: Later("not now"), "a text is reason="),
        (lambda: Consumed("all"), "expected how many of the batch"),
        (lambda: Sql(5), 'Sql("price > 10")'),
        # subscriptions and handlers
        (lambda: _subscribing().subscribe("t", ["a", "b"]), "one text, 'a || b', or Sql('price > 10')"),
        (lambda: _subscribing().subscribe("t", None), "expected tags as one text"),
        (lambda: _decorated(lambda messages, context: None), "there is no context"),
        (lambda: _decorated("take"), "'take' is no handler; expected a function that takes one message"),
        # before the start, and the wrong kind of block
        (lambda: _not_started(PushConsumer).assignment, "was not started; use it inside 'async with'"),
        (lambda: _not_started(LitePullConsumer).pause(), "was not started"),
        (lambda: _not_started(sync.Producer).send(ANY), "use it inside 'with', or between start() and close()"),
        (lambda: _not_started(Producer).__enter__(), "write 'async with', or take it from verniermq.client.sync"),
        # Java's methods
        (lambda: _not_started(Producer).setNamesrvAddr("a:1"), "is an argument here: Producer(…, namesrv="),
        (lambda: _not_started(PushConsumer).registerMessageListener(ANY), "is on_message(handler)"),
        (lambda: _not_started(sync.Producer).shutdown(), "Java's shutdown is close()"),
        (lambda: _received().getBody(), "write .body for Java's getBody()"),
        (lambda: _received().getMsgId(), "Java's getMsgId is message_id here"),
        (lambda: _sent().getSendStatus(), "Java's getSendStatus is status here"),
    ],
)  # fmt: skip
def test_it_says_what_is_right(wrong: Callable[[], Any], right: str) -> None:
    with pytest.raises((ClientError, TypeError, AttributeError), match=re.escape(right)):
        wrong()


def _received() -> Any:
    queue = MessageQueue("t", "b", 0)
    return ReceivedMessage("t", queue, 0, 0, 0, 0, 0, 0, b"", 0, b"", 0, 0, b"body", b"")


def _sent() -> Any:
    return SendResult(SendStatus.SEND_OK, "", "", MessageQueue("t", "b", 0), 0)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (lambda p, t: p.send(Message(t, "text")), "has a body of str, expected bytes; encode text with text.encode()"),
        (lambda p, t: p.send(Message(t, "TagA", "Order1", b"body")), "is Message(topic, body, tags='…'"),
        (lambda p, t: p.send(Message(t, b"x", tags=["a", "b"])), "tags=['a', 'b'], expected one text"),
        (lambda p, t: p.send(Message(t, b"x", keys=[1])), "keys=[1], expected texts: keys=['…']"),
        (lambda p, t: p.send(Message(t, b"x", keys=7)), "keys=7, expected texts"),
        (lambda p, t: p.send(Message(t, b"x", properties={"n": 1})), "property 'n' is 1, expected a text; write str(1"),
        (lambda p, t: p.send_batch([Message(t, b"x", tags=5)]), "tags=5, expected one text"),
        (lambda p, t: p.send_all([Message(t, b"x", properties={"n": None})]), "property 'n' is None, expected a text"),
        (lambda p, t: p.send_oneway(Message(t, b"x", keys=[1])), "keys=[1], expected texts"),
        (lambda p, t: p.send("text"), "'text' is no message; send Message(topic, body)"),
        (lambda p, t: p.send(_received()), "Message(topic, received.body, tags=received.tags"),
        (lambda p, t: p.send_batch(Message(t, b"x")), "where a list of them is expected"),
        (lambda p, t: p.send_batch([Message(t, b"x"), b"y"]), "b'y' is no message"),
        (lambda p, t: p.send_all([Message(t, b"x"), Message(t, "y")]), "message 1 of the list has a body of str"),
        (lambda p, t: p.send(Message(t, b"x"), sharding_key=7), "sharding_key=7, expected a text; write str(7)"),
        (lambda p, t: p.send(Message(t, b"x"), queue=3), "queue=3, expected a MessageQueue"),
        (lambda p, t: p.send(Message(t, b"x"), queue=MessageQueue("u", "b", 0)), "is of topic 'u'"),
        (lambda p, t: p.send(Message(t, b"x"), sharding_key="a", selector=max), "give one of them"),
        (lambda p, t: p.send(Message(t, b"x"), selector=lambda queues, message: None), "returned None"),
        (lambda p, t: p.send(Message(t, b"x"), selector=lambda queues, message: 3), "returns one of the 4 queues"),
        (lambda p, t: p.send(Message(t, b"x"), timeout=3000), "times are in seconds here: 3000 ms are 3"),
        (lambda p, t: p.send_all([Message(t, b"x")], timeout=3000), "3000 ms are 3"),
        (lambda p, t: p.send_batch([Message(t, b"x")], timeout=3000), "3000 ms are 3"),
        (lambda p, t: p.request(Message(t, b"x"), timeout=3000), "3000 ms are 3"),
        (lambda p, t: p.submit(Message(t, b"x"), timeout=-1), "timeout=-1, expected seconds, more than 0"),
        (lambda p, t: p.submit(Message(t, b"x"), callback=lambda result: None), "called as callback(result, error)"),
    ],
)  # fmt: skip
async def test_a_message_that_is_sent_wrongly_is_not_sent(
    place: Place, wrong: Callable[[Producer, str], Awaitable[Any]], right: str
) -> None:
    topic = await place.topic("wrong")

    async with place.producer() as producer:
        with pytest.raises(ClientError, match=re.escape(right)):
            await wrong(producer, topic)

    assert await place.stored(topic) == []


async def test_a_selector_that_raises_is_named(place: Place) -> None:
    topic = await place.topic("selector")

    def pick(queues: Any, message: Message) -> MessageQueue:
        raise KeyError("order 7")

    async with place.producer() as producer:
        for send in (producer.send, producer.send_oneway):
            with pytest.raises(BadSelector, match=r"selector '.*pick' raised KeyError: 'order 7'") as caught:
                await send(Message(topic, b"x"), selector=pick)
            assert isinstance(caught.value.__cause__, KeyError)
        with pytest.raises(BadSelector):
            await (await producer.submit(Message(topic, b"x"), selector=pick))
        with pytest.raises(BadSelector):
            await producer.send_batch([Message(topic, b"x")], selector=pick)

    assert await place.stored(topic) == []


async def test_a_consumer_that_would_consume_nothing_says_so(place: Place) -> None:
    topic = await place.topic("nothing")
    iterated = PushConsumer(place.name("g"), namesrv=place.namesrv)
    iterated.subscribe(topic)
    handled = PushConsumer(place.name("g"), namesrv=place.namesrv)
    handled.subscribe(topic)
    handled.on_message(lambda message: None)

    async with iterated, handled:
        with pytest.raises(ClientError, match="has no handler, so it consumes nothing"):
            await iterated.run()
        with pytest.raises(ClientError, match="in a handler, return Later"):
            handled.later(_received())
    async with LitePullConsumer(place.name("g"), namesrv=place.namesrv) as lite:
        with pytest.raises(ClientError, match=r"call subscribe\(topic\) or assign\(queues\) first"):
            await lite.poll(0.1)


async def test_a_place_that_is_none_is_refused(place: Place) -> None:
    topic = await place.topic("places")

    async with PullConsumer(namesrv=place.namesrv) as consumer:
        queue = (await consumer.queues(topic))[0]
        with pytest.raises(ClientError, match=r"offset='\*', expected a number: pull\(queue, offset"):
            await consumer.pull(queue, ANY or "*")  # as in Java's order of arguments
        with pytest.raises(ClientError, match=r"queue=0, expected a MessageQueue"):
            await consumer.min_offset(ANY or 0)
    async with Admin(namesrv=place.namesrv) as admin:
        with pytest.raises(ClientError, match="expected 'first', 'last', a datetime"):
            await admin.reset_offsets("g", topic, ANY or "earliest")
        with pytest.raises(NoSuchBroker, match=r"no broker 'nope' .* there are: "):
            await admin.broker_info("nope")
        with pytest.raises(NoSuchBroker):
            await admin.create_topic(place.name("t"), brokers=["nope"])


async def test_the_id_of_a_producer_is_not_taken_for_an_address(place: Place) -> None:
    topic = await place.topic("by-id")
    async with place.producer() as producer, Admin(namesrv=place.namesrv) as admin:
        sent = await producer.send(Message(topic, b"x"))

        with pytest.raises(MessageNotFound, match=r"which is no broker\); .* message\(id, topic\)"):
            await admin.message(sent.message_id)

        assert (await admin.message(sent.message_id, topic)).body == b"x"
        assert (await admin.message(sent.offset_message_id)).body == b"x"


def test_states_are_printed_by_their_names() -> None:
    assert f"{SendStatus.SEND_OK} {PullStatus.FOUND} {TransactionState.COMMIT}" == "SEND_OK FOUND COMMIT"
    assert str(SendStatus.FLUSH_DISK_TIMEOUT) == "FLUSH_DISK_TIMEOUT"


def test_a_blocking_client_that_was_closed_advises_with(place: Place) -> None:
    producer = sync.Producer("g", namesrv=place.namesrv)
    producer.start()
    producer.close()

    with pytest.raises(NotRunning, match="is closed; use it inside 'with'"):
        producer.send(Message("t", b"x"))


async def test_a_blocking_client_in_async_with_says_where_the_other_is(place: Place) -> None:
    with pytest.raises(TypeError, match="write 'with', or take it from"):
        async with ANY or sync.Producer("g", namesrv=place.namesrv):
            pass


@pytest.mark.parametrize("module", [client, sync], ids=["async", "sync"])
def test_classes_of_java_are_named_as_they_are_here(module: Any) -> None:
    with pytest.raises(
        ImportError, match=f"DefaultMQProducer is Producer here: from {module.__name__} import Producer"
    ):
        exec(f"from {module.__name__} import DefaultMQProducer")
    with pytest.raises(AttributeError, match="has no attribute 'Producr'"):
        module.Producr  # noqa: B018 - it is the look that counts
    assert all(hasattr(module, name) for name in CLASSES.values())


async def test_a_poll_waits_seconds(place: Place) -> None:
    async with LitePullConsumer("g", namesrv=place.namesrv) as consumer:
        consumer.subscribe(await place.topic("polled"))
        with pytest.raises(ClientError, match="1000 ms are 1"):
            await consumer.poll(1000)
        assert await consumer.poll(0) == []


def test_what_java_is_said_to_be_here_is_there() -> None:
    """The names in the hints are arguments, methods or attributes of what this package exports."""
    exported = [getattr(client, name) for name in client.__all__]
    known = set()
    for thing in exported:
        known |= set(dir(thing)) | set(getattr(thing, "__annotations__", ()))
        if hasattr(thing, "_own_options"):
            known |= thing._own_options()
    known |= {"namesrv", "instance", "client_ip", "credentials", "tls", "heartbeat_interval", "route_interval"}

    for text in (*OPTIONS.values(), *CALLS.values()):
        name = re.match(r"(?:Admin\.)?(\w+)", text)
        assert name is not None
        assert name.group(1) in known | {"raise"}, text
    for text in ANSWERS.values():
        assert any(word in text for word in ("nothing", "error", "TransactionState."))
    assert isinstance(Credentials("a", "b"), Credentials)


def test_tries_that_failed_for_the_same_reason_are_said_once() -> None:
    told = str(SendFailed("orders", ["not allowed", "not allowed", "gone", "not allowed"], 0.5))

    assert told.endswith("after 4 tries in 0.5 s: 1.-2. not allowed; 3. gone; 4. not allowed")
