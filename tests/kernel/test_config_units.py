"""Sizes and durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verniermq.kernel.config import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("1500", 1500), ("12B", 12), ("4KiB", 4096), ("4MiB", 4 << 20), ("1GiB", 1 << 30), ("2TiB", 2 << 40),
        ("4mib", 4 << 20), ("1 GiB", 1 << 30), ("1.5GiB", 3 << 29), ("64K", 65536), ("1g", 1 << 30), ("4MB", 4_000_000),
    ],
)  # fmt: skip
def test_a_size_is_read_with_its_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0), ("2.5", 2.5), ("500ms", 0.5), ("5s", 5.0), ("2m", 120.0), ("72h", 259200.0), ("7d", 604800.0),
        ("1h30m", 5400.0), ("1d 12h", 129600.0), ("1m0.5s", 60.5), ("1s500ms", 1.5), ("0.1ms", 0.0001),
    ],
)  # fmt: skip
def test_a_duration_is_read_with_its_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "MiB", "1XiB", "-1MiB", "1e3", "0.3B", "1GiB2MiB", "1" * 50, "nan", "١KiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "h", "5 parsecs", "-5s", "30m1h", "5s5s", "1e3s", "5S", "inf", "1h 30", "9" * 50])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.5, "500ms"), (1.5, "1.5s"), (90, "1m30s"), (5400, "1h30m"), (259200, "3d"), (0.0001, "0.1ms")],
)
def test_a_duration_is_written_with_the_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(0, 1 << 60))
def test_a_size_survives_being_written(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.floats(0, 1e9).filter(lambda seconds: seconds == 0 or seconds > 1e-12))
def test_a_duration_survives_being_written(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.text())
def test_any_text_is_a_unit_or_a_value_error(text: str) -> None:
    for parse in (parse_size, parse_duration):
        try:
            assert parse(text) >= 0
        except ValueError:
            pass  # the only way to say no
