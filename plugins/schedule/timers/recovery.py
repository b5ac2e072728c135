"""Opening the timers' files: what is whole, what has to be made again, and where to go on.

Three things may have happened since they were written: an orderly stop, a crash, or an Apache broker that used them.
The rules cover all of them alike:

1. Everything before the position in ``timercheck`` was synced, log and wheel. Records behind it are read and their
   slots brought up to them; the first that is not whole ends the timer log. An Apache broker does not write its wheel
   at its stop and begins a whole file earlier; after one so do we.
2. A record whose message lies behind the end of the commit log is cut off with all that follow: its message was never
   acknowledged as durable and is gone, and another will soon lie in its place.
3. If the wheel then does not fit the timer log (a slot names a record that is not of its second, or there are not as
   many as ``timercheck`` says), it is made again from all of the timer log.
4. If the timer log ends before the position in ``timercheck``, or begins behind where it began, what it lacks is taken
   in again from the topic, unless its second has been delivered.
5. Going on begins with the message after the one that the last record is about.
6. If ``timercheck`` is lost or cannot be true (``doubt.py``), its backup says where to go on.
7. If the backup is lost too, what was due a minute before the last message was stored counts as delivered: a message
   may come twice, but none is missing.
8. Progress stands still while nothing waits. If a crash kept it more than two weeks before the newest slot, it is moved
   up: the wheel could not tell the seconds apart, and nothing waited between them.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import attrs

from verniermq.kernel import Store
from verniermq.plugins.schedule.timers.check import TimerCheckpoint, load_check
from verniermq.plugins.schedule.timers.doubt import doubt, latest_second
from verniermq.plugins.schedule.timers.timerlog import DELETE, TimerLog
from verniermq.plugins.schedule.timers.timers import AtStart
from verniermq.plugins.schedule.timers.wheel import SLOTS, Wheel

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class TimerFiles:
    """The opened files, and from where the timers go on."""

    log: TimerLog
    wheel: Wheel
    check: TimerCheckpoint
    again_below: int = 0
    """The timer log was lost: messages below this queue offset are taken in again, unless they were delivered."""
    delivered_before: int = 0
    """Those of seconds before this one were."""


def open_files(root: Path, store: Store, *, file_size: int, at_start: AtStart, queue: tuple[str, int]) -> TimerFiles:
    """Open or make the files of the store at ``root``. May take a second per million records after a crash.

    Args:
        queue: the topic and queue of timed messages

    Raises:
        OSError: the files cannot be used.
    """
    found = load_check(root / "config" / "timercheck", partial(doubt, root))
    if found is None and at_start.queue_end:
        logger.error(
            "nothing says which timed messages were delivered; those due before second %d count as delivered",
            at_start.delivered_before,
        )
    check = found or TimerCheckpoint(at_start.delivered_before, 0, 0)
    log = TimerLog(root / "timerlog", file_size, check.file_size)
    log.fill_up()
    wheel = Wheel(root / "timerwheel")
    trusted = log.start
    if found is not None and not wheel.is_new and log.start <= check.log_position:
        trusted = min(check.log_position, log.limit)
        if not check.is_ours:
            trusted = max(trusted - log.file_size, log.start)
    _bring_up(log, wheel, trusted, at_start.log_end, check.second)
    check = _within_reach(log, wheel, check)
    if (wheel.is_new and log.limit) or log.end < check.log_position or not _fits(log, wheel, check):
        _rebuild(log, wheel, check)
    files = _gone_on(log, wheel, check, store, queue, at_start.queue_end)
    if found is None:
        files.again_below, files.delivered_before = at_start.queue_end, check.second
    logger.info("timers opened second=%d queue_offset=%d log_end=%d", check.second, files.check.queue_offset, log.end)
    return files


def mend(files: TimerFiles, check: TimerCheckpoint, store: Store, queue: tuple[str, int]) -> TimerFiles:
    """Make the wheel again from all of the timer log, and what that lacks from the topic."""
    _rebuild(files.log, files.wheel, check)
    return _gone_on(files.log, files.wheel, check, store, queue, check.queue_offset)


def _gone_on(
    log: TimerLog, wheel: Wheel, check: TimerCheckpoint, store: Store, queue: tuple[str, int], queue_end: int
) -> TimerFiles:
    """Where to go on, now that the files are as whole as they can be made; ``queue_end``: of messages from before."""
    has_begun_late = log.start > check.log_start >= 0
    if not has_begun_late and log.end >= check.log_position:
        offset = _queue_offset(log, store, check.queue_offset, queue)
        return TimerFiles(log, wheel, attrs.evolve(check, log_position=log.end, queue_offset=offset))
    logger.warning(
        "the timer log has lost records start=%d end=%d expected=%d to %d; they are taken in again from %s",
        log.start, log.end, check.log_start, check.log_position, queue[0],
    )  # fmt: skip
    if has_begun_late:
        log.cut(0)
        wheel.clear()
    offset = _queue_offset(log, store, 0, queue)
    again = attrs.evolve(check, log_position=log.end, queue_offset=offset, within=0, position=-1)
    return TimerFiles(log, wheel, again, min(check.queue_offset, queue_end), check.second)


def _within_reach(log: TimerLog, wheel: Wheel, check: TimerCheckpoint) -> TimerCheckpoint:
    """Progress that has every second with messages within the two weeks of the wheel."""
    latest = latest_second(log, wheel, check.second + SLOTS)
    second = check.second if latest is None else latest - SLOTS + 1
    if second == check.second or any(check.second <= waiting < second for waiting in wheel.seconds()):
        return check  # if something waits before, a clock was set back by weeks, and what is ahead was delivered
    logger.warning("the timers' progress is behind messages that wait; it is moved from %d to %d", check.second, second)
    return attrs.evolve(check, second=second, within=0, position=-1, slots=-1)


def _fits(log: TimerLog, wheel: Wheel, check: TimerCheckpoint) -> bool:
    """Whether every slot leads to a record of its second, and all slots are there that were there once."""
    slots = 0
    fits = True
    for slot in wheel.find_waiting(check.second):
        entry = log.read(slot.last) if slot.last < log.end else None
        if entry is None or entry.slot != slot.second:
            fits = False
        if slot.second >= check.slots_from and slot.first < check.log_position:
            slots += 1
    return fits and (check.slots < 0 or slots == check.slots)


def _bring_up(log: TimerLog, wheel: Wheel, trusted: int, log_end: int, second: int) -> None:
    """Read the records behind the trusted position into the wheel, and cut the log."""
    for position, entry in log.scan(trusted):
        if entry.log_offset + entry.size > log_end:
            log.end = position
            break
        if entry.slot >= second:
            _revise(wheel, entry.slot, position)
    # Records before the trusted position may be about messages that the commit log has lost as well.
    while (position_of_last := log.last()) is not None:
        last = log.read(position_of_last)
        if last is not None and last.log_offset + last.size <= log_end:
            break
        log.end = position_of_last
    log.cut(log.end)


def _revise(wheel: Wheel, slot: int, position: int) -> None:
    known = wheel.get(slot)
    if known is None or known.last < position:
        wheel.add(slot, position, 1)


def _rebuild(log: TimerLog, wheel: Wheel, check: TimerCheckpoint) -> None:
    for _ in log.scan(log.start):
        pass
    if log.end < check.log_position and (last := log.last()) is not None:
        log.end = last  # what is before lost records may be torn itself
    log.cut(log.end)
    wheel.clear()
    records = 0
    for position, entry in log.scan(log.start):
        if entry.slot >= check.second:
            wheel.add(entry.slot, position, -1 if entry.magic & DELETE else 1)
            records += 1
    logger.warning("timer wheel made again from the timer log records=%d", records)


def _queue_offset(log: TimerLog, store: Store, offset: int, queue: tuple[str, int]) -> int:
    position = log.last()
    entry = None if position is None else log.read(position)
    message = None if entry is None else store.message_at(entry.log_offset)
    if message is not None and (message.topic, message.queue_id) == queue:
        offset = message.queue_offset + 1
    return min(max(offset, store.min_offset(*queue)), store.max_offset(*queue))
