"""A reader that puts typed values beside the other columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from verniermq.contrib.arrow.errors import TableError
from verniermq.contrib.arrow.offsets import Span
from verniermq.contrib.arrow.values import VALUE_COLUMNS, BadValue, ValueDecoder, ValueOptions, decoder_of

if TYPE_CHECKING:
    from verniermq.contrib.arrow.plan import Reader


class CorruptValue(TableError):
    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"the body of {where} has no value: {why}; mode=PERMISSIVE goes on and says so in `corrupt`")


class TypedReader:
    def __init__(self, inner: Reader, options: ValueOptions) -> None:
        self._inner = inner
        self._options = options
        self._decoder = decoder_of(options)

    def close(self) -> None:
        self._inner.close()

    def batches(self, span: Span, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            CorruptValue: a body has no value, with ``FAILFAST``.
        """
        plain = tuple(name for name in columns if name not in VALUE_COLUMNS)
        needed = tuple(dict.fromkeys((*plain, "body", "queueOffset")))
        for rows in self._inner.batches(span, needed):
            values, reasons = decode_values(self._decoder, rows.column("body").to_pylist())
            corrupt = pa.array(reasons, pa.string())
            if corrupt.null_count < len(corrupt) and self._options.mode == "FAILFAST":
                at = next(number for number, reason in enumerate(reasons) if reason is not None)
                where = f"{span.queue} at offset {rows.column('queueOffset')[at].as_py()}"
                raise CorruptValue(where, str(reasons[at]))
            made = {"value": values, "corrupt": corrupt}
            arrays = [made[name] if name in made else rows.column(name) for name in columns]
            fields = [pa.field(name, made[name].type) if name in made else rows.schema.field(name) for name in columns]
            batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
            if self._options.mode == "DROPMALFORMED" and corrupt.null_count < len(corrupt):
                batch = batch.filter(corrupt.is_null())
            if batch.num_rows:
                yield batch


def decode_values(decoder: ValueDecoder, bodies: list[bytes]) -> tuple[pa.Array, list[str | None]]:
    """The values of some bodies, and for those that have none the reason."""
    values: list[Any] = []
    reasons: list[str | None] = []
    for body in bodies:
        try:
            values.append(decoder.decode(body))
            reasons.append(None)
        except BadValue as error:
            values.append(None)
            reasons.append(str(error))
    try:
        return pa.array(values, decoder.type), reasons
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return _one_by_one(decoder.type, values, reasons)


def _one_by_one(kind: pa.DataType, values: list[Any], reasons: list[str | None]) -> tuple[pa.Array, list[str | None]]:
    """The same where some do not fit: which, is found by trying each."""
    for number, value in enumerate(values):
        try:
            pa.array([value], kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            values[number] = None
            reasons[number] = f"a member does not fit the schema: {error}"
    return pa.array(values, kind), reasons
