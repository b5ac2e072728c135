"""``--mode upsert``: a table with one row for each key, its newest message, and none for a key that was deleted.

A batch's files are written as always, and then merged into the table instead of being added to it: of each key the
message with the highest offset counts. So messages of one key have to be in one queue, as for ordered consumption; a
table that is made anew from the same messages is then the same, in whatever batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from verniermq.contrib.arrow.errors import BadOption, TableError
from verniermq.contrib.arrow.layout import DataFile

KEY: Final = "key"
"""The column of a table that has one row for each of its values."""
DELETED: Final = "deleted"
PROPERTY: Final = "property:"
VALUE: Final = "value:"


class NoKey(TableError):
    def __init__(self, topic: str, queue_id: int, offset: int, key: str) -> None:
        super().__init__(
            f"message {offset} of queue {queue_id} of {topic} has no {key} to be its key; --on-error skip leaves it out"
        )


@attrs.frozen
class UpsertKey:
    """Where a message's key is, and which messages delete theirs."""

    text: str
    """``keys``, ``property:NAME`` or ``value:member``, also ``value:member.member``."""
    delete_tag: str = ""
    """Messages with this tag delete their key; so do those without a body, where bodies have no types."""
    skip_keyless: bool = False

    def check(self) -> None:
        """
        Raises:
            BadOption: the text is something else.
        """
        name = self.text.removeprefix(PROPERTY).removeprefix(VALUE)
        if not name or (self.text == name and name != "keys"):
            raise BadOption("key", self.text, "keys, property:NAME or value:member")

    def newest(self, topic: str, files: Sequence[DataFile]) -> pa.Table:
        """The newest message of each key among a batch's files, with the columns ``key`` and ``deleted``.

        Raises:
            NoKey: a message has none, and that matters.
            BadOption: there is no such member.
        """
        rows = pa.concat_tables(
            [pq.read_table(file.path, partitioning=None) for file in files], promote_options="default"
        )
        keys = self._keys(rows)
        if keys.null_count:
            if not self.skip_keyless:
                at = pc.index(keys.is_null(), True).as_py()
                raise NoKey(topic, rows["queueId"][at].as_py(), rows["queueOffset"][at].as_py(), self.text)
            rows, keys = rows.filter(keys.is_valid()), keys.drop_null()
        rows = rows.append_column(KEY, keys).append_column(DELETED, self._deleted(rows))
        # The last row of each key in the order of the log, which is that of offsets within a queue.
        rows = rows.sort_by("commitLogOffset")
        numbers = pa.table({KEY: rows[KEY], "at": pa.array(range(rows.num_rows), pa.int64())})
        return rows.take(numbers.group_by(KEY).aggregate([("at", "max")])["at_max"].sort())

    def _keys(self, rows: pa.Table) -> pa.ChunkedArray:
        if self.text == "keys":
            return rows["keys"]
        if self.text.startswith(PROPERTY):
            found = pc.map_lookup(rows["properties"], self.text.removeprefix(PROPERTY), "last")
            return found if isinstance(found, pa.ChunkedArray) else pa.chunked_array([found])
        try:
            return pc.cast(pc.struct_field(rows["value"], self.text.removeprefix(VALUE).split(".")), pa.string())
        except (KeyError, pa.ArrowException) as error:
            raise BadOption("key", self.text, f"a member of the typed values ({error})") from None

    def _deleted(self, rows: pa.Table) -> pa.Array | pa.ChunkedArray:
        found = pa.chunked_array([pa.array([False] * rows.num_rows)])
        if "body" in rows.column_names:
            found = pc.equal(pc.binary_length(rows["body"]), 0)
        if self.delete_tag:
            found = pc.or_(found, pc.fill_null(pc.equal(rows["tags"], self.delete_tag), False))
        return found
