"""A producer, three brokers and a bad minute, in virtual time; and the picture of it for the documentation.

    broker-a   well all the time, answers in 5 ms
    broker-b   slow from second 10 to 40: answers in 1.5 s
    broker-c   dead from second 20 to 50: connections are refused after 10 ms

The producer starts a send every 50 ms, whether or not earlier ones were answered, and tries a failed one up
to twice more. ``python -m tests.plugins.fault.simulation`` writes the picture.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from verniermq.kernel import MessageQueue
from verniermq.plugins.fault import make_strategy

BROKERS: Final = ("broker-a", "broker-b", "broker-c")
STRATEGIES: Final = ("round_robin", "latency", "timeout", "flag", "fewest_failures")
DURATION_S: Final = 70
SEND_EVERY_MS: Final = 50
SLOW_S: Final = range(10, 40)
DEAD_S: Final = range(20, 50)


def sends_per_second(strategy_name: str, seed: int = 7) -> dict[str, list[int]]:
    """How many tries each broker saw in each second."""
    now_ms = 0.0
    strategy = make_strategy(strategy_name, clock_ms=lambda: now_ms, random=Random(seed))
    assert strategy is not None
    queues = [MessageQueue("orders", broker, number) for broker in BROKERS for number in range(4)]
    tries = {broker: [0] * DURATION_S for broker in BROKERS}

    # (time, order, broker that was tried or None for a new send, time it was tried, tries so far)
    events: list[tuple[float, int, str | None, float, int]] = [
        (float(at), at, None, 0.0, 0) for at in range(0, DURATION_S * 1000, SEND_EVERY_MS)
    ]
    heapq.heapify(events)
    order = DURATION_S * 1000
    while events:
        now_ms, _, broker, tried_at, count = heapq.heappop(events)
        failed = broker == "broker-c" and tried_at // 1000 in DEAD_S
        if broker is not None:
            strategy.record(broker, now_ms - tried_at, failed=failed, reachable=not failed)
            if not failed or count == 3:
                continue
        second = int(now_ms // 1000)
        if second >= DURATION_S:
            continue
        chosen = strategy.choose(queues, broker).broker_name
        tries[chosen][second] += 1
        order += 1
        heapq.heappush(events, (now_ms + _takes_ms(chosen, second), order, chosen, now_ms, count + 1))
    return tries


def _takes_ms(broker: str, second: int) -> float:
    if broker == "broker-b" and second in SLOW_S:
        return 1500
    return 10 if broker == "broker-c" and second in DEAD_S else 5


# --- the picture ---------------------------------------------------------------------------

Tries = Mapping[str, Mapping[str, Sequence[int]]]
"""Strategy → broker → how many tries in each step of time."""

COLOURS: Final = {"broker-a": "#2a9d8f", "broker-b": "#e9a03b", "broker-c": "#c8553d"}
LEFT, TOP, ROW, CELL, MOST = 130, 56, 64, 9, 24


def picture() -> str:
    """The simulation."""
    marks = [f"{second} s" for second in range(0, DURATION_S + 1, 10)]
    return draw({name: sends_per_second(name) for name in STRATEGIES}, SLOW_S, DEAD_S, marks)


def draw(tries: Tries, slow: range, dead: range, marks: Sequence[str], what: str = "tries per second") -> str:
    """One row per strategy: tries per step of time, stacked by broker; ``marks`` stand under each tenth step."""
    steps = len(next(iter(next(iter(tries.values())).values())))
    width, height = LEFT + CELL * steps + 20, TOP + ROW * len(tries) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for number, (broker, state) in enumerate([("broker-a", "well"), ("broker-b", "slow"), ("broker-c", "dead")]):
        x = LEFT + number * 130
        parts.append(f'<rect x="{x}" y="8" width="12" height="12" fill="{COLOURS[broker]}"/>')
        parts.append(f'<text x="{x + 18}" y="18">{broker} ({state})</text>')
    for label, span, y in (("broker-b is slow", slow, 28), ("broker-c is dead", dead, 40)):
        colour = COLOURS[label[:8]]
        x, length = LEFT + span.start * CELL, len(span) * CELL
        parts.append(f'<rect x="{x}" y="{y}" width="{length}" height="10" fill="{colour}" opacity="0.35"/>')
        parts.append(f'<text x="{x + 4}" y="{y + 9}" font-size="9">{label}</text>')
    for row, (name, by_broker) in enumerate(tries.items()):
        base = TOP + ROW * (row + 1) - 8
        parts.append(f'<text x="8" y="{base - 18}">{name}</text>')
        for step in range(steps):
            y = float(base)
            for broker in BROKERS:
                bar = min(by_broker[broker][step], 3 * MOST) * (ROW - 16) / (1.6 * MOST)
                y -= bar
                if bar:
                    parts.append(
                        f'<rect x="{LEFT + step * CELL}" y="{y:.1f}" width="{CELL - 1}" height="{bar:.1f}" '
                        f'fill="{COLOURS[broker]}"/>'
                    )
        parts.append(f'<path d="M{LEFT} {base}.5H{LEFT + CELL * steps}" stroke="#555555"/>')
    parts += [
        f'<text x="{LEFT + number * 10 * CELL - 4}" y="{height - 18}" font-size="10">{mark}</text>'
        for number, mark in enumerate(marks)
    ]
    parts.append(f'<text x="{LEFT}" y="{height - 4}" font-size="10">{what}, stacked by broker</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    from pathlib import Path

    Path("docs/plugins/fault.svg").write_text(picture(), encoding="utf-8")
