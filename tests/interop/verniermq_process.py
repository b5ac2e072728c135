"""VernierMQ's broker, with its embedded name server, as a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from .processes import LOOPBACK, ServerProcess

START_TIMEOUT = 60.0


class VernierMQBroker:
    """``python -m verniermq.cli broker`` on free ports. Use it as a context manager.

    The broker says that it is ready, and where, by a file that it puts in place in one step::

        {"broker": "127.0.0.1:…", "namesrv": "127.0.0.1:…", "pid": …, "store": "…"}
    """

    def __init__(self, folder: Path, store: Path | None = None, config: Path | None = None) -> None:
        self.folder = folder
        self.store = store or folder / "verniermq-store"
        self.config = config
        self.python: Sequence[str] = (sys.executable,)
        self._ready_file = folder / "ready.json"
        # Port 0 the first time; a restart asks for the ports of the first start.
        self.broker = f"{LOOPBACK}:0"
        self.namesrv = f"{LOOPBACK}:0"
        self.process: ServerProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start, after :meth:`stop` or :meth:`kill` on the same ports and the same store again."""
        process = self.launch()
        process.wait_until(self._ready_file.exists, START_TIMEOUT)
        ready = json.loads(self._ready_file.read_text())
        self.broker, self.namesrv = ready["broker"], ready["namesrv"]

    def launch(self) -> ServerProcess:
        """Start without waiting until it is ready."""
        self._ready_file.unlink(missing_ok=True)
        command = [*self.python, "-m", "verniermq.cli", "broker"]
        command += ["--port", _port(self.broker), "--namesrv-port", _port(self.namesrv)]
        command += ["--store", str(self.store), "--ready-file", str(self._ready_file)]
        if self.config:
            command += ["--config", str(self.config)]
        self.process = ServerProcess("verniermq", command, self.folder / "verniermq.log")
        return self.process

    def stop(self) -> None:
        if self.process:
            self.process.stop()

    def kill(self) -> None:
        if self.process:
            self.process.kill()

    def restart(self) -> None:
        self.stop()
        self.start()


def _port(address: str) -> str:
    return address.rsplit(":", 1)[1]
