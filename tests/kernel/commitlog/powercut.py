"""A disk that remembers: records what a program writes and syncs, and shows what a power cut could leave of it.

While a :class:`Recorder` is active, every call that changes a file below its root is noted in order: writes
(through the system and through maps), lengths, names made, changed and removed, syncs of files and of directories, and
the program's own acknowledgements. :meth:`Recorder.leave` then builds the directory as it may be found after
the power failed at a given moment:

- what was synced before is there;
- of everything else each sector of 512 bytes is there or is not, independently;
- a name that was made, changed or removed, and whose directory was not synced since, is as before or as after.
"""

from __future__ import annotations

import mmap
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from verniermq.kernel.commitlog import mapped
from verniermq.kernel.dispatch import queuefiles
from verniermq.kernel.tables import jsonfile
from verniermq.plugins.query import indexfile

SECTOR = 512
ALL = -1
"""The file of a sync that includes all files and directories."""


@attrs.frozen
class Event:
    kind: str
    file: int = 0
    """Which file: it keeps its number whatever it is called."""
    path: str = ""
    position: int = 0
    data: bytes = b""
    covers: int = 0
    """For a sync: everything noted before this number is durable when it is over."""
    value: Any = None


class Recorder:
    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.events: list[Event] = []
        self._numbers: dict[int, int] = {}
        self._made = 0
        self._lock = threading.Lock()
        """Nobody looks for the number of a file that is there and not yet noted."""

    def acknowledge(self, value: Any) -> None:
        """The program promised something: from here on it must survive."""
        self.events.append(Event("acknowledge", value=value))

    def _is_ours(self, path: str) -> bool:
        return path.startswith(self.root) and not path.endswith(" (deleted)")

    def _file_of(self, descriptor: int) -> int | None:
        """The number of an open file of ours."""
        if not self._is_ours(os.readlink(f"/proc/self/fd/{descriptor}")):
            return None
        with self._lock:
            return self._numbers.get(os.fstat(descriptor).st_ino)

    def _note(self, kind: str, file: int | None, **what: Any) -> None:
        if file is not None:
            self.events.append(Event(kind, file, **what))

    def _note_made(self, path: str, descriptor: int) -> None:
        self._made += 1
        self._numbers[os.fstat(descriptor).st_ino] = self._made  # the inode of a removed file is used again
        self._note("create", self._made, path=path)

    def _note_sync(self, descriptor: int, covers: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self._is_ours(path):
            self.events.append(Event("sync", self._file_of(descriptor) or 0, path, covers=covers))

    @contextmanager
    def active(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        recorder = self
        real: dict[str, Any] = {
            name: getattr(os, name)
            for name in ("open", "pwrite", "write", "ftruncate", "truncate", "unlink", "replace", "fsync", "fdatasync")
        }

        def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            text = os.fspath(path)
            with recorder._lock:
                is_new = bool(flags & os.O_CREAT) and not os.path.exists(path)
                descriptor: int = real["open"](path, flags, *args, **kwargs)
                if is_new and recorder._is_ours(text):
                    recorder._note_made(text, descriptor)
            if not is_new and flags & os.O_TRUNC:
                recorder._note("length", recorder._file_of(descriptor))
            return descriptor

        def open_whole(path: Any, mode: str, opener: Any) -> Any:
            """What writes a table: a file object without a buffer, so that each of its writes is a call."""
            assert mode == "wb"
            return _Plain(opener(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))

        def pwrite(descriptor: int, data: Any, position: int) -> int:
            recorder._note("write", recorder._file_of(descriptor), position=position, data=bytes(data))
            return int(real["pwrite"](descriptor, data, position))

        def write(descriptor: int, data: bytes) -> int:
            position = os.lseek(descriptor, 0, os.SEEK_CUR) if recorder._file_of(descriptor) else 0
            recorder._note("write", recorder._file_of(descriptor), position=position, data=bytes(data))
            return int(real["write"](descriptor, data))

        def ftruncate(descriptor: int, length: int) -> None:
            recorder._note("length", recorder._file_of(descriptor), position=length)
            real["ftruncate"](descriptor, length)

        def truncate(path: Any, length: int) -> None:
            descriptor = real["open"](path, os.O_RDWR)
            ftruncate(descriptor, length)
            os.close(descriptor)

        def unlink(path: Any, *args: Any, **kwargs: Any) -> None:
            real["unlink"](path, *args, **kwargs)
            if recorder._is_ours(os.fspath(path)):
                recorder._note("remove", 0, path=os.fspath(path))

        def replace(source: Any, target: Any) -> None:
            real["replace"](source, target)
            if recorder._is_ours(os.fspath(source)):
                recorder._note("rename", 0, path=os.fspath(source), value=os.fspath(target))

        def sync(name: str) -> Any:
            def call(descriptor: int) -> None:
                covers = len(recorder.events)
                real[name](descriptor)
                recorder._note_sync(descriptor, covers)

            return call

        def sync_filesystem(path: Path) -> None:
            covers = len(recorder.events)
            mapped.sync_filesystem(path)
            recorder.events.append(Event("sync", ALL, covers=covers))

        class RecordingMap(mmap.mmap):
            """A map whose stores are noted; its file is found by the descriptor it was made from."""

            def __new__(cls, descriptor: int, *args: Any, **kwargs: Any) -> RecordingMap:
                made = super().__new__(cls, descriptor, *args, **kwargs)
                made.file = recorder._file_of(descriptor)
                return made

            file: int | None

            def __setitem__(self, key: Any, value: Any) -> None:
                recorder._note("write", self.file, position=key.start, data=bytes(value))
                super().__setitem__(key, value)

        with patch.context() as changed:
            for replacement in (pwrite, write, ftruncate, truncate, unlink, replace):
                changed.setattr(os, replacement.__name__, replacement)
            changed.setattr(os, "open", opened)
            changed.setattr(os, "fsync", sync("fsync"))
            changed.setattr(os, "fdatasync", sync("fdatasync"))
            changed.setattr(mapped, "mmap", RecordingMap)
            changed.setattr(queuefiles, "sync_filesystem", sync_filesystem)
            changed.setattr(jsonfile, "open", open_whole, raising=False)
            changed.setattr(indexfile, "stores_are_safe", lambda descriptor: False)  # its calls are noted, no stores
            yield

    # --- after the power cut ---------------------------------------------------------------

    def acknowledged(self, moment: int) -> list[Any]:
        return [event.value for event in self.events[:moment] if event.kind == "acknowledge"]

    def leave(self, moment: int, target: Path, chance: random.Random) -> None:
        """Build below ``target`` what may be left of the files when the power fails before event ``moment``."""
        synced: dict[int | str, int] = {}
        for event in self.events[:moment]:
            if event.kind == "sync":
                for what in (event.file, event.path):
                    synced[what] = max(synced.get(what, 0), event.covers)
        all_synced = synced.get(ALL, 0)
        # Some power cuts lose nearly everything that was not synced, others nearly nothing.
        luck = chance.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        names: dict[str, int] = {}
        files: dict[int, _Content] = {}
        for number, event in enumerate(self.events[:moment]):
            if event.kind in ("create", "remove", "rename"):
                durable = max(all_synced, synced.get(os.path.dirname(event.path), 0))
                if event.kind == "create":
                    files[event.file] = _Content()
                if number < durable or chance.random() < luck:
                    _change(names, event)
            elif event.kind in ("write", "length"):
                durable = max(all_synced, synced.get(event.file, 0))
                files[event.file].take(event, chance, 1.0 if number < durable else luck)
        target.mkdir(exist_ok=True)
        for path, file in names.items():
            place = target / os.path.relpath(path, self.root)
            place.parent.mkdir(parents=True, exist_ok=True)
            files[file].save(place)


def _change(names: dict[str, int], event: Event) -> None:
    if event.kind == "create":
        names[event.path] = event.file
    elif event.kind == "remove":
        names.pop(event.path, None)
    elif event.path in names:
        names[event.value] = names.pop(event.path)


class _Plain:
    """As much of a file object as the writer of a table uses."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> _Plain:
        return self

    def __exit__(self, *why: object) -> None:
        os.close(self._descriptor)

    def write(self, data: bytes) -> None:
        assert os.write(self._descriptor, data) == len(data)

    def flush(self) -> None: ...

    def fileno(self) -> int:
        return self._descriptor


class _Content:
    """What of a file is left: its length, and the sectors of it that are not zero."""

    def __init__(self) -> None:
        self.length = 0
        self.sectors: dict[int, bytearray] = {}

    def take(self, event: Event, chance: random.Random, luck: float) -> None:
        if event.kind == "length":
            if luck == 1.0 or chance.random() < luck:
                self._cut(event.position)
            return
        at, end = event.position, event.position + len(event.data)
        while at < end:
            sector = at // SECTOR
            stop = min(end, (sector + 1) * SECTOR)
            if luck == 1.0 or chance.random() < luck:
                content = self.sectors.setdefault(sector, bytearray(SECTOR))
                start = at % SECTOR
                content[start : start + stop - at] = event.data[at - event.position : stop - event.position]
                self.length = max(self.length, stop)
            at = stop

    def _cut(self, length: int) -> None:
        if length < self.length:
            last, rest = divmod(length, SECTOR)
            for sector in [sector for sector in self.sectors if sector > last or (sector == last and not rest)]:
                del self.sectors[sector]
            if last in self.sectors:
                self.sectors[last][rest:] = bytes(SECTOR - rest)
        self.length = length

    def save(self, place: Path) -> None:
        with place.open("wb") as file:
            file.truncate(self.length)
            for sector, content in self.sectors.items():
                file.seek(sector * SECTOR)
                file.write(content[: self.length - sector * SECTOR])
