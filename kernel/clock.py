"""Time, passed in: what waits for a time (delays, retries, held pulls, expiry) asks a ``Clock``.

So a test can move it by hand; ``verniermq.testing`` has such clocks.

A clock shows two times. ``now`` is that of the wall: it is what messages are stamped with and what producers name, and
somebody may set it, by an hour, ahead or back. ``monotonic`` only ever goes on: whatever lasts (a lock, a lease, a held
pull, the silence of a client) is measured with it. ``docs/clock.md`` says what that means for each part.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Protocol

import anyio
import anyio.lowlevel

LONGEST_STEP: Final = 5.0
"""Somebody may set the machine's clock while we sleep; we look at it at least this often, in seconds."""

SAME_MOMENT: Final = 1e-6
"""Times that are no further apart are the same: sums of floats drift."""

_SINCE_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """What time it is, and waiting for a time."""

    def now(self) -> float:
        """Seconds since 1970."""
        ...

    def now_ms(self) -> int:
        """Whole milliseconds since 1970, as RocketMQ writes times."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment: for how long something lasts. Nobody can set it, and it never goes back."""
        ...

    def boot(self) -> str:
        """Which count of ``monotonic`` this is: times of the same one can be compared. ``""``: that cannot be told."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for a while, by ``monotonic``. With nothing to wait for, others still get their turn."""
        ...

    async def sleep_until(self, moment: float) -> None:
        """Wait until ``now()`` is ``moment`` or later."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        # Since the machine was started, and where the system can tell also while it was suspended: that is no change
        # of the clock, and what was to last for a minute is over after it.
        return time.clock_gettime(_SINCE_BOOT)

    def boot(self) -> str:
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:  # another system than Linux
            return ""

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(max(seconds, 0))

    async def sleep_until(self, moment: float) -> None:
        await anyio.lowlevel.checkpoint()
        while (left := moment - self.now()) > 0:  # noqa: ASYNC110 - it is time itself that we wait for
            await anyio.sleep(min(left, LONGEST_STEP))
