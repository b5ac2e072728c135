"""What is compared: one row for each figure, with the ratio that we aim at (VernierMQ ÷ Apache)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

SIZES: Final = {"128": 128, "1k": 1024}
SIZE_NAMES: Final = {"128": "128 B", "1k": "1 KiB"}


@attrs.frozen
class Row:
    name: str
    title: str
    """May name ``{backlog}`` and ``{stored}``, which are not the same in every run."""
    unit: str
    at_least: float | None = None
    """The aim where more is better."""
    at_most: float | None = None
    """The aim where less is better."""
    more_is_better: bool = True

    @property
    def aim(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return f"≤ {self.at_most:g}" if self.at_most is not None else ""

    def falls_short(self, ratio: float) -> bool:
        too_little = self.at_least is not None and ratio < self.at_least
        return too_little or (self.at_most is not None and ratio > self.at_most)


def _rate(name: str, title: str) -> Row:
    return Row(name, title, "messages/s", at_least=1.25)


def _cost(name: str, title: str, unit: str, at_most: float | None = None) -> Row:
    return Row(name, title, unit, at_most=at_most, more_is_better=False)


def _all_rows() -> Iterable[Row]:
    for threads in (1, 16, 64):
        for size, words in SIZE_NAMES.items():
            yield _rate(f"send-{threads}-{size}", f"sync send, {threads} thread{'s'[: threads > 1]}, {words}")
    for kind, words in (("async", "async send"), ("oneway", "one-way send"), ("batch", "batches of 32")):
        for size, size_words in SIZE_NAMES.items():
            yield _rate(f"{kind}-{size}", f"{words}, {size_words}")
    for kind, words in (("16", "sync send, 16 threads"), ("async", "async send"), ("batch", "batches of 32")):
        for size, size_words in SIZE_NAMES.items():
            yield _rate(f"group-{kind}-{size}", f"{words}, {size_words}, a group keeping up")
    yield _rate("flush-16", "sync flush, 16 threads, 1 KiB")
    yield _rate("flush-64", "sync flush, 64 threads, 1 KiB")
    yield _rate("consume-1", "consume a backlog of {backlog}, 1 consumer")
    yield _rate("consume-4", "consume a backlog of {backlog}, 4 consumers")
    for rate in (2_000, 10_000):
        yield _cost(f"latency-{rate}-p50", f"send to receive at {rate:,}/s, p50", "ms")
        yield _cost(f"latency-{rate}-p99", f"send to receive at {rate:,}/s, p99", "ms", at_most=1)
        yield _cost(f"latency-{rate}-p999", f"send to receive at {rate:,}/s, p99.9", "ms")
    yield _cost("start", "start to first acknowledged send", "s", at_most=0.1)
    yield _cost("memory-idle", "resident memory, idle", "MiB", at_most=0.1)
    yield _cost("memory-loaded", "resident memory, after the load", "MiB", at_most=0.1)
    yield _cost("memory-own", "… of which not mapped files", "MiB", at_most=0.1)
    yield _cost("stop", "time to stop", "s")
    yield _cost("restart-clean", "restart after a stop, {stored} stored", "s")
    yield _cost("restart-killed", "restart after kill -9, {stored} stored", "s")


ROWS: Final = {row.name: row for row in _all_rows()}

TELLING: Final = frozenset({"send-16-128", "async-128", "oneway-128", "batch-128", "batch-1k"})
"""What is measured of the other ways to run VernierMQ: in plain Python, by another Python."""


def choose(names: str | None) -> set[str]:
    """The rows whose names begin with one of these, or all of them.

    Raises:
        ValueError: one fits no row.
    """
    if not names:
        return set(ROWS)
    chosen: set[str] = set()
    for beginning in names.split(","):
        found = {name for name in ROWS if name.startswith(beginning)}
        if not found:
            raise ValueError(f"no row is called {beginning!r}; they are {', '.join(ROWS)}")
        chosen |= found
    return chosen


def rows_for_warming_up() -> set[str]:
    """One of each kind that the client has to do."""
    return {"send-16-1k", "async-1k", "oneway-1k", "batch-1k", "consume-1", "latency-2000-p50"}
