"""Runs a driver: a command line program around one real client, whose standard output is JSON lines."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from .processes import tail

Event = dict[str, Any]

PATIENCE = 150.0
"""Longer than any time-out that is told to a driver, which then says itself what it misses."""


class DriverRun:
    """One run of a subcommand, maybe still going on; its output is read from a file as it grows."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        self._output = folder / f"{name}.jsonl"
        self._errors = folder / f"{name}.stderr"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=folder,
                start_new_session=True,
            )

    def events(self, kind: str) -> list[Event]:
        """The lines of one kind (``sent``, ``received``, ``summary``, …) so far, in order."""
        whole_lines = self._output.read_bytes().rpartition(b"\n")[0].splitlines()
        return [event for event in map(json.loads, whole_lines) if event["event"] == kind]

    def wait_for(self, kind: str, timeout: float) -> None:
        """Return when a line of this kind is there; fail when the driver ends, or time is up, before that."""
        deadline = time.monotonic() + timeout
        while True:
            ended = self._process.poll() is not None  # asked first: its last line may be the one
            if self.events(kind):
                return
            assert not ended, self._describe(f"ended before {kind!r}")
            assert time.monotonic() < deadline, self._describe(f"no {kind!r} after {timeout} s")
            time.sleep(0.05)

    def finish(self, timeout: float = PATIENCE) -> DriverRun:
        """Wait for the end, which has to be exit code 0."""
        code = self.end(timeout)
        assert code == 0, self._describe(f"ended with {code}")
        return self

    def end(self, timeout: float = PATIENCE) -> int:
        """Wait for the end, whatever it is; returns the exit code."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(self._describe(f"still running after {timeout} s")) from None

    def terminate(self) -> int:
        """SIGTERM, which a driver answers by closing its client; returns the exit code."""
        self._process.terminate()
        return self._process.wait(60)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _describe(self, what: str) -> str:
        notable = [*self.events("failed")[:3], *self.events("summary")]
        return f"{self.name} {what}: {notable}\n{tail(self._errors)}"


class Driver:
    """One client's driver. Every run leaves its output in ``folder``; :meth:`close` ends what still runs."""

    def __init__(self, client: str, command: tuple[str, ...], folder: Path) -> None:
        self.client = client
        self._command = command
        self._folder = folder
        self._numbers = itertools.count(1)
        self._runs: list[DriverRun] = []

    def start(self, subcommand: str, **options: object) -> DriverRun:
        """Start ``<driver> subcommand --name value …``; an option ``linger_ms`` is spelt ``--linger-ms``."""
        words: list[str] = []
        for option, value in options.items():
            words += [f"--{option.replace('_', '-')}", str(value)]
        name = f"{next(self._numbers)}-{self.client}-{subcommand}"
        run = DriverRun(name, [*self._command, subcommand, *words], self._folder)
        self._runs.append(run)
        return run

    def run(self, subcommand: str, **options: object) -> DriverRun:
        """Start, wait for the end, and insist on success."""
        return self.start(subcommand, **options).finish()

    def close(self) -> None:
        for run in self._runs:
            run.kill()
