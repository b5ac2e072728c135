"""Bodies as typed values: each format by its own library, bodies that do not fit, and a schema registry."""

from __future__ import annotations

import io
import json
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from tests.arrow.conftest import Source
from tests.arrow.producing import Producing
from verniermq.contrib.arrow import scan
from verniermq.contrib.arrow.ddl import BadType, parse_fields, type_text
from verniermq.contrib.arrow.errors import BadOption, NoValueLibrary
from verniermq.contrib.arrow.values import ValueOptions, decoder_of
from verniermq.contrib.arrow.values.registry import RegistryFailed
from verniermq.contrib.arrow.values.typed import CorruptValue, decode_values

ORDER = (
    "id long, amount decimal(9,2), at timestamp, day date, raw binary, who struct<name: string, tags: array<string>>"
)
AVRO = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["SALE", "REFUND"]}},
    ],
}  # fmt: skip
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NESTED = '{"type": "array", "elementType": ' * 80 + '"int"' + "}" * 80


def values(form: str, schema: str | bytes, *bodies: bytes, **more: Any) -> tuple[list[Any], list[str | None]]:
    text = schema.encode() if isinstance(schema, str) else schema
    found, reasons = decode_values(decoder_of(ValueOptions(form, schema=text, **more)), list(bodies))
    return found.to_pylist(maps_as_pydicts="strict"), reasons


def avro(value: dict[str, Any], schema: Any = AVRO) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return file.getvalue()


def test_json_has_times_bytes_and_decimals_as_texts() -> None:
    body = {
        "id": 7, "amount": "12.50", "at": "2026-03-01T12:00:00Z", "day": "2026-03-01", "raw": "AAE=",
        "who": {"name": "Ada", "tags": ["a", "b"]}, "more": 1,
    }  # fmt: skip

    found, reasons = values("json", ORDER, json.dumps(body).encode(), b"{}")

    who = {"name": "Ada", "tags": ["a", "b"]}
    full = {"id": 7, "amount": Decimal("12.50"), "at": NOON, "day": date(2026, 3, 1), "raw": b"\0\1", "who": who}
    assert found == [full, dict.fromkeys(full)]
    assert reasons == [None, None]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "cannot be parsed"),
        (b"{", "cannot be parsed"),
        (b"\xff", "cannot be parsed"),
        (b"[1]", "expected an object with members, found list"),
        (b'{"id": "seven"}', "does not fit the schema"),
        (b'{"id": 9223372036854775808}', "does not fit the schema"),
        (b'{"amount": "12.x"}', "does not fit the schema"),
        (b'{"amount": 123456789.01}', "does not fit the schema"),
        (b'{"at": "yesterday"}', "does not fit the schema"),
        (b'{"who": 3}', "does not fit the schema"),
    ],
)
def test_a_body_that_does_not_fit_has_a_reason_and_spoils_no_other(body: bytes, reason: str) -> None:
    found, reasons = values("json", ORDER, b'{"id": 1}', body, b'{"id": 2}')

    assert [value and value["id"] for value in found] == [1, None, 2]
    assert reasons[0] is reasons[2] is None
    assert reason in (reasons[1] or "")


@given(st.binary(max_size=40))
@pytest.mark.parametrize("form", ["json", "msgpack", "avro", "protobuf"])
def test_no_body_is_more_than_corrupt(form: str, body: bytes) -> None:
    schema: dict[str, str | bytes] = {"avro": json.dumps(AVRO), "protobuf": descriptors()}

    found, reasons = values(form, schema.get(form, ORDER), body, message="shop.Order" if form == "protobuf" else "")

    assert (found[0] is None) == (reasons[0] is not None)


def test_messagepack_is_typed() -> None:
    body = msgspec.msgpack.encode({"id": 7, "raw": b"\0\1", "at": NOON, "who": {"name": "Ada", "tags": []}})

    ((value,), reasons) = values("msgpack", ORDER, body)

    assert (value["id"], value["raw"], value["at"], value["who"]["name"]) == (7, b"\0\1", NOON, "Ada")
    assert reasons == [None]


def test_avro_is_typed_by_its_schema() -> None:
    order = {"id": 7, "note": None, "at": NOON, "counts": {"a": 1}, "kind": "SALE"}

    found, reasons = values("avro", json.dumps(AVRO), avro(order), avro(order)[:-1], avro(order) + b"x")

    assert found == [order, None, None]
    assert reasons[0] is None
    assert "no value of the Avro schema" in (reasons[1] or "")
    assert "1 bytes are left" in (reasons[2] or "")


