"""What happened in the last second: a ring of two buckets of half a second each (Sentinel: ``LeapArray``).

    time      0        500       1000      1500      2000 ms
    bucket    |── 0 ───|── 1 ────|── 0 ────|── 1 ────|
                            at 1200 the window is bucket 0 (since 1000) and bucket 1 (since 500)

A bucket is reset when its turn comes again, and only when something happens then, so that nothing runs while
nothing happens. The sum over the window jumps back by up to half of it every 500 ms: that is
Sentinel's arithmetic, and the reason why a limit of 10 may let 10 pass at 990 ms and 10 more at 1500 ms.
"""

from __future__ import annotations

from typing import Final

WINDOW_MS: Final = 1000
BUCKET_MS: Final = 500
BUCKETS: Final = WINDOW_MS // BUCKET_MS

LONGEST_RT_MS: Final = 5000
"""What the smallest response time is taken for while nothing was answered (Sentinel: ``statisticMaxRt``)."""


class Bucket:
    """The figures of one half second."""

    __slots__ = ("blocked", "failed", "min_rt_ms", "passed", "rt_ms", "start_ms", "succeeded")

    def __init__(self) -> None:
        self.reset(-1)

    def reset(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.passed = 0
        self.blocked = 0
        self.succeeded = 0
        self.failed = 0
        self.rt_ms = 0
        self.min_rt_ms = LONGEST_RT_MS


class StatisticNode:
    """The figures of one resource (Sentinel: ``StatisticNode``).

    The bucket of this moment and the sum over the window are kept at hand, and looked for again only when a half
    second is over: most questions cost one comparison.
    """

    __slots__ = (
        "_current", "_end_ms", "_other", "_previous_passed", "_second", "_second_passed", "_window_passed",
        "blocked", "passed", "running",
    )  # fmt: skip

    def __init__(self) -> None:
        self.running = 0
        """Calls that began and have not ended: Sentinel's threads."""
        self.passed = 0
        self.blocked = 0
        """These two since the start."""
        self._current = Bucket()
        self._other = Bucket()
        self._end_ms = 0
        """When the present half second is over. A clock that was set back counts into it until it has caught up."""
        self._window_passed = 0
        self._second = -1
        self._second_passed = 0
        self._previous_passed = 0

    # --- reading ---------------------------------------------------------------------------

    def pass_qps(self, now_ms: int) -> int:
        """How many passed in the window."""
        if now_ms >= self._end_ms:
            self._turn(now_ms)
        return self._window_passed

    def block_qps(self, now_ms: int) -> int:
        return sum(bucket.blocked for bucket in self._live(now_ms))

    def previous_pass(self, now_ms: int) -> int:
        """How many passed in the whole second before this one."""
        if now_ms >= self._end_ms:
            self._turn(now_ms)
        return self._previous_passed

    def average_rt_ms(self, now_ms: int) -> float:
        if now_ms >= self._end_ms:
            self._turn(now_ms)
        current, other = self._current, self._other
        succeeded = current.succeeded + other.succeeded
        return (current.rt_ms + other.rt_ms) / succeeded if succeeded else 0.0

    def min_rt_ms(self, now_ms: int) -> int:
        return max(1, min(bucket.min_rt_ms for bucket in self._live(now_ms)))

    def max_success_qps(self, now_ms: int) -> int:
        """The best half second of the window, taken twice."""
        return max(1, *(bucket.succeeded for bucket in self._live(now_ms))) * BUCKETS

    # --- writing ---------------------------------------------------------------------------

    def begin(self, now_ms: int, count: int) -> None:
        """A call passed and runs."""
        if now_ms >= self._end_ms:
            self._turn(now_ms)
        self.running += 1
        self.passed += count
        self._current.passed += count
        self._window_passed += count
        self._second_passed += count

    def block(self, now_ms: int, count: int) -> None:
        """A call was refused."""
        if now_ms >= self._end_ms:
            self._turn(now_ms)
        self.blocked += count
        self._current.blocked += count

    def end(self, now_ms: int, rt_ms: int, count: int, failed: bool) -> None:
        """A call that began is over."""
        if now_ms >= self._end_ms:
            self._turn(now_ms)
        self.running -= 1
        bucket = self._current
        bucket.succeeded += count
        bucket.rt_ms += rt_ms
        if rt_ms < bucket.min_rt_ms:
            bucket.min_rt_ms = rt_ms
        if failed:
            bucket.failed += count

    def _turn(self, now_ms: int) -> None:
        """Begin the half second of this moment with a fresh bucket, and perhaps the second too."""
        start = now_ms - now_ms % BUCKET_MS
        # The bucket that takes the new place is the one before last: it has left the window.
        self._other, self._current = self._current, self._other
        if self._other.start_ms < start - BUCKET_MS:
            self._other.reset(-1)
        self._current.reset(start)
        self._window_passed = self._other.passed
        self._end_ms = start + BUCKET_MS
        second = now_ms // 1000
        if second > self._second:
            self._previous_passed = self._second_passed if second == self._second + 1 else 0
            self._second_passed = 0
            self._second = second

    def _live(self, now_ms: int) -> tuple[Bucket, Bucket]:
        """Both buckets; one that has left the window is empty."""
        if now_ms >= self._end_ms:
            self._turn(now_ms)
        return self._current, self._other
