"""The key index: index files in a row, the newest of which grows (RocketMQ: ``IndexService``).

::

    index/20260301093000123   full     its mark: every entry is on the disk
    index/20260304171544870   full
    index/20260309080122004   …        <- new entries; whole on the disk up to its mark

Nothing in it is unique: all of it can be made again from the commit log. So when files do not look right after a
crash, they are cut back or removed, and the log is read again from where they end.

Each mark speaks for its own file and those before it, never for one behind it. So files are made durable in their
order, names first, and removed in the opposite order, each removal made durable before the next: whatever a crash
leaves, the files up to the first one whose mark is not full have everything up to that mark.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Protocol

from verniermq.kernel import Run, VernierMQError, sync_directory
from verniermq.plugins.query.indexfile import IndexFile, file_size
from verniermq.plugins.query.keys import key_hash, keys_of, keys_of_run, topic_hash

logger = logging.getLogger(__name__)

SECTOR = 512
"""What a disk writes whole or not at all; a length that a power cut left is so many of them."""


class Indexable(Protocol):
    """What the index has to know of a message; a dispatch event and a stored message both say it."""

    @property
    def commit_log_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def topic(self) -> str: ...
    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def store_timestamp(self) -> int: ...


class IndexMismatch(VernierMQError):
    """The files were made with other sizes than the settings say."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"{why}; set slots and entries in [plugins.query] to maxHashSlotNum and maxIndexNum of the broker that "
            "wrote it, or remove the folder to have the index made again"
        )


