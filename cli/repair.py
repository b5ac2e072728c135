"""Looking at a stopped store, and mending one that does not open: ``verniermq store check`` and ``repair``.

Damage is a stretch of bytes that is no whole record, in front of records that are. Records cannot be moved,
since their offsets are known everywhere, and readers cannot skip bytes that make no sense. So the stretch is
kept in a file of its own (``damaged/<offset>``) and then filled, so that readers pass it::

    |record|rec???????|record|record|      |record|rec?????????????| next file
           └─ a record that no queue lists        └─ a blank: the file ends here

Every whole record stays where it was. What was in the stretch is lost to consumers: its queue has a blank
entry there, which pulls pass over.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import attrs

from verniermq.kernel.commitlog.checkpoint import Checkpoint
from verniermq.kernel.commitlog.integrity import NothingWritten
from verniermq.kernel.commitlog.lock import AbortMark, StoreLock
from verniermq.kernel.commitlog.log import CommitLog
from verniermq.kernel.commitlog.mapped import file_name, file_starts, sync_directory
from verniermq.kernel.commitlog.record import (
    BLANK_SIZE,
    SMALLEST,
    WITHOUT_ENTRY,
    RecordLayout,
    pack_blank,
    pack_record,
    topic_field,
)
from verniermq.kernel.commitlog.scan import NewerFormat, Scan, bytes_from, newer_magic, topic_of, whole_records_after
from verniermq.kernel.config.schema import StoreSettings
from verniermq.kernel.dispatch.consumequeue import ConsumeQueue
from verniermq.kernel.dispatch.dispatcher import Dispatcher
from verniermq.kernel.errors import StoreError
from verniermq.kernel.message import SysFlag
from verniermq.kernel.store.recovery import Progress, Recovery
from verniermq.kernel.store.version import StoreVersion

logger = logging.getLogger(__name__)

FILLER_TOPIC = "verniermq_damaged"
"""The topic of a record that fills a damaged stretch; it is never in a queue, so nobody can read it."""


@attrs.frozen
class BadRange:
    """Bytes from ``start`` up to ``end`` that are no whole record."""

    start: int
    end: int
    why: str

    def __str__(self) -> str:
        return f"offset {self.start} to {self.end} ({self.end - self.start} bytes): {self.why}"


@attrs.define
class Report:
    """What was found. ``damage`` keeps a store from opening; the rest is put right by the next start."""

    segments: int = 0
    records: int = 0
    end: int = 0
    """Where the last whole record ends."""
    damage: list[BadRange] = attrs.Factory(list)
    torn_tail: BadRange | None = None
    """Bytes behind the last whole record: a write that a crash interrupted."""
    missing_entries: int = 0
    """Records that their consume queue does not list; they are added at the next start."""
    lost_entries: int = 0
    """The same, but no start would look for them: only a repair has them added."""
    without_queue: int = 0
    """Records whose queue does not exist and is not expected to."""
    queues_counted: bool = False
    """Whether it is known that no queue is missing; then those without one are of deleted topics."""
    version: StoreVersion | None = None
    """Who wrote the store; ``None`` for VernierMQ 0.1, or an Apache broker."""
    mended: list[str] = attrs.Factory(list)
    """What a repair did, in words."""

    @property
    def is_whole(self) -> bool:
        return not self.damage and not self.missing_entries and not self.lost_entries

    @property
    def needs_repair(self) -> bool:
        return bool(self.damage or self.lost_entries)


def check_store(settings: StoreSettings, progress: Progress | None = None) -> Report:
    """Read the whole log and compare the consume queues with it. Changes nothing.

    Raises:
        StoreLocked: a broker uses the store.
        NewerStore: it is of a later version.
    """
    path = Path(settings.path)
    if not (path / "commitlog").is_dir():
        raise StoreError(f"there is no store in {path}: it has no directory 'commitlog'")
    lock = StoreLock(path)
    try:
        return _check(settings, progress)
    finally:
        lock.release()


def repair_store(settings: StoreSettings, progress: Progress | None = None) -> Report:
    """Mend what keeps the store from opening, keeping every whole record; return what is found afterwards.

    Raises:
        StoreLocked: a broker uses the store.
        StoreError: it cannot be mended, or it is of a later version.
    """
    path = Path(settings.path)
    lock = StoreLock(path)
    try:
        _version(path)
        mended = _mend_files(path, settings.segment_size)
        found = _check(settings, progress)
        for damage in found.damage:
            mended += _fill(path, settings.segment_size, damage)
        if found.lost_entries:
            mended.append(f"the next start makes the consume queues again, which lack {found.lost_entries} records")
        if mended:
            _forget_queues_position(path)
            found = _check(settings, progress)
        found.mended = mended
        return found
    finally:
        lock.release()


# --- checking ------------------------------------------------------------------------------


def _version(path: Path) -> StoreVersion | None:
    """
    Raises:
        NewerStore: this version might misread the store.
    """
    version = StoreVersion.of(path)
    if version is not None:
        version.refuse_newer(path)
    return version


def _check(settings: StoreSettings, progress: Progress | None) -> Report:
    path, size = Path(settings.path), settings.segment_size
    report = Report(version=_version(path))
    starts = file_starts(path / "commitlog")
    report.segments = len(starts)
    for start in starts:
        length = (path / "commitlog" / file_name(start)).stat().st_size
        if length != size and not (length == 0 and start == starts[-1]):
            report.damage.append(BadRange(start + length, start + size, f"the file has {length} bytes, not {size}"))
    if report.damage or not starts:
        return report  # nothing behind a short file can be mapped; a repair fills it up first
    log = CommitLog(path / "commitlog", size)
    log.load()
    dispatcher = Dispatcher(path / "consumequeue", queue_entries=settings.queue_entries, open_files=100)
    lacking = dispatcher.load()
    checkpoint = Checkpoint.load(path / "checkpoint")
    recovery = Recovery(log=log, dispatcher=dispatcher, checkpoint=checkpoint, clean=not AbortMark(path).is_set)
    report.queues_counted = checkpoint.entries >= 0
    read_from = recovery.plan(starts, lacking).offset
    total = bytes_from(log, starts[0])
    for topic, layout in _walk(log, report):
        report.records += 1
        report.end = layout.commit_log_offset + layout.size
        if not layout.sys_flag & WITHOUT_ENTRY:
            queue = dispatcher.queues.get((topic, layout.queue_id))
            if queue is not None and _is_listed(queue, layout):
                pass
            elif layout.commit_log_offset >= read_from:
                report.missing_entries += 1
            elif queue is None:
                report.without_queue += 1
            else:
                report.lost_entries += 1
        if progress is not None and report.records % 10_000 == 0:
            done = report.end - starts[0]
            progress(done, max(done, total))
    dispatcher.close()
    log.close()
    return report


def _is_listed(queue: ConsumeQueue, record: RecordLayout) -> bool:
    """Whether a queue lists a record, or rightly does not: its topic was deleted and made again since."""
    if record.queue_offset >= queue.max_offset:
        return record.commit_log_offset < queue.physical_end
    offset, size, _ = queue.read_any(record.queue_offset) or (0, 0, 0)
    return (offset, size) == (record.commit_log_offset, record.size) or offset > record.commit_log_offset


def _walk(log: CommitLog, report: Report) -> Iterator[tuple[str, RecordLayout]]:
    """All whole records, also those behind damage, which is noted in the report."""
    offset = log.min_offset
    numbers: dict[tuple[str, int], int] = {}
    unknown: set[int | None] = set()
    while True:
        scan = Scan(log, offset)
        for buffer, found in scan:
            topic = topic_of(buffer, found)
            if not found.sys_flag & WITHOUT_ENTRY:
                numbers[topic, found.queue_id] = found.queue_offset + 1
            yield topic, found
        stopped = scan.why.offset
        following = next(_not_replaced(log, stopped, numbers), None)
        magic = newer_magic(log, stopped)
        if magic is not None and (following is None or magic in unknown):
            raise NewerFormat(stopped, magic)  # one may be a damaged byte; two are none
        unknown.add(magic)
        if following is None:
            if not isinstance(scan.why, NothingWritten):
                segment_end = stopped - stopped % log.segment_size + log.segment_size
                report.torn_tail = BadRange(stopped, segment_end, scan.why.why)
            return
        report.damage.append(BadRange(stopped, following, scan.why.why))
        offset = following


def _not_replaced(log: CommitLog, offset: int, numbers: dict[tuple[str, int], int]) -> Iterator[int]:
    """Whole records behind ``offset``, but not those that a recovery cut off and whose numbers were given again."""
    for buffer, found in whole_records_after(log, offset):
        given = numbers.get((topic_of(buffer, found), found.queue_id), 0)
        if found.sys_flag & WITHOUT_ENTRY or found.queue_offset >= given:
            yield found.commit_log_offset


# --- mending -------------------------------------------------------------------------------


def _mend_files(path: Path, size: int) -> list[str]:
    """Give every file its length, and put an empty one where one is missing."""
    directory = path / "commitlog"
    starts = file_starts(directory)
    mended = []
    for start in starts:
        file = directory / file_name(start)
        length = file.stat().st_size
        if length < size:
            os.truncate(file, size)
            mended.append(f"filled up {file.name} from {length} to {size} bytes")
        elif length > size and not {start - size, start + size} & set(starts):
            raise StoreError(f"segment {file} has {length} bytes, more than segment_size {size}: is the setting right?")
        elif length > size:  # the names of its neighbours say how long it should be
            with open(file, "r+b") as segment:
                segment.seek(size)
                _keep(path / "damaged" / f"{file.name}.surplus", segment.read())
                segment.truncate(size)
                segment.flush()
                os.fsync(segment.fileno())
            mended.append(f"cut {file.name} from {length} to {size} bytes; the rest is in damaged/{file.name}.surplus")
    if starts:
        for start in set(range(starts[0], starts[-1], size)) - set(starts):
            with open(directory / file_name(start), "wb") as new:
                new.write(pack_blank(size))
                new.truncate(size)
                new.flush()
                os.fsync(new.fileno())
            mended.append(f"put an empty segment where {file_name(start)} was missing")
        sync_directory(directory)
    return sorted(mended)


def _fill(path: Path, size: int, damage: BadRange) -> list[str]:
    """Fill a damaged stretch, file by file."""
    mended = []
    at = damage.start
    while at < damage.end:
        base = at - at % size
        end = min(damage.end, base + size)
        file = path / "commitlog" / file_name(base)
        with open(file, "r+b") as segment:
            segment.seek(at - base)
            kept = segment.read(end - at)
            if any(kept):
                _keep(path / "damaged" / file_name(at), kept)
            segment.seek(at - base)
            if end == base + size and end - at >= BLANK_SIZE:
                segment.write(pack_blank(end - at))
            else:
                segment.write(_filler(at, end - at))
            segment.flush()
            os.fsync(segment.fileno())
        mended.append(f"filled {end - at} damaged bytes at offset {at}; they are kept in damaged/{file_name(at)}")
        at = end
    return mended


def _filler(offset: int, length: int) -> bytes:
    """A record of exactly ``length`` bytes that no queue lists."""
    if length <= SMALLEST:
        raise StoreError(f"{length} bytes at offset {offset} are too few for a record: they cannot be filled")
    magic, topic = topic_field(FILLER_TOPIC[: length - SMALLEST])
    return pack_record(
        magic,
        topic,
        bytes(length - SMALLEST - (len(topic) - 1)),
        b"",
        queue_id=0,
        queue_offset=0,
        commit_log_offset=offset,
        store_timestamp=0,
        store_host=bytes(8),
        sys_flag=SysFlag.TRANSACTION_PREPARED,
    )


def _keep(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def _forget_queues_position(path: Path) -> None:
    """Have the next start read the whole log: queues lack the records behind the damage."""
    checkpoint = Checkpoint.load(path / "checkpoint")
    known = checkpoint.log_durable
    attrs.evolve(
        checkpoint, queue_timestamp=0, log_durable=0 if known is None else known, queues_durable=0, entries=-1
    ).save(path / "checkpoint")
    AbortMark(path).set()
