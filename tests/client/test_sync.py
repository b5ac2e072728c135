"""Blocking code: from any thread, after a fork, and at the end of a program that forgot to close."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from tests.client.place import Place, numbered
from tests.client.worker import send_one
from verniermq.client import Message as AsyncMessage
from verniermq.client.errors import NoRoute, NotRunning, OtherProcess
from verniermq.client.sync import (
    Admin,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from verniermq.kernel.traffic import Sending


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def topic(place: Place) -> str:
    name = place.name("sync")
    with Admin(namesrv=place.namesrv) as admin:
        admin.create_topic(name, queues=4)
    return name


def stored(place: Place, topic: str) -> list[bytes]:
    return sorted(message.body for message in anyio.run(place.stored, topic))


def test_a_producer_sends_from_many_threads(place: Place, topic: str) -> None:
    with Producer("senders", namesrv=place.namesrv) as producer, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda body: producer.send(Message(topic, body)), numbered(80)))

    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert stored(place, topic) == sorted(numbered(80))


def test_every_way_of_sending_works_without_async(place: Place, topic: str) -> None:
    seen: list[Sending] = []
    producer = Producer("senders", namesrv=place.namesrv)
    producer.after_send(seen.append)

    with producer:
        producer.send(Message(topic, b"a"), sharding_key="k")
        futures = [producer.submit(Message(topic, body)) for body in numbered(20)]
        producer.flush()
        results = [future.result(timeout=10) for future in futures]
        producer.send_oneway(Message(topic, b"b"))
        producer.send_batch([Message(topic, b"c"), Message(topic, b"d")])
        parts = producer.send_all([Message(topic, b"e" * 100) for _ in range(10)], batch_bytes=500)
        queues = producer.queues(topic)

    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert len(parts) > 2
    assert len(queues) == 4
    assert len(seen) >= 22
    assert len(stored(place, topic)) == 34


def test_a_handler_runs_in_worker_threads(place: Place, topic: str) -> None:
    consumer = PushConsumer(place.name("group"), namesrv=place.namesrv, start="first", concurrency=4)
    consumer.subscribe(topic)
    seen: list[tuple[bytes, str]] = []

    @consumer.on_message
    def take(message: ReceivedMessage) -> None:
        seen.append((message.body, threading.current_thread().name))

    with Producer("senders", namesrv=place.namesrv) as producer, consumer:
        for body in numbered(20):
            producer.send(Message(topic, body))
        wait_until(lambda: len(seen) == 20)
        assert len(consumer.assignment) == 4
        assert sum(consumer.lag().values()) == 0

    assert {body for body, _ in seen} == set(numbered(20))
    assert threading.main_thread().name not in {thread for _, thread in seen}


def test_messages_can_be_iterated_without_async(place: Place, topic: str) -> None:
    group = place.name("group")
    got: list[bytes] = []
    with Producer("senders", namesrv=place.namesrv) as producer:
        producer.send_all([Message(topic, body) for body in numbered(10)])

    for count in (4, 6):
        consumer = PushConsumer(group, namesrv=place.namesrv, start="first")
        consumer.subscribe(topic)
        with consumer:
            for message in consumer:
                got.append(message.body)
                count -= 1
                if not count:
                    break

    assert sorted(got) == numbered(10)


def test_pulling_and_polling_work_without_async(place: Place, topic: str) -> None:
    with Producer("senders", namesrv=place.namesrv) as producer:
        result = producer.send(Message(topic, b"x"))

    with PullConsumer(place.name("group"), namesrv=place.namesrv) as puller:
        pulled = puller.pull(result.queue, 0)
        puller.commit(result.queue, 1)
        committed = puller.committed(result.queue)
        bounds = puller.min_offset(result.queue), puller.max_offset(result.queue)
    with LitePullConsumer(place.name("group"), namesrv=place.namesrv, start="first") as poller:
        poller.assign(poller.queues(topic))
        polled = poller.poll(timeout=10)
        poller.seek(result.queue, 0)
        again = poller.poll(timeout=10)

    assert [message.body for message in pulled.messages + polled + again] == [b"x"] * 3
    assert (committed, bounds) == (1, (0, 1))


def test_a_transaction_is_a_with_block(place: Place, topic: str) -> None:
    producer = TransactionProducer(place.name("tx"), namesrv=place.namesrv)
    producer.on_check(lambda message: TransactionState.UNKNOWN)

    with producer:
        with producer.transaction(Message(topic, b"committed")) as transaction:
            assert transaction.id
        with pytest.raises(ValueError, match="no"), producer.transaction(Message(topic, b"rolled back")):
            raise ValueError("no")
        _, state = producer.send_in_transaction(Message(topic, b"local"), lambda message, key: TransactionState.COMMIT)

    assert state is TransactionState.COMMIT
    wait_until(lambda: stored(place, topic) == [b"committed", b"local"])


def test_errors_of_the_loop_reach_the_caller(place: Place) -> None:
    with PullConsumer(namesrv=place.namesrv) as consumer, pytest.raises(NoRoute):
        consumer.queues("absent")
    with pytest.raises(NotRunning, match="was not started"):
        Producer("senders", namesrv=place.namesrv).send(Message("t", b"x"))


# --- processes -----------------------------------------------------------------------------


def in_child(work: Callable[[], None]) -> int:
    """Fork, do something in the child, and return its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def test_a_producer_works_before_and_after_a_fork(place: Place, topic: str) -> None:
    with Producer("senders", namesrv=place.namesrv) as producer:
        producer.send(Message(topic, b"parent, before"))

        def work() -> None:
            producer.send(Message(topic, b"child"))
            producer.close()

        code = in_child(work)
        producer.send(Message(topic, b"parent, after"))

    assert code == 0
    assert stored(place, topic) == [b"child", b"parent, after", b"parent, before"]


