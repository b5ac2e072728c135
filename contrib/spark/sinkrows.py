"""Which rows of which task of Spark a broker has already, so that a task that runs again sends none of them twice.

A message of the sink says which row it is, ``SPARK_ROW=<query>/<batch>/<partition>/<row>``, so the log is the record of
it. What is kept here is made from dispatch events, on slaves too, and saved now and then with the place in the log up
to which it goes; a start reads the log from there on. It is bounded: of a stream its two newest batches, and altogether
so many tasks, the oldest of which are forgotten.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from verniermq.kernel import (
    DispatchEvent,
    InvalidParameter,
    Property,
    Run,
    Store,
    decode_record,
    parse_properties,
)

ROW_PROPERTY: Final = "SPARK_ROW"
MOST_TASKS: Final = 4096
KEPT_BATCHES: Final = 2
"""Of a stream: Spark begins a batch when the one before it has ended, but a lost executor may not know that yet."""
MOST_SPANS: Final = 10_000
"""Of one task. A broker that gets each second request of a task keeps one for each thousand rows."""
MOST_ROWS: Final = 100_000
"""In one request."""
LONGEST_TASK: Final = 300
"""Characters of a task's name."""

_MARK: Final = ROW_PROPERTY.encode() + b"\x01"


@attrs.frozen
class SinkTask:
    """A task of Spark's as far as it sends to one topic."""

    query: str
    batch: int
    partition: int
    topic: str

    @classmethod
    def parse(cls, text: str, topic: str) -> SinkTask:
        """
        Raises:
            ValueError: it is no ``<query>/<batch>/<partition>``.
        """
        query, batch, partition = text.rsplit("/", 2)
        if len(text) > LONGEST_TASK:
            raise ValueError(f"{len(text)} characters, and {LONGEST_TASK} at most are taken")
        return cls(query, int(batch), int(partition), topic)


class RowSet:
    """Numbers of rows, as spans from one to just before another."""

    def __init__(self, spans: Iterable[Sequence[int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in spans:
            self.add(start, end)

    def __contains__(self, row: int) -> bool:
        at = bisect_right(self._starts, row) - 1
        return at >= 0 and row < self._ends[at]

    def add(self, start: int, end: int) -> None:
        """Add rows; spans that touch become one."""
        first = bisect_right(self._ends, start - 1)
        last = bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        if len(self._starts) > MOST_SPANS:
            del self._starts[0], self._ends[0]

    def spans(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._ends, strict=True))


def parse_rows(text: str) -> list[int]:
    """The numbers of a request's rows, ``0-999,1003``.

    Raises:
        InvalidParameter: it is something else, or too many.
    """
    rows: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            start, end = int(first), int(last or first) + 1
            if not 0 <= start < end or len(rows) + end - start > MOST_ROWS:
                raise ValueError
            rows += range(start, end)
    except ValueError:
        raise InvalidParameter(f"rows {text!r:.60}: expected such as 0-999,1003, at most {MOST_ROWS}") from None
    return rows


def format_rows(rows: Sequence[int]) -> str:
    """The same as a text; they are in order."""
    parts: list[list[int]] = []
    for row in rows:
        if parts and parts[-1][1] == row - 1:
            parts[-1][1] = row
        else:
            parts.append([row, row])
    return ",".join([f"{first}-{last}" if last > first else str(first) for first, last in parts])


class SinkRows:
    """The rows that the log has."""

    def __init__(self) -> None:
        self._tasks: dict[SinkTask, RowSet] = {}
        self._newest: dict[str, int] = {}
        """Query → its newest batch."""
        self.reached = 0
        """The commit-log offset up to which this is told."""

    def __len__(self) -> int:
        return len(self._tasks)

    def of(self, task: SinkTask) -> RowSet:
        return self._tasks.get(task) or RowSet()

    # --- from the log ----------------------------------------------------------------------

    def note(self, parts: Sequence[Run | DispatchEvent]) -> bool:
        """Take over what was dispatched; whether rows were among it. Repeats change nothing."""
        found = False
        for part in parts:
            if isinstance(part, Run):
                # A batch of the sink is a run of its own; one that a slave was sent may have others beside rows.
                if any(_MARK in rest for rest in part.rests):
                    for text in part.texts:
                        self._add(parse_properties(text[2:].decode()), part.topic)
                    found = True
            elif ROW_PROPERTY in part.properties:
                self._add(part.properties, part.topic)
                found = True
        if parts:
            self.reached = max(self.reached, parts[-1].end)
        return found

    def read(self, store: Store) -> None:
        """Take over what the log has behind the place that was reached."""
        for record in _records(store, max(self.reached, store.start)):
            if _MARK in record:
                message = decode_record(record)
                if ROW_PROPERTY in message.properties:
                    self._add(message.properties, message.topic)
        self.reached = store.end

    def _add(self, properties: Mapping[str, str], topic: str) -> None:
        name, _, row = properties.get(ROW_PROPERTY, "").rpartition("/")
        # A delayed message is in another topic first.
        try:
            task = SinkTask.parse(name, properties.get(Property.REAL_TOPIC) or topic)
            number = int(row)
        except ValueError:
            return  # somebody else's property of that name
        if number >= 0 and not self._is_old(task):
            self._rows(task).add(number, number + 1)

    def _is_old(self, task: SinkTask) -> bool:
        return task.batch <= self._newest.get(task.query, task.batch) - KEPT_BATCHES

    def _rows(self, task: SinkTask) -> RowSet:
        found = self._tasks.get(task)
        if found is None:
            found = self._tasks[task] = RowSet()
            if task.batch > self._newest.get(task.query, -1):
                self._newest[task.query] = task.batch
                for old in [one for one in self._tasks if one.query == task.query and self._is_old(one)]:
                    del self._tasks[old]
            while len(self._tasks) > MOST_TASKS:
                self._forget(next(iter(self._tasks)))
        return found

    def forget(self) -> None:
        """Begin anew."""
        self._tasks.clear()
        self._newest.clear()
        self.reached = 0

    def _forget(self, task: SinkTask) -> None:
        del self._tasks[task]
        if all(one.query != task.query for one in self._tasks):
            self._newest.pop(task.query, None)

    # --- on disk ---------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        return {
            "reached": self.reached,
            "tasks": [[*attrs.astuple(task), rows.spans()] for task, rows in self._tasks.items()],
        }

    def load_json(self, data: Mapping[str, Any]) -> None:
        """
        Raises:
            ValueError, TypeError, KeyError: it is something else.
        """
        for query, batch, partition, topic, spans in data.get("tasks", []):
            task = SinkTask(str(query), int(batch), int(partition), str(topic))
            self._tasks[task] = RowSet(spans)
            self._newest[task.query] = max(task.batch, self._newest.get(task.query, -1))
        self.reached = int(data.get("reached", 0))


def _records(store: Store, position: int) -> Iterator[bytes]:
    """The records of the log from a place on, where one begins, and the blanks at the end of files."""
    while position < store.end:
        size = int.from_bytes(store.read(position, 4) or b"", "big")
        record = store.read(position, size) if size else None
        if record is None:
            return
        yield record
        position += size
