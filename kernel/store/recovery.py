"""What is whole when a store is opened, and where to cut (RocketMQ: ``recoverNormally``, ``recoverAbnormally``).

The write position is stored nowhere; it is found again at each start, from a place up to which everything is
known to be good:

====================================  ==============================================================
the last broker                       reading begins
====================================  ==============================================================
stopped in order                      behind the newest record that a consume queue knows
was ours and crashed                  where the checkpoint says that the queues are complete
was another and crashed               at the file that the checkpoint's timestamps choose
whatever, but queues lack entries     at the beginning: they are made again from the log
====================================  ==============================================================

Whether the queues lack entries is told by one number: the checkpoint says how many entries their files hold for
the records before it, and a missing queue, a missing file or a short one all make it smaller. It is not compared
where queue files were being removed (a topic is deleted, old messages expire) or another broker wrote since.

From there on each record is checked, and what the consume queues lack is added. The first bytes that are no
whole record are the end: a torn record lies there, or nothing. Bad bytes in front of records that were
durable are another matter, since cutting there would lose those: the store is then not opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import attrs

from verniermq.kernel.commitlog.checkpoint import Checkpoint
from verniermq.kernel.commitlog.integrity import NothingWritten, whole_record_at
from verniermq.kernel.commitlog.log import CommitLog
from verniermq.kernel.commitlog.record import WITHOUT_ENTRY, Buffer, RecordLayout
from verniermq.kernel.commitlog.scan import NewerFormat, Scan, bytes_from, newer_magic, topic_of, whole_records_after
from verniermq.kernel.dispatch.dispatcher import Dispatcher
from verniermq.kernel.dispatch.event import DispatchEvent
from verniermq.kernel.errors import CorruptRecord, StoreError
from verniermq.kernel.message import parse_properties

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called now and then with the bytes read and the bytes to read."""

BATCH = 4096
"""Records between two reports of progress."""

KEPT: Final = 500_000
"""Entries that may wait in memory until the broker serves: after that they are written in the background."""


class DamagedStore(StoreError):
    """Bytes in the middle of the log are bad, and whole records follow them."""

    def __init__(self, start: int, end: int, why: str) -> None:
        super().__init__(
            f"the commit log is damaged from offset {start} to {end} ({why}), and whole records follow; "
            "look at it with 'verniermq store check', and mend it with 'verniermq store repair', which keeps them"
        )
        self.start = start
        self.end = end


class MissingSegment(StoreError):
    """A file in the middle of the log is not there."""

    def __init__(self, name: str, following: str) -> None:
        super().__init__(
            f"the commit log has no segment {name} although {following} follows; "
            "put it back, or run 'verniermq store repair' to go on without it"
        )


class RecoveryPlan(NamedTuple):
    """What an opening of the store will do."""

    offset: int
    """Before it, the log is whole and the queues know everything; every record from here on is read."""
    queues: Literal["kept", "made again", "forgotten"] = "kept"
    """Made again: they lack entries. Forgotten: what they say does not fit to the log."""
    found: int = 0
    """How many entries they hold for the records before the checkpoint."""


