"""A broker for tests: real, in the test's process or beside it, on free ports, with a clock that a test can move."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from verniermq.kernel.broker import Broker
from verniermq.kernel.clock import Clock
from verniermq.kernel.config import Configuration, load
from verniermq.kernel.errors import VernierMQError
from verniermq.testing.ports import held_port

SMALL: Final = {
    "broker.port": 0,
    "broker.vip_port": False,
    "plugins.namesrv.port": 0,
    # A test writes kilobytes; a gibibyte of address space per broker would only slow its start and end.
    "store.segment_size": "64MiB",
    "store.queue_entries": 10_000,
    # The disk of a developer or of a CI machine may be fuller than a broker in production would accept.
    "plugins.retention.disk_force_at": 100,
    "plugins.retention.disk_refuse_at": 100,
    "log.level": "warning",
}

STOP_SECONDS: Final = 60.0
"""Enough on however busy a machine; only a stop that hangs takes as long."""


def small_configuration(store: Path, settings: dict[str, Any] | None = None) -> Configuration:
    """Free ports and small files; ``settings`` are dotted keys, ``{"store.flush": "sync"}``."""
    return load(None, {**SMALL, "store.path": str(store), **(settings or {})}, environ={})


@asynccontextmanager
async def running_broker(
    store: Path | None = None, *, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Broker]:
    """Run a broker in this process; it is ready when the block begins and gone when it ends.

    Args:
        store: where its files go, to be kept; without it, a temporary folder
        settings: any setting, with ``__`` for the dot: ``store__flush="sync"``, ``plugins__enable=[]``
    """
    with _folder(store) as folder:
        dotted = {key.replace("__", "."): value for key, value in settings.items()}
        async with Broker(small_configuration(folder, dotted), clock) as broker:
            yield broker


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="verniermq-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- beside the test ----------------------------------------------------------------------


class BrokerProcessFailed(VernierMQError):
    def __init__(self, what: str, output: str) -> None:
        super().__init__(f"the broker process {what}; it said:\n{output}")


@attrs.define(eq=False)
class BrokerProcess:
    """A broker in a process of its own, started with ``--for-tests``."""

    store: Path
    arguments: list[str]
    within: Sequence[str] = ()
    """The command through which it is started, such as ``ip netns exec a``; it must become the broker's process."""
    broker: str = attrs.field(default="", init=False)
    """Its address, ``host:port``."""
    namesrv: str = attrs.field(default="", init=False)
    _process: subprocess.Popen[str] | None = attrs.field(default=None, init=False)

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker process is not running"
        return self._process.pid

    @property
    def log(self) -> Path:
        """What it printed."""
        return self.store.with_name(self.store.name + ".log")

    def start(self) -> None:
        """Start it and wait until it is ready; a second start takes the ports of the first.

        Raises:
            BrokerProcessFailed: it ended before it was ready.
        """
        ports = [address.rpartition(":")[2] or str(held_port(self)) for address in (self.broker, self.namesrv)]
        small = [f"--set={key}={value}" for key, value in SMALL.items() if not key.endswith("port")]
        command = [
            *self.within, sys.executable, "-m", "verniermq.cli", "broker", "--for-tests", "--store", str(self.store),
            "--port", ports[0], "--namesrv-port", ports[1], "--set=broker.vip_port=false", *small, *self.arguments,
        ]  # fmt: skip
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1
            )
        self._take_addresses()

    def advance(self, seconds: float) -> None:
        """Let time pass for the broker: delays, retries, transaction checks, locks and clients expire."""
        self._tell(f"advance {seconds}")
        self._answer()

    def reset(self) -> None:
        """Begin anew: no message, topic, group or client is left; the addresses stay."""
        self._tell("reset")
        self._take_addresses()

    def stop(self) -> None:
        """Ask it to end, as an operator would, and wait.

        Raises:
            BrokerProcessFailed: it did not end well.
        """
        if self._process is None:
            return
        self._tell("stop")
        try:
            _, _ = self._process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerProcessFailed(f"did not stop within {STOP_SECONDS:g} s", self.log.read_text()) from None
        code, self._process = self._process.returncode, None
        if code != 0:
            raise BrokerProcessFailed(f"ended with code {code}", self.log.read_text())

    def kill(self) -> None:
        """End it as a crash would: no time for anything."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _tell(self, command: str) -> None:
        assert self._process is not None, "the broker process is not running"
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.kill()
            raise BrokerProcessFailed("ended without an answer", self.log.read_text())
        data: dict[str, Any] = orjson.loads(line)
        if "error" in data:
            raise BrokerProcessFailed(f"refused: {data['error']}", "")
        return data

    def _take_addresses(self) -> None:
        data = self._answer()
        self.broker, self.namesrv = data["broker"], data["namesrv"]


@contextmanager
def broker_process(store: Path | None = None, *arguments: str) -> Iterator[BrokerProcess]:
    """Run a broker in a process of its own; ``arguments`` are those of ``verniermq broker``."""
    with _folder(None) as folder:
        process = BrokerProcess(store or folder / "store", list(arguments))
        process.start()
        try:
            yield process
        finally:
            process.stop()
