"""``--partition-by``: by what the rows of a topic are put into folders, one below the other.

``dt`` is the day on which a message was stored, in UTC, and ``hour`` the hour. Any other is a column, such as ``tags``,
whose folders are called ``by_tags=…``, since the column itself stays in the files. A member of typed values,
``value:region``, becomes a column ``value_region`` first: tables have no partitions by what lies inside another column.
What a row has no value for is in Hive's folder for that. Spark's writer and ours make the same folders and columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import attrs

from verniermq.contrib.arrow.errors import BadOption
from verniermq.contrib.arrow.schema import TYPES

if TYPE_CHECKING:
    import pyarrow as pa

    from verniermq.contrib.arrow.values import ValueOptions

DAY: Final = "dt"
HOUR: Final = "hour"
HOUR_FORMAT: Final = "%Y-%m-%d-%H"
VALUE: Final = "value:"
STORED: Final = "storeTimestamp"
EMPTY: Final = "__EMPTY__"
"""A text without a character, which Hive, Spark and Delta would take for none."""
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
UNSAFE: Final = frozenset("\"#%'*/:=?\\{[]^\x7f" + "".join(map(chr, range(1, 32))))
PLAIN: Final = tuple(name for name, kind in TYPES.items() if kind in ("string", "int", "bigint") and name != "topic")

Texts = tuple[str | None, ...]
"""What stands in the names of folders, one for each column."""


def escaped(value: str) -> str:
    """A partition's value in the name of a folder, as Spark and Hive write it."""
    return "".join(f"%{ord(char):02X}" if char in UNSAFE else char for char in value)


@attrs.frozen
class Partition:
    """One level of folders."""

    column: str
    """As it was given."""

    @property
    def name(self) -> str:
        """What the folder is called, before its value."""
        return self.column if self.is_time else f"by_{self.source}"

    @property
    def is_time(self) -> bool:
        return self.column in (DAY, HOUR)

    @property
    def is_member(self) -> bool:
        return self.column.startswith(VALUE)

    @property
    def path(self) -> tuple[str, ...]:
        """Of a member of typed values: the column, and the members below it."""
        return ("value", *self.column.removeprefix(VALUE).split("."))

    @property
    def source(self) -> str:
        """The column of the files that says the value."""
        if self.is_time:
            return STORED
        return "_".join(self.path) if self.is_member else self.column

    def texts(self, rows: pa.RecordBatch) -> pa.Array:
        """The value of each row, as a folder has it."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.source not in rows.schema.names:
            return pa.nulls(rows.num_rows, pa.string())
        values = rows.column(self.source)
        if self.column == DAY:
            return pc.cast(pc.cast(pc.floor_temporal(values, unit="day"), pa.date32()), pa.string())
        if self.column == HOUR:
            return pc.strftime(pc.floor_temporal(values, unit="hour"), HOUR_FORMAT)
        texts = pc.cast(values, pa.string())
        return pc.if_else(pc.equal(texts, ""), EMPTY, texts)


@attrs.frozen
class Partitions:
    columns: tuple[Partition, ...] = (Partition(DAY),)

    @classmethod
    def parse(cls, given: Iterable[str], typed: Mapping[str, ValueOptions]) -> Partitions:
        """
        Args:
            given: columns in their order; none for the day
            typed: topic → what its bodies are

        Raises:
            BadOption: there is no such column, or it cannot be the name of a folder.
        """
        columns = tuple(Partition(text) for text in given)
        names = [column.name.lower() for column in columns]
        for column in columns:
            if names.count(column.name.lower()) > 1:
                raise BadOption("partition-by", column.column, "each column once")
            if column.is_member:
                _check_member(column, typed)
            elif not column.is_time and column.column not in PLAIN:
                raise BadOption("partition-by", column.column, f"dt, hour, value:MEMBER or one of {', '.join(PLAIN)}")
        if DAY in names and HOUR in names:
            raise BadOption("partition-by", HOUR, "dt or hour: an hour says its day as well")
        return cls(columns) if columns else cls()

    @property
    def text(self) -> str:
        return ", ".join(column.column for column in self.columns)

    def folder(self, texts: Texts) -> str:
        return "/".join(
            f"{column.name}={NO_VALUE if text is None else escaped(text)}"
            for column, text in zip(self.columns, texts, strict=True)
        )

    def texts_of(self, folder: Path) -> Texts:
        """What the names of folders say, of which this is the last."""
        found = [unquote(name.partition("=")[2]) for name in folder.parts[-len(self.columns) :]]
        return tuple(None if text == NO_VALUE else text for text in found)

    def with_members(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows, with a column for each member of their values that is among these."""
        import pyarrow.compute as pc

        for column in self.columns:
            if column.is_member and has_path(rows.schema, column.path):
                rows = rows.append_column(column.source, pc.struct_field(rows.column("value"), list(column.path[1:])))
        return rows

    def split(self, rows: pa.RecordBatch) -> Iterator[tuple[Texts, pa.RecordBatch]]:
        """The rows of each folder; mostly there is one."""
        import pyarrow as pa

        names = [str(number) for number in range(len(self.columns))]
        table = pa.table([column.texts(rows) for column in self.columns], names)
        groups = table.append_column("row", pa.array(range(rows.num_rows))).group_by(names, use_threads=False)
        found: list[dict[str, Any]] = groups.aggregate([("row", "list")]).to_pylist()
        for group in found:
            texts = tuple(group[name] for name in names)
            yield texts, rows if len(found) == 1 else rows.take(pa.array(group["row_list"]))


def has_path(schema: pa.Schema, path: tuple[str, ...]) -> bool:
    """Whether there is such a column, or such a member of one."""
    kind: Any = schema
    for name in path:
        index = kind.get_field_index(name) if hasattr(kind, "get_field_index") else -1
        if index < 0:
            return False
        kind = kind.field(index).type
    return True


def _check_member(column: Partition, typed: Mapping[str, ValueOptions]) -> None:
    import pyarrow as pa
    import pyarrow.types as kinds

    from verniermq.contrib.arrow.values import decoder_of

    found = False
    for options in typed.values():
        schema = pa.schema([pa.field("value", decoder_of(options).type)])
        if not has_path(schema, column.path):
            continue
        found = True
        kind: Any = schema
        for name in column.path:
            kind = kind.field(kind.get_field_index(name)).type
        if not any(test(kind) for test in (kinds.is_string, kinds.is_integer, kinds.is_boolean, kinds.is_date32)):
            expected = "a text, a whole number, a date or a boolean"
            raise BadOption("partition-by", column.column, f"{expected}, and this is {kind}")
    if not found:
        raise BadOption("partition-by", column.column, "a member of a topic's typed values: --typed")
