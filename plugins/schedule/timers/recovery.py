"""Opening the timers' files: what is whole, what has to be made again, and where to go on.

Three things may have happened since they were written: an orderly stop, a crash, or an Apache broker that used them.
The rules cover all of them alike:

1. Everything before the position in ``timercheck`` was synced, log and wheel. Records behind it are read and their
   slots brought up to them; the first that is not whole ends the timer log. An Apache broker does not write its wheel
   at its stop and begins a whole file earlier; after one so do we.
2. A record whose message lies behind the end of the commit log is cut off with all that follow: its message was never
   acknowledged as durable and is gone, and another will soon lie in its place.
3. If a slot then points behind the end of the timer log, the wheel is made again from all of the timer log.
4. Going on begins with the message after the one that the last record is about.
"""

from __future__ import annotations

import logging
from pathlib import Path

import attrs

from verniermq.kernel import Store
from verniermq.plugins.schedule.timers.check import Check, load_check
from verniermq.plugins.schedule.timers.timerlog import DELETE, TimerLog
from verniermq.plugins.schedule.timers.wheel import Wheel

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class TimerFiles:
    """The opened files, and from where the timers go on."""

    log: TimerLog
    wheel: Wheel
    check: Check
    again_below: int = 0
    """The timer log was lost: messages below this queue offset are taken in again, unless they were delivered."""


def open_files(
    root: Path, store: Store, *, file_size: int, log_end: int, now_slot: int, queue: tuple[str, int]
) -> TimerFiles:
    """Open or make the files of the store at ``root``. May take a second per million records after a crash.

    :param log_end: the end of the commit log before anything was appended since it was opened
    :param now_slot: where to begin if nothing says it
    :param queue: the topic and queue of timed messages

    Raises:
        StoreError, OSError: the files cannot be used.
    """
    found = load_check(root / "config" / "timercheck")
    log = TimerLog(root / "timerlog", file_size)
    wheel = Wheel(root / "timerwheel")
    check = found or Check(now_slot, 0, 0)
    if found is not None and found.log_position > 0 and log.limit == 0:
        return _begin_again(log, wheel, found, store, queue)
    trusted = 0
    if found is not None and not wheel.is_new:
        trusted = min(found.log_position, log.limit)
        if not found.is_ours:
            trusted = max(trusted - log.file_size, log.start)
    damaged = wheel.is_new and log.limit > 0
    if _bring_up(log, wheel, trusted, log_end, check.second):
        damaged = True
    if log.end < trusted or wheel.find_waiting(check.second) >= log.end:
        damaged = True
    if damaged:
        logger.warning("timer wheel made again from the timer log records=%d", _rebuild(log, wheel, check.second))
    offset = _queue_offset(log, store, check, queue)
    logger.info("timers opened second=%d queue_offset=%d log_end=%d", check.second, offset, log.end)
    return TimerFiles(log, wheel, attrs.evolve(check, log_position=log.end, queue_offset=offset))


def _begin_again(log: TimerLog, wheel: Wheel, check: Check, store: Store, queue: tuple[str, int]) -> TimerFiles:
    logger.warning("the timer log is gone; it is made again from %s", queue[0])
    wheel.clear()
    again = attrs.evolve(check, log_position=0, queue_offset=store.min_offset(*queue), within=0, position=-1)
    return TimerFiles(log, wheel, again, again_below=check.queue_offset)


def _bring_up(log: TimerLog, wheel: Wheel, trusted: int, log_end: int, second: int) -> bool:
    """Read the records behind the trusted position into the wheel, and cut the log; ``True`` if slots may be wrong."""
    for position, entry in log.scan(trusted):
        if entry.log_offset + entry.size > log_end:
            log.end = position
            break
        if entry.slot >= second:
            _revise(wheel, entry.slot, position)
    scanned = log.end
    # Records before the trusted position may be about messages that the commit log has lost as well.
    while (position_of_last := log.last()) is not None:
        last = log.read(position_of_last)
        if last is not None and last.log_offset + last.size <= log_end:
            break
        log.end = position_of_last
    log.cut(log.end)
    return log.end < scanned


def _revise(wheel: Wheel, slot: int, position: int) -> None:
    known = wheel.get(slot)
    if known is None or known.last < position:
        wheel.add(slot, position, 1)


def _rebuild(log: TimerLog, wheel: Wheel, second: int) -> int:
    wheel.clear()
    records = 0
    for position, entry in log.scan(log.start):
        if entry.slot >= second:
            wheel.add(entry.slot, position, -1 if entry.magic & DELETE else 1)
            records += 1
    return records


def _queue_offset(log: TimerLog, store: Store, check: Check, queue: tuple[str, int]) -> int:
    offset = check.queue_offset
    position = log.last()
    entry = None if position is None else log.read(position)
    message = None if entry is None else store.message_at(entry.log_offset)
    if message is not None and (message.topic, message.queue_id) == queue:
        offset = message.queue_offset + 1
    return min(max(offset, store.min_offset(*queue)), store.max_offset(*queue))
