"""Progress of long work on the log: a bar for a person, a line now and then for a log file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from verniermq.kernel.config import format_size

logger = logging.getLogger(__name__)

LINE_SECONDS: Final = 5.0


@contextmanager
def progress_of(what: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """Something to call with the bytes done and the bytes to do; nothing is shown before the first call."""
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(what, total=None)
    said = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal said
        if console.is_terminal:
            bar.start()
            bar.update(task, completed=done, total=total)
        elif time.monotonic() - said > LINE_SECONDS:
            said = time.monotonic()
            logger.info("%s done=%s total=%s", what, format_size(done), format_size(total))

    try:
        yield show
    finally:
        bar.stop()
