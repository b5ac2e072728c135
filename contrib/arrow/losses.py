"""What an export skipped because retention was faster: how many messages of which queue, batch by batch.

A queue has one message at each offset. So from which offset to which a batch goes and what is in the batch's files
must agree; the difference was deleted before it was read. It is looked for only where an export was told to go on
without what is lost: otherwise the first loss stops it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs

from verniermq.contrib.arrow.offsets import Offsets


@attrs.frozen(order=True)
class Skipped:
    """Messages of one queue that are in no file. Brokers that share a topic are counted together."""

    topic: str
    queue_id: int
    messages: int

    def __str__(self) -> str:
        return f"{self.messages:,} messages of {self.topic}, queue {self.queue_id}"


def skipped_between(start: Offsets, end: Offsets, found: Mapping[tuple[str, int], int]) -> list[Skipped]:
    """What a batch lacks; ``found`` says how many rows of which topic and queue there are."""
    expected: Counter[tuple[str, int]] = Counter()
    for queue, stop in end.items():
        expected[queue.topic, queue.queue_id] += max(0, stop - start.get(queue, 0))
    missing = {key: count - found.get(key, 0) for key, count in expected.items()}
    return sorted(Skipped(topic, queue_id, count) for (topic, queue_id), count in missing.items() if count > 0)
