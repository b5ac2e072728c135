"""The options of a sink: ``df.write.format("verniermq")`` and ``df.writeStream``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from verniermq.contrib.arrow.options import MIB, GivenOptions

WRITE: Final = ("nameServer", "topic", "producerGroup", "batchSize", "retryTimeout", "writeId", "checkpointLocation")


@attrs.frozen
class WriteOptions:
    name_servers: tuple[str, ...]
    topic: str
    producer_group: str
    batch_bytes: int
    retry_seconds: float
    write_id: str

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """
        Raises:
            UnknownTableOption, BadOption: as for reading.
        """
        options = GivenOptions(given, WRITE)
        return cls(
            name_servers=options.name_servers(),
            topic=options.text("topic"),
            producer_group=options.text("producerGroup", "spark"),
            batch_bytes=options.number("batchSize", MIB // 2, least=1),
            retry_seconds=options.seconds("retryTimeout", 30.0),
            write_id=options.text("writeId"),
        )
