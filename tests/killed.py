"""The files of a running broker, as a kill would leave them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def copy_as_killed(store: Path, target: Path, copy: Callable[[Any, Any], object] = shutil.copy2) -> None:
    """Copy a running broker's store; once more when a file was replaced on the way, as no kill does it."""
    for _ in range(100):
        try:
            shutil.copytree(store, target, copy_function=copy)
        except shutil.Error:
            shutil.rmtree(target)
        else:
            return
    raise AssertionError(f"the files in {store} never stood still")
