"""Power cuts: what a whole broker wrote and synced is recorded, and brokers start on what any moment could leave.

All files take part: log, queues, index, tables and their backups, timers, checkpoint, abort mark. What was acknowledged
with synchronous flush has to be there: in its queue, by its key, at its time, with all queues of its topic.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from tests.campaign.outcome import Kind, Outcome
from tests.campaign.workers import COMMIT, ROLLBACK
from tests.kernel.commitlog.powercut import Recorder
from tests.kernel.commitlog.stores import bodies
from tests.plugins.batch.test_batch import element
from tests.plugins.txn.peers import Peer, peer
from verniermq.kernel import Broker, RequestCode, ResponseCode, decode_records
from verniermq.kernel.errors import VernierMQError
from verniermq.testing import ManualClock, running_broker

SETTINGS: dict[str, Any] = {
    "store__flush": "sync",
    "store__segment_size": "32KiB",
    "store__max_message_size": "8KiB",
    "store__queue_entries": 40,
    "store__checkpoint_interval": "20ms",
    "offsets__persist_interval": "30ms",
    "plugins__schedule__persist_interval": "30ms",
    "plugins__schedule__timer_file_size": "4KiB",
    "plugins__query__slots": 50,
    "plugins__query__entries": 40,
    "plugins__query__sync_interval": "30ms",
    "log__level": "error",
}
LONGEST_DELAY = 10
MOVES, MOVE = 10, 0.7
"""How often, and by how many seconds, the clock is moved while a life is recorded."""
CLOCK_END = ManualClock().now() + 2 * MOVES * MOVE
PATIENCE = 180.0
"""Seconds: by then everything is delivered that is due, on however busy a machine."""
POINTS = 100
"""Power cuts of one recorded life."""

Found = dict[tuple[str, int], list[bytes]]


@attrs.frozen
class Promise:
    """What was acknowledged, and how to see that it is kept."""

    topic: str
    queue: int
    body: bytes
    offset: int | None = None
    """Where, if it is in its queue at once."""
    key: str = ""
    is_absent: bool = False
    """It must not come: it was rolled back."""


@attrs.define
class Writer:
    """Sends all kinds of messages, one after the other, and notes what it was promised."""

    peer: Peer
    recorder: Recorder
    chance: random.Random
    name: str
    number: int = 0

    async def send(self, life: int) -> None:
        self.number += 1
        body = b"%s-%d-%d:" % (self.name.encode(), life, self.number) + self.chance.randbytes(
            self.chance.randrange(600)
        )
        await self.chance.choice((self._plain, self._plain, self._batch, self._later, self._transaction))(body)
        if self.chance.random() < 0.3:
            await self._commit_offset()

    def _topic(self) -> tuple[str, int]:
        return f"T{self.chance.randrange(6)}", self.chance.randrange(3)

    async def _plain(self, body: bytes) -> None:
        topic, queue = self._topic()
        key = body.partition(b":")[0].decode()
        answer = await self.peer.send(topic, body, {"KEYS": key, "UNIQ_KEY": _unique(key)}, queue_id=queue)
        if answer.code == ResponseCode.SUCCESS:
            self.recorder.acknowledge(Promise(topic, queue, body, int(answer.ext["queueOffset"]), key))

    async def _batch(self, body: bytes) -> None:
        topic, queue = self._topic()
        parts = [b"%d/" % number + body for number in range(self.chance.randrange(1, 6))]
        unique = _unique(body.partition(b":")[0].decode())
        whole = b"".join([element(part, {"UNIQ_KEY": f"{unique}x{number}"}) for number, part in enumerate(parts)])
        answer = await self.peer.send(topic, whole, queue_id=queue, code=RequestCode.SEND_BATCH_MESSAGE, m="true")
        if answer.code == ResponseCode.SUCCESS:
            for number, part in enumerate(parts, int(answer.ext["queueOffset"])):
                self.recorder.acknowledge(Promise(topic, queue, part, number))

    async def _later(self, body: bytes) -> None:
        when = self.chance.choice(({"DELAY": "2"}, {"TIMER_DELAY_SEC": "5"}, {"DELAY": "3"}, {"TIMER_DELAY_SEC": "9"}))
        answer = await self.peer.send("later", body, when, queue_id=0)
        if answer.code == ResponseCode.SUCCESS:
            self.recorder.acknowledge(Promise("later", 0, body))

    async def _transaction(self, body: bytes) -> None:
        half = await self.peer.send_half("halves", body, {"UNIQ_KEY": f"{self.name}{self.number}"})
        decision = self.chance.choice((COMMIT, ROLLBACK))
        answer = await self.peer.end(half, decision)
        if answer.code == ResponseCode.SUCCESS:
            self.recorder.acknowledge(Promise("halves", 0, body, is_absent=decision == ROLLBACK))

    async def _commit_offset(self) -> None:
        fields = {"consumerGroup": self.name, "topic": "T0", "queueId": 0, "commitOffset": self.number}
        await self.peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def _unique(key: str) -> str:
    """Of letters and digits, as those that clients make."""
    return key.replace("-", "x")


async def record(path: Path, chance: random.Random, patch: pytest.MonkeyPatch) -> Recorder:
    """Two lives of a broker: the first ends in order, the second is still running when the power fails."""
    recorder = Recorder(path)
    clock = ManualClock()
    with recorder.active(patch):
        for life in range(2):
            async with running_broker(path, clock=clock, **SETTINGS) as broker:
                async with anyio.create_task_group() as tasks:
                    for number in range(3):
                        tasks.start_soon(_write, broker, recorder, random.Random(chance.random()), f"w{number}", life)
                    for _ in range(MOVES):
                        await anyio.sleep(0.01)
                        await clock.advance(MOVE)
                if life == 1:
                    recorder.acknowledge("the end")
    last = max(number for number, event in enumerate(recorder.events) if event.value == "the end")
    del recorder.events[last:]
    return recorder


async def _write(broker: Broker, recorder: Recorder, chance: random.Random, name: str, life: int) -> None:
    async with peer(broker.address, name) as client:
        writer = Writer(client, recorder, chance, name)
        for _ in range(25):
            await writer.send(life)


async def check(path: Path, promises: list[Promise], outcome: Outcome, where: str) -> None:
    """Start a broker on what is left, and look for everything that was promised."""
    clock = ManualClock(CLOCK_END)
    try:
        async with running_broker(path, clock=clock, **SETTINGS) as broker:
            found = bodies(broker.store)
            for promise in promises:
                if promise.offset is not None:
                    _expect_in_place(promise, found, broker, outcome, where)
            await _expect_keys([promise for promise in promises if promise.key][-4:], broker, outcome, where)
            await _expect_later(
                [promise for promise in promises if promise.offset is None], broker, clock, outcome, where
            )
    except (VernierMQError, OSError, AssertionError) as error:
        outcome.fail(
            "lost", f"{where}: the broker does not start, or its files do not fit: {type(error).__name__} {error}"
        )


def _expect_in_place(promise: Promise, found: Found, broker: Broker, outcome: Outcome, where: str) -> None:
    assert promise.offset is not None
    read = found.get((promise.topic, promise.queue), [])
    least = broker.store.min_offset(promise.topic, promise.queue)
    body = read[promise.offset - least] if 0 <= promise.offset - least < len(read) else b""
    outcome.expect(
        body == promise.body, "wrong" if body else "lost",
        f"{where}: {promise.topic}/{promise.queue} at {promise.offset} has {body[:20]!r}, not {promise.body[:20]!r}",
    )  # fmt: skip
    topic = broker.topics.get(promise.topic)
    outcome.expect(
        topic is not None and promise.queue < topic.read_queues, "lost", f"{where}: {promise.topic} lacks queues"
    )


async def _expect_keys(promises: list[Promise], broker: Broker, outcome: Outcome, where: str) -> None:
    if not promises:
        return
    async with peer(broker.address) as client:
        for promise in promises:
            fields = {
                "topic": promise.topic,
                "key": promise.key,
                "maxNum": 4,
                "beginTimestamp": 0,
                "endTimestamp": 2**62,
            }
            answer = await client.ask(RequestCode.QUERY_MESSAGE, fields)
            found = [message.body for message in decode_records(answer.body)]
            outcome.expect(found == [promise.body], "lost", f"{where}: key {promise.key} finds {len(found)}")


async def _expect_later(
    promises: list[Promise], broker: Broker, clock: ManualClock, outcome: Outcome, where: str
) -> None:
    """Let all time pass that messages were to wait for; worker threads read them, which takes real time."""
    wanted = {(promise.topic, promise.body) for promise in promises if not promise.is_absent}
    found: set[tuple[str, bytes]] = set()
    steps = 0
    with anyio.move_on_after(PATIENCE):
        while True:
            found = {(topic, body) for topic in ("later", "halves") for body in _bodies(broker, topic)}
            if wanted <= found:
                break
            await clock.advance(1)
            steps += 1
            await anyio.sleep(0 if steps < LONGEST_DELAY else 0.05)
    for topic, body in sorted(wanted - found)[:5]:
        outcome.fail("lost", f"{where}: {topic} {body[:20]!r} was never delivered")
    for promise in promises:
        if promise.is_absent and (promise.topic, promise.body) in found:
            outcome.fail("wrong", f"{where}: {promise.body[:20]!r} was rolled back and is there")


def _bodies(broker: Broker, topic: str) -> list[bytes]:
    """What the only queue has that messages of a topic come into; a look at it ends with a file of entries."""
    queue = broker.store.queue(topic, 0)
    found: list[bytes] = []
    offset = 0 if queue is None else queue.min_offset
    while queue is not None and (entries := queue.entries(offset, 10_000)):
        messages = [broker.store.message_at(position) for position, _, _ in entries]
        found += [message.body for message in messages if message is not None]
        offset += len(entries)
    return found


@contextmanager
def syncs_for_nothing() -> Iterator[None]:
    """The disk of a check need not last."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda descriptor: None)
        yield


async def cut(seed: int, folder: Path, points: int = POINTS) -> Outcome:
    chance = random.Random(seed)
    outcome = Outcome(rounds=0)
    with syncs_for_nothing(), pytest.MonkeyPatch.context() as patch:
        recorder = await record(folder / "recorded", chance, patch)
        for point in range(points):
            moment = chance.randrange(len(recorder.events) + 1)
            left, state, failures = folder / "left", chance.getstate(), len(outcome.failures)
            recorder.leave(moment, left, chance)
            promises = [value for value in recorder.acknowledged(moment) if isinstance(value, Promise)]
            await check(left, promises, outcome, f"seed {seed}, point {point} at {moment} of {len(recorder.events)}")
            outcome.rounds += 1
            outcome.checked += len(promises)
            shutil.rmtree(left)
            if len(outcome.failures) > failures:  # once more, for whoever looks at it
                chance.setstate(state)
                recorder.leave(moment, folder / f"left{point}", chance)
    return outcome


def run(seed: int, folder: Path) -> Outcome:
    return anyio.run(cut, seed, folder)


KIND = Kind(
    "power",
    "messages",
    "After a power cut at any moment everything that was acknowledged with synchronous flush is there.",
    run,
)
