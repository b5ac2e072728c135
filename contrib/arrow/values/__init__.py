"""Bodies as typed values: a struct column ``value``, and ``corrupt`` with the reason where a body is none.

::

    plain.py      JSON and MessagePack, with a schema given or found
    avro.py       Avro, with its schema, or with Confluent's header and a registry
    protobuf.py   Protocol Buffers, with a descriptor set
    registry.py   asks a schema registry
    typed.py      puts the two columns beside the others

A decoder is made where it is used, from :class:`ValueOptions`, which are texts and bytes and travel to Spark's workers.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

from verniermq.contrib.arrow.errors import BadOption, NoValueLibrary
from verniermq.contrib.arrow.schema import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from verniermq.contrib.arrow.options import GivenOptions

FORMATS: Final = ("json", "avro", "protobuf", "msgpack")
MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
VALUE_COLUMNS: Final = ("value", "corrupt")
ERRORS: Final = "__errors"
"""What follows a topic's name in that of the table of bodies without a value."""
TYPED_COLUMNS: Final = (*(name for name in COLUMNS if name not in ("topic", "body")), "value")
"""Of an export of typed topics: what is in the value need not be there twice."""
READ_COLUMNS: Final = (*TYPED_COLUMNS, "corrupt", "body")
SAMPLES: Final = 1000
"""Bodies that are looked at to find a schema."""
NEEDED: Final = {"avro": "avro", "protobuf": "protobuf", "msgpack": "msgspec"}
"""Format → the extra that brings its library."""


class BadValue(Exception):
    """A body is not what it should be; the reason is for people."""


class ValueDecoder(Protocol):
    type: pa.StructType

    def decode(self, body: bytes) -> dict[str, Any] | None:
        """
        Raises:
            BadValue: the body is none of this type.
        """
        ...


@attrs.frozen
class ValueOptions:
    format: str
    mode: str = "PERMISSIVE"
    schema: bytes = b""
    """As given, or as it was in a file: DDL, an Avro schema, a descriptor set."""
    message: str = ""
    """Of Protocol Buffers: the full name."""
    registry: str = ""
    infer: bool = False
    subject: str = ""
    """What the registry calls the newest schema, if none is given."""

    @classmethod
    def parse(cls, options: GivenOptions) -> ValueOptions | None:
        """
        Raises:
            BadOption: an option is wrong, or does not go with another.
        """
        form = options.choice("valueFormat", ("", *FORMATS))
        if not form:
            return None
        schema = options.text("valueSchema").encode()
        file = options.text("valueSchemaFile")
        if file and schema:
            raise BadOption("valueSchemaFile", file, "nothing, since valueSchema is given")
        if form == "protobuf" and schema:
            try:
                schema = base64.b64decode(schema, validate=True)
            except ValueError:
                raise BadOption("valueSchema", options.text("valueSchema"), "a descriptor set in base64") from None
        if file:
            try:
                schema = Path(file).read_bytes()
            except OSError as error:
                raise BadOption("valueSchemaFile", file, f"a file that can be read ({error.strerror})") from None
        found = cls(
            format=form,
            mode=options.choice("mode", MODES),
            schema=schema,
            message=options.text("valueMessage"),
            registry=options.text("schemaRegistry").rstrip("/"),
            infer=options.flag("inferSchema", False),
            subject=options.text("schemaSubject"),
        )
        found.check(options.text("subscribe"))
        return found if found.subject else attrs.evolve(found, subject=f"{options.text('subscribe')}-value")

    def as_options(self) -> dict[str, str]:
        """The same as options of a source, for a schema that was given."""
        schema = base64.b64encode(self.schema) if self.format == "protobuf" else self.schema
        return {
            "valueFormat": self.format, "mode": self.mode, "valueSchema": schema.decode(),
            "valueMessage": self.message, "schemaRegistry": self.registry,
        }  # fmt: skip

    def check(self, topics: str) -> None:
        if self.format in ("json", "msgpack") and not self.schema and not self.infer:
            raise BadOption("valueSchema", "", "columns such as 'id long, name string', or inferSchema=true")
        if self.infer and (self.schema or self.format not in ("json", "msgpack")):
            raise BadOption("inferSchema", "true", "json or msgpack, without valueSchema")
        if self.format == "avro" and not self.schema and not self.registry:
            raise BadOption("valueSchema", "", "an Avro schema as JSON, or schemaRegistry with an address")
        if self.format == "avro" and not self.schema and "," in topics and not self.subject:
            raise BadOption("schemaSubject", "", "the registry's name of the schema, since there are several topics")
        if self.format == "protobuf" and not (self.schema and self.message):
            raise BadOption(
                "valueSchemaFile", "", "a descriptor set (protoc -o), and valueMessage with a message's name"
            )
        if self.registry and self.format == "msgpack":
            raise BadOption("schemaRegistry", self.registry, "a valueFormat that has one: json, avro or protobuf")
        if self.registry and not self.registry.startswith(("http://", "https://")):
            raise BadOption("schemaRegistry", self.registry, "an address that begins with http:// or https://")


def decoder_of(options: ValueOptions, samples: Sequence[bytes] = ()) -> ValueDecoder:
    """
    Args:
        samples: bodies from which to find the schema, with ``infer``

    Raises:
        BadOption: the schema is none.
        NoValueLibrary: what the format needs is not installed.
    """
    try:
        if options.format == "avro":
            from verniermq.contrib.arrow.values.avro import AvroDecoder

            return AvroDecoder(options)
        if options.format == "protobuf":
            from verniermq.contrib.arrow.values.protobuf import ProtobufDecoder

            return ProtobufDecoder(options)
        from verniermq.contrib.arrow.values.plain import PlainDecoder

        return PlainDecoder(options, samples)
    except ImportError as error:
        raise NoValueLibrary(options.format, NEEDED.get(options.format, "arrow"), error) from error