@attrs.define(eq=False)
class Recovery:
    """Opens a log and its queues at the right place."""

    log: CommitLog
    dispatcher: Dispatcher
    checkpoint: Checkpoint
    clean: bool
    progress: Progress | None = None
    save: Callable[[Checkpoint], None] = lambda checkpoint: None
    """Writes the checkpoint that must be there before queues are made again: that may be interrupted."""
    limit: int | None = None
    """Records that end behind it are not dispatched but left pending; they may be cut off yet."""
    changed: bool = attrs.field(default=False, init=False)
    """Whether files were changed: a crash from here on must not look like an orderly stop."""
    _reads_old: bool = attrs.field(default=False, init=False)
    """Whether records are read that were there before the last stop, so that damage can be met."""
    _last_end: int = attrs.field(default=0, init=False)
    """Where the last file ends."""
    _kept: int = attrs.field(default=0, init=False)
    """How many records were read since the queues were last written out."""

    def run(self) -> int:
        """Bring the consume queues up to the log, cut the log's end, open it there; return the end.

        Raises:
            StoreError: the files cannot be used as they are; nothing was changed.
        """
        starts = self.log.load()
        self._refuse_holes(starts)
        lacking = self.dispatcher.load(self.log.min_offset)
        if not starts:
            self._forget_queues()
            self.log.open_at(0)
            return 0
        self._last_end = starts[-1] + self.log.segment_size
        plan = self.plan(starts, lacking)
        self._prepare(plan)
        end, last = self._replay(plan.offset, fill_gaps=plan.offset == starts[0]) or self._replay_all()
        self._finish(end, last)
        return end

    # --- where to begin --------------------------------------------------------------------

    def _refuse_holes(self, starts: Sequence[int]) -> None:
        size = self.log.segment_size
        for start, following in pairwise(starts):
            if following != start + size:
                raise MissingSegment(f"{start + size:020d}", f"{following:020d}")

    def plan(self, starts: Sequence[int], lacking: int) -> RecoveryPlan:
        """What to do with these files. Changes nothing.

        ``lacking`` entries have no file although their queues go on behind them.
        """
        checkpoint = self.checkpoint
        first, end = starts[0], starts[-1] + self.log.segment_size
        known = checkpoint.queues_durable
        if self.clean:
            # A log may go on behind the newest queue entry: prepared and rolled-back messages have none.
            indexed = max((queue.physical_end for queue in self.dispatcher), default=-1)
            trusted = indexed if known is None else known
            found = self._entries_before(trusted) - lacking
            if known is not None and checkpoint.entries not in (-1, found):
                return RecoveryPlan(first, "made again", found)
            if first <= trusted <= end and self._ends_a_record(indexed):
                return RecoveryPlan(trusted)
            return RecoveryPlan(first, "forgotten", found)
        if known is not None and known > end:
            logger.warning("the log ends before its checkpoint end=%d checkpoint=%d", end, known)
            known = None
        trusted = max(self._chosen_file(starts) if known is None else known, first)
        if trusted == first:
            return RecoveryPlan(first)  # everything is read, and whatever lacks is added
        found = self._entries_before(trusted) - lacking
        # More than expected is no damage: the removal of a topic's files was interrupted.
        lost = not self.dispatcher.queues if known is None else found < checkpoint.entries
        return RecoveryPlan(first, "made again", found) if lost else RecoveryPlan(trusted)

    def _entries_before(self, offset: int) -> int:
        return sum(queue.end_before(offset) - queue.first_entry for queue in self.dispatcher)

    def _prepare(self, plan: RecoveryPlan) -> None:
        """Drop the entries that are made again."""
        if plan.queues != "kept":
            logger.warning(
                "consume queues lack entries or do not fit to the log found=%d expected=%s; "
                "making them again from the log offset=%d",
                plan.found, self.checkpoint.entries if self.checkpoint.entries >= 0 else "unknown", plan.offset,
            )  # fmt: skip
            self._distrust_queues(plan.offset)
        elif self.clean:
            return
        self._reads_old = self.changed = True
        if plan.queues == "forgotten":
            self._forget_queues()
            return
        for key, queue in list(self.dispatcher.queues.items()):
            # Entries behind it may be torn or out of order.
            self.dispatcher.cut(queue, plan.offset)
            if plan.offset == self.log.min_offset and queue.max_offset == queue.first_entry:
                # All that it had is in the log, and perhaps more: its first file may be missing.
                queue.delete()
                del self.dispatcher.queues[key]

    def _distrust_queues(self, offset: int) -> None:
        self._reads_old = self.changed = True  # also when a gap is met in the middle of a replay
        known = self.checkpoint.log_durable
        self.save(
            attrs.evolve(
                self.checkpoint,
                queue_timestamp=0,
                # An orderly stop makes everything durable, whoever it was; else RocketMQ's timestamps must do.
                log_durable=known if known is not None or not self.clean else self._last_end,
                queues_durable=offset,
                entries=-1,
            )
        )

    def _ends_a_record(self, end: int) -> bool:
        """Whether the newest record that a queue knows is whole."""
        if end < 0:
            return True
        queue = next(queue for queue in self.dispatcher if queue.physical_end == end)
        entry = queue.read_any(queue.max_offset - 1)
        if entry is None:
            return False
        file = self.log.file_at(entry[0] - entry[0] % self.log.segment_size)
        try:
            found = file and whole_record_at(file.map, entry[0] % self.log.segment_size, entry[0])
        except CorruptRecord:
            return False
        return bool(found) and entry[0] + entry[1] == end

    def _chosen_file(self, starts: Sequence[int]) -> int:
        """The newest file whose first record is older than the checkpoint, as RocketMQ chooses it."""
        limit = self.checkpoint.min_timestamp
        for start in reversed(starts):
            file = self.log.file_at(start)
            try:
                found = file and whole_record_at(file.map, 0, start)
            except CorruptRecord:
                continue
            if found and 0 < found.store_timestamp <= limit:
                return start
        return starts[0]

    # --- reading the log -------------------------------------------------------------------

    def _replay_all(self) -> tuple[int, CorruptRecord]:
        logger.warning("a consume queue lacks entries: reading the whole log again offset=%d", self.log.min_offset)
        self._distrust_queues(self.log.min_offset)
        result = self._replay(self.log.min_offset, fill_gaps=True)
        assert result is not None
        return result

    def _replay(self, trusted: int, *, fill_gaps: bool) -> tuple[int, CorruptRecord] | None:
        """Dispatch every record from ``trusted`` on; ``None`` if a queue lacks entries from before that."""
        scan = Scan(self.log, trusted)
        total = bytes_from(self.log, trusted) if self.progress is not None else 0
        batch: list[DispatchEvent] = []
        held: list[DispatchEvent] = []
        count = 0
        for buffer, found in scan:
            event = event_of(buffer, found, self.dispatcher)
            if self.limit is not None and event.end > self.limit:
                held.append(event)
                continue
            if not self.dispatcher.replay(event, fill_gaps=fill_gaps):
                return None
            batch.append(event)
            if len(batch) == BATCH:
                self._hand_out(batch, scan.end - trusted, total)
                count += len(batch)
                batch = []
        self._hand_out(batch, scan.end - trusted, 0)  # that was all
        count += len(batch)
        if held:
            self.dispatcher.pending = list(held)
            self.dispatcher.received = held[-1].end
        logger.info("log read from=%d to=%d records=%d pending=%d", trusted, scan.end, count, len(held))
        if scan.end < trusted:
            raise self._damage(scan.end, scan.why) or DamagedStore(scan.end, trusted, scan.why.why)
        return scan.end, scan.why

    def _hand_out(self, batch: list[DispatchEvent], done: int, total: int) -> None:
        self._kept += len(batch)
        if self._kept >= KEPT:
            self._kept = 0
            self.dispatcher.write_now()
        self.dispatcher.announce(batch)
        if self.progress is not None:
            self.progress(done, max(done, total))

    # --- the end ---------------------------------------------------------------------------

    def _finish(self, end: int, why: CorruptRecord) -> None:
        if self._reads_old and (damage := self._damage(end, why)):
            raise damage
        if (magic := newer_magic(self.log, end)) is not None:
            raise NewerFormat(end, magic)
        self.changed = True
        if not isinstance(why, NothingWritten):
            logger.warning("cutting off a torn record offset=%d why=%s", end, why.why)
        for queue in self.dispatcher:
            if queue.physical_end > end:
                self.dispatcher.cut(queue, end)
        # What was found is left in memory: the checkpoint says that it is not durable, and to make the files of a
        # hundred thousand queues would take the time in which others wait for the broker.
        for queue in self.dispatcher.queues.values():
            queue.next_offset = queue.max_offset
            if not queue.minimum_known:
                queue.raise_minimum(self.log.min_offset)
        self.log.open_at(end)

    def _damage(self, end: int, why: CorruptRecord) -> DamagedStore | None:
        """The damage at ``end``, if a record behind it was durable once.

        What was never synced may be missing after a power cut, in any order of pages, and is cut off. So is
        what another broker cut off before us and left lying: its queue offsets have been given again.
        """
        for buffer, found in whole_records_after(self.log, end):
            queue_id = found.queue_id
            event = event_of(buffer, found, self.dispatcher)
            queue = self.dispatcher.queues.get((event.topic, queue_id))
            if not found.sys_flag & WITHOUT_ENTRY and queue is not None and found.queue_offset < queue.max_offset:
                continue
            if self._was_durable(found):
                return DamagedStore(end, found.commit_log_offset, why.why)
            logger.warning("records that were never synced are cut off offset=%d", end)
            return None
        return None

    def _was_durable(self, found: RecordLayout) -> bool:
        if self.clean:
            return True
        durable = self.checkpoint.log_durable
        if durable is not None:
            return found.commit_log_offset < durable
        return found.store_timestamp < self.checkpoint.log_timestamp

    def _forget_queues(self) -> None:
        for queue in list(self.dispatcher.queues.values()):
            queue.delete()
        self.dispatcher.queues.clear()
        if self.dispatcher.root.exists():
            from shutil import rmtree

            rmtree(self.dispatcher.root, ignore_errors=True)


def event_of(buffer: Buffer, found: RecordLayout, dispatcher: Dispatcher) -> DispatchEvent:
    """What a dispatch of this record tells."""
    topic = topic_of(buffer, found)
    text = str(buffer[found.properties : found.properties + found.properties_length], "utf-8", "replace")
    properties = parse_properties(text)
    return DispatchEvent(
        commit_log_offset=found.commit_log_offset,
        size=found.size,
        queue_id=found.queue_id,
        queue_offset=found.queue_offset,
        store_timestamp=found.store_timestamp,
        store_host=found.store_host,
        topic=topic,
        tags_code=dispatcher.tags_code_of(topic, properties, found.store_timestamp),
        sys_flag=found.sys_flag,
        prepared_transaction_offset=found.prepared_transaction_offset,
        properties=properties,
        born_timestamp=found.born_timestamp,
        body_size=found.body_length,
        reconsume_times=found.reconsume_times,
    )
