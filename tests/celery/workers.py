"""Real ``celery`` processes for the tests, and what their tasks noted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import attrs
from celery import Celery

import verniermq.contrib.celery  # noqa: F401 - makes the scheme known

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


class Broker(Protocol):
    """Of ours, or of Apache's."""

    @property
    def namesrv(self) -> str: ...


@attrs.define(eq=False)
class Site:
    """A broker, a folder for notes, and the processes that belong to them."""

    broker: Broker
    folder: Path
    backend: str = "rpc://"
    visibility: float = 60.0
    processes: list[subprocess.Popen[bytes]] = attrs.Factory(list)
    _app: Celery | None = attrs.field(default=None, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            kill(process)
        if self._app is not None:
            results = getattr(self._app.backend, "result_consumer", None)
            if results is not None and results._connection is not None:
                results.stop()
            self._app.pool.force_close_all()
            self._app.amqp.producer_pool.force_close_all()
            self._app.close()

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CELERY_TEST_FOLDER": str(self.folder),
            "CELERY_TEST_BROKER": f"verniermq://{self.broker.namesrv}",
            "CELERY_TEST_BACKEND": self.backend,
            "CELERY_TEST_VISIBILITY": str(self.visibility),
            "PYTHONWARNINGS": "ignore",
        }

    @property
    def app(self) -> Celery:
        """The same application, for this process: it knows the tasks by their names only."""
        if self._app is not None:
            return self._app
        url = self.environment["CELERY_TEST_BROKER"]
        made = Celery("sender", broker=url, backend=self.backend, set_as_current=False)
        made.conf.broker_transport_options = {"visibility_timeout": self.visibility, "priority_steps": (0, 5, 9)}
        self._app = made
        return made

    def celery(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"celery-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "tests.celery.app", *arguments],
                cwd=ROOT, env=self.environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def worker(self, name: str = "one", concurrency: int = 2) -> subprocess.Popen[bytes]:
        """A worker that takes tasks already."""
        at = len(self.processes)
        process = self.celery("worker", "-c", str(concurrency), "-n", f"{name}@test", "-l", "info")
        log = self.folder / f"celery-{at}.log"
        until(lambda: " ready." in log.read_text(), lambda: log.read_text())
        return process

    def notes(self) -> Counter[str]:
        """How often each task noted something."""
        return Counter(path.name.split(".")[0] for path in self.folder.iterdir() if path.name.count(".") == 2)


def kill(process: subprocess.Popen[bytes]) -> None:
    """``kill -9``, with the processes of its pool."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def until(condition: Callable[[], object], explain: Callable[[], Any] = lambda: "", seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.05)
