"""The bytes between a master and a slave, however they are cut on their way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verniermq.kernel import ProtocolError
from verniermq.plugins.ha.frames import HEAD, LARGEST_BLOCK, Blocks, block


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 30), min_size=1, max_size=30))
def test_the_bytes_of_blocks_are_passed_on_as_they_come(bodies: list[bytes], cuts: list[int]) -> None:
    log, sent = b"", b""
    for body in bodies:
        sent += block(len(log), body)
        log += body
    blocks, got, silent = Blocks(), bytearray(), 0
    at = 0
    while at < len(sent):
        size = cuts[at % len(cuts)]
        for offset, part in blocks.feed(sent[at : at + size]):
            silent += not part
            if part:
                assert offset == len(got)
                got += part
        at += size

    assert bytes(got) == log
    assert silent == bodies.count(b"")


@pytest.mark.parametrize(("offset", "length"), [(0, -1), (0, LARGEST_BLOCK + 1), (-1, 8)])
def test_a_head_that_no_master_sends_is_refused(offset: int, length: int) -> None:
    with pytest.raises(ProtocolError):
        list(Blocks().feed(HEAD.pack(offset, length)))
