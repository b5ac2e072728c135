"""Finding a queue offset by time. A consume queue keeps no times: each look reads a record's head in the log.

Stamps rise from one message to the next, but for the places where somebody set the clock back; there they begin anew.
Between two such places they are in order, and each stretch is searched by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from verniermq.kernel.commitlog.log import CommitLog
from verniermq.kernel.commitlog.record import SYS_FLAG_POSITION, store_timestamp_position
from verniermq.kernel.dispatch.consumequeue import ConsumeQueue

HEAD = 88

Ask = Callable[[int, int], None]
"""Hears of each piece of the log, offset and size, before it is read; it may raise to keep it from being read."""


def offset_by_time(
    queue: ConsumeQueue,
    log: CommitLog,
    timestamp_ms: int,
    upper: bool,
    set_back_at: Sequence[int] = (),
    ask: Ask | None = None,
) -> int:
    """The offset of the first message stored at or after a time; with ``upper``, of the last at or before it.

    One past the last message when all are older; the first one when ``upper`` finds none. ``set_back_at``: the log
    offsets at which the clock had been set back.
    """
    low, high = queue.min_offset, queue.max_offset
    borders = [low, *(_first_at(queue, offset, low, high) for offset in sorted(set_back_at)), high]
    stretches = [(start, end) for start, end in pairwise(borders) if start < end]
    if upper:
        for start, end in reversed(stretches):
            found = _search(queue, log, timestamp_ms + 1, start, end, ask)
            if found > start:
                return found - 1
        return low
    for start, end in stretches:
        found = _search(queue, log, timestamp_ms, start, end, ask)
        if found < end:
            return found
    return high


def _search(queue: ConsumeQueue, log: CommitLog, timestamp_ms: int, low: int, high: int, ask: Ask | None) -> int:
    """The first message of a stretch that was stored at or after a time; its end if all are older."""
    while low < high:
        middle = (low + high) // 2
        known = queue.next_known(middle, high)
        stored = store_timestamp(queue, log, known, ask) if known < high else None
        if stored is not None and stored < timestamp_ms:
            low = known + 1
        else:
            high = middle
    return low


def _first_at(queue: ConsumeQueue, log_offset: int, low: int, high: int) -> int:
    """The first message whose record lies at this place of the log or behind it."""
    while low < high:
        middle = (low + high) // 2
        known = queue.next_known(middle, high)
        entry = queue.read_any(known) if known < high else None
        if entry is not None and entry[0] < log_offset:
            low = known + 1
        else:
            high = middle
    return low


def store_timestamp(queue: ConsumeQueue, log: CommitLog, offset: int, ask: Ask | None = None) -> int | None:
    """When a message was stored; ``None`` when its record is gone."""
    entry = queue.read_any(offset)
    if ask is not None and entry is not None:
        ask(entry[0], HEAD)
    head = log.read(entry[0], HEAD) if entry is not None else None
    if head is None or len(head) < HEAD:
        return None
    sys_flag = int.from_bytes(head[SYS_FLAG_POSITION : SYS_FLAG_POSITION + 4], "big")
    at = store_timestamp_position(sys_flag)
    return int.from_bytes(head[at : at + 8], "big", signed=True)
