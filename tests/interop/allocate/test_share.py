"""A Java and a Python consumer in one group, for each strategy: every queue has one owner, every message one reader."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.interop.allocate.build import java_program
from tests.interop.verniermq_process import VernierMQBroker
from verniermq.client import Admin, Message, Producer, PushConsumer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

TOPIC = "mixed"
BROKER = "room1@a"
QUEUES = set(range(8))
MESSAGES = 80
STRATEGIES = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY-AVG", "CONFIG")
SETTINGS = {
    "allocate.machine_rooms": ["room1"],
    "allocate.rooms.room1": {"brokers": ["*"], "clients": ["*"]},
    "allocate.fixed_queues": [f"{TOPIC}@{BROKER}:{number}" for number in range(4, 8)],
}
WITHIN = 90.0


class JavaMembers:
    """The Java half of each group."""

    def __init__(self, output: Path) -> None:
        self._output = output

    def _events(self, kind: str) -> list[dict[str, Any]]:
        lines = self._output.read_bytes().rpartition(b"\n")[0].splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def owned(self) -> dict[str, set[int]]:
        """Per strategy, what it said last."""
        return {event["strategy"]: set(event["queues"]) for event in self._events("owns")}

    def received(self) -> Counter[tuple[str, str]]:
        return Counter((event["strategy"], event["key"]) for event in self._events("received"))


@contextmanager
def java_members(namesrv: str, folder: Path) -> Iterator[JavaMembers]:
    command = [*java_program("Share"), namesrv, TOPIC, BROKER]
    with (folder / "share.jsonl").open("wb") as output, (folder / "share.stderr").open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=errors, cwd=folder)
    try:
        yield JavaMembers(folder / "share.jsonl")
        process.communicate(b"end\n", timeout=60)
    finally:
        process.kill()
        process.wait()


def python_member(namesrv: str, strategy: str, received: Counter[tuple[str, str]]) -> PushConsumer:
    consumer = PushConsumer(
        f"mixed-{strategy}", namesrv=namesrv, allocate=strategy, start="first", instance=f"python-{strategy}",
        plugins=SETTINGS,
    )  # fmt: skip
    consumer.subscribe(TOPIC)

    @consumer.on_message
    async def take(message: Any) -> None:
        received[strategy, message.keys[0]] += 1

    return consumer


async def test_a_mixed_group_shares_a_topic_without_gaps_or_overlaps(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(f'[broker]\nname = "{BROKER}"\n')
    with VernierMQBroker(tmp_path, config=config) as broker, java_members(broker.namesrv, tmp_path) as java:
        async with Admin(namesrv=broker.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=len(QUEUES))
        received: Counter[tuple[str, str]] = Counter()
        async with AsyncExitStack() as stack:
            members = {
                strategy: await stack.enter_async_context(python_member(broker.namesrv, strategy, received))
                for strategy in STRATEGIES
            }
            await _until_shared(java, members)
            for strategy, member in members.items():
                ours = {queue.queue_id for queue in member.assignment}
                assert ours | java.owned()[strategy] == QUEUES, strategy
                assert not ours & java.owned()[strategy], strategy

            async with Producer("mixed-producers", namesrv=broker.namesrv) as producer:
                for number in range(MESSAGES):
                    await producer.send(Message(TOPIC, b"x", keys=[f"k{number}"]))
            wanted = {(strategy, f"k{number}") for strategy in STRATEGIES for number in range(MESSAGES)}
            deadline = time.monotonic() + WITHIN
            while (received + java.received()).keys() != wanted:
                assert time.monotonic() < deadline, "not everything arrived"
                await anyio.sleep(0.2)

        everything = received + java.received()
        assert everything == Counter(wanted)
        for strategy in STRATEGIES:
            assert any(name == strategy for name, _ in received), f"Python got nothing by {strategy}"
            assert any(name == strategy for name, _ in java.received()), f"Java got nothing by {strategy}"


async def _until_shared(java: JavaMembers, members: dict[str, PushConsumer]) -> None:
    """Wait until each group has settled: a member that sees itself alone owns everything at first."""
    deadline = time.monotonic() + WITHIN
    while time.monotonic() < deadline:
        owned = java.owned()
        shares = [
            ({queue.queue_id for queue in member.assignment}, owned.get(strategy, set()))
            for strategy, member in members.items()
        ]
        if all(ours and theirs and not ours & theirs and ours | theirs == QUEUES for ours, theirs in shares):
            return
        await anyio.sleep(0.2)
