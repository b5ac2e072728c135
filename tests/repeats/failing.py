"""For a test of the repeats: one of these fails every second time, one crashes, and one is ended by somebody."""

from __future__ import annotations

import os
import signal


def test_every_second_time(repetition: int) -> None:
    assert repetition % 2


def test_always() -> None:
    pass


def test_crashing() -> None:
    os.kill(os.getpid(), signal.SIGABRT)


def test_ended() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
