"""Which replica a store is, and whether it may have lost what it acknowledged.

A replica that lost something it acknowledged must not be taken for the one that has it. What a killed process wrote
is still in the system's memory; a power cut takes it, and whoever empties a store takes all. So its name has two parts:
when the machine was started, and a random text that lies in the store.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Any, Final

import orjson

from verniermq.kernel import PluginError

NAME: Final = "replica.json"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
SYNCED: Final = ""


def incarnation(folder: Path, replica: int) -> str:
    """The name of this life of a replica; a store without one gets it. Blocks.

    Raises:
        PluginError: the store is another replica's.
    """
    known = _read(folder)
    if not known:
        known = {"replica": replica, "store": secrets.token_hex(4)}
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder, known)
    if known["replica"] != replica:
        raise PluginError(
            f"{folder} is the store of replica {known['replica']}, and [plugins.ha] replica is {replica}; set it to "
            f"{known['replica']}, or use another store",
            "ha",
        )
    return f"{_boot()}-{known['store']}"


def store_name(folder: Path) -> str:
    """The random text of the store. Blocks."""
    return str(_read(folder).get("store", ""))


def is_whole(folder: Path) -> bool:
    """Whether what the process before wrote is all there: the machine runs since then, or it was stopped in order."""
    return _read(folder).get("boot", SYNCED) in (SYNCED, _boot())


def remember(folder: Path, *, synced: bool) -> None:
    """What :func:`is_whole` says next time. ``synced``: all is on the disk, and nothing more is acknowledged. Blocks.

    Raises:
        OSError: the disk refused.
    """
    known = _read(folder)
    if known:  # it may have been told to forget who it is
        _write(folder, {**known, "boot": SYNCED if synced else _boot()})


def _read(folder: Path) -> dict[str, Any]:
    try:
        known: dict[str, Any] = orjson.loads((folder / NAME).read_bytes())
        return known
    except FileNotFoundError:
        return {}


def _write(folder: Path, known: dict[str, Any]) -> None:
    path = folder / NAME
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        file.write(orjson.dumps(known))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def forget(folder: Path) -> None:
    """The store may lack what was acknowledged: the next life is another one."""
    with contextlib.suppress(OSError):
        (folder / NAME).unlink(missing_ok=True)


def _boot() -> str:
    try:
        return BOOT_ID.read_text("ascii").strip()[:8]
    except OSError:
        return secrets.token_hex(4)  # where a system does not tell, each start counts as one after a power cut
