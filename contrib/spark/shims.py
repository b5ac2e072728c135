"""Small scripts that run something else in a way that Spark gets on with better."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where scripts are kept."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "verniermq"


def write_script(script: Path, text: str) -> Path:
    """Write a script that anybody may run, if it is not there; whoever looks meanwhile finds all of it or none."""
    if not script.is_file() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        beside = script.with_name(f"{script.name}.{os.getpid()}")
        beside.write_text(text)
        beside.chmod(beside.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        beside.rename(script)
    return script
