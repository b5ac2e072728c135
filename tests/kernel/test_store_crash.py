"""A broker's store is killed at random moments, again and again, and loses nothing that it acknowledged."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.commitlog.crash_writer import SETTINGS
from tests.kernel.commitlog.stores import abandon, bodies, open_store, pending

ROOT = Path(__file__).parents[2]
ROUNDS = 16


class Victims:
    """Processes that write to a store until they are killed."""

    def __init__(self, directory: Path) -> None:
        self._notes = directory / "notes"
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.kernel.commitlog.crash_writer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def run_and_kill(self, store: Path, flush: str, first: int, seconds: float) -> list[tuple[str, int, int, int]]:
        """Let one write for a while; what it acknowledged, as (topic, queue id, queue offset, number)."""
        server, notes = self._server, self._notes
        assert server.stdin is not None
        assert server.stdout is not None
        notes.write_bytes(b"")
        server.stdin.write(f"{store} {notes} {flush} {first}\n")
        server.stdin.flush()
        victim = int(server.stdout.readline())
        while b"\n" not in notes.read_bytes():
            time.sleep(0.005)
        time.sleep(seconds)
        os.kill(victim, signal.SIGKILL)
        assert server.stdout.readline() == "dead\n"
        whole = notes.read_text().splitlines(keepends=True)
        lines = [line.split() for line in whole if line.endswith("\n")]
        return [(topic, int(queue_id), int(offset), int(number)) for topic, queue_id, offset, number in lines]

    def close(self) -> None:
        with self._server:
            assert self._server.stdin is not None
            self._server.stdin.close()


@pytest.fixture
def victims(tmp_path: Path) -> Iterator[Victims]:
    victims = Victims(tmp_path)
    yield victims
    victims.close()


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_killed_at_any_moment_it_has_every_acknowledged_message_once(
    tmp_path: Path, victims: Victims, flush: str
) -> None:
    acknowledged: dict[tuple[str, int], dict[int, int]] = {}
    chance = random.Random()
    path = tmp_path / "store"
    first = 0
    for _ in range(ROUNDS):
        for topic, queue_id, offset, number in victims.run_and_kill(path, flush, first, chance.uniform(0.0, 0.15)):
            assert offset not in acknowledged.setdefault((topic, queue_id), {})
            acknowledged[topic, queue_id][offset] = number

        store = open_store(path, flush=flush, **SETTINGS)
        found = bodies(store)
        numbers = {key: [int(body.split(b":")[0]) for body in queue] for key, queue in found.items()}
        for key, expected in acknowledged.items():
            assert {offset: numbers[key][offset] for offset in expected} == expected
        flat = [number for queue in numbers.values() for number in queue if number >= 0]
        assert len(flat) == len(set(flat)), "a message is there twice"
        # It goes on where it was: the next message has the next number in its queue.
        appended = store.append(pending("T0", 0, b"-1:"))
        assert appended.queue_offset == len(numbers.get(("T0", 0), []))
        if chance.random() < 0.3:
            store.close()
        else:
            abandon(store)
        first = max(flat, default=first) + 1
    assert sum(map(len, acknowledged.values())) >= ROUNDS
