"""``spark.readStream.format("verniermq")``: micro-batches from offset to offset.

Spark writes a batch's end offsets into its checkpoint before the batch runs, so a batch that is repeated after a crash
reads exactly the same messages. Topics and queues that appear later are found by every look at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from verniermq.contrib.arrow.offsets import Offsets, as_json, from_json
from verniermq.contrib.arrow.options import ReadOptions
from verniermq.contrib.arrow.plan import Plan, place_of
from verniermq.contrib.spark.source import Nullable, partitions_of, read_spans


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, columns: Nullable) -> None:
        self.options = options
        self.columns = columns
        self._plan: Plan | None = None
        self._target: Offsets | None = None
        """With ``availableNow``: where the query ends."""

    @property
    def plan(self) -> Plan:
        if self._plan is None:
            self._plan = Plan(self.options, place_of(self.options))
        return self._plan

    def __getstate__(self) -> dict[str, Any]:
        """For tasks: connections stay here."""
        return {**self.__dict__, "_plan": None}

    def initialOffset(self) -> dict[str, Any]:
        return as_json(self.plan.starting(self.plan.place.bounds(self.plan.queues())))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.plan.ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        end = self._target if self._target is not None else self.plan.ends()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return as_json(self.plan.following(from_json(start), end, most))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return as_json(self.plan.ends())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return partitions_of(self.plan.between(from_json(start), from_json(end)), self.options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_spans(self.options, self.columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Publish the group's offsets, if there is a group. Spark does not call this for a stream's last batch."""
        from verniermq.contrib.arrow.cluster import Cluster

        if self.options.group and isinstance(self.plan.place, Cluster):
            self.plan.place.commit(self.options.group, from_json(end))

    def stop(self) -> None:
        if self._plan is not None:
            self._plan.place.close()
