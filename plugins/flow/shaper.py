"""How many may pass: Sentinel's traffic shapers, each one small object with one question.

``check(node, now_ns, count)`` answers 0 (pass), :data:`REFUSED`, or for how many nanoseconds the call has to wait
before it may pass. A shaper never sleeps; whoever asked does, in the way that suits it.

    reject         ▏▏▏▏▏▏▏▏▏▏✗✗✗✗      so many at once, the rest is refused
    uniform rate   ▏    ▏    ▏    ▏    ✗   evenly spaced, those in between wait, too long a wait is refused
    warm-up        ▏  ▏  ▏ ▏ ▏▏▏▏▏▏    a third of the rate at first, more and more as the callers keep coming

Warm-up is Guava's token bucket seen from below. Unused capacity is saved as tokens, up to ``most``; the more
tokens lie there the colder the system is and the slower it lets calls through:

    interval between calls
    3/rate ┤                    ╱        at ``most`` tokens (cold)
           │                ╱
    1/rate ┤────────────╱                at ``warning`` tokens or fewer (warm)
           └────────────┴───────┴──▶ tokens
                      warning  most
"""

from __future__ import annotations

from math import floor, inf, nextafter
from typing import Final, Protocol

from verniermq.plugins.flow.window import StatisticNode

REFUSED: Final = -1
NS_PER_MS: Final = 1_000_000
COLD_FACTOR: Final = 3
"""A cold system lets a third of the rate pass, as in Sentinel."""


class Shaper(Protocol):
    """One rule of one resource at work."""

    queues: bool
    """Whether it may make calls wait; such a one is asked last, when all others let the call pass."""

    def check(self, node: StatisticNode, now_ns: int, count: int) -> int: ...


def java_round(value: float) -> int:
    """``Math.round``: halves go up, also below zero."""
    return floor(value + 0.5)


