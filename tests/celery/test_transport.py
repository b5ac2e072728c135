"""The transport by itself: what kombu's own integration tests ask of every transport, against a real broker."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import OperationalError

import verniermq.contrib.celery  # noqa: F401 - makes the scheme known
from verniermq.client.sync import Admin, Message
from verniermq.client.sync import Producer as Sender
from verniermq.testing import BrokerProcess

PATIENCE = 30.0


@pytest.fixture
def connection(verniermq_broker: BrokerProcess) -> Iterator[Connection]:
    with open_connection(verniermq_broker) as opened:
        yield opened


def open_connection(broker: BrokerProcess, **options: Any) -> Connection:
    return Connection(f"verniermq://{broker.namesrv}", transport_options=options)


def drain(connection: Connection, done: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "not everything came"
        try:
            connection.drain_events(timeout=1)
        except TimeoutError:
            continue


def consume(connection: Connection, queues: list[Queue], count: int, *, ack: bool = True) -> list[Any]:
    got: list[Any] = []

    def take(body: Any, message: Any) -> None:
        if ack:
            message.ack()
        got.append((message.delivery_info["routing_key"], body))

    with connection.channel() as channel, Consumer(channel, queues, callbacks=[take]):
        drain(connection, lambda: len(got) >= count)
    return got


def test_what_is_published_is_consumed(connection: Connection) -> None:
    exchange = Exchange("basic", "direct")
    queue = Queue("basic-queue", exchange, routing_key="basic")
    body = {"hello": "world", "number": 1.5, "list": [1, "two"]}

    with connection.channel() as channel:
        Producer(channel).publish(
            body, exchange=exchange, routing_key="basic", declare=[queue], headers={"k": "v"}, serializer="json"
        )
    got: list[Any] = []
    with connection.channel() as channel:
        with Consumer(channel, [queue], on_message=got.append):
            drain(connection, lambda: bool(got))
        message = got[0]
        message.ack()

    assert message.payload == body
    assert message.headers["k"] == "v"
    assert message.delivery_info["exchange"] == "basic"
    assert message.delivery_info["redelivered"] is False


def test_a_simple_queue_puts_and_gets(connection: Connection) -> None:
    with closing(connection.SimpleQueue("simple-queue")) as queue:
        queue.put({"a": 1})
        queue.put("b", compression="zlib")
        assert queue.qsize() == 2
        got = []
        for _ in range(2):
            message = queue.get(timeout=PATIENCE)
            message.ack()
            got.append(message.payload)
        with pytest.raises(queue.Empty):
            queue.get_nowait()

    assert sorted(map(str, got)) == ["b", "{'a': 1}"]


def test_a_direct_exchange_goes_by_the_routing_key(connection: Connection) -> None:
    exchange = Exchange("direct", "direct")
    one, two = Queue("direct-1", exchange, routing_key="one"), Queue("direct-2", exchange, routing_key="two.dotted")

    with connection.channel() as channel:
        producer = Producer(channel)
        for key in ("one", "two.dotted", "three"):
            producer.publish(key, exchange=exchange, routing_key=key, declare=[one, two])

    assert consume(connection, [one], 1) == [("one", "one")]
    assert consume(connection, [two], 1) == [("two.dotted", "two.dotted")]


def test_a_topic_exchange_knows_wildcards(connection: Connection) -> None:
    exchange = Exchange("topics", "topic")
    some = Queue("topics-some", exchange, routing_key="task.*")
    every = Queue("topics-all", exchange, routing_key="#")

    with connection.channel() as channel:
        producer = Producer(channel)
        for key in ("task.sent", "worker.online", "task.done"):
            producer.publish(key, exchange=exchange, routing_key=key, declare=[some, every])

    assert sorted(body for _, body in consume(connection, [some], 2)) == ["task.done", "task.sent"]
    assert sorted(body for _, body in consume(connection, [every], 3)) == ["task.done", "task.sent", "worker.online"]


def test_a_fanout_exchange_reaches_every_queue_of_every_process(verniermq_broker: BrokerProcess) -> None:
    exchange = Exchange("fanout", "fanout")
    with (
        open_connection(verniermq_broker) as one,
        open_connection(verniermq_broker) as two,
        open_connection(verniermq_broker) as sender,
    ):
        with sender.channel() as channel:
            Producer(channel).publish("before", exchange=exchange, routing_key="", declare=[exchange])
        got: dict[str, list[Any]] = {"one": [], "two": []}
        with one.channel() as first, two.channel() as second:
            queues = [Queue(f"fanout-{name}", exchange, auto_delete=True) for name in got]
            with (
                Consumer(first, [queues[0]], callbacks=[lambda body, message: got["one"].append(body)], no_ack=True),
                Consumer(second, [queues[1]], callbacks=[lambda body, message: got["two"].append(body)], no_ack=True),
            ):
                with sender.channel() as channel:
                    Producer(channel).publish("after", exchange=exchange, routing_key="")
                drain(one, lambda: bool(got["one"]))
                drain(two, lambda: bool(got["two"]))

    assert got == {"one": ["after"], "two": ["after"]}


def test_what_is_rejected_comes_again_or_not(connection: Connection) -> None:
    queue = Queue("rejected", Exchange("rejected"), routing_key="rejected")
    with connection.channel() as channel:
        Producer(channel).publish("x", exchange=queue.exchange, routing_key="rejected", declare=[queue])
        first = _get(channel, queue)
        first.requeue()
        second = _get(channel, queue)
        second.reject()
        third = queue(channel).get()

    assert (first.delivery_info["redelivered"], second.delivery_info["redelivered"]) == (False, True)
    assert third is None


def _get(channel: Any, queue: Queue) -> Any:
    bound = queue(channel)
    deadline = time.monotonic() + PATIENCE
    while (message := bound.get()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return message


def test_what_a_channel_did_not_acknowledge_comes_to_the_next(connection: Connection) -> None:
    queue = Queue("unacked", Exchange("unacked"), routing_key="unacked")
    with connection.channel() as channel:
        producer = Producer(channel)
        for number in range(5):
            producer.publish(number, exchange=queue.exchange, routing_key="unacked", declare=[queue])

    first = consume(connection, [queue], 5, ack=False)
    second = consume(connection, [queue], 5)

    assert sorted(body for _, body in first) == sorted(body for _, body in second) == list(range(5))


def test_no_more_is_taken_than_the_prefetch_count(connection: Connection) -> None:
    queue = Queue("prefetch", Exchange("prefetch"), routing_key="prefetch")
    with connection.channel() as channel:
        producer = Producer(channel)
        for number in range(10):
            producer.publish(number, exchange=queue.exchange, routing_key="prefetch", declare=[queue])
    got: list[Any] = []
    with connection.channel() as channel:
        channel.basic_qos(0, 3, False)
        with Consumer(channel, [queue], on_message=got.append):
            drain(connection, lambda: len(got) == 3)
            with pytest.raises(socket.timeout):
                connection.drain_events(timeout=0.3)
            for message in got[:2]:
                message.ack()
            drain(connection, lambda: len(got) == 5)
            for message in got[2:]:
                message.ack()

    assert len(consume(connection, [queue], 5)) == 5


def test_priorities_go_first(verniermq_broker: BrokerProcess) -> None:
    queue = Queue("priority", Exchange("priority"), routing_key="priority")
    with open_connection(verniermq_broker, priority_steps=(0, 3, 6, 9)) as connection, connection.channel() as channel:
        producer = Producer(channel)
        for priority in (0, 4, 9, 6, 2):
            producer.publish(
                priority, exchange=queue.exchange, routing_key="priority", declare=[queue], priority=priority
            )
        channel.basic_qos(0, 1, False)
        got = [_acknowledged(channel, queue) for _ in range(5)]

    assert got[:3] == [9, 6, 4]
    assert sorted(got[3:]) == [0, 2]


def _acknowledged(channel: Any, queue: Queue) -> Any:
    message = _get(channel, queue)
    message.ack()
    return message.payload


def test_a_queue_is_purged_and_deleted(connection: Connection) -> None:
    queue = Queue("purged", Exchange("purged"), routing_key="purged")
    with connection.channel() as channel:
        producer = Producer(channel)
        for number in range(4):
            producer.publish(number, exchange=queue.exchange, routing_key="purged", declare=[queue])
        bound = queue(channel)
        size = bound.queue_declare()[1]
        purged = bound.purge()
        empty = bound.get()
        bound.delete()

    assert (size, purged, empty) == (4, 4, None)


def test_messages_are_published_from_many_threads(connection: Connection) -> None:
    queue = Queue("threads", Exchange("threads"), routing_key="threads")
    with connection.channel() as channel:
        queue(channel).declare()

        def publish(start: int) -> None:
            with connection.clone() as own, own.channel() as mine:
                for number in range(start, start + 10):
                    Producer(mine).publish(number, exchange=queue.exchange, routing_key="threads")

        threads = [threading.Thread(target=publish, args=(start,)) for start in range(0, 40, 10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(body for _, body in consume(connection, [queue], 40)) == list(range(40))


def test_a_broker_that_is_not_there_is_an_operational_error() -> None:
    with (
        pytest.raises(OperationalError, match="no name server answered"),
        Connection("verniermq://127.0.0.1:1") as connection,
    ):
        connection.ensure_connection(max_retries=1, interval_start=0)


@pytest.mark.parametrize("body", [b"hello", b"[1]", b'{"properties": 1}'])
def test_a_message_that_kombu_did_not_write_becomes_a_dead_letter(verniermq_broker: BrokerProcess, body: bytes) -> None:
    exchange = Exchange("news", "fanout")
    queue = Queue("readers", exchange)
    got: list[Any] = []

    with (
        open_connection(verniermq_broker) as connection,
        connection.channel() as channel,
        Consumer(channel, [queue], on_message=got.append),
        Sender("others", namesrv=verniermq_broker.namesrv) as sender,
        Admin(namesrv=verniermq_broker.namesrv) as admin,
    ):
        sender.send(Message("kombu-news", body))
        Producer(channel).publish("after it", exchange=exchange)
        drain(connection, lambda: bool(got))
        got[0].ack()
        deadline = time.monotonic() + PATIENCE
        while "%DLQ%kombu-readers" not in admin.topics():
            assert time.monotonic() < deadline, "no dead letter"
            time.sleep(0.05)

    assert got[0].payload == "after it"
