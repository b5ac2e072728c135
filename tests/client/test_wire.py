"""What the client does compiled is what it does in Python: records of a pull's answer, frames of sends.

Without the compiled module (``make fast``) there is nothing to compare, and these tests are left out.
"""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verniermq.client import MessageQueue, ReceivedMessage
from verniermq.client.record import WIRE, MessageFields, decode_plain
from verniermq.client.template import SendTemplate, header_parts
from verniermq.kernel import Connection
from verniermq.kernel.commitlog.record import pack_record, topic_field

compiled_only = pytest.mark.skipif(WIRE is None, reason="the client's codec is not compiled; make fast compiles it")
pytestmark = compiled_only

QUEUE = MessageQueue("T", "b-0", 2)
NAMES = [name for name in MessageFields.__slots__ if name not in ("_limit", "_body_error", "_receipt")]


class Kind(WIRE.MessageFields if WIRE is not None else MessageFields):  # type: ignore[misc]
    __slots__ = ()


def record(chance: random.Random, number: int) -> bytes:
    magic, field = topic_field("T" * chance.choice([1, 40, 127, 128]))
    hosts = [chance.randbytes(chance.choice([8, 8, 8, 20])) for _ in range(2)]
    body, text = chance.randbytes(chance.randrange(300)), chance.randbytes(chance.choice([0, 40, 600]))
    return pack_record(
        magic, field, body, text, queue_id=2, queue_offset=number, commit_log_offset=chance.randrange(2**62),
        store_timestamp=chance.randrange(2**41), store_host=hosts[0], born_host=hosts[1],
        born_timestamp=chance.randrange(2**41), flag=chance.randrange(-(2**31), 2**31),
        reconsume_times=chance.randrange(20),
    )  # fmt: skip


def walk(decode: Any, kind: Any, data: bytes, position: int, first: int, following: int) -> tuple[int, list[Any]]:
    messages: list[Any] = []
    end = decode(kind, data, position, QUEUE, "T", 1000, first, following, messages)
    fields = [[getattr(message, name) for name in NAMES] for message in messages]
    return end, fields


@given(st.integers(0, 2**32), st.integers(0, 12), st.booleans())
def test_records_are_read_alike(seed: int, count: int, damage: bool) -> None:
    chance = random.Random(seed)
    data = bytearray(b"".join(record(chance, number) for number in range(count)))
    for _ in range(chance.randrange(4) if damage and data else 0):
        at = chance.randrange(len(data))
        data[at : at + chance.randrange(2)] = chance.randbytes(chance.randrange(3))
    if damage and chance.random() < 0.3:
        del data[chance.randrange(len(data) + 1) :]
    first, following = chance.choice([(0, 2**63 - 1), (1, 9)])

    position = 0
    while position <= len(data):  # from each place where one of them stops, and a step on
        found = walk(WIRE.decode_plain, Kind, bytes(data), position, first, following)
        assert found == walk(decode_plain, MessageFields, bytes(data), position, first, following)
        position = found[0] + 1


@given(
    st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1), st.text(max_size=80),
    st.integers(0, 2**31 - 1), st.binary(max_size=300), st.sampled_from(["T", "%d", "a%sb", "1234567890"]),
)  # fmt: skip
def test_frames_are_filled_alike(born_ms: int, flag: int, properties: str, opaque: int, body: bytes, name: str) -> None:
    parts = header_parts({"a": name, "b": name, "e": "3", "g": "", "h": "", "i": "", "j": "0", "n": name})
    made = SendTemplate(*parts), WIRE.FilledTemplate(*parts)

    python, compiled = [template.frame(born_ms, flag, properties, opaque, body) for template in made]

    assert compiled == python


def test_what_no_header_can_hold_is_refused_alike() -> None:
    parts = header_parts({"g": "", "h": "", "i": ""})
    for template in (SendTemplate(*parts), WIRE.FilledTemplate(*parts)):
        with pytest.raises(TypeError):
            template.frame(1, 0, "\ud800", 1, b"x")
    with pytest.raises(ValueError, match="five parts"):
        WIRE.FilledTemplate(b"a", b"b")


def test_a_received_message_can_be_copied_and_pickled() -> None:
    message = ReceivedMessage("T", QUEUE, 7, 8, 9, 1, 0, 2, b"12345678", 3, b"12345678", 4, 5, b"body", b"a\x01b\x02")

    for twin in (copy.copy(message), pickle.loads(pickle.dumps(message))):
        assert (twin.body, twin.properties, twin.queue, twin.queue_offset) == (b"body", {"a": "b"}, QUEUE, 7)
        assert (twin.receipt, twin.body_error) == (None, None)


def test_only_messages_are_made() -> None:
    with pytest.raises(TypeError):
        WIRE.decode_plain(Connection, b"", 0, QUEUE, "T", 1, 0, 1, [])