class Reject:
    """At most so many in the window (Sentinel: ``DefaultController`` with grade QPS)."""

    __slots__ = ("limit",)
    queues = False

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def check(self, node: StatisticNode, now_ns: int, count: int) -> int:
        return 0 if node.pass_qps(now_ns // NS_PER_MS) + count <= self.limit else REFUSED


class Concurrency:
    """At most so many running (Sentinel: ``DefaultController`` with grade THREAD)."""

    __slots__ = ("limit",)
    queues = False

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def check(self, node: StatisticNode, now_ns: int, count: int) -> int:
        return 0 if node.running + count <= self.limit else REFUSED


class UniformRate:
    """One after the other at even distances (Sentinel: ``ThrottlingController``).

    Whole milliseconds where they divide the second evenly; else nanoseconds, so that 3 a second are 3.
    """

    __slots__ = ("_latest", "_longest", "_per_second", "_single_cost", "_unit_ns", "in_nanoseconds", "rate")
    queues = True

    def __init__(self, rate: float, max_queueing_ms: int) -> None:
        self.rate = rate
        rounded = java_round(rate)
        self.in_nanoseconds = rate > 0 and (rounded == 0 or 1000 % rounded != 0 or rate > 1000)
        self._unit_ns = 1 if self.in_nanoseconds else NS_PER_MS
        self._per_second = 1_000_000_000 if self.in_nanoseconds else 1000
        self._longest = max_queueing_ms * NS_PER_MS // self._unit_ns
        self._single_cost = self.cost(1) if rate > 0 else 0
        self._latest = -1

    def cost(self, count: int) -> int:
        """The distance to the next call, in the unit of this rule."""
        return java_round(self._per_second * count / self.rate)

    def check(self, node: StatisticNode, now_ns: int, count: int) -> int:
        if count <= 0:
            return 0
        if self.rate <= 0:
            return REFUSED
        now = now_ns // self._unit_ns
        expected = self._latest + (self._single_cost if count == 1 else self.cost(count))
        if expected <= now:
            self._latest = now
            return 0
        wait = expected - now
        if wait > self._longest:
            return REFUSED
        self._latest = expected
        return wait * self._unit_ns


class WarmUp:
    """A rate that rises from a third to the whole while it is used (Sentinel: ``WarmUpController``).

    The tokens change once a second, so what they allow is worked out then, and a check only compares with it.
    """

    __slots__ = ("_allowed", "_cold_rate", "_refill_ms", "_tokens", "most", "rate", "slope", "warning")
    queues = False

    def __init__(self, rate: float, period_s: int, cold_factor: int = COLD_FACTOR) -> None:
        self.rate = rate
        self._cold_rate = int(rate) // cold_factor
        self.warning = int(period_s * rate) // (cold_factor - 1)
        self.most = self.warning + int(2 * period_s * rate / (1 + cold_factor))
        above = self.most - self.warning
        # Too small a rate for a single token between warm and cold: there is nothing to warm up.
        self.slope = (cold_factor - 1) / rate / above if above else 0.0
        self._refill_ms = 1000
        """When the present second is over; 1970 at first, so that the first check fills up."""
        self._set_tokens(0)

    @property
    def tokens(self) -> int:
        return self._tokens

    @tokens.setter
    def tokens(self, tokens: int) -> None:
        self._set_tokens(tokens)

    def check(self, node: StatisticNode, now_ns: int, count: int) -> int:
        now_ms = now_ns // NS_PER_MS
        if now_ms >= self._refill_ms:
            self.refill(now_ms, node)
        return 0 if node.pass_qps(now_ms) + count <= self._allowed else REFUSED

    def allowed(self) -> float:
        """The rate that the present number of tokens allows."""
        return self._allowed

    def refill(self, now_ms: int, node: StatisticNode) -> None:
        """Once a second: save what was not used, and take away what passed in the second before."""
        if now_ms < self._refill_ms:
            return
        second_ms = now_ms - now_ms % 1000
        filled_ms = self._refill_ms - 1000
        passed = node.previous_pass(now_ms)
        tokens = self._tokens
        # Exactly at the warning line, or above it and busy: the system is being used, so it does not cool down.
        if tokens < self.warning or (tokens > self.warning and passed < self._cold_rate):
            tokens = int(tokens + (second_ms - filled_ms) * self.rate / 1000)
        self._set_tokens(max(0, min(tokens, self.most) - passed))
        self._refill_ms = second_ms + 1000

    def _set_tokens(self, tokens: int) -> None:
        self._tokens = tokens
        if tokens < self.warning:
            self._allowed = self.rate
        else:
            # The next larger number, so that rounding does not cost a call.
            self._allowed = nextafter(1 / ((tokens - self.warning) * self.slope + 1 / self.rate), inf)


class WarmUpUniformRate(WarmUp):
    """Even distances that shrink while the system warms up (Sentinel: ``WarmUpRateLimiterController``)."""

    __slots__ = ("_latest", "_longest", "_single_cost")
    queues = True

    def __init__(self, rate: float, period_s: int, max_queueing_ms: int, cold_factor: int = COLD_FACTOR) -> None:
        super().__init__(rate, period_s, cold_factor)
        self._longest = max_queueing_ms
        self._latest = -1

    def check(self, node: StatisticNode, now_ns: int, count: int) -> int:
        now_ms = now_ns // NS_PER_MS
        if now_ms >= self._refill_ms:
            self.refill(now_ms, node)
        expected = self._latest + (self._single_cost if count == 1 else self.cost(count))
        if expected <= now_ms:
            self._latest = now_ms
            return 0
        wait = expected - now_ms
        if wait > self._longest:
            return REFUSED
        self._latest = expected
        return wait * NS_PER_MS

    def cost(self, count: int) -> int:
        """The distance to the next call at present, in milliseconds."""
        return java_round(count / self._allowed * 1000)

    def _set_tokens(self, tokens: int) -> None:
        super()._set_tokens(tokens)
        self._single_cost = self.cost(1)
