"""Protocol Buffers: bodies of one message type, which a descriptor set describes (``protoc -o``)."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from verniermq.contrib.arrow.errors import BadOption
from verniermq.contrib.arrow.values import BadValue, ValueOptions
from verniermq.contrib.arrow.values.registry import HEADER, schema_number

KINDS: Final = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(), FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(), FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(), FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(), FieldDescriptor.CPPTYPE_ENUM: pa.string(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}  # fmt: skip


class ProtobufDecoder:
    def __init__(self, options: ValueOptions) -> None:
        self._registry = options.registry
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in descriptor_pb2.FileDescriptorSet.FromString(options.schema).file:
                pool.Add(file)
            described = pool.FindMessageTypeByName(options.message)
        except (DecodeError, TypeError) as error:
            raise BadOption("valueSchemaFile", f"{len(options.schema)} bytes", f"a descriptor set ({error})") from None
        except KeyError:
            raise BadOption("valueMessage", options.message, "the full name of a message in valueSchemaFile") from None
        try:
            self.type = _struct(described, ())
        except ValueError as error:
            raise BadOption("valueMessage", options.message, str(error)) from None
        self._class = message_factory.GetMessageClass(described)

    def decode(self, body: bytes) -> dict[str, Any] | None:
        data = body
        if self._registry:
            schema_number(body)
            data = body[_behind_indexes(body) :]
        try:
            return _values(self._class.FromString(data))
        except DecodeError as error:
            raise BadValue(f"it is no {self._class.DESCRIPTOR.full_name}: {error}") from None


def _behind_indexes(body: bytes) -> int:
    """Confluent's header also says which message of a file follows: 0 for the first, or how many numbers, and which."""
    count, position = _number(body, HEADER)
    for _ in range(count):
        _, position = _number(body, position)
    return position


def _number(body: bytes, position: int) -> tuple[int, int]:
    found, shift = 0, 0
    while position < len(body) and shift < 35:
        byte = body[position]
        position += 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), position
    raise BadValue("the header with the schema's number is cut off")


def _struct(described: Descriptor, above: tuple[str, ...]) -> pa.StructType:
    if described.full_name in above:
        raise ValueError(f"a message that does not contain itself, and {described.full_name} does")
    inside = (*above, described.full_name)
    return pa.struct([pa.field(field.name, _type(field, inside)) for field in described.fields])


def _type(field: FieldDescriptor, above: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        pair = field.message_type.fields_by_name
        return pa.map_(_one(pair["key"], above), _one(pair["value"], above))
    return pa.list_(_one(field, above)) if field.is_repeated else _one(field, above)


def _one(field: FieldDescriptor, above: tuple[str, ...]) -> pa.DataType:
    if field.message_type is not None:
        return _struct(field.message_type, above)
    return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else KINDS[field.cpp_type]


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _values(message: Any) -> dict[str, Any]:
    """A member that is not set is null if the message can say so, and its default if it cannot."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"]
            found[field.name] = [(key, _value(inner, value[key])) for key in value]
        elif field.is_repeated:
            found[field.name] = [_value(field, one) for one in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _value(field, value)
    return found


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return _values(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return value
