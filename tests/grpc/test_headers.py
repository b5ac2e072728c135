"""Packed headers: everything that another implementation packs is read, everything else refused."""

from __future__ import annotations

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from verniermq.contrib.grpc.headers import HeaderDecoder, HeadersBroken

NAMES = st.sampled_from([":path", ":method", "te", "x-mq-client-id", "x-mq-request-id", "grpc-timeout", "n" * 200])
VALUES = st.one_of(st.sampled_from(["", "POST", "trailers", "v" * 3000]), st.text("abcXYZ019~ {\xe9", max_size=200))
CALLS = st.lists(st.tuples(st.lists(st.tuples(NAMES, VALUES), max_size=12), st.booleans()), max_size=20)


@given(CALLS)
def test_what_another_implementation_packs_is_read(calls: list[tuple[list[tuple[str, str]], bool]]) -> None:
    encoder, decoder = Encoder(), HeaderDecoder()
    for fields, is_coded in calls:
        block = encoder.encode([(n.encode("latin-1"), v.encode("latin-1")) for n, v in fields], huffman=is_coded)

        assert decoder.decode(block) == dict(fields)


@given(st.lists(st.sampled_from([4096, 0, 100, 1000]), min_size=1, max_size=5), CALLS)
def test_a_table_that_becomes_smaller_forgets_the_same(
    sizes: list[int], calls: list[tuple[list[tuple[str, str]], bool]]
) -> None:
    encoder, decoder = Encoder(), HeaderDecoder()
    for size in sizes:
        encoder.header_table_size = size
        for fields, is_coded in calls:
            packed = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
            block = encoder.encode(packed, huffman=is_coded)
            assert decoder.decode(block) == dict(fields)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(block: bytes) -> None:
    decoder = HeaderDecoder()
    try:
        fields = decoder.decode(block)
    except HeadersBroken:
        return
    assert all(isinstance(value, str) for value in fields.values())


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # number 0
        b"\xbe",  # the newest of an empty table
        b"\xff\xff\xff\xff\xff\xff\x7f",
        b"\x40",
        b"\x40\x05ab",
        b"\x00\x01a\x7f\xff\xff\xff\x07b",
        b"\x82\x20",  # a new size behind a field
        b"\x3f\xe2\x1f",  # a table of 4097 bytes
        b"\x00\x81\xff\x00",  # the end of a coded text that is no end
    ],
)
def test_what_is_no_header_is_refused(block: bytes) -> None:
    with pytest.raises(HeadersBroken):
        HeaderDecoder().decode(block)


def test_few_bytes_cannot_become_many() -> None:
    decoder = HeaderDecoder()
    decoder.decode(b"\x40\x01a\x7f\x81\x1e" + b"v" * 3968)

    with pytest.raises(HeadersBroken, match="more than"):
        decoder.decode(b"\xbe" * 1000)
