"""The columns of a message, for Arrow and for Spark.

``properties`` are all of them; those that everybody asks for (tags, keys, the unique key) have columns of their own.
``tagsCode`` is what the consume queue keeps: the hash of the tags, or in the delay topic the delivery time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

    from verniermq.contrib.arrow.values import ValueOptions

TYPES: Final = {
    "topic": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "commitLogOffset": "bigint",
    "size": "int",
    "tags": "string",
    "tagsCode": "bigint",
    "keys": "string",
    "uniqueKey": "string",
    "sysFlag": "int",
    "flag": "int",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "bornHost": "string",
    "storeHost": "string",
    "reconsumeTimes": "int",
    "preparedTransactionOffset": "bigint",
    "properties": "map<string,string>",
    "body": "binary",
}
"""Column → its type in Spark's DDL."""

COLUMNS: Final = tuple(TYPES)

EVENT_COLUMNS: Final = tuple(name for name in TYPES if name not in ("tags", "keys", "uniqueKey", "properties", "body"))
"""What the head of a record and its consume-queue entry tell: the dispatch event, without properties and body."""

OPTIONAL: Final = frozenset({"tags", "keys", "uniqueKey", "bornTimestamp", "storeTimestamp"})
"""The columns that can be null. That the others cannot spares Spark a look at each value."""


def ddl(columns: Sequence[str], value: ValueOptions | None = None) -> str:
    """The schema as Spark's DDL: a text, since a parsed one cannot be made where Spark plans a read."""
    made = {}
    if value is not None:
        from verniermq.contrib.arrow.ddl import type_text
        from verniermq.contrib.arrow.values import decoder_of

        made = {"value": type_text(decoder_of(value).type), "corrupt": "string"}
    return ", ".join(
        f"{name} {made[name]}" if name in made else f"{name} {TYPES[name]}{'' if name in OPTIONAL else ' NOT NULL'}"
        for name in columns
    )


def typed_schema(columns: tuple[str, ...], nullable: frozenset[str], value: ValueOptions | None) -> pa.Schema:
    """The schema of what a reader gives, with ``value`` and ``corrupt`` where they are among the columns."""
    import pyarrow as pa

    if value is None:
        return arrow_schema(columns, nullable)
    from verniermq.contrib.arrow.values import decoder_of

    plain = arrow_schema(tuple(name for name in columns if name in TYPES), nullable)
    made = {"value": pa.field("value", decoder_of(value).type), "corrupt": pa.field("corrupt", pa.string())}
    return pa.schema([made[name] if name in made else plain.field(name) for name in columns])


@cache
def arrow_schema(columns: tuple[str, ...], nullable: frozenset[str] = OPTIONAL) -> pa.Schema:
    """The same for Arrow; Spark insists on every detail of it, down to the unit of the timestamps."""
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
        "binary": pa.binary(),
    }
    return pa.schema([pa.field(name, kinds[TYPES[name]], name in nullable) for name in columns])
