"""Properties split by what is compiled are those that numpy splits.

Without the compiled module (``make fast``) there is nothing to compare, and these tests are left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.arrow.records import TEXTS
from verniermq.contrib.arrow import pairs
from verniermq.contrib.arrow.pairs import PAIRS, WANTED, SplitProperties, split_properties
from verniermq.contrib.arrow.properties import Properties

pytestmark = pytest.mark.skipif(PAIRS is None, reason="the splitting is not compiled; make fast compiles it")

SAME = "TAGS\x01a\x02KEYS\x01b\x02"
PIECES = st.one_of(
    TEXTS.map(str.encode),
    st.lists(st.sampled_from([b"a", b"\x01", b"\x02", b"TAGS", b"\xc3", b"\xa9"]), max_size=12).map(b"".join),
)


def laid(texts: list[bytes]) -> tuple[Any, Any, Any]:
    """Texts in one buffer as records have them, with other bytes between, and before and after all."""
    data = b"\x02\x01" + b"".join(text + b"\x01\x02" for text in texts) + bytes(8)
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    return np.frombuffer(data, dtype=np.uint8), 2 + np.cumsum(lengths + 2) - lengths - 2, lengths


def found(split: Any, texts: list[bytes]) -> Any:
    """Every column that can be asked for, or what is wrong."""
    try:
        made = split(*laid(texts))
        maps = made.maps()
        maps.validate(full=True)
        return maps.to_pylist(), [made.column(name).to_pylist() for name in WANTED]
    except UnicodeDecodeError:
        return "not UTF-8"


@settings(deadline=None)
@given(st.lists(PIECES, max_size=12))
@example([])
@example([b"", b""])
@example([f"{SAME}TAGS\x01later\x02".encode(), SAME.encode(), SAME.encode()])
@example([SAME.encode(), SAME.removesuffix("\x02").encode(), "TAGS\x01é\x02".encode()])
def test_both_ways_find_the_same_pairs(texts: list[bytes]) -> None:
    assert found(SplitProperties.split, texts) == found(Properties.split, texts)


@given(st.lists(TEXTS, min_size=1, max_size=3), st.integers(2, 20))
def test_records_that_repeat_each_other_have_pairs_of_their_own(texts: list[str], times: int) -> None:
    encoded = [text.encode() for text in texts] * times
    assert found(SplitProperties.split, encoded) == found(Properties.split, encoded)


def test_records_of_many_properties_are_left_to_numpy() -> None:
    most, more = ("".join(f"{number}\x01x\x02" for number in range(count)).encode() for count in (64, 65))

    assert SplitProperties.split(*laid([most])) is not None
    assert SplitProperties.split(*laid([b"", more])) is None
    assert isinstance(split_properties(*laid([more])), Properties)
    assert found(split_properties, [most, more]) == found(Properties.split, [most, more])


def test_without_what_is_compiled_numpy_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "PAIRS", None)

    assert isinstance(split_properties(*laid([SAME.encode()])), Properties)


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, 99), (2**62, 2**62), (3, -1)])
def test_a_text_outside_the_data_is_refused(start: int, length: int) -> None:
    data, _, _ = laid([SAME.encode()])
    room = np.empty(1000, np.int32), np.empty(1000, np.uint8)

    with pytest.raises(ValueError, match="outside the data"):
        PAIRS.split(  # type: ignore[union-attr]
            data, np.array([start]), np.array([length]), (), np.empty(2, np.int32), room[0], room[1], room[0], room[1],
            np.empty((0, 1), np.int32),
        )  # fmt: skip
