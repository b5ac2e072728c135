"""``epochFileCheckpoint``: the epochs of a log on the disk, in RocketMQ's format (``EpochFileCache``).

::

    2              how many
    1878525613     CRC-32 of the lines that follow, without its highest bit; 0: not checked
    1-0            term 1 began at offset 0
    2-27374

What it says of bytes that a power cut took from the log is cut off when it is read. It is written before the first byte
of an epoch, and after a log that went on differently was cut: so it never says of a byte that another term wrote it.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Final

from verniermq.kernel import StoreError
from verniermq.plugins.ha.epochs import Epochs, cut

NAME: Final = "epochFileCheckpoint"


class DamagedEpochs(StoreError):
    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path} cannot be used: {why}; put back a copy, or begin this replica anew with 'verniermq ha resync'"
        )


def load(folder: Path, end: int) -> Epochs:
    """The epochs of a log that ends at ``end``; none if there is no file.

    Raises:
        DamagedEpochs: the file is damaged.
    """
    path = folder / NAME
    try:
        text = path.read_text("ascii")
    except FileNotFoundError:
        return ()
    except UnicodeDecodeError as error:
        raise DamagedEpochs(path, str(error)) from error
    try:
        count, crc, *lines = text.splitlines()
        if len(lines) != int(count):
            raise ValueError(f"it says {count} epochs and has {len(lines)}")
        if int(crc) not in (0, _crc(lines)):
            raise ValueError("its checksum is wrong")
        found = tuple((int(term), int(start)) for term, _, start in (line.partition("-") for line in lines))
    except ValueError as error:
        raise DamagedEpochs(path, str(error)) from error
    return cut(found, end)


def save(folder: Path, epochs: Epochs) -> None:
    """Write and sync. Blocks.

    Raises:
        OSError: the disk refused; the old file is whole.
    """
    lines = [f"{term}-{start}" for term, start in epochs]
    text = "\n".join([str(len(lines)), str(_crc(lines)), *lines, ""])
    new = folder / f"{NAME}.new"
    with new.open("w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder / NAME)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _crc(lines: list[str]) -> int:
    return zlib.crc32("".join(f"{line}\n" for line in lines).encode()) & 0x7FFFFFFF
