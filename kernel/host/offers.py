"""What plugins offer to whoever watches the broker: metrics, pages, and conditions of being ready.

The kernel only keeps them. ``http`` serves the pages and the conditions, ``metrics`` writes the metrics for Prometheus,
``console`` shows all of them; without those plugins an offer costs nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from verniermq.kernel.errors import PluginError

MetricKind = Literal["counter", "gauge", "histogram"]
NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class Histogram:
    """How often values fell into which range: at most ``bounds[0]``, at most ``bounds[1]``, …, above all of them."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


Value = float | Histogram
Sample = tuple[tuple[str, ...], Value]
"""The values of the labels, in their order, and the figure."""


class Metric(NamedTuple):
    """A figure that a plugin offers; ``collect`` is called when somebody wants to know it."""

    plugin: str
    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...]
    collect: Callable[[], Value | Iterable[Sample]]

    def samples(self) -> Iterable[Sample]:
        found = self.collect()
        return [((), found)] if isinstance(found, int | float | Histogram) else found


def check_metric(name: str, kind: str, labels: tuple[str, ...]) -> None:
    """
    Raises:
        PluginError: Prometheus would not take it.
    """
    for word in (name, *labels):
        if NAME.fullmatch(word) is None:
            raise PluginError(f"metric {name!r}: {word!r} is no name; letters, digits and _, no digit first")
    if kind not in ("counter", "gauge", "histogram"):
        raise PluginError(f"metric {name!r} is a {kind!r}; expected counter, gauge or histogram")
    if kind == "counter" and not name.endswith("_total"):
        raise PluginError(f"metric {name!r} is a counter; its name ends with _total")


class PageAnswer(NamedTuple):
    """What a page answers that is no data but bytes of its own."""

    body: bytes | list[bytes]
    """What is long comes in pieces, which are written one after the other."""
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200


PageContent = PageAnswer | Mapping[str, Any] | list[Any]
"""Bytes, or data: JSON over HTTP, and tables in the console."""


class Page(NamedTuple):
    """An address that a plugin answers. It shows and changes nothing."""

    plugin: str
    path: str
    serve: Callable[[Mapping[str, str]], PageContent | Awaitable[PageContent]]
    """Gets the query of the address, the last value of each name."""
    title: str
    """How the console lists it; with none it does not."""
    listen: str
    """``host:port`` of a listener that it shares with others of the same; with none, the one of ``http``."""


class Check(NamedTuple):
    """A condition of being ready."""

    plugin: str
    name: str
    why_not: Callable[[], str | None]
    """Says what is wrong, or ``None``."""
