"""A disk that remembers: records what a program writes and syncs, and shows what a power cut could leave of it.

While a :class:`Recorder` is active, every call that changes a file below its root is noted in order: writes
(through the system and through maps), lengths, names made and removed, syncs of files and of directories, and
the program's own acknowledgements. :meth:`Recorder.leave` then builds the directory as it may be found after
the power failed at a given moment:

- what was synced before is there;
- of everything else each sector of 512 bytes is there or is not, independently;
- a name that was made or removed, and whose directory was not synced since, is there or is not.
"""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from verniermq.kernel.commitlog import mapped

SECTOR = 512


@attrs.frozen
class Event:
    kind: str
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

    def acknowledge(self, value: Any) -> None:
        """The program promised something: from here on it must survive."""
        self.events.append(Event("acknowledge", value=value))

    def _path_of(self, descriptor: int) -> str | None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        return path if path.startswith(self.root) and not path.endswith(" (deleted)") else None

    def _note(self, kind: str, path: str | None, position: int = 0, data: bytes = b"", covers: int = 0) -> None:
        if path is not None:
            self.events.append(Event(kind, path, position, data, covers))

    @contextmanager
    def active(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        recorder, real = self, {name: getattr(os, name) for name in ("open", "pwrite", "write", "ftruncate", "unlink")}
        syncs = {name: getattr(os, name) for name in ("fsync", "fdatasync")}

        def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            is_new = bool(flags & os.O_CREAT) and not os.path.exists(path)
            descriptor: int = real["open"](path, flags, *args, **kwargs)
            text = os.fspath(path)
            if text.startswith(recorder.root) and (is_new or flags & os.O_TRUNC):
                recorder._note("create", text)
            return descriptor

        def pwrite(descriptor: int, data: Any, position: int) -> int:
            recorder._note("write", recorder._path_of(descriptor), position, bytes(data))
            return int(real["pwrite"](descriptor, data, position))

        def write(descriptor: int, data: bytes) -> int:
            recorder._note("write", recorder._path_of(descriptor), os.lseek(descriptor, 0, os.SEEK_CUR), bytes(data))
            return int(real["write"](descriptor, data))

        def ftruncate(descriptor: int, length: int) -> None:
            recorder._note("length", recorder._path_of(descriptor), length)
            real["ftruncate"](descriptor, length)

        def unlink(path: Any, *args: Any, **kwargs: Any) -> None:
            real["unlink"](path, *args, **kwargs)
            recorder._note("remove", os.fspath(path) if os.fspath(path).startswith(recorder.root) else None)

        def sync(name: str) -> Any:
            def call(descriptor: int) -> None:
                covers = len(recorder.events)
                path = recorder._path_of(descriptor)
                syncs[name](descriptor)
                recorder._note("sync", path, covers=covers)

            return call

        class RecordingMap(mmap.mmap):
            """A map whose stores are noted; its file is found by the descriptor it was made from."""

            def __new__(cls, descriptor: int, *args: Any, **kwargs: Any) -> RecordingMap:
                made = super().__new__(cls, descriptor, *args, **kwargs)
                made.path = recorder._path_of(descriptor)
                return made

            path: str | None

            def __setitem__(self, key: Any, value: Any) -> None:
                recorder._note("write", self.path, key.start, bytes(value))
                super().__setitem__(key, value)

        with patch.context() as changed:
            for name, replacement in {
                "open": opened,
                "pwrite": pwrite,
                "write": write,
                "ftruncate": ftruncate,
                "unlink": unlink,
                "fsync": sync("fsync"),
                "fdatasync": sync("fdatasync"),
            }.items():
                changed.setattr(os, name, replacement)
            changed.setattr(mapped, "mmap", RecordingMap)
            yield

    # --- after the power cut ---------------------------------------------------------------

    def acknowledged(self, moment: int) -> list[Any]:
        return [event.value for event in self.events[:moment] if event.kind == "acknowledge"]

    def leave(self, moment: int, target: Path, chance: random.Random) -> None:
        """Build below ``target`` what may be left of the files when the power fails before event ``moment``."""
        durable: dict[str, int] = {}
        for event in self.events[:moment]:
            if event.kind == "sync":
                durable[event.path] = max(durable.get(event.path, 0), event.covers)
        # Some power cuts lose nearly everything that was not synced, others nearly nothing.
        luck = chance.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        names: dict[str, bool] = {}
        files: dict[str, bytearray] = {}
        for number, event in enumerate(self.events[:moment]):
            if event.kind in ("create", "remove"):
                if number < durable.get(os.path.dirname(event.path), 0) or chance.random() < luck:
                    names[event.path] = event.kind == "create"
                    if event.kind == "create":
                        files[event.path] = bytearray()
                elif event.kind == "create":
                    files.setdefault(event.path, bytearray())
                continue
            if event.kind not in ("write", "length"):
                continue
            content = files.setdefault(event.path, bytearray())
            is_durable = number < durable.get(event.path, 0)
            if event.kind == "length":
                if is_durable or chance.random() < luck:
                    del content[event.position :]
                    content.extend(bytes(event.position - len(content)))
                continue
            self._store(content, event, is_durable, chance, luck)
        for path, is_there in names.items():
            if is_there:
                place = target / os.path.relpath(path, self.root)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(files[path])

    @staticmethod
    def _store(content: bytearray, event: Event, is_durable: bool, chance: random.Random, luck: float) -> None:
        end = event.position + len(event.data)
        if is_durable:
            content.extend(bytes(max(0, end - len(content))))
            content[event.position : end] = event.data
            return
        at = event.position
        while at < end:
            stop = min(end, (at // SECTOR + 1) * SECTOR)
            if chance.random() < luck:
                content.extend(bytes(max(0, stop - len(content))))
                content[at:stop] = event.data[at - event.position : stop - event.position]
            at = stop
