"""The tables beside the messages: what each topic got in a batch, and how far each consumer group is."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import attrs

from verniermq.contrib.arrow.cluster import Cluster
from verniermq.contrib.arrow.errors import TableError
from verniermq.kernel import DEAD_LETTER_PREFIX, RETRY_PREFIX, MessageQueue, RemotingError

if TYPE_CHECKING:
    import pyarrow as pa

MEASURED: tuple[str, ...] = ("size", "bornTimestamp", "storeTimestamp", "reconsumeTimes")
"""The columns that figures are made of."""


@attrs.define
class TopicFigures:
    """Counts what goes by; four small columns of a batch stay in memory."""

    _columns: dict[str, list[pa.RecordBatch]] = attrs.Factory(lambda: defaultdict(list))

    def add(self, topic: str, rows: pa.RecordBatch) -> None:
        self._columns[topic].append(rows.select(list(MEASURED)))

    @property
    def counts(self) -> dict[str, int]:
        return {topic: sum(rows.num_rows for rows in some) for topic, some in self._columns.items()}

    def table(self) -> pa.Table:
        """The table ``topics`` of a batch."""
        import pyarrow as pa

        return pa.Table.from_pylist(
            [_figures(topic, self._columns[topic]) for topic in sorted(self._columns)], _topics()
        )


def _topics() -> pa.Schema:
    import pyarrow as pa

    time = pa.timestamp("us", tz="UTC")
    kinds = {
        "topic": pa.string(), "messages": pa.int64(), "bytes": pa.int64(), "first": time, "last": time,
        "rate": pa.float64(), "delayMsAverage": pa.float64(), "delayMs95": pa.int64(), "delayMsMost": pa.int64(),
        "retried": pa.int64(),
    }  # fmt: skip
    return pa.schema(list(kinds.items()))


def _figures(topic: str, batches: list[pa.RecordBatch]) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pa.Table.from_batches(batches)
    stored, born = (pc.cast(rows[name], pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
                    for name in ("storeTimestamp", "bornTimestamp"))  # fmt: skip
    delay = pc.subtract(stored, born)
    ends = pc.min_max(rows["storeTimestamp"]).as_py()
    seconds = (ends["max"] - ends["min"]).total_seconds() if ends["min"] is not None else 0.0
    most = pc.quantile(delay, q=0.95, interpolation="lower")[0].as_py() if delay.null_count < len(delay) else None
    return {
        "topic": topic,
        "messages": rows.num_rows,
        "bytes": pc.sum(rows["size"]).as_py(),
        "first": ends["min"],
        "last": ends["max"],
        "rate": rows.num_rows / max(seconds, 0.001),
        "delayMsAverage": pc.mean(delay).as_py(),
        "delayMs95": most,
        "delayMsMost": pc.max(delay).as_py(),
        "retried": pc.sum(pc.greater(rows["reconsumeTimes"], 0)).as_py(),
    }


def group_rows(cluster: Cluster, counts: dict[str, int]) -> list[dict[str, Any]]:
    """How far every consumer group is, with what came back to it in this batch."""
    try:
        committed = cluster.committed()
    except (RemotingError, TableError):
        return []  # no broker can be asked now; the messages are what counts
    rows: list[dict[str, Any]] = []
    for group, topics in sorted(committed.items()):
        for topic, brokers in sorted(topics.items()):
            queues = [MessageQueue(topic, broker, int(queue)) for broker, some in brokers.items() for queue in some]
            try:
                ends = cluster.bounds(queues)
            except (RemotingError, TableError):
                continue
            done = sum(sum(some.values()) for some in brokers.values())
            end = sum(bound.high for bound in ends.values())
            rows.append(
                {
                    "group": group,
                    "topic": topic,
                    "committed": done,
                    "end": end,
                    "lag": max(0, end - done),
                    "retries": counts.get(RETRY_PREFIX + group, 0),
                    "deadLetters": counts.get(DEAD_LETTER_PREFIX + group, 0),
                }
            )
    return rows


def groups_table(rows: list[dict[str, Any]]) -> pa.Table:
    """The table ``groups`` of a batch."""
    import pyarrow as pa

    kinds = {
        "group": pa.string(), "topic": pa.string(), "committed": pa.int64(), "end": pa.int64(), "lag": pa.int64(),
        "retries": pa.int64(), "deadLetters": pa.int64(),
    }  # fmt: skip
    return pa.Table.from_pylist(rows, pa.schema(list(kinds.items())))
