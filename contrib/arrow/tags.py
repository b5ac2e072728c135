"""A tag expression, tested on the text.

A broker compares hashes, so a message too many may come; the client compares the text, as every RocketMQ client does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from verniermq.contrib.arrow.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa


@attrs.frozen
class TagTest:
    tags: tuple[str, ...] = ()
    """Those that may pass; none means that there is nothing to test."""

    @classmethod
    def of(cls, options: ReadOptions) -> TagTest:
        if not options.sub_expression or options.expression_type != "TAG":
            return cls()
        return cls(tuple(tag for part in options.sub_expression.split("||") if (tag := part.strip())))

    def with_tags(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """The columns to decode: those asked for, and the tags if they are tested."""
        return columns if not self.tags or "tags" in columns else (*columns, "tags")

    def only(self, batch: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
        """The rows that pass, with the columns asked for."""
        if not self.tags:
            return batch
        import pyarrow as pa
        import pyarrow.compute as pc

        passing = pc.is_in(batch.column("tags"), value_set=pa.array(self.tags, pa.string()))
        return batch.filter(passing).select(list(columns))
