"""Everything that is measured of one side in one round, in the order of its life.

::

    start → idle → warm-up → sends → sends that a group reads → backlog → latency → filled up to 2 GiB → stop
          → start again → load, kill -9 → start again
    and, with another store: start with sync flush → sends

Only what the chosen rows need is done.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from sidebyside.brokers import STOP_SECONDS, Side
from sidebyside.driver import Event, LoadDriver
from sidebyside.machine import cpu_seconds, memory, written_bytes
from sidebyside.rows import SIZES
from tests.interop.wire import create_topic

QUEUES = 8
IN_FLIGHT = 1024
FILLER = 4000
"""Bytes of a message that only fills the store; from 4096 on, clients compress."""
START_SECONDS = 120
PATIENCE = 10.0
"""Seconds that a group which reads along may need at the end."""


@attrs.frozen
class Extent:
    """How long and how much."""

    warm_up: float
    """Seconds before each measurement."""
    seconds: float
    """Seconds of each measurement."""
    first_warm_up: float
    """Seconds of sending after the start: a Java broker is slow until it is compiled. Python needs a fifth."""
    backlog: int
    """Messages to consume."""
    stored: int
    """Bytes that are stored before the restarts."""
    idle: float
    """Seconds without a client before the memory is looked at."""


FULL = Extent(warm_up=2, seconds=6, first_warm_up=45, backlog=1_000_000, stored=2 << 30, idle=5)
SHORT = Extent(warm_up=0.7, seconds=2, first_warm_up=24, backlog=200_000, stored=2 << 30, idle=3)
QUICK = Extent(warm_up=0.3, seconds=0.7, first_warm_up=8, backlog=40_000, stored=128 << 20, idle=0.5)
WARMING_UP = Extent(warm_up=0.3, seconds=1, first_warm_up=15, backlog=30_000, stored=0, idle=0)
"""Of the client, against a broker that needs none."""


@attrs.frozen
class Measured:
    """One figure of one round."""

    value: float | None
    """``None`` where there is no such figure, since messages that it depends on failed or did not come in time."""
    failed: int = 0
    """Messages that the broker refused or lost meanwhile."""
    broker_cpu: float | None = None
    """Microseconds of CPU that the broker used for a message."""
    driver_cpu: float | None = None
    """Microseconds that the client used."""
    error: str | None = None


@attrs.define
class Round:
    make: Callable[[Path, bool], Side]
    driver: LoadDriver
    extent: Extent
    rows: set[str]
    tell: Callable[[str, int], None]
    """Told what is being done, and how many figures there are."""
    figures: dict[str, Measured] = attrs.Factory(dict)

    def run(self) -> dict[str, Measured]:
        if not self.rows <= {"flush-16", "flush-64"}:
            with self._side(sync_flush=False) as side:
                self._life(side)
        if self._wants("flush"):
            with self._side(sync_flush=True) as side:
                self._start(side)
                self._warm_up(side, share=0.5)
                for threads in (16, 64):
                    self._rate(f"flush-{threads}", side, "send", threads=threads, size=1024)
        return self.figures

    def _life(self, side: Side) -> None:
        started = self._start(side)
        self._keep("start", started)
        if self._wants("memory-idle"):
            self._note("idle")
            time.sleep(self.extent.idle)
            self._keep("memory-idle", memory(side.pids).resident)
        if self._wants("send", "async", "oneway", "batch", "group", "consume", "latency"):
            self._warm_up(side)
        self._sends(side)
        self._sends_beside_group(side)
        self._consume(side)
        self._latency(side)
        if self._wants("memory-loaded", "memory-own", "stop", "restart"):
            self._fill(side)
            used = memory(side.pids)
            self._keep("memory-loaded", used.resident)
            self._keep("memory-own", used.own)
        if self._wants("stop", "restart"):
            self._restarts(side)

    # --- the rows ---------------------------------------------------------------------------

    def _sends(self, side: Side) -> None:
        for size, count in SIZES.items():
            for threads in (1, 16, 64):
                self._rate(f"send-{threads}-{size}", side, "send", threads=threads, size=count)
            self._rate(f"async-{size}", side, "async", threads=2, size=count, in_flight=IN_FLIGHT)
            self._rate(f"oneway-{size}", side, "oneway", threads=2, size=count, in_flight=IN_FLIGHT)
            self._rate(f"batch-{size}", side, "send", threads=4, size=count, batch=32)

    def _sends_beside_group(self, side: Side) -> None:
        for size, count in SIZES.items():
            self._keep_up(f"group-16-{size}", side, "send", threads=16, size=count)
            self._keep_up(f"group-async-{size}", side, "async", threads=2, size=count, in_flight=IN_FLIGHT)
            self._keep_up(f"group-batch-{size}", side, "send", threads=4, size=count, batch=32)

    def _keep_up(self, name: str, side: Side, what: str, **options: Any) -> None:
        """Sends while a consumer reads the topic; what it needs at the end to have all of them counts as well."""
        if name not in self.rows:
            return
        where = {"namesrv": side.namesrv, "topic": self._topic(side, name)}
        self.driver.ask("group-start", **where, queues=QUEUES, timeout=90)
        options |= {"warm_up_ms": _ms(self.extent.warm_up), "ms": _ms(self.extent.seconds)}
        result, spent = self._ask(name, side, what, name, **options)
        read = self.driver.ask("group-stop", **where, count=result["done"], timeout_ms=_ms(PATIENCE), timeout=90)
        result["failed"] += read["failed"]
        through = result["done"] / (result["done"] / result["rate"] + read["late"]) if result["done"] else 0.0
        self._keep(name, None if read["failed"] else through, result, spent)

    def _consume(self, side: Side) -> None:
        if not self._wants("consume"):
            return
        count = self.extent.backlog
        topic = self._topic(side, "backlog")
        self._note(f"writing a backlog of {count:,}")
        self.driver.ask(
            "async", namesrv=side.namesrv, topic=topic, threads=2, size=128, in_flight=IN_FLIGHT, count=count,
            timeout=count / 1000 + 60,
        )  # fmt: skip
        seconds = int(count / 1000 + 60)
        for members in (1, 4):
            self._rate(
                f"consume-{members}", side, "consume", topic, members=members, queues=QUEUES, count=count,
                timeout=seconds, patience=seconds + 90,
            )  # fmt: skip

    def _latency(self, side: Side) -> None:
        for rate in (2_000, 10_000):
            name = f"latency-{rate}"
            if not self._wants(name):
                continue
            # Percentiles need many messages, and a client that has been at it for a while.
            times = {"warm_up_ms": _ms(self.extent.warm_up + 1), "ms": _ms(self.extent.seconds * 2)}
            topic = self._topic(side, name)
            result, spent = self._ask(
                name, side, "latency", topic, rate=rate, size=128, queues=QUEUES, **times, patience=90
            )
            for percentile in ("p50", "p99", "p999"):
                self._keep(f"{name}-{percentile}", result[percentile], result, spent)

    def _fill(self, side: Side) -> None:
        missing = self.extent.stored - written_bytes(side.store / "commitlog")
        if missing > 0:
            self._note(f"filling up to {self.extent.stored / 2**30:.2g} GiB")
            self.driver.ask(
                "async", namesrv=side.namesrv, topic=self._topic(side, "filler"), threads=2, size=FILLER,
                in_flight=IN_FLIGHT // 4, count=missing // FILLER + 1, timeout=600,
            )  # fmt: skip

    def _restarts(self, side: Side) -> None:
        self._note("stop")
        began = time.perf_counter()
        self._process.stop(STOP_SECONDS)
        self._keep("stop", time.perf_counter() - began)
        if not self._wants("restart"):
            return
        self._keep("restart-clean", self._start(side, "restart-clean"))
        # A crash hits a broker that is at work.
        self.driver.ask(
            "async", namesrv=side.namesrv, topic=self._topic(side, "load"), threads=2, size=1024,
            in_flight=IN_FLIGHT, warm_up_ms=_ms(self.extent.warm_up), ms=_ms(self.extent.seconds),
        )  # fmt: skip
        side.kill()
        self._keep("restart-killed", self._start(side, "restart-killed"))

    # --- how --------------------------------------------------------------------------------

    _process: Any = attrs.field(default=None, init=False)

    def _start(self, side: Side, name: str = "start") -> float:
        """Start the broker under a client that tries all the time; the seconds until its first send succeeds."""
        self._note(name)
        self.driver.tell("first-send", namesrv=side.namesrv, topic="first", size=128, timeout=START_SECONDS)
        self.driver.hear("waiting", START_SECONDS)
        began = time.perf_counter()
        self._process = side.launch()
        self.driver.hear("result", START_SECONDS + 10)
        return time.perf_counter() - began

    def _note(self, what: str) -> None:
        self.tell(what, len(self.figures))

    def _warm_up(self, side: Side, share: float = 1.0) -> None:
        self._note("warming up")
        third = _ms(self.extent.first_warm_up * share / (3 if side.is_slow_at_first else 15))
        common = {"namesrv": side.namesrv, "topic": self._topic(side, "warm-up"), "size": 1024, "warm_up_ms": 0}
        # The more messages, the sooner it is compiled; and those of waiting threads come another way.
        self.driver.ask("async", **common, ms=2 * third, threads=2, in_flight=IN_FLIGHT)
        self.driver.ask("send", **common, ms=third, threads=16)

    def _rate(self, name: str, side: Side, what: str, topic: str = "", **options: Any) -> None:
        if name not in self.rows:
            return
        if what != "consume":
            # Of one-way sends the queues are watched; fewer of them are watched with less effort.
            topic = self._topic(side, name, 2 if what == "oneway" else QUEUES)
            options |= {"warm_up_ms": _ms(self.extent.warm_up), "ms": _ms(self.extent.seconds)}
        result, spent = self._ask(name, side, what, topic, **options)
        self._keep(name, result["rate"], result, spent)

    def _ask(
        self, name: str, side: Side, what: str, topic: str, patience: float = 60, **options: Any
    ) -> tuple[Event, tuple[float, float]]:
        """The driver's answer, and what broker and client used of the processors meanwhile."""
        self._note(name)
        before = cpu_seconds(side.pids), cpu_seconds([self.driver.pid])
        self.driver.tell(what, namesrv=side.namesrv, topic=topic, **options)
        result = self.driver.hear("result", patience)
        after = cpu_seconds(side.pids), cpu_seconds([self.driver.pid])
        return result, (after[0] - before[0], after[1] - before[1])

    def _topic(self, side: Side, name: str, queues: int = QUEUES) -> str:
        create_topic(side.broker, side.namesrv, name, queues)
        return name

    def _keep(
        self, name: str, value: float | None, result: Event | None = None, spent: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        if name not in self.rows:
            return
        if result is None or not result["done"]:
            self.figures[name] = Measured(value)
            return
        broker, driver = (seconds / result["done"] * 1e6 for seconds in spent)
        self.figures[name] = Measured(value, int(result["failed"]), broker, driver, result["error"])

    def _wants(self, *beginnings: str) -> bool:
        return any(name.startswith(beginnings) for name in self.rows)

    @contextmanager
    def _side(self, sync_flush: bool) -> Iterator[Side]:
        """A side with an empty store, on a disk that has nothing left to write."""
        folder = Path(tempfile.mkdtemp(prefix="verniermq-bench-"))
        os.sync()
        try:
            side = self.make(folder, sync_flush)
            try:
                side.prepare()
                yield side
            finally:
                side.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
