"""A topic as an Arrow ``RecordBatchReader``: DuckDB, Polars, pandas and pyarrow itself read it as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from verniermq.contrib.arrow.errors import NoArrow
from verniermq.contrib.arrow.offsets import Span
from verniermq.contrib.arrow.options import ReadOptions
from verniermq.contrib.arrow.plan import Plan, place_of, reader_of, with_schema
from verniermq.contrib.arrow.schema import OPTIONAL, typed_schema

if TYPE_CHECKING:
    import pyarrow as pa


def scan(topic: str = "", name_server: str = "", **options: str) -> pa.RecordBatchReader:
    """Read what is in a topic now, batch after batch, as it is asked for.

    Queues come one after the other, each in its order. The reader can be read once; close it, or read it to its end,
    to give its connection back.

    Args:
        topic: one, or several with commas between; ``subscribePattern`` or ``assign`` may name them instead
        name_server: ``host:port``; otherwise ``VERNIERMQ_NAMESRV``, or ``127.0.0.1:9876``
        options: those of ``spark.read.format("verniermq")`` that have to do with reading, such as
            ``columns="keys,body"``, ``startingTimestamp``, ``subExpression="paid"`` or ``path`` for a store's folder

    Raises:
        NoArrow: pyarrow is not installed.
        UnknownTableOption, BadOption: an option is none, or its value is wrong.
        NoSuchTopic: it does not exist.
        BrokerGone: nobody can be asked.
    """
    try:
        import numpy  # noqa: F401
        import pyarrow as pa
    except ImportError as error:
        raise NoArrow(error) from error
    named = {"subscribe": topic} if topic else {}
    server = {"nameServer": name_server} if name_server else {}
    parsed = with_schema(ReadOptions.parse({**named, **server, **options}, streaming=False))
    schema = typed_schema(parsed.columns, OPTIONAL, parsed.value)
    place = place_of(parsed)
    try:
        spans = Plan(parsed, place).batch()
    finally:
        place.close()
    return pa.RecordBatchReader.from_batches(schema, _batches(parsed, spans))


def _batches(options: ReadOptions, spans: Sequence[Span]) -> Iterator[pa.RecordBatch]:
    reader = reader_of(options)
    try:
        for span in spans:
            yield from reader.batches(span, options.columns)
    finally:
        reader.close()
