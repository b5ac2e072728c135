"""The Rust client of the remoting protocol: what its producers and consumers offer, each once.

Its 360 crates take minutes to compile, so this runs by ``make interop-rust`` and not with the others.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .drivers import DriverRun
from .toolchains import rust_command
from .verniermq_process import VernierMQBroker
from .wire import create_topic

pytestmark = pytest.mark.timeout(1800)

TOPICS = ("rust-plain", "rust-orderly", "rust-popped")
MANY = [str(number) for number in range(100)]
STEPS = [f"step {number}" for number in range(5)]


def texts(run: DriverRun, event: str) -> list[str]:
    return [line["what"] for line in run.events(event)]


def test_a_rust_program_sends_and_hears_in_all_its_ways(tmp_path: Path) -> None:
    """Plain, batched, orderly, delayed, retried, transactional and popped messages, each handled exactly once."""
    command = rust_command()
    plain = sorted([*MANY, "batch 0", "batch 1", "batch 2", "delayed", "again", "commit"])
    with VernierMQBroker(tmp_path) as broker:
        for topic in TOPICS:
            create_topic(broker.broker, broker.namesrv, topic)
        run = DriverRun("rust", [*command, broker.namesrv], tmp_path)
        try:
            run.wait_for("produced", 60)
            deadline = time.monotonic() + 120
            while (
                len(texts(run, "plain")) < len(plain)
                or len(texts(run, "popped")) < len(MANY)
                or len(texts(run, "orderly")) < len(STEPS)
                or len(texts(run, "asked")) < 2
            ):
                assert time.monotonic() < deadline, (texts(run, "plain"), texts(run, "popped"), texts(run, "asked"))
                time.sleep(0.05)
        finally:
            run.terminate()

    assert texts(run, "sent") == ["SendOk"] * (2 * len(MANY))
    assert sorted(texts(run, "plain")) == plain
    assert sorted(texts(run, "popped")) == sorted(MANY)
    assert texts(run, "orderly") == STEPS
    assert set(texts(run, "asked")) == {"commit", "roll back"}
