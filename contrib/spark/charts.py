"""Charts of a few lines as SVG, drawn here: a file that every browser shows, and no package that draws it.

::

    save_chart(Path("messages.svg"), "Messages a minute", lines_of(rows, "minute", "messages", "topic"))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from typing import Any, Final

Points = Sequence[tuple[datetime, float]]

WIDTH: Final = 860
HEIGHT: Final = 320
LEFT, RIGHT, TOP, BOTTOM = 70, 200, 44, 36
"""What is around the lines: figures, names, the title, times."""
MOST_LINES: Final = 8
"""Lines that can be told apart; what is left is one more."""
COLOURS: Final = ("#1f6fb2", "#d9722e", "#2c9152", "#8e5bb5", "#b23a48", "#7a6a2f", "#3aa5a0", "#c45ba4", "#777777")
"""The last is that of the others."""
LONGEST_NAME: Final = 24
FINE: Final = timedelta(minutes=5)
"""Seconds are shown of a shorter time."""


def lines_of(rows: Iterable[Mapping[str, Any]], x: str, y: str, by: str = "") -> dict[str, Points]:
    """The lines of a table: one for each value of the column ``by``, those with the highest sum first."""
    found: dict[str, dict[datetime, float]] = {}
    for row in rows:
        if row[x] is not None and row[y] is not None:
            line = found.setdefault(str(row[by]) if by else y, {})
            line[row[x]] = line.get(row[x], 0.0) + float(row[y])
    names = sorted(found, key=lambda name: (-sum(found[name].values()), name))
    return {name: sorted(found[name].items()) for name in names}


def few(lines: Mapping[str, Points], most: int = MOST_LINES) -> dict[str, Points]:
    """The first lines, and the sum of the others."""
    names = list(lines)
    if len(names) <= most:
        return dict(lines)
    rest: dict[datetime, float] = {}
    for name in names[most:]:
        for at, value in lines[name]:
            rest[at] = rest.get(at, 0.0) + value
    return {**{name: lines[name] for name in names[:most]}, f"{len(names) - most} others": sorted(rest.items())}


def save_chart(path: Path, title: str, lines: Mapping[str, Points]) -> None:
    """Write the file; of many lines those that come first, and one for the others."""
    path.write_text(chart(title, few(lines)), encoding="utf-8")


def chart(title: str, lines: Mapping[str, Points]) -> str:
    """Lines over time, as the text of an SVG file. A single point is a dot."""
    times = [at for points in lines.values() for at, _ in points]
    begin, end = (min(times), max(times)) if times else (datetime.now(UTC), datetime.now(UTC))
    if begin == end:
        begin, end = begin - timedelta(minutes=1), end + timedelta(minutes=1)
    step = nice(max((value for points in lines.values() for _, value in points), default=0.0) / 4)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="16" fill="#222222">{escape(title)}</text>',
        *_grid(step),
        *_times(begin, end),
    ]
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[min(number, len(COLOURS) - 1)]
        parts += _line([_place(at, value, begin, end, step * 4) for at, value in points], colour)
        shown = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
        y = TOP + 10 + number * 20
        x = WIDTH - RIGHT + 14
        parts.append(f'<rect x="{x}" y="{y - 9}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{y + 1}" fill="#222222">{escape(shown)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def nice(value: float) -> float:
    """The least of 1, 2, 5, 10, 20, … that is not less."""
    top = 1.0
    while True:
        for factor in (1, 2, 5):
            if value <= top * factor:
                return top * factor
        top *= 10


def _place(at: datetime, value: float, begin: datetime, end: datetime, top: float) -> tuple[float, float]:
    across = (at - begin) / (end - begin)
    return LEFT + across * (WIDTH - LEFT - RIGHT), TOP + (1 - max(0.0, value) / top) * (HEIGHT - TOP - BOTTOM)


def _line(places: Sequence[tuple[float, float]], colour: str) -> list[str]:
    if len(places) == 1:
        return [f'<circle cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="4" fill="{colour}"/>']
    path = " ".join([f"{x:.1f},{y:.1f}" for x, y in places])
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>']


def _grid(step: float) -> list[str]:
    parts = []
    for number in range(5):
        y = TOP + (1 - number / 4) * (HEIGHT - TOP - BOTTOM)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
        figure = f"{step * number:,.0f}"
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{figure}</text>')
    return parts


def _times(begin: datetime, end: datetime) -> list[str]:
    parts = []
    shown = "%H:%M:%S" if end - begin < FINE else "%H:%M" if end - begin < timedelta(days=1) else "%m-%d %H:%M"
    for number in range(5):
        x = LEFT + number / 4 * (WIDTH - LEFT - RIGHT)
        at = begin + (end - begin) * number / 4
        text = at.strftime(shown)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 12}" text-anchor="middle" fill="#555555">{text}</text>')
    return parts
