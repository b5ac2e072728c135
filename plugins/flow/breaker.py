"""A circuit breaker: when too much of what passes is slow or fails, nothing passes for a while.

                 too many slow or failed
       CLOSED ──────────────────────────────▶ OPEN ◀─────────────────┐
          ▲                                    │ recovery time over: │ the probe was slow or
          │ the probe was good                 ▼ one call passes     │ failed, or was refused
          └─────────────────────────────── HALF_OPEN ────────────────┘

Figures are kept for one interval at a time (1 s unless set otherwise) and start from nothing in the next, as in
Sentinel (``ResponseTimeCircuitBreaker``, ``ExceptionCircuitBreaker``). A call is slow if it took *longer* than
the limit.
"""

from __future__ import annotations

from enum import Enum

from verniermq.plugins.flow.rules import Measure


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


class Breaker:
    """One breaker of one resource. Times are whole milliseconds."""

    __slots__ = (
        "_bad", "_interval_ms", "_least_calls", "_limit", "_max_rt_ms", "_measure", "_recovery_ms", "_retry_ms",
        "_start_ms", "_total", "state",
    )  # fmt: skip

    def __init__(
        self,
        measure: Measure,
        limit: float,
        *,
        recovery_ms: int,
        max_rt_ms: int = 0,
        least_calls: int = 5,
        interval_ms: int = 1000,
    ) -> None:
        """``limit`` is a ratio from 0 to 1, or a number of errors; ``max_rt_ms`` is for slow calls only."""
        self.state = BreakerState.CLOSED
        self._measure = measure
        self._limit = limit
        self._recovery_ms = recovery_ms
        self._max_rt_ms = max_rt_ms
        self._least_calls = least_calls
        self._interval_ms = interval_ms
        self._retry_ms = 0
        self._start_ms = -1
        self._total = 0
        self._bad = 0

    def try_pass(self, now_ms: int) -> bool:
        """Whether a call may go on; the first one after the recovery time is the probe."""
        if self.state is BreakerState.CLOSED:
            return True
        if self.state is BreakerState.OPEN and now_ms >= self._retry_ms:
            self.state = BreakerState.HALF_OPEN
            return True
        return False

    def probe_refused(self) -> None:
        """Take back a probe that somebody else refused after it had passed here; the next call may be one."""
        if self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.OPEN

    def completed(self, now_ms: int, rt_ms: int, failed: bool) -> None:
        """Hear how a call that passed went."""
        start = now_ms - now_ms % self._interval_ms
        if start > self._start_ms:
            self._clear(start)
        bad = rt_ms > self._max_rt_ms if self._measure == "slow_ratio" else failed
        self._total += 1
        self._bad += bad
        if self.state is BreakerState.HALF_OPEN:
            if bad:
                self._open(now_ms)
            else:
                self.state = BreakerState.CLOSED
                self._clear(start)
        elif self.state is BreakerState.CLOSED and self._total >= self._least_calls and self._is_too_much():
            self._open(now_ms)

    def _is_too_much(self) -> bool:
        if self._measure == "error_count":
            return self._bad > self._limit
        ratio = self._bad / self._total
        # "More than all of them" cannot be, so a limit of 1.0 for slow calls means all of them.
        return ratio > self._limit or (self._measure == "slow_ratio" and ratio == self._limit == 1.0)

    def _open(self, now_ms: int) -> None:
        self.state = BreakerState.OPEN
        self._retry_ms = now_ms + self._recovery_ms

    def _clear(self, start_ms: int) -> None:
        self._start_ms = start_ms
        self._total = 0
        self._bad = 0
