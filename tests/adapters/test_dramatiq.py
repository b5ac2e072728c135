"""Dramatiq's own worker with a real broker: retries by the broker's delays, dead letters, a queue that is emptied."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import dramatiq
import pytest
from dramatiq import QueueNotFound, Worker
from dramatiq.middleware import Retries

from verniermq.contrib.dramatiq import VernierMQBroker
from verniermq.testing import BrokerProcess

PATIENCE = 30.0


@pytest.fixture
def broker(verniermq_broker: BrokerProcess) -> Iterator[VernierMQBroker]:
    made = VernierMQBroker(verniermq_broker.namesrv, middleware=[Retries(min_backoff=10, max_backoff=10)])
    yield made
    made.close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_worker_runs_actors_and_retries(broker: VernierMQBroker) -> None:
    done: list[int] = []

    @dramatiq.actor(broker=broker, max_retries=2)
    def note(number: int) -> None:
        done.append(number)
        if number == 7 and done.count(7) == 1:
            raise ValueError("once")

    for number in range(10):
        note.send(number)
    worker = Worker(broker, worker_timeout=100, worker_threads=2)
    worker.start()
    try:
        until(lambda: len(done) == 11)
        broker.join("default", timeout=30_000)
    finally:
        worker.stop()

    assert sorted(done) == [0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 9]


def test_what_is_given_up_is_a_dead_letter(broker: VernierMQBroker) -> None:
    @dramatiq.actor(broker=broker, max_retries=0, queue_name="fragile.things")
    def fail() -> None:
        raise ValueError("always")

    fail.send()
    worker = Worker(broker, worker_timeout=100, worker_threads=1)
    worker.start()
    try:
        until(lambda: "%DLQ%dramatiq-fragile-things" in broker.admin.topics())
        until(lambda: broker.admin.dead_letters("dramatiq-fragile-things"))
    finally:
        worker.stop()

    (dead,) = broker.admin.dead_letters("dramatiq-fragile-things")
    assert dead.tags == "fail"


def test_a_queue_is_emptied_and_an_unknown_one_is_named(broker: VernierMQBroker) -> None:
    @dramatiq.actor(broker=broker)
    def never() -> None: ...

    never.send()
    broker.flush_all()
    consumer = broker.consume("default", timeout=100)
    nothing = next(consumer)
    consumer.close()

    assert nothing is None
    with pytest.raises(QueueNotFound):
        broker.consume("absent")