def test_ids_of_parent_and_child_differ(place: Place, topic: str) -> None:
    with Producer("senders", namesrv=place.namesrv) as producer:
        producer.send(Message(topic, b"parent"))
        codes = [in_child(lambda: (producer.send(Message(topic, b"child")), producer.close())[1]) for _ in range(3)]
        producer.send(Message(topic, b"parent"))
    ids = [message.message_id for message in anyio.run(place.stored, topic)]

    assert codes == [0, 0, 0]
    assert len(set(ids)) == len(ids) == 5


def test_a_consumer_of_the_parent_refuses_to_work_in_a_child(place: Place, topic: str) -> None:
    consumer = PushConsumer(place.name("group"), namesrv=place.namesrv)
    consumer.subscribe(topic)
    consumer.on_message(print)

    def work() -> None:
        with pytest.raises(OtherProcess, match="make a new one after fork"):
            consumer.lag()

    with consumer:
        assert in_child(work) == 0


def test_a_fork_does_not_keep_the_parents_connections_open(place: Place, topic: str) -> None:
    with Admin(namesrv=place.namesrv) as admin:
        group = place.name("group")
        consumer = PushConsumer(group, namesrv=place.namesrv)
        consumer.subscribe(topic)
        consumer.on_message(print)
        consumer.start()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)  # lives until the parent has closed its end
            os._exit(0)
        members = admin.members(group)
        consumer.close()
        wait_until(lambda: admin.members(group) == [])
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)

    assert len(members) == 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_pool_send(place: Place, topic: str, method: str) -> None:
    with multiprocessing.get_context(method).Pool(2) as pool:
        statuses = pool.map(send_one, [(place.namesrv, topic, body) for body in numbered(6)])

    assert statuses == ["SEND_OK"] * 6
    assert stored(place, topic) == numbered(6)


def test_a_program_that_forgets_to_close_ends_all_the_same(place: Place, topic: str) -> None:
    program = textwrap.dedent(f"""
        from queue import Queue
        from verniermq.client.sync import Message, Producer, PushConsumer
        heard = Queue()
        consumer = PushConsumer("forgetful", namesrv="{place.namesrv}", start="first")
        consumer.subscribe("{topic}")
        consumer.on_message(lambda message: heard.put(message.body.decode()))
        consumer.start()
        producer = Producer("senders", namesrv="{place.namesrv}").start()
        print(producer.send(Message("{topic}", b"said")).status.name, heard.get(timeout=30))
    """)

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.returncode) == ("SEND_OK said\n", 0), done.stderr
    with Admin(namesrv=place.namesrv) as admin:
        assert admin.lag("forgetful", topic) == 0
        assert admin.members("forgetful") == []


def test_the_message_type_is_the_same_for_both_faces() -> None:
    assert Message is AsyncMessage


def test_a_simple_consumer_acknowledges_from_other_threads(place: Place, topic: str) -> None:
    group = place.name("simple")
    with Producer("senders", namesrv=place.namesrv) as producer:
        for body in numbered(20):
            producer.send(Message(topic, body))

    with SimpleConsumer(group, namesrv=place.namesrv, start="first") as consumer, ThreadPoolExecutor(4) as threads:
        consumer.subscribe(topic)
        got: list[ReceivedMessage] = []
        while len(got) < 20:
            got += consumer.receive(8, wait=10)
        consumer.change_invisible(got[0], 100)
        list(threads.map(consumer.ack, got[1:]))
        assert consumer.dead_letter(got[0], "a test")
        rest = consumer.receive(wait=0)

    assert sorted(int(message.body) for message in got) == list(range(20))
    assert rest == []
    assert stored(place, f"%DLQ%{group}") == [got[0].body]
