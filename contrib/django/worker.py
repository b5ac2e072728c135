"""Runs the tasks of a backend: each in a thread, acknowledged when it has ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final

import attrs
import orjson
from django.db import close_old_connections
from django.utils import timezone
from django.utils.module_loading import import_string
from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
from django_tasks.signals import task_finished, task_started
from django_tasks.utils import get_exception_traceback, get_module_path, get_random_id, normalize_json

from verniermq.client import ReceivedMessage
from verniermq.client.errors import ClientError
from verniermq.client.sync import Admin, SimpleConsumer
from verniermq.contrib.django.backend import TaskBackend, new_result
from verniermq.contrib.django.producer import client_options
from verniermq.kernel import RemotingError

logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 1.0


@attrs.define(eq=False)
class Worker:
    """Members of one group share the tasks; what a worker that died had in hand comes again."""

    backend: TaskBackend
    queues: Sequence[str] = ()
    """The queues whose tasks it runs; all of them if there is none."""
    threads: int = 4
    invisible: float = 60.0
    _stopping: threading.Event = attrs.field(factory=threading.Event, init=False)
    _free: threading.Semaphore = attrs.field(init=False)
    _id: str = attrs.field(factory=get_random_id, init=False)

    def __attrs_post_init__(self) -> None:
        self._free = threading.Semaphore(self.threads)

    def stop(self) -> None:
        """Let the tasks that run end, and return from :meth:`run`."""
        self._stopping.set()

    def run(self) -> None:
        """Run tasks until :meth:`stop`."""
        topic = self.backend.topic
        with Admin(**client_options()) as admin:
            if topic not in admin.topics():
                admin.create_topic(topic)
        # Each choice of queues is a group of its own: members of one group have to want the same.
        group = "-".join([topic, *sorted(self.queues)])
        consumer = SimpleConsumer(group, start="first", auto_renew=True, invisible=self.invisible, **client_options())
        consumer.subscribe(topic, " || ".join(self.queues) or "*")
        with consumer, ThreadPoolExecutor(self.threads, "verniermq task") as pool:
            while not self._stopping.is_set():
                if not self._free.acquire(timeout=WAIT_SECONDS):
                    continue
                received: list[ReceivedMessage] = []
                try:
                    received = consumer.receive(1, wait=WAIT_SECONDS)
                except (ClientError, RemotingError) as error:
                    logger.warning("no tasks now group=%s reason=%s", group, error)
                    self._stopping.wait(WAIT_SECONDS)
                if received:
                    pool.submit(self._execute, consumer, received[0])
                else:
                    self._free.release()

    def _execute(self, consumer: SimpleConsumer, message: ReceivedMessage) -> None:
        close_old_connections()
        try:
            self._run_and_settle(consumer, message)
        except (ClientError, RemotingError) as error:
            logger.warning("task not acknowledged, it comes again message=%s reason=%s", message.message_id, error)
        finally:
            close_old_connections()
            self._free.release()

    def _run_and_settle(self, consumer: SimpleConsumer, message: ReceivedMessage) -> None:
        try:
            result = self._result(message)
        except Exception as error:
            logger.exception("no task that can be run message=%s", message.message_id)
            consumer.dead_letter(message, f"no task that can be run: {error}")
        else:
            self._run(result)
            consumer.ack(message)

    def _result(self, message: ReceivedMessage) -> TaskResult[Any]:
        data = orjson.loads(message.body)
        task = import_string(data["task"])
        if not isinstance(task, Task):
            raise ClientError(f"{data['task']!r} is no task; decorate it with @task")
        task = task.using(queue_name=data["queue"], backend=self.backend.alias)
        enqueued = datetime.fromisoformat(data["enqueued_at"])
        return new_result(task, data["id"], data["args"], data["kwargs"], self.backend.alias, enqueued)

    def _run(self, result: TaskResult[Any]) -> None:
        sender, now = type(self.backend), timezone.now()
        # Django logs what a receiver of a signal raises: whoever listens decides nothing about the task.
        _set(result, status=TaskResultStatus.RUNNING, started_at=now, last_attempted_at=now)
        result.worker_ids.append(self._id)
        task_started.send_robust(sender=sender, task_result=result)
        context = (TaskContext(task_result=result),) if result.task.takes_context else ()
        try:
            value = normalize_json(result.task.call(*context, *result.args, **result.kwargs))
        except Exception as error:
            result.errors.append(
                TaskError(exception_class_path=get_module_path(type(error)), traceback=get_exception_traceback(error))
            )
            _set(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
            logger.exception("task failed id=%s task=%s", result.id, result.task.module_path)
        else:
            _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value)
        task_finished.send_robust(sender=sender, task_result=result)


def _set(result: TaskResult[Any], **fields: Any) -> None:
    """Results are frozen for those who read them; a backend fills them in."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)
