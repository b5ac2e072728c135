"""Charts as SVG, drawn here: the browser gets lines, and no program that draws them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from verniermq.contrib.console.history import SPANS, Key, RateHistory
from verniermq.contrib.console.view import BadAddress

WIDTH: Final = 1000
HEIGHT: Final = 120


def chart(
    history: RateHistory, lines: dict[str, Key], span: str, now: float, *, newest: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Some series over one span of time, by their labels.

    Args:
        newest: what a label says is the value now, where the page knows a newer one than the last point

    Raises:
        BadAddress: there is no such span.
    """
    if span not in SPANS:
        raise BadAddress(f"span={span!r}: expected {' or '.join(SPANS)}")
    step, count = SPANS[span]
    begin = now - step * count
    series = {label: history.points(key, span, now) for label, key in lines.items()}
    most = max((value for points in series.values() for _, value in points), default=0.0)
    top = nice(most)
    return {
        "span": span,
        "spans": list(SPANS),
        "top": top,
        "lines": [
            {"label": label, "path": path(points, begin, now, top, step),
             "last": (newest or {}).get(label, points[-1][1]) if points else None,
             "points": [(round(at), round(value, 2)) for at, value in points]}
            for label, points in series.items()
        ],
        "times": [
            {"x": WIDTH * part / 4, "text": datetime.fromtimestamp(begin + (now - begin) * part / 4).strftime("%H:%M")}
            for part in range(5)
        ],
    }  # fmt: skip


def nice(value: float) -> float:
    """The least of 1, 2, 5, 10, 20, … that is not less."""
    top = 1.0
    while True:
        for factor in (1, 2, 5):
            if value <= top * factor:
                return top * factor
        top *= 10


def path(points: list[tuple[float, float]], begin: float, end: float, top: float, step: float) -> str:
    """A line through points; where some are missing it is broken."""
    words = []
    before = None
    for at, value in points:
        x, y = WIDTH * (at - begin) / (end - begin), HEIGHT * (1 - value / top)
        broken = before is None or at - before > 3 * step
        words.append(f"{'M' if broken else 'L'}{max(0.0, x):.1f} {y:.1f}")
        before = at
    return "".join(words)