def descriptors() -> bytes:
    """What ``protoc -o`` writes for a small file."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    item = file.message_type.add(name="Item")
    item.field.add(name="name", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=kinds.TYPE_UINT64, label=kinds.LABEL_OPTIONAL)
    order.field.add(name="items", number=2, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_REPEATED, type_name=".shop.Item")
    order.field.add(name="first", number=3, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_OPTIONAL, type_name=".shop.Item")
    order.enum_type.add(name="Kind").value.add(name="SALE", number=0)
    order.field.add(
        name="kind", number=4, type=kinds.TYPE_ENUM, label=kinds.LABEL_OPTIONAL, type_name=".shop.Order.Kind"
    )
    pair = order.nested_type.add(name="CountsEntry")
    pair.options.map_entry = True
    pair.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    pair.field.add(name="value", number=2, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    order.field.add(
        name="counts",
        number=5,
        type=kinds.TYPE_MESSAGE,
        label=kinds.LABEL_REPEATED,
        type_name=".shop.Order.CountsEntry",
    )
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def order_message() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file[0])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_protobuf_is_typed_by_its_descriptor() -> None:
    made = order_message()(id=2**64 - 1, items=[{"name": "a"}, {"name": "b"}], counts={"x": 3})
    body = made.SerializeToString()

    found, reasons = values("protobuf", descriptors(), body, body[:-1], message="shop.Order")
    framed = [b"\0\0\0\0\1" + indexes + body for indexes in (b"\0", b"\x02\x02", b"\x04\x00\x02", b"\x80")]
    with_header, odd = values("protobuf", descriptors(), *framed, message="shop.Order", registry="http://r")

    order = {
        "id": Decimal(2**64 - 1), "items": [{"name": "a"}, {"name": "b"}], "first": None, "kind": "SALE",
        "counts": {"x": 3},
    }  # fmt: skip
    assert found == [order, None]
    assert "it is no shop.Order" in (reasons[1] or "")
    assert with_header[:3] == [order] * 3
    assert odd[3] == "the header with the schema's number is cut off"


@contextmanager
def registry(schemas: dict[str, Any]) -> Iterator[str]:
    """A schema registry as far as readers need one: paths, and the schemas that they answer with."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = schemas.get(self.path)
            body = json.dumps({"schema": json.dumps(found)} if found else {"error_code": 40403}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_confluent_s_header_names_the_schema_that_a_body_was_written_with(
    producing: Producing, topic: str, source: Source
) -> None:
    old = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    new = {**old, "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "-"}]}
    producing.create(topic, 1)
    producing.send(topic, b"\0" + struct.pack(">i", 1) + avro({"id": 1}, old))
    producing.send(topic, b"\0" + struct.pack(">i", 2) + avro({"id": 2, "note": "n"}, new))
    producing.send(topic, b"no header")

    with registry(
        {"/schemas/ids/1": old, "/schemas/ids/2": new, f"/subjects/{topic}-value/versions/latest": new}
    ) as at:
        typed = {"valueFormat": "avro", "schemaRegistry": at, "columns": "value,corrupt"}
        table = scan(topic, **source(**typed)).read_all()

    assert table["value"].to_pylist() == [{"id": 1, "note": "-"}, {"id": 2, "note": "n"}, None]
    assert "expected a 0 and a schema's number" in table["corrupt"].to_pylist()[2]


def test_a_schema_that_the_registry_does_not_know_is_corrupt_and_a_registry_that_is_away_is_told(
    producing: Producing, topic: str, source: Source
) -> None:
    """By a header with any number one message could stop a job for good; without the registry all would be corrupt."""
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    producing.create(topic, 1)
    for number in (99, 1, 99):
        producing.send(topic, b"\0" + struct.pack(">i", number) + avro({"id": 7}, order))
    options = {"valueFormat": "avro", "valueSchema": json.dumps(order), "columns": "value,corrupt"}

    with registry({"/schemas/ids/1": order}) as at:
        table = scan(topic, **source(**options, schemaRegistry=at)).read_all()
    with pytest.raises(RegistryFailed, match=r"schemas/ids/99 did not answer with a schema: .*refused"):
        scan(topic, **source(**options, schemaRegistry=at)).read_all()

    reason = "the schema registry knows no schema 99, which it names"
    assert table["value"].to_pylist() == [None, {"id": 7}, None]
    assert table["corrupt"].to_pylist() == [reason, None, reason]


def test_json_can_have_confluent_s_header() -> None:
    header = b"\0" + struct.pack(">i", 7)

    found, reasons = values("json", "id int", header + b'{"id": 1}', b'{"id": 2}', registry="http://nobody.invalid")
    inferred = decoder_of(ValueOptions("json", registry="http://nobody.invalid", infer=True), [header + b'{"id": 1}'])

    assert found == [{"id": 1}, None]
    assert "expected a 0 and a schema's number" in str(reasons[1])
    assert inferred.type.names == ["id"]


def test_modes_are_those_of_spark(producing: Producing, topic: str, source: Source) -> None:
    producing.create(topic, 1)
    for body in (b'{"id": 1}', b"poison", b'{"id": 3}'):
        producing.send(topic, body)
    typed = {"valueFormat": "json", "valueSchema": "id int", "columns": "queueOffset,value,corrupt"}

    permissive = scan(topic, **source(**typed)).read_all().to_pylist()
    dropped = scan(topic, **source(**typed, mode="dropMalformed")).read_all().to_pylist()
    with pytest.raises(CorruptValue, match=r"at offset 1 has no value: it cannot be parsed"):
        scan(topic, **source(**typed, mode="failfast")).read_all()

    assert [row["value"] for row in permissive] == [{"id": 1}, None, {"id": 3}]
    assert [row["queueOffset"] for row in dropped] == [0, 2]


def test_a_schema_is_found_or_read_from_a_file(
    producing: Producing, topic: str, source: Source, tmp_path: Path
) -> None:
    producing.create(topic, 1)
    producing.send(topic, b'{"id": 1, "who": {"name": "Ada"}, "odd": 1}')
    producing.send(topic, b'{"id": 2, "price": 1.5, "odd": "text"}')
    (tmp_path / "schema").write_text("id long,\n  price double\n")

    found = scan(topic, **source(valueFormat="json", inferSchema="true", columns="value"))
    from_file = scan(topic, **source(valueFormat="json", valueSchemaFile=str(tmp_path / "schema"), columns="value"))

    assert type_text(found.schema.field("value").type) == (
        "struct<`id`: bigint, `who`: struct<`name`: string>, `odd`: string, `price`: double>"
    )
    assert [row["value"]["odd"] for row in found.read_all().to_pylist()] == ["1", "text"]
    assert from_file.read_all().to_pylist()[1] == {"value": {"id": 2, "price": 1.5}}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"valueFormat": "xml"}, "'xml', expected json or avro or protobuf or msgpack"),
        ({"valueFormat": "json"}, "columns such as 'id long, name string', or inferSchema=true"),
        ({"valueFormat": "json", "valueSchema": "id lng"}, "'lng' is no type"),
        ({"valueFormat": "json", "valueSchema": "id long,"}, "ends where a column's name is expected"),
        ({"valueFormat": "json", "valueSchemaFile": "/no/such"}, "a file that can be read"),
        ({"valueFormat": "json", "valueSchema": "a int", "mode": "lenient"}, "PERMISSIVE or DROPMALFORMED"),
        ({"valueFormat": "avro"}, "an Avro schema as JSON, or schemaRegistry"),
        ({"valueFormat": "avro", "valueSchema": "{"}, "an Avro schema as JSON"),
        ({"valueFormat": "avro", "valueSchema": '"int"'}, "an Avro record"),
        ({"valueFormat": "avro", "schemaRegistry": "mq:8081"}, "begins with http"),
        ({"valueFormat": "json", "valueSchema": "a int", "schemaRegistry": "mq:8081"}, "begins with http"),
        ({"valueFormat": "msgpack", "valueSchema": "a int", "schemaRegistry": "http://mq"}, "json, avro or protobuf"),
        ({"valueFormat": "protobuf"}, "a descriptor set"),
        ({"valueFormat": "protobuf", "valueSchema": "??", "valueMessage": "a.B"}, "a descriptor set|full name"),
    ],
)
def test_wrong_options_are_told_before_anything_is_read(
    producing: Producing, source: Source, options: dict[str, str], expected: str
) -> None:
    producing.create("typed-mistakes", 1)

    with pytest.raises(BadOption, match=expected):
        scan("typed-mistakes", **source(**options))


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)

    with pytest.raises(NoValueLibrary, match=r"pip install 'verniermq\[msgspec\]'"):
        decoder_of(ValueOptions("msgpack", schema=b"id int"))


