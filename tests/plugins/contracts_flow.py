"""The contract of every traffic shaper: run it on your own.

``check_shaper(make, rate)`` drives a fresh shaper in virtual time, too hard and then gently, and asserts what the
engine relies on.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from verniermq.plugins.flow.shaping import NS_PER_MS, REFUSED
from verniermq.plugins.flow.window import Node


class Shaper(Protocol):
    queues: bool

    def check(self, node: Node, now_ns: int, count: int) -> int: ...


START_NS = 1_700_000_000_000 * NS_PER_MS


def check_shaper(
    make: Callable[[], Shaper], rate: float, *, max_queueing_ms: int = 0, gentle: float = 0.25, seed: int = 1
) -> None:
    """Assert that a shaper lets about ``rate`` a second pass under pressure, and everything when callers are few.

    Driven at five times its rate for 30 s, it lets no more pass in the long run than the rate, allowing for what
    the window lets through at its edges, and not nothing; a wait is never longer than ``max_queueing_ms``, and only a
    shaper that says it ``queues`` asks for one; those who wait pass in the order in which they came. Driven at a
    ``gentle`` share of its rate, evenly, it refuses nobody.
    """
    random = Random(seed)
    shaper, node = make(), Node()
    now_ns, passes = START_NS, []
    while now_ns < START_NS + 30_000 * NS_PER_MS:
        wait = shaper.check(node, now_ns, 1)
        assert wait >= REFUSED, f"an answer of {wait} means nothing"
        if wait > 0:
            assert shaper.queues, "a shaper that makes calls wait must say so: queues = True"
            assert wait <= max_queueing_ms * NS_PER_MS, f"a call would wait {wait / NS_PER_MS} ms"
        if wait != REFUSED:
            passes.append(now_ns + wait)
            node.begin(now_ns // NS_PER_MS, 1)
            node.end(now_ns // NS_PER_MS, 0, 1, False)
        now_ns += int(random.expovariate(5 * rate) * 1e9)

    assert passes, "nobody passed"
    assert passes == sorted(passes), "a call overtook another that had been told to wait"
    seconds = (passes[-1] - START_NS) / 1e9 + 1
    assert len(passes) <= rate * seconds * 1.5 + 1, f"{len(passes)} passed in {seconds:.0f} s at a rate of {rate}"

    shaper, node = make(), Node()
    for number in range(int(rate * gentle * 30)):
        now_ns = START_NS + int(number * 1e9 / (rate * gentle))
        assert shaper.check(node, now_ns, 1) != REFUSED, f"gentle call {number} was refused"
        node.begin(now_ns // NS_PER_MS, 1)
        node.end(now_ns // NS_PER_MS, 0, 1, False)
