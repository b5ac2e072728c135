"""What a stream of the user's own is doing: a ``StreamingQueryListener`` for streams that read ``format("verniermq")``.

::

    spark.streams.addListener(ProgressListener(group="fraud-check"))

Every batch is told in a line on the terminal, or to a function. With a group its offsets are published on the brokers,
also those of the last batch of ``availableNow``, for which Spark never calls a source's ``commit``. A stream's lag is
then seen where that of consumers is.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import attrs
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from rich.console import Console

from verniermq.contrib.arrow.cluster import Cluster
from verniermq.contrib.arrow.offsets import Offsets
from verniermq.contrib.arrow.options import GivenOptions
from verniermq.contrib.arrow.progress import BatchDone
from verniermq.contrib.spark.progress import batch_done, offsets_of

logger = logging.getLogger(__name__)

PUBLISH_PATIENCE = 5.0
"""Seconds: a listener that waits holds up those of all queries."""


@attrs.frozen
class StreamBatch:
    """A batch of a stream that was processed."""

    query: str
    """The stream's name, or its id if it has none."""
    done: BatchDone
    end: Offsets
    """Where it ends, queue by queue."""

    def __str__(self) -> str:
        return f"{self.query}, {self.done}"


def stream_batch(progress: dict[str, Any]) -> StreamBatch | None:
    """What Spark tells of a batch; ``None`` if it read nothing of ours, or found nothing new."""
    for source in progress["sources"]:
        try:
            start, end = (offsets_of(source.get(name)) for name in ("startOffset", "endOffset"))
        except ValueError:
            continue  # another source
        if end and end != start:
            return StreamBatch(
                progress.get("name") or progress["id"], batch_done({**progress, "sources": [source]}), end
            )
    return None


class ProgressListener(StreamingQueryListener):
    """
    Args:
        tell: called with each batch; otherwise it is a line on the terminal
        group: publish offsets under this consumer group
        name_server: as of the source
    """

    def __init__(
        self, tell: Callable[[StreamBatch], None] | None = None, *, group: str = "", name_server: str = ""
    ) -> None:
        console = Console(stderr=True)
        self._tell = tell or (lambda batch: console.print(str(batch), highlight=False))
        self._group = group
        self._servers = GivenOptions({"nameServer": name_server} if name_server else {}, ("nameServer",)).name_servers()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Spark waits for this; there is nothing to do."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        batch = stream_batch(json.loads(event.progress.json))
        if batch is not None:
            self._publish(batch)
            self._tell(batch)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing is new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Who started the query is told by Spark."""

    def _publish(self, batch: StreamBatch) -> None:
        if not self._group:
            return
        cluster = Cluster(self._servers, PUBLISH_PATIENCE)
        try:
            cluster.commit(self._group, batch.end)
            cluster.report(self._group, batch.done)
        except Exception as error:  # only a courtesy: Spark's checkpoint is what counts
            logger.warning("the offsets of group %s could not be published: %s", self._group, error)
        finally:
            cluster.close()
