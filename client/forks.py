"""What has to be done in a child process that was forked; where nothing forks, as on Windows, nothing."""

from __future__ import annotations

import os
from collections.abc import Callable


def after_fork(function: Callable[[], None]) -> None:
    """Call a function in every forked child, before anything else there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
