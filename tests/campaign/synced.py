"""A plugin for replicas that lose power: it notes beside the store up to where the log is on the disk.

What lies behind that a power cut may take; :func:`cut_power` takes it from the files of a broker that was killed.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import attrs

from verniermq.kernel import Context, Declaration, NoConfig, Registry, hookimpl
from verniermq.kernel.commitlog.log import CommitLog

SECTOR = 512
OFFSET = struct.Struct(">q")


def _note(store: Path) -> Path:
    return store.with_name(f"{store.name}.synced")


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(api=1, summary="Notes up to where the log is on the disk.")
    config: NoConfig
    broker: Context
    note: Callable[[int], None] = attrs.field(init=False)

    def setup(self, registry: Registry) -> None:
        descriptor = os.open(_note(Path(self.broker.configuration.store.path)), os.O_RDWR | os.O_CREAT)
        sync, cut_back = CommitLog.sync, CommitLog.cut_back
        noted = [0]

        def note(end: int) -> None:
            noted[0] = end
            os.pwrite(descriptor, OFFSET.pack(end), 0)

        def syncing(log: CommitLog) -> int:
            end = sync(log)
            note(max(end, noted[0]))
            return end

        def cutting(log: CommitLog, end: int) -> None:
            note(min(end, noted[0]))  # what is written there next is not on the disk
            cut_back(log, end)

        CommitLog.sync, CommitLog.cut_back = syncing, cutting  # type: ignore[method-assign]
        self.note = note

    @hookimpl
    def store_opened(self) -> None:
        self.note(self.broker.store.durable_end)


def cut_power(store: Path, chance: random.Random) -> int:
    """Take from the log of a killed broker what a power cut could; how many bytes it may have taken."""
    (durable,) = OFFSET.unpack(_note(store).read_bytes())
    way = chance.choice(("all", "all", "some", "end"))
    taken = 0
    for path in sorted((store / "commitlog").iterdir()):
        start, size = int(path.name), path.stat().st_size
        if start + size <= durable:
            continue
        data = bytearray(path.read_bytes())
        first = max(durable - start, 0)
        taken += len(bytes(data[first:]).rstrip(b"\0"))
        for at in range(first // SECTOR * SECTOR, size, SECTOR):
            lost = way == "all" or (chance.random() < 0.5 if way == "some" else at > first + 4 * SECTOR)
            if lost:
                begin = max(at, first)
                data[begin : at + SECTOR] = bytes(min(at + SECTOR, size) - begin)
        path.write_bytes(data)
    return taken
