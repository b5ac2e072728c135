"""What an export says: rows, how fast, and how many are still to come; on a terminal, line by line, or as JSON."""

from __future__ import annotations

import json
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import attrs
import click
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

if TYPE_CHECKING:
    from verniermq.contrib.arrow.losses import Skipped


@attrs.frozen
class BatchDone:
    """A batch that was written."""

    number: int
    rows: int
    seconds: float
    """How long it took, all in all."""
    lag: int
    """Messages that were there and are not in it, nor in one before it."""

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / max(0.001, self.seconds)

    def __str__(self) -> str:
        rows = f"{self.rows:,} rows in {self.seconds:.1f} s"
        return f"batch {self.number}: {rows}, {self.rate:,.0f} rows/s, {self.lag:,} to come"


class ExportProgress:
    """A bar on a terminal; one line per batch where there is none, and with ``as_json`` an object."""

    def __init__(self, console: Console, at_first: str = "looking …", *, as_json: bool = False) -> None:
        self._console = console
        self._at_first = at_first
        self._as_json = as_json
        has_bar = console.is_terminal and not as_json
        self._live = Live(console=console, transient=True, refresh_per_second=4) if has_bar else None
        self.rows = 0
        self.lost = 0
        self._lag = 0
        self._newest = BatchDone(0, 0, 0.0, 0)
        self._since = time.monotonic()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._live.update(self._at_first)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def batch(self, one: BatchDone) -> None:
        """A batch was written."""
        self.rows += one.rows
        self._lag = one.lag
        self._newest = one
        if self._live is not None:
            self._live.update(self._shown())
        else:
            self._tell(str(one), batch=one.number, rows=one.rows, seconds=one.seconds, waiting=one.lag)

    def _tell(self, sentence: str, **facts: Any) -> None:
        if self._as_json:
            click.echo(json.dumps(facts, ensure_ascii=False))
        else:
            self._console.print(sentence, highlight=False)

    def _line(self) -> str:
        newest = f"{self._newest.rate:,.0f} rows/s, batch of {self._newest.seconds:.1f} s"
        return f"{self.rows:,} rows, {newest}, {self._lag:,} to come"

    def _shown(self) -> Table:
        table = Table.grid(padding=(0, 1))
        table.add_row(ProgressBar(total=max(1, self.rows + self._lag), completed=self.rows, width=40), self._line())
        return table

    def skipped(self, what: Skipped) -> None:
        """Messages were deleted before they could be read, and the export went on without them."""
        self.lost += what.messages
        told = f"skipped: {what} were deleted before they were read"
        self._tell(told, skipped=what.messages, topic=what.topic, queue=what.queue_id)

    def interrupted(self) -> None:
        self._tell("stopped; the next export goes on from here", interrupted=True, rows=self.rows)

    def done(self) -> None:
        seconds = time.monotonic() - self._since
        lost = f"; {self.lost:,} were deleted before they were read" if self.lost else ""
        told = f"{self.rows:,} rows in {seconds:.1f} s, {self._lag:,} came meanwhile and wait{lost}"
        self._tell(told, done=True, rows=self.rows, seconds=seconds, waiting=self._lag, lost=self.lost)