TYPES = st.recursive(
    st.sampled_from(
        [pa.int32(), pa.int64(), pa.string(), pa.bool_(), pa.decimal128(9, 2), pa.timestamp("us", tz="UTC")]
    ),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.dictionaries(st.text("ab c`é.", min_size=1, max_size=4), inner, min_size=1, max_size=3).map(
            lambda fields: pa.struct(list(fields.items()))
        ),
    ),
    max_leaves=6,
)


@given(TYPES)
def test_types_are_the_same_after_spark_s_text(kind: pa.DataType) -> None:
    assert parse_fields(f"value {type_text(kind)}")[0].type == kind


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"type": "struct", "fields": [', "no JSON"),
        ('{"type": "struct", "fields": [{"name": 5, "type": "long"}]}', "no column"),
        ('{"type": "struct", "fields": [{"name": "a", "type": "money"}]}', "'money' is no type"),
        ('{"type": "struct", "fields": [{"name": "a", "type": "int, b int"}]}', "expected the end, found ','"),
        ('{"type": "struct", "fields": [{"name": "a", "type": {"type": "set"}}]}', "no type of a DataFrame's schema"),
        (
            '{"type": "struct", "fields": [{"name": "a", "type": "long"}, {"name": "a", "type": "int"}]}',
            "a name comes twice",
        ),
        ('{"type": "array", "elementType": "long"}', "expected columns"),
        (NESTED, "nested more than"),
    ],
)
def test_a_schema_in_json_that_is_none_is_told(text: str, reason: str) -> None:
    with pytest.raises(BadType, match=reason):
        parse_fields(text)


def test_a_type_that_spark_has_not_is_told() -> None:
    with pytest.raises(BadType, match="has no counterpart"):
        type_text(pa.duration("s"))
