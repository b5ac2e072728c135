"""What an export says on the terminal: rows, how fast, and how many are still to come."""

from __future__ import annotations

import json
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from verniermq.contrib.arrow.offsets import from_json

if TYPE_CHECKING:
    from verniermq.contrib.spark.losses import Skipped


class ExportProgress:
    """A bar on a terminal; one line per batch where there is none."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, transient=True, refresh_per_second=4) if console.is_terminal else None
        self.rows = 0
        self.lost = 0
        self._lag = 0
        self._rate = 0.0
        self._since = time.monotonic()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._live.update("starting Spark …")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def batch(self, one: dict[str, Any]) -> None:
        """A micro-batch was written: what Spark says about it."""
        source = one["sources"][0]
        self.rows += one["numInputRows"]
        self._lag = lag_of(source)
        self._rate = float(one.get("processedRowsPerSecond") or 0.0)
        if self._live is not None:
            self._live.update(self._shown())
        else:
            self._console.print(f"batch {one['batchId']}: {self._line()}", highlight=False)

    def _line(self) -> str:
        return f"{self.rows:,} rows, {self._rate:,.0f} rows/s, {self._lag:,} to come"

    def _shown(self) -> Table:
        table = Table.grid(padding=(0, 1))
        table.add_row(ProgressBar(total=max(1, self.rows + self._lag), completed=self.rows, width=40), self._line())
        return table

    def skipped(self, what: Skipped) -> None:
        """Messages were deleted before they could be read, and the export went on without them."""
        self.lost += what.messages
        self._console.print(f"skipped: {what} were deleted before they were read", highlight=False)

    def interrupted(self) -> None:
        self._console.print("stopped; the next export goes on from here", highlight=False)

    def done(self) -> None:
        seconds = time.monotonic() - self._since
        lost = f"; {self.lost:,} were deleted before they were read" if self.lost else ""
        self._console.print(
            f"{self.rows:,} rows in {seconds:.1f} s, {self._lag:,} came meanwhile and wait{lost}", highlight=False
        )


def lag_of(source: dict[str, Any]) -> int:
    """How many messages were there that a batch did not reach."""
    try:
        latest, end = (from_json(_parsed(source[name])) for name in ("latestOffset", "endOffset"))
    except (KeyError, ValueError):
        return 0
    return sum(max(0, offset - end.get(queue, 0)) for queue, offset in latest.items())


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
