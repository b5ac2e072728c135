"""Formats and filters of ``verniermq tail`` and ``verniermq send``."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pytest
from click.testing import CliRunner, Result
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.client.place import Place
from verniermq.cli import main

ORDER_SCHEMA = {
    "type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string"}],
}  # fmt: skip
ORDER_FILE = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
_ORDER = ORDER_FILE.message_type.add(name="Order")
_ORDER.field.add(name="id", number=1, type=descriptor_pb2.FieldDescriptorProto.TYPE_INT64)
_ORDER.field.add(name="who", number=2, type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING)


@pytest.fixture
def topic(place: Place) -> Iterator[str]:
    name = place.name("cli")
    assert run(place, "topic", "create", name, "--queues", "1").exit_code == 0
    return name


def run(place: Place, *arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, [*arguments, "--namesrv", place.namesrv], input=stdin)


def shown(place: Place, topic: str, *arguments: str) -> list[str]:
    result = run(place, "tail", topic, "--no-wait", *arguments)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


# --- tail -----------------------------------------------------------------------------------


def test_a_template_says_what_is_printed_of_a_message(place: Place, topic: str) -> None:
    run(place, "send", topic, "hello", "--tags", "paid", "--keys", "k1 k2", "-p", "colour=red")

    template = r"{topic}\t{queue}@{offset} {tags} {keys} {property.colour}{property.no} {size} {{x}} {body} {base64}"
    assert shown(place, topic, "--from-start", "-f", template) == [
        f"{topic}\t0@0 paid k1 k2 red 5 {{x}} hello aGVsbG8="
    ]


def test_a_field_that_no_message_has_is_named(place: Place, topic: str) -> None:
    wrong = run(place, "tail", topic, "-f", "{boddy}")

    assert wrong.exit_code == 2
    assert "{boddy} is no field of a message; known are topic, broker, queue" in wrong.stderr


def test_json_bodies_are_indented_on_request(place: Place, topic: str) -> None:
    run(place, "send", topic, '{"a": [1]}', "--keys", "k")
    run(place, "send", topic, "plain")

    lines = shown(place, topic, "--from-start", "--pretty")

    assert lines[0].endswith("broker-a/0@0 [k]")
    assert lines[1:6] == ["{", '  "a": [', "    1", "  ]", "}"]
    assert lines[-1] == "plain"


@pytest.mark.parametrize(
    ("filters", "bodies"),
    [
        (("--key", "k1"), ["one", "two"]),
        (("--key", "k1", "--key", "k3"), ["one", "two", "three"]),
        (("-p", "colour=red"), ["one", "three"]),
        (("-p", "colour=red", "--key", "k1"), ["one"]),
        (("--sql", "price > 10"), ["two", "three"]),
        (("--sql", "price > 10", "-p", "colour=red"), ["three"]),
        (("--tags", "a || b", "--limit", "1"), ["one"]),
        (("--key", "nobody"), []),
    ],
)
def test_only_messages_that_fit_are_printed(
    place: Place, topic: str, filters: tuple[str, ...], bodies: list[str]
) -> None:
    run(place, "send", topic, "one", "--keys", "k1 k2", "-p", "colour=red", "-p", "price=5", "--tags", "a")
    run(place, "send", topic, "two", "--keys", "k1", "-p", "colour=blue", "-p", "price=11", "--tags", "b")
    run(place, "send", topic, "three", "--keys", "k3", "-p", "colour=red", "-p", "price=12")

    assert shown(place, topic, "--from-start", "-f", "{body}", *filters) == bodies


def test_times_say_where_to_begin_and_to_stop(place: Place, topic: str) -> None:
    run(place, "send", topic, "old")
    (stored,) = shown(place, topic, "--from-start", "-f", "{stored_ms}")

    assert shown(place, topic, "--since", "1h", "-f", "{body}") == ["old"]
    assert shown(place, topic, "--since", "2200-01-01", "-f", "{body}") == []
    assert shown(place, topic, "--from-start", "--until", "2200-01-01", "-f", "{body}") == ["old"]
    assert shown(place, topic, "--from-start", "--until", "1h", "-f", "{body}") == []
    # Where the end has passed, the end of the topic is the end, without --no-wait too.
    passed = run(place, "tail", topic, "--from-start", "--until", "1h", "-f", "{body}")
    assert (passed.exit_code, passed.output, int(stored) > 0) == (0, "", True)


@pytest.mark.parametrize("form", ["msgpack", "avro", "protobuf"])
def test_bodies_are_printed_as_the_values_they_hold(place: Place, topic: str, tmp_path: Path, form: str) -> None:
    order = tmp_path / "order.bin"
    order.write_bytes(encoded(form, {"id": 7, "who": "Ada"}))
    for body in (f"@{order}", "\x07"):
        assert run(place, "send", topic, body).exit_code == 0
    decode = ("--decode", spelling(form, tmp_path), "--from-start")

    value, other = shown(place, topic, "-f", "{body}", *decode)
    assert json.loads(value) == {"id": 7, "who": "Ada"} if form != "protobuf" else {"id": "7", "who": "Ada"}
    assert other == "7" if form == "msgpack" else other.startswith("<no "), "one that does not fit stops nothing"
    assert '  "who": "Ada"' in shown(place, topic, "--pretty", *decode)

    first, second = (json.loads(line) for line in shown(place, topic, "--json", *decode))
    assert first["value"]["who"] == "Ada"
    assert "value" in second if form == "msgpack" else "no " in second["value_error"]
    assert second["body"] == "\x07", "the body itself is there too"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("xml", "expected msgpack, avro:FILE.avsc or protobuf:FILE.desc#package.Message"),
        ("avro", "expected msgpack, avro:FILE.avsc"),
        ("protobuf:shop.desc", "expected msgpack, avro:FILE.avsc"),
        ("avro:no-such.avsc", "no-such.avsc cannot be read: No such file"),
        (f"avro:{__file__}", "no Avro schema"),
        (f"protobuf:{__file__}#shop.Order", "no descriptor set"),
    ],
)
def test_a_format_that_is_none_is_refused_with_its_reason(place: Place, topic: str, text: str, reason: str) -> None:
    wrong = run(place, "tail", topic, "--no-wait", "--decode", text)

    assert wrong.exit_code == 2
    assert reason in wrong.stderr


def encoded(form: str, value: dict[str, Any]) -> bytes:
    if form == "msgpack":
        return msgspec.msgpack.encode(value)
    if form == "protobuf":
        pool = descriptor_pool.DescriptorPool()
        pool.Add(ORDER_FILE)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
        return bytes(kind(**value).SerializeToString())
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(ORDER_SCHEMA), value)
    return file.getvalue()


def spelling(form: str, folder: Path) -> str:
    if form == "avro":
        (folder / "order.avsc").write_text(json.dumps(ORDER_SCHEMA))
        return f"avro:{folder / 'order.avsc'}"
    if form == "protobuf":
        descriptors = descriptor_pb2.FileDescriptorSet(file=[ORDER_FILE])
        (folder / "shop.desc").write_bytes(descriptors.SerializeToString())
        return f"protobuf:{folder / 'shop.desc'}#shop.Order"
    return form


@pytest.mark.parametrize(
    "arguments",
    [
        ("--json", "--pretty"), ("--from-start", "--since", "1h"), ("--tags", "a", "--sql", "a > 1"), ("-p", "nothing"),
        ("--since", "sometime"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(place: Place, topic: str, arguments: tuple[str, ...]) -> None:
    assert run(place, "tail", topic, "--no-wait", *arguments).exit_code == 2


# --- send -----------------------------------------------------------------------------------


def test_a_file_is_a_body(place: Place, topic: str, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"\xff\x00whole\n")

    assert run(place, "send", topic, f"@{tmp_path / 'body'}").exit_code == 0
    assert run(place, "send", topic, "@@home").exit_code == 0
    missing = run(place, "send", topic, "@nothing-here")

    first, second = (json.loads(line) for line in shown(place, topic, "--from-start", "--json"))
    assert first["body_base64"] == "/wB3aG9sZQo="
    assert second["body"] == "@home"
    assert (missing.exit_code, "written with two: @@nothing-here" in missing.stderr) == (2, True)


def test_lines_have_keys_of_their_own(place: Place, topic: str) -> None:
    sent = run(place, "send", topic, "-", "--key-separator", ":", "--keys", "all", stdin="a:one\nb c:two:2\n")
    without = run(place, "send", topic, "-", "--key-separator", ":", stdin="nothing\n")

    assert sent.exit_code == 0, sent.output
    assert shown(place, topic, "--from-start", "-f", "{keys}|{body}") == ["all a|one", "all b c|two:2"]
    assert (without.exit_code, "has no ':' between its key and its body" in without.stderr) == (2, True)


def test_what_tail_prints_as_json_is_sent_again_as_it_was(place: Place, topic: str, tmp_path: Path) -> None:
    copy = place.name("copy")
    (tmp_path / "binary").write_bytes(b"\xfe\xff")
    run(place, "topic", "create", copy, "--queues", "1")
    run(place, "send", topic, "text ü", "--tags", "t", "--keys", "k1 k2", "-p", "colour=red")
    run(place, "send", topic, f"@{tmp_path / 'binary'}")

    printed = "\n".join(shown(place, topic, "--from-start", "--json")) + "\n"
    sent = run(place, "send", copy, "-", "--input", "json", stdin=printed)
    wrong = run(place, "send", copy, "-", "--input", "json", stdin="[1]\n")

    assert sent.exit_code == 0, sent.output
    template = "{tags}|{keys}|{property.colour}|{base64}"
    assert shown(place, copy, "--from-start", "-f", template) == shown(place, topic, "--from-start", "-f", template)
    ids = [set(shown(place, name, "--from-start", "-f", "{id}")) for name in (topic, copy)]
    assert ids[0].isdisjoint(ids[1])
    assert (wrong.exit_code, "is no message as tail --json prints it" in wrong.stderr) == (2, True)


def test_a_message_comes_after_its_delay(place: Place, topic: str) -> None:
    sent = run(place, "send", topic, "later", "--delay", "1h")
    both = run(place, "send", topic, "later", "--delay", "1h", "--delay-level", "3")

    assert (sent.exit_code, both.exit_code) == (0, 2)
    assert shown(place, topic, "--from-start") == []


def test_a_rate_is_kept(place: Place, topic: str) -> None:
    """Four messages at 20 a second: the last of them goes 150 ms after the first."""
    assert run(place, "send", topic, "x", "--count", "4", "--rate", "20").exit_code == 0

    moments = [int(text) for text in shown(place, topic, "--from-start", "-f", "{born_ms}")]
    assert moments[-1] - moments[0] >= 140
