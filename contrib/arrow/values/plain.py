"""JSON and MessagePack: objects whose members have names and, by the schema, types."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson
import pyarrow as pa

from verniermq.contrib.arrow.ddl import BadType, parse_fields, type_text
from verniermq.contrib.arrow.errors import BadOption
from verniermq.contrib.arrow.values import BadValue, ValueOptions
from verniermq.contrib.arrow.values.registry import HEADER, schema_number

Convert = Callable[[Any], Any]


class PlainDecoder:
    def __init__(self, options: ValueOptions, samples: Sequence[bytes]) -> None:
        self._has_header = bool(options.registry)
        self._parse: Callable[[bytes], Any] = orjson.loads
        if options.format == "msgpack":
            import msgspec

            self._parse = msgspec.msgpack.decode
        self.type = self._found(samples) if options.infer and not options.schema else _given(options)
        self._convert = conversion(self.type)

    def decode(self, body: bytes) -> dict[str, Any] | None:
        found = self._parsed(body)
        try:
            return found if self._convert is None else self._convert(found)
        except (ValueError, TypeError, InvalidOperation, AttributeError) as error:
            raise BadValue(f"a member does not fit the schema: {error}") from None

    def _parsed(self, body: bytes) -> dict[str, Any]:
        if self._has_header:
            schema_number(body)
            body = body[HEADER:]
        try:
            found = self._parse(body)
        except Exception as error:  # the two libraries have no class in common
            raise BadValue(f"it cannot be parsed: {error}") from None
        if not isinstance(found, dict):
            raise BadValue(f"expected an object with members, found {type(found).__name__}")
        return found

    def _found(self, samples: Sequence[bytes]) -> pa.StructType:
        """The type of what is in some bodies: whole numbers are ``long``, members that differ are ``string``."""
        members: dict[str, list[Any]] = {}
        for body in samples:
            try:
                for name, value in self._parsed(body).items():
                    members.setdefault(str(name), []).append(value)
            except BadValue:
                continue
        if not members:
            raise BadOption(
                "inferSchema", "true", f"a topic with messages that can be parsed; {len(samples)} were tried"
            )
        return pa.struct([pa.field(name, _inferred(values)) for name, values in members.items()])


def _inferred(values: list[Any]) -> pa.DataType:
    try:
        kind = pa.array(values).type
        type_text(kind)
    except (pa.ArrowException, BadType):
        return pa.string()
    return pa.string() if pa.types.is_null(kind) else kind


def _given(options: ValueOptions) -> pa.StructType:
    try:
        return parse_fields(options.schema.decode())
    except (BadType, UnicodeDecodeError) as error:
        text = options.schema[:80].decode("utf-8", "replace")
        raise BadOption("valueSchema", text, f"columns such as 'id long, name string' ({error})") from None


def conversion(kind: pa.DataType) -> Convert | None:
    """What has to be done to a parsed value before Arrow takes it as this type; ``None`` for nothing.

    JSON has neither times nor bytes nor exact decimals: times are ISO 8601, bytes are base64, decimals may be texts.
    """
    if pa.types.is_timestamp(kind):
        return _optional(lambda value: value if isinstance(value, datetime) else datetime.fromisoformat(value))
    if pa.types.is_date(kind):
        return _optional(lambda value: value if isinstance(value, date) else date.fromisoformat(value))
    if pa.types.is_binary(kind):
        return _optional(lambda value: value if isinstance(value, bytes) else base64.b64decode(value, validate=True))
    if pa.types.is_decimal(kind):
        return _optional(lambda value: Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale)))
    if pa.types.is_string(kind):
        # A member that has a text here and a number there is kept as it was written.
        return _optional(lambda value: value if isinstance(value, str) else orjson.dumps(value).decode())
    if pa.types.is_list(kind):
        inner = conversion(kind.value_type)
        return None if inner is None else _optional(lambda values: [inner(value) for value in values])
    if pa.types.is_map(kind):
        item = conversion(kind.item_type) or (lambda value: value)
        return _optional(lambda pairs: [(name, item(value)) for name, value in pairs.items()])
    if pa.types.is_struct(kind):
        needed = {field.name: found for field in kind if (found := conversion(field.type)) is not None}
        if not needed:
            return None
        return _optional(
            lambda value: {**value, **{name: needed[name](value[name]) for name in needed if name in value}}
        )
    return None


def _optional(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)
