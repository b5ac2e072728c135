"""Celery and Dramatiq on Apache's broker: the same transport, popping there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import dramatiq
import pytest
from celery import group
from dramatiq import Worker
from dramatiq.middleware import Retries

from tests.celery.workers import PATIENCE, Site, until
from tests.interop.apache import ApacheBroker
from verniermq.contrib.dramatiq import VernierMQBroker

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheBroker]:
    with ApacheBroker(tmp_path_factory.mktemp("apache")) as running:
        yield running


def test_a_worker_does_tasks_answers_and_ends(apache: ApacheBroker, tmp_path: Path) -> None:
    with Site(apache, tmp_path) as site:
        worker = site.worker("one", concurrency=2)
        add = site.app.signature("tests.celery.app.add")
        results = group([add.clone((number, number)) for number in range(20)], app=site.app).apply_async()
        values = results.get(timeout=PATIENCE)
        started = time.monotonic()
        later = site.app.send_task("tests.celery.app.add", (1, 2), countdown=3).get(timeout=PATIENCE)
        took = time.monotonic() - started
        pong = site.app.control.inspect(timeout=PATIENCE, limit=1).ping()
        site.app.control.shutdown()
        code = worker.wait(PATIENCE)

    assert values == [2 * number for number in range(20)]
    assert later == 3
    assert took >= 2
    assert pong == {"one@test": {"ok": "pong"}}
    assert code == 0


def test_an_actor_is_retried_and_given_up(apache: ApacheBroker) -> None:
    broker = VernierMQBroker(apache.namesrv, middleware=[Retries(min_backoff=1000, max_backoff=1000)])
    tried: list[int] = []

    @dramatiq.actor(broker=broker, max_retries=1)
    def fail(number: int) -> None:
        tried.append(number)
        raise ValueError("always")

    fail.send(7)
    worker = Worker(broker, worker_timeout=500, worker_threads=2)
    worker.start()
    try:
        until(lambda: "%DLQ%dramatiq-default" in broker.admin.topics())
        until(lambda: len(broker.admin.topic_offsets("%DLQ%dramatiq-default")) > 0)
    finally:
        worker.stop()
        broker.close()

    assert tried == [7, 7]
