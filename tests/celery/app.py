"""What the workers of the tests do: notes in a folder, one file for each run of a task."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

import verniermq.contrib.celery  # noqa: F401 - makes the scheme known

NOTES = Path(os.environ["CELERY_TEST_FOLDER"])

app = Celery(
    "tests.celery.app",
    broker=os.environ["CELERY_TEST_BROKER"],
    backend=os.environ.get("CELERY_TEST_BACKEND", "rpc://"),
)
app.conf.update(
    broker_transport_options={
        "visibility_timeout": float(os.environ.get("CELERY_TEST_VISIBILITY", "60")),
        "priority_steps": (0, 5, 9),
    },
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    result_expires=None,
    beat_schedule={"tick": {"task": "tests.celery.app.note", "schedule": 0.5, "args": ["tick"]}},
    beat_schedule_filename=str(NOTES / "beat"),
)


@app.task
def note(name: object) -> object:
    path = NOTES / f"{name}.{os.getpid()}.{time.monotonic_ns()}"
    path.touch()
    return name


@app.task
def add(*numbers: int) -> int:
    return sum(numbers)


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True)
def slow(self: object, name: str, seconds: float) -> str:
    """Notes when it begins; a file ``name.go`` lets it end."""
    note(f"{name}-begins")
    deadline = time.monotonic() + seconds
    while not (NOTES / f"{name}.go").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    note(f"{name}-ends")
    return name
