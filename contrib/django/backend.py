"""A backend for ``django-tasks``: tasks are messages, and a worker pops them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson
from django.db import transaction
from django.utils import timezone
from django_tasks.backends.base import BaseTaskBackend
from django_tasks.base import Task, TaskResult, TaskResultStatus
from django_tasks.signals import task_enqueued
from django_tasks.utils import get_random_id, normalize_json

from verniermq.client.sync import Message
from verniermq.contrib.django.producer import get_producer
from verniermq.kernel import Property


class TaskBackend(BaseTaskBackend):
    """``OPTIONS``: ``topic`` (``django-tasks``), and ``on_commit`` (true): send when the transaction is committed.

    The queue of a task is the tag of its message. Results are not kept: the signals of ``django-tasks`` tell of them.
    """

    supports_defer = True
    supports_async_task = True

    @property
    def topic(self) -> str:
        return str(self.options.get("topic", "django-tasks"))

    def enqueue(self, task: Task[Any, Any], args: Any, kwargs: Any) -> TaskResult[Any]:
        self.validate_task(task)
        result = new_result(task, get_random_id(), args, kwargs, self.alias, timezone.now())
        message = self._message(result)

        def send() -> None:
            get_producer().send(message)
            task_enqueued.send(type(self), task_result=result)

        if self.options.get("on_commit", True):
            transaction.on_commit(send)
        else:
            send()
        return result

    def _message(self, result: TaskResult[Any]) -> Message:
        task = result.task
        body = {
            "id": result.id,
            "task": task.module_path,
            "queue": task.queue_name,
            "args": normalize_json(list(result.args)),
            "kwargs": normalize_json(result.kwargs),
            "enqueued_at": result.enqueued_at,
        }
        properties = {}
        if task.run_after is not None:
            properties[Property.TIMER_DELIVER_MS] = str(int(task.run_after.timestamp() * 1000))
        return Message(self.topic, orjson.dumps(body), tags=task.queue_name, keys=[result.id], properties=properties)


def new_result(
    task: Task[Any, Any], result_id: str, args: Any, kwargs: Any, alias: str, enqueued_at: datetime | None
) -> TaskResult[Any]:
    return TaskResult(
        task=task, id=result_id, status=TaskResultStatus.READY, enqueued_at=enqueued_at, started_at=None,
        last_attempted_at=None, finished_at=None, args=list(args), kwargs=dict(kwargs), backend=alias, errors=[],
        worker_ids=[],
    )  # fmt: skip