class Index:
    """All files. Everything but ``sync`` and ``offsets`` belongs to the thread that dispatches."""

    def __init__(
        self,
        directory: Path,
        *,
        slots: int,
        entries: int,
        now_ms: Callable[[], int],
    ) -> None:
        self.directory = directory
        self.files: list[IndexFile] = []
        self.done = 0
        """All messages that begin before this commit-log offset are in."""
        self._slots = slots
        self._entries = entries
        self._now_ms = now_ms
        self._filled: list[IndexFile] = []
        self._marked = (-1, 0, 0)
        """What the last sync saw: ``done``, files, entries of the last."""
        self._names_are_durable = True

    @property
    def resume(self) -> int:
        """Where to go on reading the log: a message begins there, and all before it are in."""
        last = self.files[-1].end_offset if self.files else 0
        # Of another broker's files we know where their last message begins, but not where it ends.
        return last if self.done == last + 1 else self.done

    # --- opening ---------------------------------------------------------------------------

    def load(self, *, clean: bool, full_before: int) -> int | None:
        """Open the files; return from where on the log has to be read again, ``None`` if nowhere.

        ``clean``: the last broker stopped in order. ``full_before``: files that were full at this time are durable.

        Raises:
            IndexMismatch: the files have another size.
            OSError: they cannot be opened.
        """
        self._open_files(clean=clean)
        if not clean or not all(file.is_sane for file in self.files):
            self._cut_back(full_before)
        elif not self.files:
            return 0
        else:
            last = self.files[-1]
            mark = last.mark()
            if mark is None or mark.complete < 0 or mark.count != last.count:
                # Another broker went on with it, and an orderly stop means that it has everything.
                self.done = last.end_offset + 1
                return None
            self.done = mark.complete
        return self.resume

    def _open_files(self, *, clean: bool) -> None:
        found = os.listdir(self.directory) if self.directory.is_dir() else []
        names = sorted(name for name in found if len(name) == 17 and name.isdecimal())
        lengths = [(self.directory / name).stat().st_size for name in names]
        # Several files of one wrong length were made with other settings; a crash leaves one, or some of any length, or
        # some of as many whole sectors. A file that is taken for that by mistake is made again from the log.
        is_crash = not clean and (
            len(set(lengths)) > 1 or len(names) == 1 or not any(size % SECTOR for size in lengths)
        )
        least = file_size(self._slots, self._entries) if is_crash else 1
        whole = next((number for number, length in enumerate(lengths) if length < least), len(names))
        while len(names) > whole:  # a crash came before its length was durable; the later ones count on it
            (self.directory / names.pop()).unlink()
            sync_directory(self.directory)
        try:
            self.files = [IndexFile(self.directory / name, self._slots, self._entries) for name in names]
        except ValueError as error:
            raise IndexMismatch(str(error)) from error
        while self.files and self.files[-1].is_blank:
            self._remove_last()
        # What another broker filled is marked by the next sync, so that a crash does not cost it.
        self._filled = [file for file in self.files[:-1] if not _is_marked_full(file)]

    def _remove_last(self) -> None:
        """Remove the last file. Durably, before another is removed: a gap between files could not be seen."""
        self.files.pop().path.unlink()
        sync_directory(self.directory)

    def _cut_back(self, full_before: int) -> None:
        """Keep what is known to be whole: files that are marked as full, then one up to its mark, and nothing after."""
        for position, file in enumerate(self.files):
            mark = file.mark()
            if file.is_filled_by_another and file.end_time <= full_before:
                self.done = file.end_offset  # by that broker's own rule it is durable
                continue
            keep = position
            if mark is not None and mark.complete >= 0:
                self.done = mark.complete
                if mark.count == file.count == file.entries and file.is_sane:
                    continue
                # Also if the head agrees with the mark: slots may point at entries that were never written.
                file.cut(mark.count)
                if file.is_full:
                    continue
                keep += 1
            removed = len(self.files) - keep
            while len(self.files) > keep:
                self._remove_last()
            self._filled = [file for file in self._filled if file in self.files]
            logger.info("index cut back after a crash files=%d removed=%d log_offset=%d", keep, removed, self.done)
            return

    def trim(self, log_end: int) -> None:
        """Forget what the log has lost after we indexed it: it will give those offsets again."""
        if self.done <= log_end:
            return
        while self.files:
            self.files[-1].cut_offset(log_end)
            if self.files[-1].count > 1 or len(self.files) == 1:
                break
            self._remove_last()
        self._filled = [file for file in self._filled if file in self.files]
        self.done = log_end

    # --- adding ----------------------------------------------------------------------------

    def add(self, messages: Iterable[Indexable | Run]) -> None:
        """Index messages and runs of them, in the log's order; those that are in already are left out.

        Raises:
            OSError: the disk has no room. What was added before is kept, and ``done`` says how far that is.
        """
        first = done = self.done
        keys: list[tuple[int, int, int]] = []
        is_mixed = False
        for message in messages:
            if isinstance(message, Run):
                found = keys_of_run(message)
                is_behind = message.commit_log_offset >= done
                keys += found if is_behind else [key for key in found if key[1] >= first]
                is_mixed |= not is_behind  # records of several runs may lie between each other
                done = max(done, message.end)
                continue
            offset = message.commit_log_offset
            if offset >= done:
                start, time = topic_hash(message.topic), message.store_timestamp
                for key in keys_of(message.properties, message.sys_flag):
                    keys.append((key_hash(start, key), offset, time))
                done = offset + message.size
        if is_mixed:
            keys.sort(key=itemgetter(1))
        while keys:
            file = self.files[-1] if self.files else None
            try:
                if file is None or file.is_full:
                    file = self._begin_file(file)
                added = file.add(keys)
            except OSError:
                if file is not None:
                    self.done = max(self.done, file.end_offset)
                raise
            keys = keys[added:]
        self.done = done

    def _begin_file(self, full: IndexFile | None) -> IndexFile:
        self.directory.mkdir(parents=True, exist_ok=True)
        file = IndexFile.begin(self._next_path(), self._slots, self._entries, full)
        if full is not None:
            self._filled.append(full)
        self._names_are_durable = False
        self.files.append(file)
        logger.info("index file begun file=%s", file.path.name)
        return file

    def _next_path(self) -> Path:
        """Named after the time, in the machine's own time zone as RocketMQ does it, and later than the last one."""
        milliseconds = self._now_ms()
        last = self.files[-1].path.name if self.files else ""
        while True:
            moment = datetime.fromtimestamp(milliseconds // 1000)
            name = f"{moment:%Y%m%d%H%M%S}{milliseconds % 1000:03d}"
            if name > last:
                return self.directory / name
            name_time = datetime.strptime(last[:14], "%Y%m%d%H%M%S")
            milliseconds = int(name_time.timestamp()) * 1000 + int(last[14:]) + 1

    # --- durability ------------------------------------------------------------------------

    def sync(self) -> list[IndexFile]:
        """Make everything durable that was added before this call; for a worker thread, one at a time.

        Returns the full files among them, for :meth:`note_synced`.

        Raises:
            OSError: the disk failed.
        """
        # In this order: what is added meanwhile is then in the file twice at worst, and never missing.
        done = self.done
        filled, files = list(self._filled), list(self.files)
        seen = (done, len(files), files[-1].count if files else 0)
        if seen == self._marked:
            return []
        if not self._names_are_durable:
            self._names_are_durable = True
            try:
                sync_directory(self.directory)
                sync_directory(self.directory.parent)
            except OSError:
                self._names_are_durable = False
                raise
        for file in filled:
            # The keys of its last message may go on in the next file, and all that came later is there.
            file.sync(min(done, file.end_offset))
        if files:
            files[-1].sync(done)
        self._marked = seen
        return filled

    def note_synced(self, filled: list[IndexFile]) -> int:
        """After :meth:`sync`: the end of the newest full file that became durable, 0 if none did."""
        self._filled = [file for file in self._filled if file not in filled]
        return max((file.end_time for file in filled), default=0)

    def finish(self) -> int:
        """The last sync. It leaves a file even if no message had a key, so that the next start need not look again."""
        if not self.files and self.done > 0:
            self._begin_file(None)
        return self.note_synced(self.sync())

    # --- finding and forgetting ------------------------------------------------------------

    def offsets(self, topic: str, key: str, begin: int, end: int) -> Iterator[int]:
        """Commit-log offsets of messages that may have this key, newest first; safe in any thread.

        Two keys may have the same hash, so whoever asks has to look at the messages.
        """
        wanted = key_hash(topic_hash(topic), key)
        for file in reversed(list(self.files)):
            if file.overlaps(begin, end):
                yield from file.offsets(wanted, begin, end)
            if file.count > 1 and file.begin_time < begin:
                return

    def forget_before(self, log_start: int) -> list[Path]:
        """Let go of files whose messages are all gone from the log, never the last; the caller removes them."""
        gone: list[Path] = []
        while len(self.files) > 1 and self.files[0].end_offset < log_start:
            file = self.files.pop(0)
            self._filled = [other for other in self._filled if other is not file]
            gone.append(file.path)
        return gone


def _is_marked_full(file: IndexFile) -> bool:
    mark = file.mark()
    return mark is not None and mark.complete >= 0 and mark.count == file.entries
