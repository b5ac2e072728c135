"""``tail --decode``: bodies as values, by Avro, Protocol Buffers or MessagePack; the library is wanted only then."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from verniermq.client.errors import ClientError

Decode = Callable[[bytes], Any]

SPELLINGS: Final = "msgpack, avro:FILE.avsc or protobuf:FILE.desc#package.Message"
EXTRAS: Final = {"msgpack": "msgspec", "avro": "avro", "protobuf": "protobuf"}
"""Format → the extra that brings its library."""


class BadBody(Exception):
    """A body is no value of its format; the reason is for people."""


def body_decoder(text: str) -> Decode:
    """
    Raises:
        ClientError: the text names no format, its schema cannot be used, or its library is not installed.
    """
    form, _, rest = text.partition(":")
    file, _, message = rest.partition("#")
    if form not in EXTRAS or bool(file) != (form != "msgpack") or bool(message) != (form == "protobuf"):
        raise ClientError(f"--decode {text!r}: expected {SPELLINGS}")
    try:
        if form == "msgpack":
            return _msgpack()
        return _avro(_read(file)) if form == "avro" else _protobuf(_read(file), message)
    except ImportError as error:
        raise ClientError(
            f"--decode {text!r} needs a library that is not installed ({error.name}): "
            f"pip install 'verniermq[{EXTRAS[form]}]'"
        ) from None
    except BadBody as error:
        raise ClientError(f"--decode {text!r}: {error}") from None


def value_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON; bytes in base64, times and decimals as texts."""
    return json.dumps(value, ensure_ascii=False, indent=indent, default=_as_text)


def _as_text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise BadBody(f"{file} cannot be read: {error.strerror}") from None


def _msgpack() -> Decode:
    import msgspec

    def decode(body: bytes) -> Any:
        try:
            return msgspec.msgpack.decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise BadBody(f"no MessagePack: {error}") from None

    return decode


def _avro(schema: bytes) -> Decode:
    import fastavro

    try:
        parsed = fastavro.parse_schema(json.loads(schema))
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise BadBody(f"no Avro schema: {error}") from None

    def decode(body: bytes) -> Any:
        data = BytesIO(body)
        try:
            value = fastavro.schemaless_reader(data, parsed, None)
        except Exception as error:  # the library raises what its readers happen to raise
            raise BadBody(f"no value of the Avro schema: {type(error).__name__} {error}") from None
        if left := len(body) - data.tell():
            raise BadBody(f"no value of the Avro schema: {left} bytes are left behind it")
        return value

    return decode


def _protobuf(descriptors: bytes, name: str) -> Decode:
    from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except (DecodeError, TypeError) as error:
        raise BadBody(f"no descriptor set, as protoc -o writes it: {error}") from None
    except KeyError:
        raise BadBody(f"the descriptor set has no message {name}") from None

    def decode(body: bytes) -> Any:
        try:
            return json_format.MessageToDict(
                kind.FromString(body), preserving_proto_field_name=True, descriptor_pool=pool
            )
        except (DecodeError, json_format.Error) as error:
            raise BadBody(f"no {name}: {error}") from None

    return decode
