"""Small scripts that run something else in a way that Spark gets on with better.

They are kept in the user's cache, and run by their path. So they are there only where nobody but this user and root can
change them; where they cannot be, they go to a folder that is made for this process and removed at its end.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path


def write_script(what: str, place: str, text: str, environ: Mapping[str, str], shims: Path | None = None) -> Path:
    """Write a script if it is not there; whoever looks meanwhile finds all of it or none.

    Args:
        what: the beginning of its folder's name, whose end is made of the text
        place: where it lies in that folder, such as ``bin/java``
        shims: a folder to keep it in, otherwise the user's cache

    Raises:
        OSError: there is no folder from which it could be run.
    """
    path = Path(f"{what}-{hashlib.sha256(text.encode()).hexdigest()[:12]}", place)
    try:
        script = (shims or _cache(environ)) / path
        if _is_written(script, text):
            return script
    except (OSError, RuntimeError):  # a folder that takes no files, or a user without a home
        pass
    script = _own_folder() / path
    if not _is_written(script, text):
        raise PermissionError(f"nothing may be run from {script.parent}")
    return script


def _cache(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "verniermq"


@cache
def _own_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="verniermq-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _is_written(script: Path, text: str) -> bool:
    """Whether the script is there now, and may be run, and can be changed by nobody else."""
    script.parent.mkdir(parents=True, exist_ok=True)
    if not _is_ours(script.parent):
        return False
    if not script.is_file() or not _is_ours(script) or script.read_text() != text:
        descriptor, beside = tempfile.mkstemp(dir=script.parent)
        with open(descriptor, "w") as file:
            file.write(text)
        os.chmod(beside, 0o755)
        os.replace(beside, script)
    return os.access(script, os.X_OK)


def _is_ours(path: Path) -> bool:
    """Whether nobody but this user and root can change a file or folder, or put another in its place."""
    path = path.resolve()
    for place in (path, *path.parents):
        found = place.stat()
        others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if others_write or found.st_uid not in (0, os.geteuid()):
            return False
    return True
