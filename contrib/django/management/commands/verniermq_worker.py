"""``manage.py verniermq_worker``: run the tasks that were enqueued."""

from __future__ import annotations

import signal
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django_tasks import task_backends

from verniermq.contrib.django.backend import TaskBackend
from verniermq.contrib.django.worker import Worker


class Command(BaseCommand):
    help = "Runs the tasks of a backend of VernierMQ, until it is interrupted."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="its name in TASKS")
        parser.add_argument("--queue", action="append", default=[], help="only tasks of this queue; may be repeated")
        parser.add_argument("--threads", type=int, default=4, help="how many tasks run at a time")

    def handle(self, *arguments: Any, **options: Any) -> None:
        backend = task_backends[options["backend"]]
        if not isinstance(backend, TaskBackend):
            raise CommandError(f"TASKS[{options['backend']!r}] is no backend of VernierMQ but {type(backend).__name__}")
        worker = Worker(backend, options["queue"], options["threads"])
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: worker.stop())
        self.stdout.write("ready")
        self.stdout.flush()
        worker.run()
