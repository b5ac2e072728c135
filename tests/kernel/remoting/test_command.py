"""Commands: what a request says, what its answer repeats, and how fields are read."""

from __future__ import annotations

import pytest

from verniermq.kernel.codes import RequestCode, ResponseCode
from verniermq.kernel.errors import BadField, FrameTooLarge, MissingField
from verniermq.kernel.remoting import Command, FrameDecoder, request_name


def test_an_answer_repeats_the_opaque_and_the_header_form_of_its_request() -> None:
    request = Command(30, opaque=-7, binary=True, language="GO", version=317)

    answer = request.reply(ResponseCode.QUERY_NOT_FOUND, {"a": "b"}, b"body", "nothing there")

    assert (answer.code, answer.opaque, answer.binary, answer.flag) == (22, -7, True, 1)
    assert (answer.language, answer.version) == ("JAVA", 479)
    assert (answer.ext, answer.body, answer.remark) == ({"a": "b"}, b"body", "nothing there")


def test_flags_tell_answers_and_one_way_requests() -> None:
    assert not Command.request(30).is_response
    assert not Command.request(30).is_oneway
    assert Command.request(30, oneway=True).is_oneway
    assert Command(30).reply().is_response


@pytest.mark.parametrize(
    "pieces", [[b"ab", memoryview(b"cd"), bytearray(b"e")], (memoryview(b"abcde"),), memoryview(b"abcde")]
)
def test_a_body_may_be_given_in_pieces(pieces: object) -> None:
    request = Command(11, opaque=5)

    in_pieces = request.reply(0, {"n": "1"}, pieces).encode()  # type: ignore[arg-type]

    assert in_pieces == request.reply(0, {"n": "1"}, b"abcde").encode()


def test_pieces_are_handed_on_without_a_copy() -> None:
    piece = memoryview(bytearray(1_000_000))
    parts: list[bytes | bytearray | memoryview] = []

    size = Command(11).reply(0, {}, [piece]).encode_onto(parts)

    assert parts[-1] is piece
    assert size == sum(map(len, parts))


@pytest.mark.parametrize("binary", [True, False])
def test_a_frame_past_the_limit_is_refused_and_leaves_no_trace(binary: bool) -> None:
    parts: list[bytes | bytearray | memoryview] = []
    answer = Command(11, binary=binary).reply(0, {}, b"x" * 1000)
    exact = len(answer.encode())

    with pytest.raises(FrameTooLarge) as caught:
        answer.encode_onto(parts, exact - 1)

    assert parts == []
    assert (caught.value.size, caught.value.limit) == (exact, exact - 1)
    assert answer.encode_onto(parts, exact) == exact


@pytest.mark.parametrize("binary", [True, False])
def test_values_that_are_no_text_are_written_as_text(binary: bool) -> None:
    ext: dict[str, object] = {"i": 7, "b": True, "s": "x", "none": None, "code": RequestCode.PULL_MESSAGE}
    command = Command(0, ext=ext, binary=binary)  # type: ignore[arg-type]

    (decoded,) = FrameDecoder().feed(command.encode())

    assert decoded.ext == {"i": "7", "b": "true", "s": "x", "code": "11"}


def test_an_answer_always_has_ext_fields() -> None:
    assert b'"extFields":{}' in Command(310).reply().encode()


# --- reading fields ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("-1", -1), ("+5", 5), ("007", 7), (str(2**63 - 1), 2**63 - 1), (str(-(2**63)), -(2**63))],
)
def test_numbers_of_64_bits_are_read(text: str, number: int) -> None:
    assert Command(11, ext={"offset": text}).integer("offset") == number


@pytest.mark.parametrize(
    "text", ["x", "1.5", " 7", "1_000", "0x10", "-", "+", "--1", str(2**63), str(-(2**63) - 1), "9" * 5000]
)
def test_what_is_no_number_is_refused_with_its_name_and_value(text: str) -> None:
    with pytest.raises(BadField) as caught:
        Command(11, ext={"offset": text}).integer("offset", 0)

    assert caught.value.code == ResponseCode.INVALID_PARAMETER
    assert caught.value.field == "offset"
    assert text.startswith(str(caught.value.value))


def test_a_missing_field_is_its_default_or_an_error_that_names_the_request() -> None:
    request = Command(11, ext={"empty": ""})

    assert request.text("topic", None) is None
    assert request.text("empty") == ""
    assert request.integer("empty", 3) == 3
    assert request.integer("offset", 9) == 9
    assert request.boolean("order", False) is False
    for read in (request.text, request.integer, request.boolean):
        with pytest.raises(MissingField, match=r"PULL_MESSAGE \(11\) lacks the field 'topic'"):
            read("topic")


def test_truth_is_read_as_java_reads_it() -> None:
    request = Command(11, ext={"a": "true", "b": "TRUE", "c": "false", "d": "1", "e": ""})

    assert [request.boolean(name) for name in "abcde"] == [True, True, False, False, False]


def test_a_request_is_named_by_its_code() -> None:
    assert request_name(11) == "PULL_MESSAGE (11)"
    assert request_name(99999) == "code 99999"
