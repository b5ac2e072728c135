"""The ratios as bars on a logarithmic scale: to the right of the line VernierMQ is better, to the left Apache is."""

from __future__ import annotations

import math
from typing import Final
from xml.sax.saxutils import escape

from sidebyside.results import Line

LEFT: Final = 300
WIDTH: Final = 480
STEP: Final = 20
TOP: Final = 56
MARKS: Final = (0.1, 0.25, 0.5, 1, 2, 4, 10, 25, 50, 100)
BETTER, SHORT, WORSE, INK, FAINT = "#2a7f62", "#c98a1b", "#b3432b", "#222", "#ddd"


def draw(lines: list[Line], title: str) -> str:
    """An SVG that can be looked at on white and on dark pages alike."""
    lines = [line for line in lines if line.ratio is not None]
    gains = [_gain(line) for line in lines]
    low = max(mark for mark in MARKS if mark <= min([1, *gains]) or mark == MARKS[0])
    high = min(mark for mark in MARKS if mark >= max([2, *gains]) or mark == MARKS[-1])

    def x(gain: float) -> float:
        share = math.log(min(max(gain, low), high) / low) / math.log(high / low)
        return LEFT + share * WIDTH

    height = TOP + STEP * len(lines) + 30
    bottom = TOP + STEP * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 80}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="22" font-size="15" fill="{INK}">{escape(title)}</text>',
        f'<text x="{x(1):.1f}" y="42" text-anchor="middle" fill="{INK}">how many times better than Apache</text>',
    ]
    for mark in MARKS:
        if low <= mark <= high:
            colour = INK if mark == 1 else FAINT
            parts.append(f'<path d="M{x(mark):.1f} {TOP - 6}V{bottom}" stroke="{colour}"/>')
            parts.append(f'<text x="{x(mark):.1f}" y="{bottom + 16}" text-anchor="middle" fill="{INK}">{mark:g}</text>')
    for number, (line, gain) in enumerate(zip(lines, gains, strict=True)):
        y = TOP + STEP * number
        begin, end = sorted((x(1), x(gain)))
        colour = WORSE if gain < 1 else SHORT if line.is_short else BETTER
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end" fill="{INK}">{escape(line.row.title)}</text>',
            f'<rect x="{begin:.1f}" y="{y + 3}" width="{max(end - begin, 1):.1f}" height="{STEP - 7}" '
            f'fill="{colour}"/>',
            f'<text x="{end + 5:.1f}" y="{y + 13}" fill="{INK}">{gain:.2f}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _gain(line: Line) -> float:
    """How many times better: the ratio where more is better, what it goes into where less is."""
    assert line.ratio is not None
    return line.ratio if line.row.more_is_better else 1 / line.ratio
