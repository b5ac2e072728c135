"""Django itself, with a database in memory: what is sent with a commit, and tasks that a worker runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import django
import pytest
from django.conf import settings

if not settings.configured:
    settings.configure(
        SECRET_KEY="tests", USE_TZ=True, INSTALLED_APPS=["django_tasks", "verniermq.contrib.django"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        TASKS={"default": {"BACKEND": "verniermq.contrib.django.backend.TaskBackend"}},
    )  # fmt: skip
    django.setup()

from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import override_settings
from django.utils import timezone
from django_tasks import task_backends
from django_tasks.base import TaskResultStatus
from django_tasks.signals import task_finished, task_started

from tests.adapters import django_project
from verniermq.client.sync import Message, SimpleConsumer
from verniermq.contrib.django import get_producer, send_on_commit
from verniermq.contrib.django import producer as producer_module
from verniermq.contrib.django.worker import Worker
from verniermq.testing import BrokerProcess

PATIENCE = 30.0


@pytest.fixture
def broker(verniermq_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    monkeypatch.setattr(producer_module, "_producer", None)
    django_project.ran.clear()
    with override_settings(VERNIERMQ={"namesrv": verniermq_broker.namesrv, "group": "shop"}):
        yield verniermq_broker
        if producer_module._producer is not None:
            producer_module._producer.close()


@pytest.fixture
def finished() -> Iterator[list[Any]]:
    results: list[Any] = []

    def hear(task_result: Any, **_: Any) -> None:
        results.append(task_result)

    task_finished.connect(hear)
    yield results
    task_finished.disconnect(hear)


@pytest.fixture
def worker(broker: BrokerProcess) -> Iterator[None]:
    running = Worker(task_backends["default"], threads=2)
    thread = threading.Thread(target=running.run)
    thread.start()
    yield
    running.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def received(broker: BrokerProcess, topic: str) -> list[bytes]:
    with SimpleConsumer("tests", namesrv=broker.namesrv, start="first") as consumer:
        consumer.subscribe(topic)
        return [message.body for message in consumer.receive(32, wait=0)]


def test_a_message_goes_with_the_commit_and_not_with_a_rollback(broker: BrokerProcess) -> None:
    get_producer().send(Message("orders", b"first"))
    with transaction.atomic():
        send_on_commit(Message("orders", b"committed"))
        within = received(broker, "orders")
    with transaction.atomic():
        send_on_commit(Message("orders", b"rolled back"))
        transaction.set_rollback(True)
    send_on_commit(Message("orders", b"without"))

    assert within == [b"first"]
    assert sorted(received(broker, "orders")) == [b"committed", b"without"]


def test_a_worker_runs_tasks_and_tells_of_them(broker: BrokerProcess, worker: None, finished: list[Any]) -> None:
    with transaction.atomic():
        django_project.add.enqueue(1, y=2)
    django_project.add_later.enqueue(3, 4)
    django_project.fail.enqueue()
    until(lambda: len(finished) == 3)

    by_name = {result.task.name: result for result in finished}
    assert sorted(map(str, django_project.ran)) == ["('async', 7)", "3"]
    assert by_name["add"].status == TaskResultStatus.SUCCESSFUL
    assert by_name["add"].return_value == 3
    assert by_name["fail"].status == TaskResultStatus.FAILED
    assert by_name["fail"].errors[0].exception_class is ValueError


def test_a_task_runs_though_a_receiver_of_its_signals_fails(
    broker: BrokerProcess, worker: None, finished: list[Any]
) -> None:
    def fail(**_: Any) -> None:
        raise ValueError("a receiver that fails")

    task_started.connect(fail)
    try:
        django_project.add.enqueue(2, 2)
        until(lambda: len(finished) == 1)
    finally:
        task_started.disconnect(fail)

    assert finished[0].return_value == 4


def test_a_task_that_is_due_later_waits_in_the_broker(broker: BrokerProcess, worker: None, finished: list[Any]) -> None:
    django_project.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(5, 5)
    django_project.add.enqueue(1, 1)
    until(lambda: len(finished) == 1)
    early = list(django_project.ran)
    broker.advance(3601)
    until(lambda: 10 in django_project.ran)

    # The first one comes again if the hour passes between its end and its acknowledgement.
    assert early == [2]
    assert django_project.ran.count(10) == 1


def test_the_command_names_a_backend_that_is_another(broker: BrokerProcess) -> None:
    other = {"default": {"BACKEND": "django_tasks.backends.dummy.DummyBackend"}}

    with (
        override_settings(TASKS=other),
        pytest.raises(CommandError, match="is no backend of VernierMQ but DummyBackend"),
    ):
        call_command("verniermq_worker")
