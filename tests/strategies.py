"""Hypothesis strategies for VernierMQ's own types, shared by all tests."""

from __future__ import annotations

from hypothesis import strategies as st

from verniermq.kernel.remoting import Command
from verniermq.kernel.remoting.binary_header import LANGUAGES, RESTORED_CODES

int32 = st.integers(-(2**31), 2**31 - 1)
wire_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
"""What UTF-8 can hold: anything but half a surrogate pair."""


@st.composite
def commands(draw: st.DrawFn, binary: st.SearchStrategy[bool] | None = None) -> Command:
    """Requests and answers, in both forms of header."""
    in_binary = draw(st.booleans() if binary is None else binary)
    codes = st.integers(-(2**15), 2**15 - 1).filter(lambda code: code not in RESTORED_CODES) if in_binary else int32
    return Command(
        code=draw(codes),
        opaque=draw(int32),
        flag=draw(int32),
        ext=draw(st.dictionaries(wire_text, wire_text, max_size=8)),
        remark=draw(wire_text),
        language=draw(st.sampled_from(LANGUAGES)),
        version=draw(st.integers(-(2**15), 2**15 - 1)),
        body=draw(st.binary(max_size=2000)),
        binary=in_binary,
    )
