"""The contract of every traffic shaper: run it on your own.

``check_shaper(make, rate)`` drives a fresh shaper in virtual time, too hard and then gently, and asserts what flow
control relies on.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

REFUSED: Final = -1
NS_PER_MS: Final = 1_000_000
START_NS: Final = 1_700_000_000_000 * NS_PER_MS


class TrafficShaper(Protocol):
    """Says how one more call fares: 0 passes, -1 is refused, anything else is nanoseconds to wait."""

    queues: bool
    """Whether it may make calls wait."""

    def check(self, node: Any, now_ns: int, count: int) -> int: ...


class Figures(Protocol):
    """What shapers of a resource share: hears of every call that passed."""

    def begin(self, now_ms: int, count: int) -> None: ...

    def end(self, now_ms: int, rt_ms: int, count: int, failed: bool) -> None: ...


class NoFigures:
    """For shapers that count for themselves."""

    def begin(self, now_ms: int, count: int) -> None:
        pass

    def end(self, now_ms: int, rt_ms: int, count: int, failed: bool) -> None:
        pass


def check_shaper(
    make: Callable[[], TrafficShaper],
    rate: float,
    *,
    make_node: Callable[[], Figures] = NoFigures,
    max_queueing_ms: int = 0,
    gentle: float = 0.25,
    seed: int = 1,
) -> None:
    """Assert that a shaper lets about ``rate`` a second pass under pressure, and everything when callers are few.

    Driven at five times its rate for 30 s, it lets no more pass in the long run than the rate, allowing for what
    the window lets through at its edges, and not nothing; a wait is never longer than ``max_queueing_ms``, and only a
    shaper that says it ``queues`` asks for one; those who wait pass in the order in which they came. Driven at a
    ``gentle`` share of its rate, evenly, it refuses nobody. ``make_node`` makes what the shaper reads the past from.
    """
    random = Random(seed)
    shaper, node = make(), make_node()
    now_ns, passes = START_NS, []
    while now_ns < START_NS + 30_000 * NS_PER_MS:
        wait = shaper.check(node, now_ns, 1)
        assert wait >= REFUSED, f"an answer of {wait} means nothing"
        if wait > 0:
            assert shaper.queues, "a shaper that makes calls wait must say so: queues = True"
            assert wait <= max_queueing_ms * NS_PER_MS, f"a call would wait {wait / NS_PER_MS} ms"
        if wait != REFUSED:
            passes.append(now_ns + wait)
            _call(node, now_ns)
        now_ns += int(random.expovariate(5 * rate) * 1e9)

    assert passes, "nobody passed"
    assert passes == sorted(passes), "a call overtook another that had been told to wait"
    seconds = (passes[-1] - START_NS) / 1e9 + 1
    assert len(passes) <= rate * seconds * 1.5 + 1, f"{len(passes)} passed in {seconds:.0f} s at a rate of {rate}"

    shaper, node = make(), make_node()
    for number in range(int(rate * gentle * 30)):
        now_ns = START_NS + int(number * 1e9 / (rate * gentle))
        assert shaper.check(node, now_ns, 1) != REFUSED, f"gentle call {number} was refused"
        _call(node, now_ns)


def _call(node: Figures, now_ns: int) -> None:
    node.begin(now_ns // NS_PER_MS, 1)
    node.end(now_ns // NS_PER_MS, 0, 1, False)
