"""``verniermq store backup`` and ``restore``: a copy of a store, taken while its broker runs.

The copy is what the disk would hold after a crash at the moment when the backup began, or later: files are copied in
such an order that what points into the log comes before the log::

    checkpoint ── tables (config/) ── queues, index, timers ── the log, its last segment at the very end

So nothing in the copy speaks of a message that the copied log lacks, and every message that was acknowledged before the
backup began is in it. The end of the last segment may be cut in the middle of a record; the next start finds that, as
after a crash. A full segment never changes again: on the same file system it is linked, not copied.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final

import attrs

from verniermq.kernel.commitlog.mapped import file_name, file_starts, sync_directory
from verniermq.kernel.errors import StoreError

BLOCK: Final = 1 << 16
ZEROS: Final = bytes(BLOCK)
WORD: Final = struct.Struct(">i")
"""A record begins with its size; nothing written is 0."""
NOT_COPIED: Final = frozenset({"lock", "abort", "abort.bak", "damaged"})
FIRST: Final = ("checkpoint", "version.json", "config")
LAST: Final = "commitlog"
UNFINISHED: Final = "backup.unfinished"
"""In a copy that is not whole; the last thing that a backup does is to remove it."""


@attrs.define
class Copied:
    files: int = 0
    linked: int = 0
    bytes: int = 0
    """Written; holes and links not among them."""


def back_up(store: Path, target: Path, *, link: bool = True) -> Copied:
    """Copy a store, of a broker that runs or not, into a folder that is not there yet.

    Args:
        link: whether full segments may be links to the store's own files

    Raises:
        StoreError: there is no store, or the target is there.
        OSError: the disk refused.
    """
    if not (store / LAST).is_dir():
        raise StoreError(f"{store} is no store: it has no folder {LAST!r}")
    if target.exists() and any(target.iterdir()):
        raise StoreError(f"{target} is there already, and is not empty; name another folder")
    target.mkdir(parents=True, exist_ok=True)
    (target / UNFINISHED).touch()
    copied = Copied()
    names = sorted(entry.name for entry in store.iterdir() if entry.name not in {*NOT_COPIED, *FIRST, LAST})
    for name in (*FIRST, *names):
        for file in _files(store / name):
            _copy(file, target / file.relative_to(store), copied)
    _copy_log(store / LAST, target / LAST, copied, link)
    (target / "abort").write_text("0")  # the next start reads the log as after a crash
    (target / UNFINISHED).unlink()
    sync_directory(target)
    return copied


def restore(backup: Path, store: Path) -> Copied:
    """Copy a backup to where a broker will find it. The backup stays as it is.

    Raises:
        StoreError: it is no whole backup, or there is a store already.
        OSError: the disk refused.
    """
    if (backup / UNFINISHED).exists():
        raise StoreError(f"{backup} is not whole: the backup did not come to its end; take it again")
    return back_up(backup, store, link=False)


def _files(path: Path) -> Iterator[Path]:
    """A file, or all files below a folder; what is deleted meanwhile is passed over."""
    if path.is_dir():
        for folder, _, names in os.walk(path):
            for name in sorted(names):
                yield Path(folder, name)
    elif path.exists():
        yield path


def _copy_log(log: Path, target: Path, copied: Copied, link: bool) -> None:
    target.mkdir()
    starts = file_starts(log)
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        name = file_name(start)
        is_full = following is not None and _is_begun(log / file_name(following))
        if not (link and is_full and _linked(log / name, target / name, copied)):
            _copy(log / name, target / name, copied, _written_end(log / name))
        if not is_full:
            return  # what is written behind it by now came after it was copied


def _written_end(segment: Path) -> int | None:
    """Up to where a segment is written now, record by record; ``None`` if its bytes do not lead there.

    What is appended while the segment is copied stays out: of two blocks, the second might have it and the first not.
    """
    try:
        with segment.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as view:
            position, size = 0, len(view)
            while position + WORD.size <= size:
                (length,) = WORD.unpack_from(view, position)
                if length == 0:
                    return position
                if length < 0 or position + length > size:
                    return None
                position += length
            return position
    except (FileNotFoundError, ValueError):
        return None  # gone, or empty


def _is_begun(segment: Path) -> bool:
    """Whether something is written in a segment. It is made ahead of time; until then the one before it is not full."""
    try:
        with segment.open("rb") as file:
            return file.read(8).count(0) < 8
    except FileNotFoundError:
        return False


def _linked(file: Path, target: Path, copied: Copied) -> bool:
    try:
        target.hardlink_to(file)
    except OSError:
        return False  # another file system, or one without links
    copied.files += 1
    copied.linked += 1
    return True


def _copy(file: Path, target: Path, copied: Copied, end: int | None = None) -> None:
    """Copy a file, or what it has up to ``end``; what is all zeros becomes a hole, and so does the rest.

    A file that is mostly empty stays small.
    """
    try:
        source = file.open("rb")
    except FileNotFoundError:
        return  # retention, or a table that is written anew under another name
    target.parent.mkdir(parents=True, exist_ok=True)
    with source, target.open("wb") as made:
        size = os.fstat(source.fileno()).st_size
        while block := source.read(BLOCK if end is None else min(BLOCK, end - source.tell())):
            if block == ZEROS[: len(block)]:
                made.seek(len(block), os.SEEK_CUR)
            else:
                made.write(block)
                copied.bytes += len(block)
        made.truncate(size if end is not None else made.tell())
        made.flush()
        os.fsync(made.fileno())
    with suppress(FileNotFoundError):
        shutil.copymode(file, target)
    copied.files += 1
