"""The picture of the documentation: what three shapers make of the same calls, and how a system warms up.

``python -m tests.plugins.flow.picture`` writes it; a test keeps it true.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from verniermq.plugins.flow.shaper import NS_PER_MS, REFUSED, Reject, Shaper, UniformRate, WarmUp
from verniermq.plugins.flow.window import StatisticNode

WHERE: Final = Path(__file__).parents[3] / "docs" / "plugins" / "flow.svg"
T0: Final = 1_700_000_000_000
LEFT: Final = 190
ARRIVALS: Final = [*range(100, 260, 20), 900, 950, 1300, *range(1700, 1820, 20)]
"""Milliseconds at which calls come: a burst of 8, three stragglers, a burst of 6."""


def outcomes(shaper: Shaper) -> list[tuple[int, int | None]]:
    """When each call came and when it passed, ``None`` if it was refused."""
    node, found = StatisticNode(), []
    for arrival in ARRIVALS:
        wait = shaper.check(node, (T0 + arrival) * NS_PER_MS, 1)
        if wait == REFUSED:
            found.append((arrival, None))
            continue
        node.begin(T0 + arrival, 1)
        found.append((arrival, arrival + wait // NS_PER_MS))
    return found


def warming() -> list[int]:
    """Calls that pass in each second, of 200 that come."""
    shaper, node, passed = WarmUp(100, 10), StatisticNode(), []
    for second in range(24):
        count = 0
        for step in range(200):
            now = T0 + second * 1000 + step * 5
            if shaper.check(node, now * NS_PER_MS, 1) == 0:
                node.begin(now, 1)
                count += 1
        passed.append(count)
    return passed


def picture() -> str:
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 470" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    rows: list[tuple[str, list[tuple[int, int | None]]]] = [
        ("calls come", [(arrival, arrival) for arrival in ARRIVALS]),
        ("reject, 5 a second", outcomes(Reject(5))),
        ("uniform_rate, 5 a second, queueing ≤ 500 ms", outcomes(UniformRate(5, 500))),
        ("uniform_rate, 5 a second, queueing ≤ 5000 ms", outcomes(UniformRate(5, 5000))),
    ]
    for row, (title, calls) in enumerate(rows):
        y = 40 + row * 52
        first, _, second = title.partition(", queueing")
        parts.append(f'<text x="8" y="{y}">{first}</text>')
        if second:
            parts.append(f'<text x="8" y="{y + 15}">queueing{second}</text>')
        parts.append(f'<path d="M{LEFT} {y + 8.5}H840" stroke="#555555"/>')
        for arrival, passed in calls:
            if passed is None:
                x = _x(arrival)
                parts.append(f'<path d="M{x - 2} {y + 12}l5 5m0 -5l-5 5" stroke="#c8553d" stroke-width="1.5"/>')
            else:
                colour = "#5b6fb5" if row == 0 else "#2a9d8f"
                parts.append(f'<rect x="{_x(passed)}" y="{y - 14}" width="2" height="22" fill="{colour}"/>')
    parts += [f'<text x="{_x(second * 500)}" y="236" font-size="10">{second * 500} ms</text>' for second in range(9)]
    parts.append(
        f'<text x="{LEFT}" y="252" font-size="10">green: passes; red: refused. reject counts by half seconds.</text>'
    )
    parts.append('<text x="8" y="300">warm_up, 100 a second,</text><text x="8" y="315">10 s, 200 a second come</text>')
    for second, count in enumerate(warming()):
        x, top = LEFT + second * 26, 430 - count * 1.4
        parts.append(f'<rect x="{x}" y="{top:.1f}" width="22" height="{430 - top:.1f}" fill="#e9a03b"/>')
        parts.append(f'<text x="{x + 11}" y="{top - 5:.1f}" text-anchor="middle" font-size="9">{count}</text>')
        parts.append(f'<text x="{x + 11}" y="444" text-anchor="middle" font-size="9">{second} s</text>')
    return "\n".join([*parts, "</svg>", ""])


def _x(ms: int) -> float:
    return round(LEFT + ms * 0.155, 1)


if __name__ == "__main__":
    WHERE.write_text(picture(), encoding="utf-8")
