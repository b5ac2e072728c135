"""Records: RocketMQ's bytes, and nothing else is taken for one."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verniermq.kernel.commitlog.integrity import NothingWritten, whole_record_at
from verniermq.kernel.commitlog.record import (
    MAGIC_V1,
    MAGIC_V2,
    decode,
    decode_all,
    layout,
    pack_blank,
    pack_record,
    properties_of,
    topic_field,
)
from verniermq.kernel.errors import CorruptRecord
from verniermq.kernel.message import format_properties, pack_host

V1 = bytes.fromhex(
    """
    00 00 00 9e da a3 20 a7 36 10 a6 86 00 00 00 01
    00 00 00 00 00 00 00 00 00 00 00 07 00 00 00 00
    00 00 10 00 00 00 00 00 00 00 01 8b cf e5 68 00
    c0 a8 01 0a 00 00 c3 50 00 00 01 8b cf e5 68 7b
    0a 00 00 05 00 00 2a 9f 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 05 68 65 6c 6c 6f 02 54 31
    00 3c 54 41 47 53 01 54 61 67 41 02 4b 45 59 53
    01 6b 31 02 55 4e 49 51 5f 4b 45 59 01 43 30 41
    38 30 31 30 41 30 30 30 31 30 42 32 43 33 44 34
    45 30 30 30 30 30 30 30 30 30 30 30 30 02
    """
)
V6 = bytes.fromhex(
    """
    00 00 00 76 da a3 20 a7 0c dc 16 83 00 00 00 01
    00 00 00 00 00 00 00 00 00 00 00 07 00 00 00 00
    00 00 10 00 00 00 00 30 00 00 01 8b cf e5 68 00
    20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01
    00 00 c3 50 00 00 01 8b cf e5 68 7b 20 01 0d b8
    00 00 00 00 00 00 00 00 00 00 00 02 00 00 2a 9f
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01
    78 02 54 31 00 00
    """
)
PROPERTIES = {"TAGS": "TagA", "KEYS": "k1", "UNIQ_KEY": "C0A8010A00010B2C3D4E000000000000"}


def test_a_record_has_rocketmqs_bytes() -> None:
    record = pack_record(
        *topic_field("T1"),
        b"hello",
        format_properties(PROPERTIES).encode(),
        queue_id=1,
        queue_offset=7,
        commit_log_offset=4096,
        store_timestamp=1700000000123,
        store_host=pack_host("10.0.0.5", 10911),
        born_timestamp=1700000000000,
        born_host=pack_host("192.168.1.10", 50000),
    )

    assert record == V1


def test_a_record_with_ipv6_addresses_has_rocketmqs_bytes() -> None:
    record = pack_record(
        *topic_field("T1"),
        b"x",
        b"",
        queue_id=1,
        queue_offset=7,
        commit_log_offset=4096,
        store_timestamp=1700000000123,
        store_host=pack_host("2001:db8::2", 10911),
        born_timestamp=1700000000000,
        born_host=pack_host("2001:db8::1", 50000),
    )

    assert record == V6


def test_a_topic_of_more_than_127_bytes_makes_a_record_of_version_2() -> None:
    topic = "%RETRY%" + "g" * 121
    record = pack_record(
        *topic_field(topic),
        b"hi",
        b"",
        queue_id=0,
        queue_offset=0,
        commit_log_offset=0,
        store_timestamp=0,
        store_host=bytes(8),
    )

    assert record[:8] == bytes.fromhex("00 00 00 de da a3 20 ab")
    assert record[0x54:0x64] == bytes.fromhex("00 00 00 02 68 69 00 80 25 52 45 54 52 59 25 67")
    assert decode(record).topic == topic


def test_a_record_is_read_back() -> None:
    message = decode(V1)

    assert (message.topic, message.queue_id, message.queue_offset, message.body) == ("T1", 1, 7, b"hello")
    assert message.properties == PROPERTIES
    assert message.commit_log_offset == 4096
    assert message.size == len(V1)
    assert message.body_crc == 0x3610A686
    assert message.born_host == pack_host("192.168.1.10", 50000)
    assert message.store_timestamp == 1700000000123
    assert message.offset_message_id == "0A00000500002A9F0000000000001000"


def test_properties_are_read_without_the_rest() -> None:
    assert properties_of(V1) == PROPERTIES
    assert properties_of(V6) == {}


def test_records_in_a_row_are_all_read() -> None:
    assert [message.body for message in decode_all(V1 + V6 + V1)] == [b"hello", b"x", b"hello"]


def test_a_blank_has_rocketmqs_bytes_and_ends_the_segment() -> None:
    blank = pack_blank(1000)

    assert blank == bytes.fromhex("00 00 03 e8 cb d4 31 94")
    assert whole_record_at(blank + bytes(992), 0, 4096) is None


def test_zeros_are_no_record_and_no_damage() -> None:
    with pytest.raises(NothingWritten, match="4096"):
        whole_record_at(bytes(500), 0, 4096)


def test_a_record_that_lies_elsewhere_is_none() -> None:
    with pytest.raises(CorruptRecord, match="it lies at 4096"):
        whole_record_at(V1, 0, 5000)


@pytest.mark.parametrize("position", [0, 3, 4, 7, 39, 84, 87, 88, 92, 93, 96, 97])
def test_a_changed_byte_of_the_frame_is_noticed(position: int) -> None:
    """Sizes, magic, the address bits and the body are covered; what only the content says is not."""
    broken = bytearray(V1)
    broken[position] ^= 0x31

    with pytest.raises(CorruptRecord):
        whole_record_at(broken, 0, 4096)


@pytest.mark.parametrize("length", range(len(V1)))
def test_a_record_cut_anywhere_is_no_whole_one(length: int) -> None:
    with pytest.raises(CorruptRecord):
        whole_record_at(V1[:length] + bytes(len(V1) - length), 0, 4096, len(V1))


hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=20)


@given(
    topic=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200),
    body=st.binary(max_size=300),
    properties=st.dictionaries(words, words, max_size=5),
    numbers=st.tuples(int32, int32, int64, int64, int64, int64, int32, int64),
    born_host=hosts,
    store_host=hosts,
    before=st.binary(max_size=20),
)
def test_what_was_packed_is_read_back(
    topic: str,
    body: bytes,
    properties: dict[str, str],
    numbers: tuple[int, ...],
    born_host: bytes,
    store_host: bytes,
    before: bytes,
) -> None:
    queue_id, flag, queue_offset, offset, born, stored, reconsumed, prepared = numbers

    record = pack_record(
        *topic_field(topic),
        body,
        format_properties(properties).encode(),
        queue_id=queue_id,
        queue_offset=queue_offset,
        commit_log_offset=offset,
        store_timestamp=stored,
        store_host=store_host,
        flag=flag,
        born_timestamp=born,
        born_host=born_host,
        reconsume_times=reconsumed,
        prepared_transaction_offset=prepared,
    )
    message = decode(before + record, len(before))

    assert (message.topic, message.body, message.properties) == (topic, body, properties)
    assert (message.queue_id, message.flag, message.queue_offset, message.commit_log_offset) == numbers[:4]
    assert (message.born_timestamp, message.store_timestamp) == (born, stored)
    assert (message.reconsume_times, message.prepared_transaction_offset) == (reconsumed, prepared)
    assert (message.born_host, message.store_host, message.size) == (born_host, store_host, len(record))
    assert properties_of(record) == properties


def test_a_record_that_claims_an_impossible_number_is_none() -> None:
    for position, value in ((12, b"\xff"), (20, b"\x80"), (20, b"\x01"), (26, b"\x10")):
        broken = bytearray(V1)
        broken[position : position + 1] = value

        with pytest.raises(CorruptRecord, match="claims to be message"):
            whole_record_at(broken, 0, 4096)


@given(
    head=st.sampled_from(
        [b"", V1[:8], V6[:40], V1[:88], struct.pack(">iI", 120, MAGIC_V2), struct.pack(">iI", 95, MAGIC_V1)]
    ),
    rest=st.binary(max_size=200),
)
def test_arbitrary_bytes_give_only_our_errors(head: bytes, rest: bytes) -> None:
    data = head + rest
    for read in (lambda: decode(data), lambda: layout(data, 0), lambda: whole_record_at(data, 0, 4096)):
        try:
            read()
        except CorruptRecord:
            pass
