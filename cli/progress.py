"""Progress of long work on the log: a bar for a person, a line now and then for a log file."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Final

from verniermq.kernel.config import format_size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

logger = logging.getLogger(__name__)

LINE_SECONDS: Final = 5.0


@cache
def terminal() -> Console:
    """The one that logs and bars share, so that neither writes over the other. Rich takes a while to import."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


@contextmanager
def progress_of(what: str) -> Iterator[Callable[[int, int], None]]:
    """Something to call with the bytes done and the bytes to do; nothing is shown before the first call."""
    bar: Progress | None = None
    said = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal bar, said
        if sys.stderr.isatty():
            bar = bar or _bar(what)
            bar.update(bar.task_ids[0], completed=done, total=total)
        elif time.monotonic() - said > LINE_SECONDS:
            said = time.monotonic()
            logger.info("%s done=%s total=%s", what, format_size(done), format_size(total))

    try:
        yield show
    finally:
        if bar is not None:
            bar.stop()


def _bar(what: str) -> Progress:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=terminal(), transient=True)
    bar.add_task(what, total=None)
    bar.start()
    return bar
