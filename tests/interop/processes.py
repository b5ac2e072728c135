"""A server process of a test: its log in a file, stopped politely or killed, never left behind."""

from __future__ import annotations

import random
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

LOOPBACK = "127.0.0.1"
PORTS = range(23_000, 29_000)
"""Below those that Linux gives to clients; no page of the documentation names one of them."""


class ServerError(Exception):
    """A server that did not start or stop as it should; the message ends with the end of its log."""

    def __init__(self, what: str, log: Path) -> None:
        super().__init__(f"{what}; the end of {log.name}:\n{tail(log)}")


class ServerProcess:
    """One running server. Standard output and error go to ``log``, which grows over restarts."""

    def __init__(self, name: str, command: Sequence[str], log: Path, cwd: Path | None = None) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                # Ctrl-C in the terminal then reaches pytest only, which stops the servers in order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, is_ready: Callable[[], bool], timeout: float) -> None:
        """Return once ``is_ready()``; raise :class:`ServerError` if the server ends or time is up first."""
        deadline = time.monotonic() + timeout
        while not is_ready():
            if self._process.poll() is not None:
                code = self._process.returncode
                raise ServerError(f"{self.name} ended with {code} while starting", self.log)
            if time.monotonic() > deadline:
                self.kill()
                raise ServerError(f"{self.name} was not ready after {timeout} s", self.log)
            time.sleep(0.05)

    def stop(self, timeout: float = 30) -> None:
        """SIGTERM, and wait. A server that does not end by itself is killed, and that is an error."""
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerError(f"{self.name} did not stop within {timeout} s", self.log) from None

    def kill(self) -> None:
        """SIGKILL: what a crash of the process looks like to its files. Harmless if it ended already."""
        self._process.kill()
        self._process.wait()


def tail(log: Path, lines: int = 30) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join(text.splitlines()[-lines:])


def free_ports(*distances: int) -> int:
    """A port that is free now together with those at the given distances from it.

    The system gives none of :data:`PORTS` to whoever asks for any, so it is still free when the server starts.
    """
    while True:
        port = random.choice(PORTS)
        if all(_is_free(port + distance) for distance in (0, *distances)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as candidate:
        try:
            candidate.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
