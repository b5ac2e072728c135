"""From appended records to consume queues and to everybody who listens (RocketMQ: ``ReputMessageService``).

An append leaves a :class:`DispatchEvent`, a batch a :class:`Run`. At the end of the loop's turn all of them are drained
at once: each message gets its consume-queue entry, then every listener gets all of them together. So a listener that
wakes a waiting pull can be sure that the pull will find the message.

After a crash recovery reads the log and calls :meth:`Dispatcher.replay` for each record: what a queue has
already is left alone, what it lacks is added.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from verniermq.kernel.commitlog.record import WITHOUT_ENTRY
from verniermq.kernel.dispatch.consumequeue import ENTRY_SIZE, ConsumeQueue
from verniermq.kernel.dispatch.event import DispatchEvent
from verniermq.kernel.dispatch.queuefiles import QueueFiles
from verniermq.kernel.dispatch.run import Dispatched, Part, Run, count_up_to, dispatched, events_of, parts_of
from verniermq.kernel.message import tags_code
from verniermq.kernel.names import Property

logger = logging.getLogger(__name__)

LONGEST_GAP = 1_000_000
"""Entries that are filled with blanks where records are missing; beyond, the queue begins anew behind the gap."""

TagsCoder = Callable[[Mapping[str, str], int], int]
"""(properties, store timestamp in ms) -> the tags code that the consume queue keeps."""


Listener = Callable[[Sequence[DispatchEvent]], None]


class Dispatcher:
    """The consume queues of one store and those who listen to it."""

    def __init__(self, root: Path, *, queue_entries: int, open_files: int) -> None:
        self.root = root
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.pending: list[Part] = []
        self.listeners: list[Listener] = []
        self.tags_coders: dict[str, TagsCoder] = {}
        self.dispatched = 0
        """Where in the log the newest dispatched record ends."""
        self.store_timestamp = 0
        """The store timestamp of that record."""
        self.received = 0
        """Where in the log the newest record ends that another broker numbered."""
        self.on_earlier: Callable[[int], None] = lambda log_offset: None
        """Called when records from a place of the log on have earlier timestamps than those before."""
        self._entries = 0
        self._miscounted = True
        """Whether ``_entries`` has to be counted anew."""
        self._files = QueueFiles(root, queue_entries * ENTRY_SIZE, open_files)
        self._dirty: set[ConsumeQueue] = set()
        self._unsynced: set[str] = set()
        self._disk = threading.Lock()

    # --- queues ----------------------------------------------------------------------------

    def load(self, log_minimum: int = 0) -> int:
        """Find the queues on disk; return how many entries lack in the middle of one. The log begins at
        ``log_minimum``."""
        lacking = 0
        for topic in _directories(str(self.root)):
            for name in _directories(f"{self.root}/{topic}"):
                if name.isdecimal():
                    queue = ConsumeQueue(topic, int(name), self.root, self._files)
                    lacking += queue.load(log_minimum)
                    if not queue.is_empty:
                        self.queues[topic, int(name)] = queue
        return lacking

    @property
    def entries(self) -> int:
        """How many entries the files of all queues have, once everything is written out. On the loop."""
        if self._miscounted:
            self._miscounted = False
            self._entries = sum(queue.max_offset - queue.first_entry for queue in list(self.queues.values()))
        return self._entries

    def count_again(self) -> None:
        """Queues or files of theirs were removed. In any thread."""
        self._miscounted = True

    def add_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Begin a queue. Nothing is written before its first message."""
        queue = self.queues[topic, queue_id] = ConsumeQueue(topic, queue_id, self.root, self._files)
        return queue

    def delete_topic(self, topic: str) -> None:
        """Drop all queues of a topic and their files."""
        for key in [key for key in list(self.queues) if key[0] == topic]:
            queue = self.queues.pop(key)  # first, so that no append finds a queue that is going
            self._dirty.discard(queue)
            queue.delete()
        try:
            os.rmdir(self.root / topic)
        except OSError:
            pass  # something else lies in it, or it was never made

    def tags_code_of(self, topic: str, properties: Mapping[str, str], store_timestamp: int) -> int:
        coder = self.tags_coders.get(topic)
        if coder is None:
            return tags_code(properties.get(Property.TAGS))
        return coder(properties, store_timestamp)

    # --- at run time -----------------------------------------------------------------------

    def dispatch(self, end: int | None = None) -> None:
        """Tell the queues and the listeners about what was appended, up to the log offset ``end`` if given."""
        parts = self.pending
        if end is not None and (ready := count_up_to(parts, end)) < len(parts):
            parts, self.pending = parts[:ready], parts[ready:]
        else:
            self.pending = []
        if not parts:
            return
        if self.received and parts[0].end <= self.received:
            parts = self._take_received(parts)
        queues, dirty = self.queues, self._dirty
        has_runs, entries = False, len(parts)
        for part in parts:
            queue = queues.get((part.topic, part.queue_id))
            if isinstance(part, Run):
                has_runs = True
                entries += self._enter(part, queue) - 1
                continue
            if queue is None or part.sys_flag & WITHOUT_ENTRY or part.queue_offset != queue.max_offset:
                entries -= 1  # its topic was deleted since, or it gets no entry
                continue
            queue.append(part)
            dirty.add(queue)
        self._entries += entries
        self.announce(Dispatched(parts) if has_runs else parts)  # type: ignore[arg-type]  # events, then

    def _enter(self, run: Run, queue: ConsumeQueue | None) -> int:
        """Give a queue the entries of a run; say how many."""
        if queue is None or run.queue_offset != queue.max_offset:
            return 0
        queue.extend(run)
        self._dirty.add(queue)
        return len(run)

    def _take_received(self, parts: list[Part]) -> list[Part]:
        """Bring what another broker numbered into the queues; return what is left."""
        ours = next((i for i, part in enumerate(parts) if part.end > self.received), len(parts))
        for part in parts[:ours]:
            if isinstance(part, Run):
                self._replay_run(part)
            else:
                self.replay(part, fill_gaps=True)
        self.count_again()
        self.announce(dispatched(parts[:ours]))
        return parts[ours:]

    def _replay_run(self, run: Run) -> None:
        queue = self.queues.get((run.topic, run.queue_id))
        if queue is None and not run.queue_offset:
            queue = self.add_queue(run.topic, run.queue_id)
        if queue is None or run.queue_offset != queue.max_offset or run.commit_log_offset < queue.physical_end:
            for event in run:
                self.replay(event, fill_gaps=True)
            return
        self._enter(run, queue)
        queue.next_offset = max(queue.next_offset, queue.max_offset)

    def forget_from(self, end: int) -> None:
        """The log was cut off at ``end``: what lies behind it and was not dispatched never will be."""
        self.pending = [
            kept
            for part in self.pending
            if part.commit_log_offset < end
            for kept in ((part,) if part.end <= end else [event for event in events_of([part]) if event.end <= end])
        ]
        self.received = min(self.received, end)

    def number_pending(self) -> None:
        """Have the queues number what is appended next behind what waits for its dispatch."""
        for queue in self.queues.values():
            queue.next_offset = queue.max_offset
        for event in events_of(self.pending):
            if not event.sys_flag & WITHOUT_ENTRY:
                place = (event.topic, event.queue_id)
                (self.queues.get(place) or self.add_queue(*place)).next_offset = event.queue_offset + 1

    def announce(self, events: Sequence[DispatchEvent]) -> None:
        """Tell the listeners about messages whose queues know them."""
        if not events:
            return
        parts = parts_of(events)
        last = parts[-1]
        self.dispatched = last.end if parts is events else max(part.end for part in parts)
        if last.store_timestamp < self.store_timestamp:
            self.on_earlier(parts[0].commit_log_offset)
        self.store_timestamp = last.store_timestamp
        for listener in self.listeners:
            try:
                listener(events)
            except Exception:
                # The messages are stored and in their queues; one listener must not keep them from the others.
                logger.exception("a listener failed listener=%r messages=%d", listener, len(events))

    # --- at recovery -----------------------------------------------------------------------

    def replay(self, event: DispatchEvent, *, fill_gaps: bool) -> bool:
        """Add the entry of a record found in the log unless its queue has it.

        ``False`` if entries before it are missing and were not to be given up (``fill_gaps``).
        """
        if event.sys_flag & WITHOUT_ENTRY:
            return True
        queue = self.queues.get((event.topic, event.queue_id)) or self.add_queue(event.topic, event.queue_id)
        if event.end <= queue.physical_end:
            return True
        if queue.is_empty and not queue.tail:
            if event.queue_offset:
                queue.begin_at(event.queue_offset)
        elif event.queue_offset == 0:
            # The topic was deleted and made again: its numbering began anew.
            queue = self._begin_anew(queue)
        if event.queue_offset > queue.max_offset:
            if not fill_gaps:
                return False
            # The records between are not in the log, or not whole: the others keep their numbers.
            if event.queue_offset - queue.max_offset <= LONGEST_GAP:
                queue.fill_up_to(event.queue_offset)
            else:
                queue = self._begin_anew(queue)
                queue.begin_at(event.queue_offset)
        if event.queue_offset == queue.max_offset:
            queue.append(event)
            queue.next_offset = max(queue.next_offset, queue.max_offset)
            self._dirty.add(queue)
        elif queue.fill_blank(event.queue_offset, event.commit_log_offset, event.size, event.tags_code):
            self._dirty.add(queue)
        return True

    def _begin_anew(self, queue: ConsumeQueue) -> ConsumeQueue:
        queue.delete()
        fresh = self.add_queue(queue.topic, queue.queue_id)
        fresh.next_offset = queue.next_offset
        return fresh

    def cut(self, queue: ConsumeQueue, commit_log_end: int) -> None:
        """Drop a queue's entries of records that begin at ``commit_log_end`` or later."""
        self._unsynced.update(queue.cut(commit_log_end))

    # --- writing the queues to disk --------------------------------------------------------

    @property
    def unwritten(self) -> int:
        """How many queues have entries in memory only."""
        return len(self._dirty)

    def take_dirty(self) -> list[ConsumeQueue]:
        """The queues that have entries in memory only; to be handed to :meth:`write_out`. On the loop."""
        dirty, self._dirty = self._dirty, set()
        return list(dirty)

    def write_out(self, queues: Sequence[ConsumeQueue], written: list[tuple[ConsumeQueue, int]]) -> None:
        """Put the queues' tails into their files, without waiting for the disk. For a worker thread.

        ``written`` gets each queue that was done, with how far, also if a later one fails.

        Raises:
            OSError: the disk refused; what was not written is still in memory.
        """
        with self._disk:
            for queue in queues:
                end, paths = queue.write_out()
                self._unsynced.update(paths)
                written.append((queue, end))

    def wrote(self, queues: Sequence[ConsumeQueue], written: Sequence[tuple[ConsumeQueue, int]]) -> None:
        """After :meth:`write_out`, on the loop: let go of what is in the files; what failed is dirty again."""
        for queue, end in written:
            queue.release(end)
        self._dirty.update(queue for queue in queues if queue.tail and not queue.gone)

    def sync(self) -> None:
        """Make what :meth:`write_out` wrote durable. For a worker thread."""
        with self._disk:
            paths, self._unsynced = self._unsynced, set()
            try:
                self._files.sync(paths)
            except OSError:
                self._unsynced |= paths
                raise

    def write_now(self) -> None:
        """Write everything here and now, without waiting for the disk."""
        queues = self.take_dirty()
        written: list[tuple[ConsumeQueue, int]] = []
        try:
            self.write_out(queues, written)
        finally:
            self.wrote(queues, written)

    def flush(self) -> None:
        """Write and sync everything here and now."""
        self.write_now()
        self.sync()

    def close(self) -> None:
        self._files.close()

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter([queue for queue in list(self.queues.values()) if not queue.is_empty])


def _directories(path: str) -> list[str]:
    try:
        with os.scandir(path) as found:
            return [entry.name for entry in found if entry.is_dir()]
    except FileNotFoundError:
        return []
