"""Things measured in turns: how fast, and who used how much CPU time (Java, the Pythons it started, the broker).

The CPU time comes from Linux's /proc.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import attrs

WHO = ("Java", "Python", "broker")
TICK = 1 / os.sysconf("SC_CLK_TCK")


def cpu_seconds(java: int, broker: int) -> dict[str, dict[int, float]]:
    """CPU seconds so far, of every process."""
    parents: dict[int, int] = {}
    own: dict[int, float] = {}
    ended: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended just now
            pid = int(entry.name)
            parents[pid] = int(fields[1])
            own[pid] = (int(fields[11]) + int(fields[12])) * TICK
            ended[pid] = (int(fields[13]) + int(fields[14])) * TICK

    def comes_from_java(pid: int) -> bool:
        while pid and pid != java:
            pid = parents.get(pid, 0)
        return pid == java

    pythons = {pid: own[pid] + ended[pid] for pid in own if pid != java and comes_from_java(pid)}
    return {"Java": {java: own[java]}, "Python": {java: ended[java], **pythons}, "broker": {broker: own[broker]}}


def used(before: dict[int, float], after: dict[int, float]) -> float:
    """CPU seconds between two looks. Nobody waits for Spark's Python workers, so the time of those that ended is lost:
    it must not be taken off the others'."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


@attrs.frozen
class Rate:
    rows: float
    """A second."""
    cpu: dict[str, float]
    """Microseconds a row, of each kind of process."""
    each: tuple[float, ...] = ()
    """The rates of all rounds, of which this is the middle one."""


@attrs.frozen
class Clock:
    """Measures things in turns, so that a busy moment of the machine hits all of them."""

    rows: int
    rounds: int
    warm: int
    java: int
    broker: int

    def rates(self, works: dict[str, Callable[[], None]]) -> dict[str, Rate]:
        found: dict[str, list[Rate]] = {name: [] for name in works}
        for turn in range(self.warm + self.rounds):
            for name, work in works.items():
                rate = self._once(work)
                if turn >= self.warm:
                    found[name].append(rate)
        return {name: _middle(some) for name, some in found.items()}

    def _once(self, work: Callable[[], None]) -> Rate:
        before, started = cpu_seconds(self.java, self.broker), time.perf_counter()
        work()
        seconds, after = time.perf_counter() - started, cpu_seconds(self.java, self.broker)
        cpu = {name: used(before[name], after[name]) * 1e6 / self.rows for name in after}
        return Rate(self.rows / seconds, cpu)


def _middle(some: list[Rate]) -> Rate:
    by_rows = sorted(some, key=lambda rate: rate.rows)
    return attrs.evolve(by_rows[len(some) // 2], each=tuple(round(rate.rows) for rate in some))
