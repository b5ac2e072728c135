"""What exports and streams told of their newest batches: in metrics, in the console, and in the broker's status."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import attrs

from verniermq.contrib.arrow.requests import ReportStream
from verniermq.kernel import Registry, Sample

MOST_STREAMS: Final = 256
"""Of which something is known; the one that said nothing for longest is forgotten."""


@attrs.define
class StreamFigures:
    """One export or stream, by its group, since the broker started."""

    batch: int = 0
    rows: int = 0
    """Of all batches."""
    batches: int = 0
    seconds: float = 0.0
    """That the newest batch took."""
    behind: int = 0
    told_at: float = 0.0


class Streams:
    def __init__(self) -> None:
        self._streams: dict[str, StreamFigures] = {}

    def note(self, report: ReportStream, now: float) -> None:
        figures = self._streams.pop(report.group, None) or StreamFigures()
        self._streams[report.group] = figures
        figures.batch = report.batch
        figures.rows += max(0, report.rows)
        figures.batches += 1
        figures.seconds = max(0, report.milliseconds) / 1000
        figures.behind = max(0, report.behind)
        figures.told_at = now
        while len(self._streams) > MOST_STREAMS:
            del self._streams[next(iter(self._streams))]

    def offer(self, registry: Registry) -> None:
        """Register the metrics and the page of the console."""
        kinds = (
            ("verniermq_spark_rows_total", "counter", "Rows that an export or a stream of Spark wrote.", "rows"),
            ("verniermq_spark_batches_total", "counter", "Batches that it did.", "batches"),
            ("verniermq_spark_batch_seconds", "gauge", "How long its newest batch took.", "seconds"),
            ("verniermq_spark_behind_messages", "gauge", "Messages that its newest batch did not reach.", "behind"),
        )
        for name, kind, help, figure in kinds:
            registry.metric(name, kind, help, lambda figure=figure: self._samples(figure), ("group",))  # type: ignore[arg-type, misc]
        registry.page("/spark", lambda query: self.as_json(), title="Exports and streams")

    def _samples(self, figure: str) -> Iterable[Sample]:
        return [((group,), getattr(figures, figure)) for group, figures in self._streams.items()]

    def as_json(self) -> list[dict[str, Any]]:
        return [{"group": group, **attrs.asdict(figures)} for group, figures in sorted(self._streams.items())]
