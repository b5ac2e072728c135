"""Avro, by fastavro: bodies of one schema, or with Confluent's header, of the schema that it names."""

from __future__ import annotations

import json
from functools import cache
from io import BytesIO
from typing import Any, Final

import fastavro
import pyarrow as pa

from verniermq.contrib.arrow.errors import BadOption
from verniermq.contrib.arrow.values import BadValue, ValueOptions
from verniermq.contrib.arrow.values.registry import HEADER, NoSuchSchema, newest_schema, schema_by_number, schema_number

PLAIN: Final = {
    "null": pa.string(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(), "enum": pa.string(), "fixed": pa.binary(),
}  # fmt: skip
LOGICAL: Final = {
    "timestamp-millis": pa.timestamp("us", tz="UTC"), "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(), "uuid": pa.string(),
}  # fmt: skip


class AvroDecoder:
    def __init__(self, options: ValueOptions) -> None:
        self._registry = options.registry
        self._unknown: set[int] = set()
        """Numbers of schemas that the registry did not know; a reader of a later task asks again."""
        text = options.schema.decode() if options.schema else newest_schema(options.registry, options.subject)
        try:
            self._reader = fastavro.parse_schema(json.loads(text))
            self.type = arrow_type(self._reader, {})
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
            raise BadOption("valueSchema", text[:80], f"an Avro schema as JSON ({error})") from None
        if not pa.types.is_struct(self.type):
            raise BadOption("valueSchema", text[:80], "an Avro record")

    def decode(self, body: bytes) -> dict[str, Any] | None:
        text, data = "", BytesIO(body)
        if self._registry:
            text = self._writer(schema_number(body))
            data.seek(HEADER)
        try:
            found = fastavro.schemaless_reader(data, _parsed(text) if text else self._reader, self._reader)
        except Exception as error:  # the library raises what its readers happen to raise
            raise BadValue(f"it is no value of the Avro schema: {type(error).__name__} {error}") from None
        if left := len(body) - data.tell():
            raise BadValue(f"it is no value of the Avro schema: {left} bytes are left behind it")
        return _plain(found)  # type: ignore[no-any-return]

    def _writer(self, number: int) -> str:
        if number in self._unknown:
            raise NoSuchSchema(number)
        try:
            return schema_by_number(self._registry, number)
        except NoSuchSchema:
            self._unknown.add(number)
            raise


@cache
def _parsed(text: str) -> Any:
    """A writer's schema; there are few, and each has many bodies."""
    return fastavro.parse_schema(json.loads(text))


def arrow_type(schema: Any, known: dict[str, Any]) -> pa.DataType:
    """
    Raises:
        ValueError: it has no columns: a union of several types, or a record that contains itself.
    """
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise ValueError(f"a union of {len(others)} types has no column")
        return arrow_type(others[0], known)
    if isinstance(schema, str):
        return PLAIN[schema] if schema in PLAIN else arrow_type(_named(schema, known), known)
    kind = schema["type"]
    if kind in ("record", "error"):
        if schema["name"] in known and known[schema["name"]] is None:
            raise ValueError(f"record {schema['name']} contains itself")
        known[schema["name"]] = None
        fields = [pa.field(field["name"], arrow_type(field["type"], known)) for field in schema["fields"]]
        known[schema["name"]] = schema
        return pa.struct(fields)
    if kind == "array":
        return pa.list_(arrow_type(schema["items"], known))
    if kind == "map":
        return pa.map_(pa.string(), arrow_type(schema["values"], known))
    if kind in ("enum", "fixed"):
        known[schema["name"]] = schema
    logical = schema.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    return LOGICAL.get(logical) or (PLAIN[kind] if isinstance(kind, str) and kind in PLAIN else arrow_type(kind, known))


def _named(name: str, known: dict[str, Any]) -> Any:
    if known.get(name) is None:
        raise ValueError(f"type {name} is not known, or contains itself")
    return known[name]


def _plain(value: Any) -> Any:
    """Maps as pairs, as Arrow wants them, are made by the column; what is left are identifiers as texts."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return str(value) if type(value).__name__ == "UUID" else value
