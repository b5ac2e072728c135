"""Modules that ``make run`` and ``make fast`` compile: whether one is there, of the source beside it, and wanted."""

from __future__ import annotations

import importlib
import logging
import os
import zlib
from pathlib import Path
from typing import Any

from verniermq.kernel.config.environment import PURE_VARIABLE

logger = logging.getLogger(__name__)


def compiled(package: str, name: str) -> Any | None:
    """A compiled module; ``None`` if it was not built, is of another version, or is not wanted."""
    if os.environ.get(PURE_VARIABLE, "") not in ("", "0"):
        return None
    try:
        module = importlib.import_module(f"{package}.{name}")
    except ImportError:
        return None
    source = Path(str(module.__file__)).with_name(f"{name}.pyx")
    if source.exists() and zlib.crc32(source.read_bytes()) != module.SOURCE:
        logger.warning("%s is compiled from another version: run make fast again; the plain way is taken", name)
        return None
    return module
