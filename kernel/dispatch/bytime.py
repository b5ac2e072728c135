"""Finding a queue offset by time. A consume queue keeps no times: each look reads a record's head in the log."""

from __future__ import annotations

from verniermq.kernel.commitlog.log import CommitLog
from verniermq.kernel.commitlog.record import SYS_FLAG_POSITION, store_timestamp_position
from verniermq.kernel.dispatch.consumequeue import ConsumeQueue

HEAD = 88


def offset_by_time(queue: ConsumeQueue, log: CommitLog, timestamp_ms: int, upper: bool) -> int:
    """The offset of the first message stored at or after a time; with ``upper``, of the last at or before it.

    One past the last message when all are older; the first one when ``upper`` finds none.
    """
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        known = queue.next_known(middle, high)
        stored = store_timestamp(queue, log, known) if known < high else None
        if stored is not None and (stored < timestamp_ms or (upper and stored == timestamp_ms)):
            low = known + 1
        else:
            high = middle
    return max(low - 1, queue.min_offset) if upper else low


def store_timestamp(queue: ConsumeQueue, log: CommitLog, offset: int) -> int | None:
    """When a message was stored; ``None`` when its record is gone."""
    entry = queue.read_any(offset)
    head = log.read(entry[0], HEAD) if entry is not None else None
    if head is None or len(head) < HEAD:
        return None
    sys_flag = int.from_bytes(head[SYS_FLAG_POSITION : SYS_FLAG_POSITION + 4], "big")
    at = store_timestamp_position(sys_flag)
    return int.from_bytes(head[at : at + 8], "big", signed=True)
