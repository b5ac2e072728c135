"""When old messages go: pure decisions, from the time, the age of a file and how full the disk is.

::

    disk   0 %        delete_at 75 %       force_at 85 %       refuse_at 90 %
           | expired files, | expired files,   | the oldest files,  | the oldest files,
           | at delete_when | at any hour      | older than min_age | and sends are refused
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

import attrs

from verniermq.kernel import Duration, setting

_HOURS: Final = re.compile(r"([01]?\d|2[0-3])( *; *([01]?\d|2[0-3]))*")


def _hours(text: str) -> str | None:
    return None if _HOURS.fullmatch(text) else 'hours from 00 to 23, such as "04" or "04;16"'


@attrs.frozen
class Config:
    """``[plugins.retention]``"""

    max_age: Duration = setting(Duration(72 * 3600), "How long messages are kept; RocketMQ's fileReservedTime.")
    delete_when: str = setting("04", "The hours of the day, local time, at which older ones go.", check=_hours)
    disk_delete_at: int = setting(
        75, "From so many percent of the disk in use on, they go at any hour.", at_least=1, at_most=100
    )
    disk_force_at: int = setting(
        85, "From so many on, the oldest go from min_age on, not only from max_age on.", at_least=1, at_most=100
    )
    disk_refuse_at: int = setting(
        90, "From so many on, sends are refused too, until it is less than disk_force_at.", at_least=1, at_most=100
    )
    force: bool = setting(
        True, "Whether messages younger than max_age may go at all; RocketMQ's cleanFileForciblyEnable."
    )
    min_age: Duration = setting(Duration(3600), "How old they are at least; sends are refused before younger ones go.")
    files_per_pass: int = setting(10, "How many commit-log files go at a time.", at_least=1)
    interval: Duration = setting(Duration(10), "How often the disk and the files are looked at.", at_least=0.01)

    def may_go(self, age: float, *, forced: bool) -> bool:
        """Whether a file of this age, in seconds, may go. ``forced``: room is needed."""
        return age >= self.max_age or (forced and age >= self.min_age)

    @property
    def hours(self) -> frozenset[int]:
        return frozenset(int(hour) for hour in self.delete_when.split(";"))


class RetentionVerdict(NamedTuple):
    """What a pass may do."""

    delete_expired: bool
    forced: bool
    """The disk needs room: what is younger than ``max_age`` may go too."""
    refuse: bool


def judge(config: Config, *, hour: int, percent: int, asked: bool, refusing: bool) -> RetentionVerdict:
    """``asked``: an operator wants expired files gone now. ``refusing``: sends have been refused so far."""
    full = percent >= config.disk_force_at
    forced = config.force and (full or percent >= config.disk_refuse_at)
    return RetentionVerdict(
        delete_expired=hour in config.hours or percent >= config.disk_delete_at or asked or forced,
        forced=forced,
        # Between the two marks it stays as it was, or a broker at the brink would say yes and no in turn.
        refuse=percent >= config.disk_refuse_at or (refusing and full),
    )


def percent_used(path: Path) -> int:
    """How full the disk is: what is used of what an ordinary user could use, rounded up."""
    disk = os.statvfs(path)
    used = disk.f_blocks - disk.f_bfree
    return -(-used * 100 // max(used + disk.f_bavail, 1))
