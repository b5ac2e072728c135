"""Small line charts side by side, as SVG: how a rate changes while something grows, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

import attrs

WIDTH, HEIGHT, GAP = 330, 200, 70
INK, FAINT, COLOURS = "#222", "#ddd", ("#2a7f62", "#b3432b", "#3b5b92")
STEPS: Final = (1, 2, 2.5, 5, 10)


@attrs.frozen
class Chart:
    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


def draw(charts: Sequence[Chart]) -> str:
    """Two charts in a row."""
    rows = math.ceil(len(charts) / 2)
    width, height = 2 * (WIDTH + GAP) + 20, rows * (HEIGHT + 90) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, chart in enumerate(charts):
        x, y = 20 + number % 2 * (WIDTH + GAP), 30 + number // 2 * (HEIGHT + 90)
        parts += [f'<g transform="translate({x + GAP - 20},{y})">', *_one(chart), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _one(chart: Chart) -> list[str]:
    points = [point for line in chart.lines.values() for point in line]
    # One more, since zero has no place on a logarithmic scale.
    right = max(math.log10(1 + x) for x, _ in points)
    top = _round_up(max(y for _, y in points))

    def place(x: float, y: float) -> tuple[float, float]:
        return math.log10(1 + x) / right * WIDTH, HEIGHT - y / top * HEIGHT

    parts = [f'<text x="0" y="-12" font-size="13" fill="{INK}">{escape(chart.title)}</text>']
    for step in range(5):
        y = HEIGHT - step / 4 * HEIGHT
        parts.append(f'<path d="M0 {y:.1f}H{WIDTH}" stroke="{INK if step == 0 else FAINT}"/>')
        parts.append(f'<text x="-6" y="{y + 4:.1f}" text-anchor="end" fill="{INK}">{_short(top * step / 4)}</text>')
    for x in sorted({x for x, _ in points}):
        at = place(x, 0)[0]
        parts.append(f'<path d="M{at:.1f} {HEIGHT}v4" stroke="{INK}"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT + 16}" text-anchor="middle" fill="{INK}">{_short(x)}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT + 34}" text-anchor="middle" fill="{INK}">{chart.x_label}</text>')
    legend = []
    for number, (name, line) in enumerate(chart.lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [place(*point) for point in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        legend.append(f'<tspan fill="{colour}" dx="12">{escape(name)}</tspan>')
    if len(legend) > 1:
        parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT + 50}" text-anchor="middle">{"".join(legend)}</text>')
    parts.append(f'<text x="{WIDTH}" y="-12" text-anchor="end" fill="{INK}">{chart.y_label}</text>')
    return parts


def _round_up(value: float) -> float:
    magnitude = 10 ** math.floor(math.log10(value)) if value > 0 else 1
    return next(step * magnitude for step in STEPS if step * magnitude >= value)


def _short(value: float) -> str:
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
