"""For a test of the repeats: one of these fails every second time."""

from __future__ import annotations


def test_every_second_time(repetition: int) -> None:
    assert repetition % 2


def test_always() -> None:
    pass
