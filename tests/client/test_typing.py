"""Users' code is checked against the client's annotations: what is right passes ``mypy --strict``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

RIGHT = """
from verniermq.client import Message, Outcome, Producer, PushConsumer, ReceivedMessage, SendResult, TransactionProducer
from verniermq.client import sync


async def main() -> SendResult:
    consumer = PushConsumer("billing", namesrv=["a:9876"], orderly=True, start="first")

    @consumer.on_message
    async def take(message: ReceivedMessage) -> Outcome:
        return Outcome.CONSUMED

    async with TransactionProducer("orders", send_timeout=1.5, fault="latency") as transactions:
        async with transactions.transaction(Message("t", b"x")) as transaction:
            reveal: str = transaction.id
    async with Producer("orders", namesrv="a:9876", retries=1) as producer:
        future = await producer.submit(Message("t", b"x", tags="paid", keys=[reveal]))
        return await future


def blocking() -> list[bytes]:
    with sync.LitePullConsumer("billing", auto_commit=False) as consumer:
        return [message.body for message in consumer.poll()]
"""

WRONG = """
from verniermq.client import Message, Producer, PushConsumer, sync

Producer("orders", namesrv=9876)
Producer("orders", retry=1)
PushConsumer("billing", oderly=True)
Message("t", "text")
sync.PushConsumer("billing", start="middle")
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int]]:
    """(file, line) of each error that mypy finds in the two programs."""
    folder = tmp_path_factory.mktemp("users")
    types = folder / "types" / "verniermq"
    types.mkdir(parents=True)
    for name in ("kernel", "client"):
        (types / name).symlink_to(ROOT / name)
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(WRONG)
    (folder / "mypy.ini").write_text("[mypy]\nstrict = True\nfollow_imports = silent\n")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "right.py", "wrong.py"],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(folder / "types")},
        capture_output=True,
        text=True,
        timeout=110,
    )
    lines = [line.split(":") for line in checked.stdout.splitlines() if ": error:" in line]
    assert lines, checked.stdout + checked.stderr
    return [(line[0], int(line[1])) for line in lines]


def test_a_users_program_passes_strict_type_checks(found: list[tuple[str, int]]) -> None:
    assert [line for file, line in found if file == "right.py"] == []


def test_mistakes_in_a_users_program_are_found(found: list[tuple[str, int]]) -> None:
    assert {line for file, line in found if file == "wrong.py"} == {4, 5, 6, 7, 8}
