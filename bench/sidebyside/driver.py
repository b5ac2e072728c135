"""Apache's Java client in a virtual machine that stays warm: one for the whole run, the same for both sides."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.interop.processes import tail
from tests.interop.toolchains import java_driver

JVM: Final = ("-Xms512m", "-Xmx512m")

Event = dict[str, Any]


class MeasurementFailed(Exception):
    """The driver said that it could not measure something, or ended, or said nothing for too long."""


class LoadDriver:
    """``load``, a subcommand of the interop suite's driver: a line asks for a measurement, a line of JSON answers."""

    def __init__(self, folder: Path) -> None:
        self._errors = folder / "driver.stderr"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*java_driver("java5", JVM), "load"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder,
                start_new_session=True,
            )  # fmt: skip
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, what: str, *, timeout: float = 60, **options: object) -> Event:
        """Have something measured and return the figures."""
        self.tell(what, **options)
        return self.hear("result", timeout)

    def tell(self, what: str, **options: object) -> None:
        words = [what]
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()

    def hear(self, kind: str, timeout: float) -> Event:
        """The next line, which has to be of this kind."""
        try:
            event: Event = json.loads(self._lines.get(timeout=timeout))
        except queue.Empty:
            raise MeasurementFailed(f"no {kind!r} after {timeout:g} s:\n{tail(self._errors)}") from None
        if event["event"] != kind:
            raise MeasurementFailed(f"{event} instead of {kind!r}:\n{tail(self._errors)}")
        return event

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put('{"event": "ended"}')
