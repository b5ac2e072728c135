"""The answer from the template is the answer that the general encoder would write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.remoting.conftest import fields
from verniermq.kernel.handlers.sendanswer import REGION, send_answer
from verniermq.kernel.remoting import Command, FrameDecoder

UNIQUE_KEYS = st.one_of(st.text(min_size=1, max_size=40), st.from_regex(r"[0-9A-F]{32}", fullmatch=True))
NUMBERS = st.integers(0, 2**63 - 1)


def general_answer(request: Command, message_id: str, queue_id: int, queue_offset: int, unique_key: str) -> Command:
    ext = {
        "msgId": message_id, "queueId": str(queue_id), "queueOffset": str(queue_offset), "transactionId": unique_key,
        "MSG_REGION": REGION, "TRACE_ON": "true",
    }  # fmt: skip
    return request.reply(0, ext)


@given(UNIQUE_KEYS, st.integers(0, 1000), NUMBERS, st.integers(-(2**31), 2**31 - 1), st.booleans())
def test_its_bytes_and_its_fields_are_those_of_any_other_answer(
    unique_key: str, queue_id: int, queue_offset: int, opaque: int, binary: bool
) -> None:
    request = Command(310, opaque, binary=binary)
    values = ("7F00000100002A9F000000000000022B", queue_id, queue_offset, unique_key)
    general = general_answer(request, *values)

    (read,) = FrameDecoder().feed(send_answer(request, *values).encode())
    assert fields(read) == fields(general)
    assert fields(send_answer(request, *values)) == fields(general)


def test_whoever_looks_at_its_fields_does_not_change_what_is_written() -> None:
    answer = send_answer(Command(310, 7), "7F00", 3, 12, "ABC")
    written = answer.frame

    assert answer.ext["queueOffset"] == "12"
    assert answer.encode() == written
    answer.ext["more"] = "yes"
    answer.frame = b""
    (read,) = FrameDecoder().feed(answer.encode())
    assert (read.opaque, read.ext["more"], read.ext["queueId"]) == (7, "yes", "3")


def test_it_has_nothing_that_an_answer_has_not() -> None:
    with pytest.raises(AttributeError, match="no 'colour'"):
        _ = send_answer(Command(310, 7), "7F00", 3, 12, "ABC").colour  # type: ignore[attr-defined]
