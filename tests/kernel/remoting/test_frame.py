"""Frames: the worked examples byte for byte, any command there and back, any bytes without harm."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import commands
from verniermq.kernel.remoting import Command, FrameDecoder, RemotingLimits

from .conftest import fields, wire_frame


def frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def decode_all(*chunks: bytes) -> tuple[list[Command], FrameDecoder]:
    decoder = FrameDecoder()
    return [command for chunk in chunks for command in decoder.feed(chunk)], decoder


# --- byte for byte -------------------------------------------------------------------------


def test_a_json_request_is_written_as_java_writes_it() -> None:
    request = Command(30, opaque=7, ext={"queueId": "0", "topic": "T"})

    assert request.encode() == wire_frame("get_max_offset_request.json")


def test_a_json_answer_is_written_as_java_writes_it() -> None:
    (request,), _ = decode_all(wire_frame("get_max_offset_request.json"))

    answer = request.reply(0, {"offset": "42"}).encode()

    assert answer[:8].hex(" ") == "00 00 00 7f 00 00 00 7b"
    assert answer[8:] == (
        b'{"code":0,"extFields":{"offset":"42"},"flag":1,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":479}'
    )


def test_a_binary_request_is_written_as_java_writes_it() -> None:
    request = Command(30, opaque=7, ext={"topic": "T", "queueId": "0"}, binary=True)

    assert request.encode() == wire_frame("get_max_offset_request.binary")


def test_binary_answers_are_written_as_the_reference_has_them() -> None:
    found = Command(0, 7, 1, {"offset": "42"}, language="PYTHON", body=b"OK", binary=True)
    missing = Command(30, 8, binary=True).reply(17, remark="no topic")

    assert found.encode() == wire_frame("get_max_offset_answer.binary")
    assert missing.encode() == wire_frame("topic_not_exist_answer.binary")


@pytest.mark.parametrize("form", ["json", "binary"])
def test_both_forms_of_a_request_say_the_same(form: str) -> None:
    (request,), decoder = decode_all(wire_frame(f"get_max_offset_request.{form}"))

    expected = Command(30, 7, 0, {"queueId": "0", "topic": "T"}, "", "JAVA", 479, b"", form == "binary")
    assert fields(request) == fields(expected)
    assert decoder.error is None


# --- there and back ------------------------------------------------------------------------


@given(commands())
def test_any_command_comes_back_as_it_was(command: Command) -> None:
    (decoded,), decoder = decode_all(command.encode())

    assert fields(decoded) == fields(command)
    assert decoder.error is None


@given(st.lists(commands(), max_size=4), st.lists(st.integers(min_value=1, max_value=400), max_size=40))
def test_however_the_bytes_are_cut_the_commands_are_the_same(sent: list[Command], sizes: list[int]) -> None:
    data = b"".join(command.encode() for command in sent)
    chunks = []
    for size in sizes:
        chunks.append(data[:size])
        data = data[size:]

    decoded, decoder = decode_all(*chunks, data)

    assert [fields(command) for command in decoded] == [fields(command) for command in sent]
    assert decoder.error is None


def test_every_split_into_single_bytes_works() -> None:
    data = wire_frame("get_max_offset_request.json") + wire_frame("get_max_offset_answer.binary")

    decoded, _ = decode_all(*(data[i : i + 1] for i in range(len(data))))

    assert [command.opaque for command in decoded] == [7, 7]


def test_a_large_body_in_many_chunks_arrives_whole() -> None:
    body = bytes(range(256)) * 16384
    data = Command(310, opaque=1, body=body).encode() + Command(310, opaque=2).encode()

    decoded, _ = decode_all(*(data[i : i + 1460] for i in range(0, len(data), 1460)))

    assert [command.opaque for command in decoded] == [1, 2]
    assert decoded[0].body == body


# --- headers as other clients write them ---------------------------------------------------


def test_numbers_and_booleans_in_ext_fields_become_exact_text() -> None:
    header = (
        b'{"code":310,"opaque":1,"extFields":{"e":0,"k":false,"m":true,"g":1700000000000,"n":null,'
        b'"big":123456789012345678901234567890,"min":-9223372036854775808,"f":1.50,"s":"x","o":{"a":[1]}}}'
    )

    (request,), _ = decode_all(frame(header))

    assert request.ext == {
        "e": "0", "k": "false", "m": "true", "g": "1700000000000", "s": "x", "o": request.ext["o"], "f": "1.50",
        "big": "123456789012345678901234567890", "min": "-9223372036854775808",
    }  # fmt: skip
    assert "a" in json.loads(request.ext["o"])


@pytest.mark.parametrize("members", [b"", b',"extFields":null,"remark":null,"language":null', b',"unknown":[{"x":1}]'])
def test_missing_and_unknown_members_are_fine(members: bytes) -> None:
    (request,), _ = decode_all(frame(b'{"code":34,"opaque":0%s}' % members, b"body"))

    assert (request.code, request.flag, request.version, request.language) == (34, 0, 0, "OTHER")
    assert (request.ext, request.remark, request.body) == ({}, "", b"body")


def test_the_last_of_two_equal_keys_counts() -> None:
    entries = b"\0\1a\0\0\0\1x" + b"\0\1a\0\0\0\1y"
    binary = struct.pack(">hBhiii", 30, 0, 479, 1, 0, 0) + struct.pack(">i", len(entries)) + entries

    decoded, _ = decode_all(frame(b'{"code":1,"opaque":1,"extFields":{"a":"x","a":"y"}}'), frame(binary, kind=1))

    assert [command.ext for command in decoded] == [{"a": "y"}, {"a": "y"}]


@pytest.mark.parametrize("code", [200050, 200051, 200053, 200151])
def test_pop_codes_survive_the_16_bits_of_a_binary_header(code: int) -> None:
    request = Command(code, binary=True)
    answer = Command(code & 0xFFFF, flag=1, binary=True)

    decoded, _ = decode_all(request.encode(), answer.encode())

    assert [command.code for command in decoded] == [code, code & 0xFFFF]


def test_an_unknown_language_number_is_no_error() -> None:
    header = struct.pack(">hBhiiii", 30, 200, 479, 1, 0, 0, 0)

    (request,), _ = decode_all(frame(header, kind=1))

    assert request.language == "OTHER"


# --- bytes that are no frame ---------------------------------------------------------------

BINARY_FIXED = struct.pack(">hBhii", 30, 0, 479, 1, 0)

BAD_FRAMES = {
    "length of 2 GiB": (b"\x7f\xff\xff\xff\0\0\0\0", "exceeds max_frame_size of 16777216"),
    "negative length": (b"\xff\xff\xff\xff\0\0\0\0", "frame length is -1"),
    "length of 3": (b"\0\0\0\3\0\0\0\0", "frame length is 3"),
    "header longer than frame": (b"\0\0\0\x08\0\0\0\x09{}{}", "header of 9 bytes does not fit"),
    "header past its limit": (b"\0\x20\0\0\0\x1f\0\0", "exceeds max_header_size"),
    "unknown header form": (b"\0\0\0\x08\2\0\0\2{}{}", "header form is 2"),
    "TLS where there is none": (b"\x16\x03\x01\x02\0\x01\0\x01", r"the peer speaks TLS.*permissive"),
    "a text protocol": (b"GET / HTTP/1.1\r\n\r\n", "exceeds max_frame_size"),
    "no JSON": (frame(b"{code:1}"), "no JSON"),
    "an empty header": (frame(b""), "no JSON"),
    "no UTF-8": (frame(b'{"code":1,"opaque":1,"remark":"\xff"}'), "no JSON"),
    "too deep": (frame(b"[" * 5000), "no JSON"),
    "an array": (frame(b"[]"), "JSON array, expected an object"),
    "null": (frame(b"null"), "JSON null, expected an object"),
    "a number": (frame(b"7"), "JSON number, expected an object"),
    "no code": (frame(b'{"opaque":1}'), "'code' of the header is None, expected an integer"),
    "code as text": (frame(b'{"code":"1","opaque":1}'), "'code' of the header is '1', expected an integer"),
    "code as boolean": (frame(b'{"code":true,"opaque":1}'), "'code' of the header is True"),
    "opaque as float": (frame(b'{"code":1,"opaque":1.5}'), "'opaque' of the header is 1.5"),
    "flag as text": (frame(b'{"code":1,"opaque":1,"flag":"0"}'), "'flag' of the header is '0'"),
    "null flag": (frame(b'{"code":1,"opaque":1,"flag":null}'), "'flag' of the header is None"),
    "version as array": (frame(b'{"code":1,"opaque":1,"version":[]}'), "'version' of the header is \\[\\]"),
    "language as number": (frame(b'{"code":1,"opaque":1,"language":9}'), "'language' of the header is 9"),
    "remark as object": (frame(b'{"code":1,"opaque":1,"remark":{"a":1}}'), "'remark' of the header"),
    "ext as array": (frame(b'{"code":1,"opaque":1,"extFields":[1]}'), "'extFields' of the header is \\[1\\]"),
    "ext as empty array": (frame(b'{"code":1,"opaque":1,"extFields":[]}'), "'extFields' of the header is \\[\\]"),
    "binary too short": (frame(b"\0\x1e\0", kind=1), "too short"),
    "binary remark past the end": (frame(BINARY_FIXED + b"\0\0\0\x7f" + b"\0\0\0\0", kind=1), "too short"),
    "binary remark negative": (frame(BINARY_FIXED + b"\xff\xff\xff\xff" + b"\0\0\0\0", kind=1), "remark has -1"),
    "binary ext past the end": (frame(BINARY_FIXED + b"\0\0\0\0" + b"\0\0\0\x09", kind=1), "ext fields 9"),
    "binary ext negative": (frame(BINARY_FIXED + b"\0\0\0\0" + b"\xff\xff\xff\xff", kind=1), "ext fields -1"),
    "binary bytes left over": (frame(BINARY_FIXED + bytes(8) + b"x", kind=1), "ext fields 0"),
    "binary key past the end": (frame(BINARY_FIXED + bytes(4) + b"\0\0\0\3" + b"\0\x09a", kind=1), "do not add up"),
    "binary value negative": (
        frame(BINARY_FIXED + bytes(4) + b"\0\0\0\x07" + b"\0\1a\xff\xff\xff\xff", kind=1), "do not add up",
    ),
    "binary value no UTF-8": (
        frame(BINARY_FIXED + bytes(4) + b"\0\0\0\x08" + b"\0\1a\0\0\0\1\xff", kind=1), "no UTF-8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_bytes_that_are_no_frame_are_refused_after_the_good_ones(name: str) -> None:
    bad, reason = BAD_FRAMES[name]
    good = wire_frame("get_max_offset_request.json")
    decoder = FrameDecoder()

    before = decoder.feed(good + bad)
    after = decoder.feed(good)

    assert [command.opaque for command in before] == [7]
    with pytest.raises(Exception, match=reason):
        raise decoder.error or AssertionError("nothing was refused")
    assert after == []


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_bad_frame_is_refused_however_it_is_cut(name: str) -> None:
    bad, reason = BAD_FRAMES[name]

    decoded, decoder = decode_all(*(bad[i : i + 1] for i in range(len(bad))))

    assert decoded == []
    with pytest.raises(Exception, match=reason):
        raise decoder.error or AssertionError("nothing was refused")


def test_a_frame_of_exactly_the_largest_size_is_taken() -> None:
    command = Command(310, body=b"x" * 1000)
    size = len(command.encode())

    assert len(FrameDecoder(RemotingLimits(max_frame_size=size)).feed(command.encode())) == 1
    strict = FrameDecoder(RemotingLimits(max_frame_size=size - 1))
    assert strict.feed(command.encode()) == []
    assert f"frame of {size} bytes exceeds max_frame_size of {size - 1}" in str(strict.error)


def test_a_frame_that_is_too_large_is_refused_before_its_body_arrives() -> None:
    decoder = FrameDecoder()

    decoder.feed(b"\x01\0\0\0")

    assert decoder.error is not None


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_arbitrary_bytes_do_no_harm(chunks: list[bytes]) -> None:
    decoded, _ = decode_all(*chunks)

    assert all(isinstance(command, Command) for command in decoded)


@given(st.binary(max_size=200), st.binary(max_size=20), st.sampled_from([0, 1]))
def test_arbitrary_headers_do_no_harm(header: bytes, body: bytes, kind: int) -> None:
    decoded, decoder = decode_all(frame(header, body, kind))

    assert (len(decoded) == 1) == (decoder.error is None)


@given(commands(), st.data())
def test_a_spoiled_byte_does_no_harm(command: Command, data: st.DataObject) -> None:
    spoiled = bytearray(command.encode())
    spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))

    for decoded in decode_all(bytes(spoiled))[0]:
        assert all(type(value) is str for value in decoded.ext.values())
        decoded.encode()


@given(st.dictionaries(st.sampled_from(["a", "topic", "\0", "é", "k" * 300]), st.text("\0\1a\xffÿ中", max_size=300)))
def test_values_that_look_like_lengths_are_read_as_they_are(ext: dict[str, str]) -> None:
    first, _ = decode_all(Command(1, ext=ext, binary=True).encode())
    again, _ = decode_all(Command(1, ext=ext, binary=True).encode())

    assert first[0].ext == again[0].ext == ext


@given(st.lists(st.sampled_from([b"\0\1a", b"\0\0\0", b"\0", b"\1", b"a", b"\2", b"\0\5topic", b"\xff"]), max_size=12))
def test_the_quick_way_through_a_binary_header_never_guesses(tokens: list[bytes]) -> None:
    entries = b"".join(tokens)
    expected: dict[str, str] | None = {}
    rest = entries
    while rest and expected is not None:
        key_size = int.from_bytes(rest[:2], "big")
        value_size = int.from_bytes(rest[2 + key_size : 6 + key_size], "big")
        size = 6 + key_size + value_size
        key, value, whole = rest[2 : 2 + key_size], rest[6 + key_size : size], len(rest) >= size
        try:
            expected = {**expected, key.decode(): value.decode()} if whole else None
        except UnicodeDecodeError:
            expected = None
        rest = rest[size:]

    decoded, decoder = decode_all(frame(BINARY_FIXED + bytes(4) + len(entries).to_bytes(4, "big") + entries, kind=1))

    assert [command.ext for command in decoded] == ([] if expected is None else [expected])
    assert (decoder.error is None) == (expected is not None)
