"""Whether ``timercheck`` can be true where no checksum covers it.

RocketMQ's 56 bytes have none. Ours behind them have one, and with them a copy of the first 32 bytes; if these differ,
an Apache broker went on, or they are damaged. An Apache broker counts its version up whenever it moves, goes on from
where we were, never reads a second that its clock did not reach, and takes in none that is two weeks ahead. Whatever
breaks that is damaged. It matters: with a wrong second messages are never delivered, and nothing else would tell.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from verniermq.plugins.schedule.timers.check import LATEST_MS, TimerCheckpoint
from verniermq.plugins.schedule.timers.timerlog import RECORD_SIZE, TimerLog
from verniermq.plugins.schedule.timers.times import SECOND
from verniermq.plugins.schedule.timers.wheel import SIZE, SLOTS, Wheel

AHEAD_MS: Final = 60_000
"""By so much the second may be ahead of the time at which it was noted."""


def doubt(root: Path, check: TimerCheckpoint, backup: TimerCheckpoint | None) -> str:
    """Why the values that were found in the store at ``root`` cannot be true; nothing if they can.

    Raises:
        OSError: a file cannot be read.
    """
    if check.is_ours:
        return ""
    noted = backup if backup is not None and backup.is_ours else None
    log = TimerLog(root / "timerlog", SIZE, noted.file_size if noted is not None else 0)
    return _doubt_place(check, log, noted) or _doubt_second(check, log, root / "timerwheel")


def _doubt_place(check: TimerCheckpoint, log: TimerLog, noted: TimerCheckpoint | None) -> str:
    if noted is not None:
        if check.timestamp <= noted.timestamp and check.counter <= noted.counter:
            return f"it differs from its backup, and no broker went on since (version {noted.counter})"
        if check.second < noted.second or check.log_position < noted.log_position:
            return (
                f"second {check.second} and position {check.log_position} are before those of its backup, "
                f"{noted.second} and {noted.log_position}"
            )
        if check.log_position > log.limit >= noted.log_position:
            return f"position {check.log_position} lies behind the timer log, which has room up to {log.limit}"
    if log.limit and (check.log_position < log.start or check.log_position % log.file_size % RECORD_SIZE):
        return f"at position {check.log_position} no record of the timer log begins"
    return ""


def _doubt_second(check: TimerCheckpoint, log: TimerLog, wheel: Path) -> str:
    if not 0 <= check.timestamp <= LATEST_MS or check.second * SECOND > check.timestamp + AHEAD_MS > AHEAD_MS:
        return f"second {check.second} was noted at {check.timestamp} ms, before it came"
    if wheel.exists() and wheel.stat().st_size == SIZE:
        latest = latest_second(log, Wheel(wheel), check.second + SLOTS)
        if latest is not None:
            return f"second {check.second} is more than two weeks before {latest}, for which messages wait"
    return ""


def latest_second(log: TimerLog, wheel: Wheel, begin: int) -> int | None:
    """The last second from ``begin`` on for which wheel and timer log both have messages."""
    found = (second for second in wheel.seconds() if second >= begin)
    return max((second for second in found if _has_messages(log, wheel, second)), default=None)


def _has_messages(log: TimerLog, wheel: Wheel, second: int) -> bool:
    slot = wheel.get(second)
    entry = None if slot is None else log.read(slot.last)
    return entry is not None and entry.slot == second
