"""Damage: every kind of file is changed behind a stopped broker's back; nothing wrong is handed out without a word.

What was damaged may be gone, or the broker may refuse to start; but then it is said: by the error, by a line in the
log, or by ``verniermq store check``. After ``verniermq store repair`` the broker starts. The control is the same store
as it was: nothing is missing, and nothing is said.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs

from tests.campaign.outcome import Kind, Outcome
from tests.campaign.power import syncs_for_nothing
from tests.campaign.workers import COMMIT, read_queue
from tests.killed import copy_as_killed
from tests.plugins.batch.test_batch import element
from tests.plugins.pop.popper import Consumer
from tests.plugins.txn.peers import Peer, peer
from verniermq.cli.repair import check_store, repair_store
from verniermq.kernel import RequestCode, ResponseCode
from verniermq.kernel.errors import CorruptRecord, VernierMQError
from verniermq.testing import ManualClock, running_broker
from verniermq.testing.broker import small_configuration

SETTINGS: dict[str, Any] = {
    "store__segment_size": "16KiB",
    "store__max_message_size": "4KiB",
    "store__queue_entries": 30,
    "store__checkpoint_interval": "20ms",
    "offsets__persist_interval": "20ms",
    "plugins__schedule__timer_file_size": "4KiB",
    "plugins__schedule__persist_interval": "20ms",
    "plugins__query__slots": 50,
    "plugins__query__entries": 40,
    "plugins__query__sync_interval": "20ms",
}
DAMAGES = 12
"""Changed copies of one store."""
LATER_SECONDS = 60
PATIENCE = 120.0
"""Seconds for what is missing though nothing is said: threads deliver it, which takes real time."""
TOPICS = ("plain0", "plain1", "later", "timed", "halves", "popped")

Sent = dict[tuple[str, int], list[bytes]]
"""What was acknowledged, by topic and queue; in the order of the queue, except for what is delivered later."""


async def fill(path: Path, image: Path, chance: random.Random) -> Sent:
    """A store with files of every kind, stopped in order, or as a kill leaves it: copied while the broker runs."""
    sent: Sent = {}
    clock = ManualClock()
    async with running_broker(path, clock=clock, **SETTINGS) as broker, peer(broker.address) as client:
        for number in range(60):
            body = b"%d:" % number + chance.randbytes(chance.randrange(300))
            await _send_one(client, sent, chance, number, body)
        await Consumer(client, broker.name, "g", "popped").pop(invisibleTime=LATER_SECONDS * 100)
        for _ in range(5):
            await clock.advance(0.1)
            await anyio.sleep(0.01)
        is_crash = chance.random() < 0.5
        if is_crash:
            await anyio.to_thread.run_sync(copy_as_killed, path, image)
    if not is_crash:
        await anyio.to_thread.run_sync(shutil.copytree, path, image)
    return sent


async def _send_one(client: Peer, sent: Sent, chance: random.Random, number: int, body: bytes) -> None:
    kind, queue = number % 6, chance.randrange(2)
    if kind == 0:
        topic, answer = "plain0", await client.send("plain0", body, {"KEYS": f"k{number}"}, queue_id=queue)
    elif kind == 1:
        topic, answer = (
            "plain1",
            await client.send("plain1", element(body), queue_id=queue, code=RequestCode.SEND_BATCH_MESSAGE, m="true"),
        )
    elif kind == 2:
        topic, queue = "later", 0
        answer = await client.send(topic, body, {"DELAY": "4"}, queue_id=0)
    elif kind == 3:
        topic, queue = "timed", 0
        answer = await client.send(topic, body, {"TIMER_DELAY_SEC": "20"}, queue_id=0)
    elif kind == 4:
        topic, queue = "halves", 0
        answer = await client.end(await client.send_half(topic, body, {"UNIQ_KEY": f"U{number}"}), COMMIT)
    else:
        topic, queue = "popped", 0
        answer = await client.send(topic, body, queue_id=0)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    sent.setdefault((topic, queue), []).append(body)
    fields = {"consumerGroup": "g", "topic": topic, "queueId": queue, "commitOffset": number}
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


# --- damage -------------------------------------------------------------------------------


def kind_of(path: Path, root: Path) -> str:
    """``commitlog``, ``consumequeue``, ``topics.json``, ``timerwheel``: what a file is for."""
    parts = path.relative_to(root).parts
    return parts[-1] if parts[0] == "config" else parts[0]


def damage(root: Path, chance: random.Random) -> str:
    """Change one file, of a kind that is as likely as any other; say what was done."""
    files: dict[str, list[Path]] = {}
    for file in sorted(root.rglob("*")):
        if file.is_file():
            files.setdefault(kind_of(file, root), []).append(file)
    kind = chance.choice(sorted(files))
    file = chance.choice(files[kind])
    size = file.stat().st_size
    how = chance.choice(("bit", "bit", "bytes", "zeros", "cut", "removed", "emptied", "longer"))
    written = _written(file)
    place = chance.choice(written) if written else 0
    match how:
        case "removed":
            file.unlink()
        case "emptied":
            os.truncate(file, 0)
        case "cut":
            os.truncate(file, chance.randrange(size) if size else 0)
        case "longer":
            with file.open("ab") as end:
                end.write(chance.randbytes(chance.randrange(1, 5000)))
        case _:
            with file.open("r+b") as data:
                data.seek(place)
                old = data.read(1 if how == "bit" else chance.randrange(1, 600))
                data.seek(place)
                if how == "bit":
                    data.write(bytes([old[0] ^ 1 << chance.randrange(8)]) if old else b"")
                else:
                    data.write(bytes(len(old)) if how == "zeros" else chance.randbytes(len(old)))
    return f"{file.relative_to(root)}: {how} at {place}"


def _written(file: Path) -> list[int]:
    """Where something is: a change in an empty part of a sparse file is less of a test."""
    if file.stat().st_size > 1 << 20:
        with file.open("rb") as data:
            start = os.lseek(data.fileno(), 0, os.SEEK_DATA)
            data.seek(start)
            return [start + place for place, byte in enumerate(data.read(1 << 16)) if byte]
    return [place for place, byte in enumerate(file.read_bytes()) if byte]


# --- judging ------------------------------------------------------------------------------


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


@contextmanager
def heard() -> Iterator[list[str]]:
    """What is logged as a warning or worse."""
    lines = _Lines()
    was = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    logger = logging.getLogger("verniermq")
    passes_on, logger.propagate = logger.propagate, False
    logger.addHandler(lines)
    try:
        yield lines.lines
    finally:
        logger.removeHandler(lines)
        logger.propagate = passes_on
        logging.disable(was)


@attrs.define
class Verdict:
    """What came of one damaged store."""

    said: list[str] = attrs.field(factory=list)
    """In the log, in answers, by the check, or as the error that ended the start."""
    missing: list[str] = attrs.field(factory=list)
    wrong: list[str] = attrs.field(factory=list)


async def judge(root: Path, sent: Sent, *, is_whole: bool = False) -> Verdict:
    verdict = Verdict()
    settings = small_configuration(root, {key.replace("__", "."): value for key, value in SETTINGS.items()}).store
    try:
        report = await anyio.to_thread.run_sync(check_store, settings)
        if not report.is_whole:
            verdict.said.append(f"check: {report.damage} {report.missing_entries} {report.lost_entries}")
    except VernierMQError as error:
        verdict.said.append(f"check: {error}")
    clock = ManualClock(ManualClock().now() + 2)
    with heard() as lines:
        try:
            async with running_broker(root, clock=clock, **SETTINGS) as broker, peer(broker.address) as client:
                await _read(client, clock, sent, verdict, lambda: not is_whole and bool(verdict.said or lines))
        except VernierMQError as error:
            verdict.said.append(f"start: {error}")
            verdict.missing.append("everything")
    verdict.said += lines
    return verdict


async def _read(client: Peer, clock: ManualClock, sent: Sent, verdict: Verdict, is_said: Callable[[], bool]) -> None:
    """Let everything be delivered, then read all queues and compare them with what was sent.

    Once it is said that something is damaged, what is missing may never come, and is not waited for.
    """
    found: Sent = {}
    until = time.monotonic() + PATIENCE
    for step in itertools.count():
        found = {}
        for topic, queue in sent:
            try:
                found[topic, queue] = [message.body for message in (await read_queue(client, topic, queue))[1]]
            except CorruptRecord as error:  # a client says so
                verdict.said.append(f"{topic}: {error}")
                found[topic, queue] = []
        if all(set(bodies) <= set(found[place]) for place, bodies in sent.items()):
            break
        if step > LATER_SECONDS + 40 and (is_said() or time.monotonic() > until):
            break
        await clock.advance(1)
        await anyio.sleep(0 if step < LATER_SECONDS else 0.01)
    for place, bodies in sent.items():
        verdict.wrong += [f"{place} has {body[:30]!r}" for body in found[place] if body not in bodies]
        verdict.missing += [f"{place} lacks {body[:30]!r}" for body in bodies if body not in found[place]]


async def spoil(seed: int, folder: Path, damages: int = DAMAGES) -> Outcome:
    chance = random.Random(seed)
    outcome = Outcome(rounds=0)
    with syncs_for_nothing():
        image = folder / "image"
        with heard():
            sent = await fill(folder / "store", image, chance)
        control = folder / "control"
        shutil.copytree(image, control)
        verdict = await judge(control, sent, is_whole=True)
        # The copy of a running broker is a store after a crash, of which something may be said.
        is_crash = (image / "abort").exists()
        outcome.expect(not verdict.missing and not verdict.wrong, "lost", f"seed {seed}, control: {verdict}")
        outcome.expect(is_crash or not verdict.said, "wrong", f"seed {seed}, control says: {verdict.said}")
        for number in range(damages):
            copy = folder / f"copy{number}"
            shutil.copytree(image, copy)
            what = damage(copy, chance)
            verdict = await judge(copy, sent)
            outcome.rounds += 1
            outcome.checked += sum(map(len, sent.values()))
            where = f"seed {seed}, {what}{' after a crash' if is_crash else ''}"
            outcome.expect(not verdict.wrong, "wrong", f"{where}: {verdict.wrong[:3]}, said: {verdict.said[:3]}")
            outcome.expect(not verdict.missing or verdict.said, "lost", f"{where}: {verdict.missing[:3]}, nothing said")
            outcome.notes["announced" if verdict.said else "without effect"] += 1
            if "everything" in verdict.missing:
                outcome.notes["refused to start"] += 1
                await _repair(copy, where, outcome)
            shutil.rmtree(copy)
    return outcome


async def _repair(root: Path, where: str, outcome: Outcome) -> None:
    """A store that does not open is mended by the command, or the error named a file to move away."""
    settings = small_configuration(root, {key.replace("__", "."): value for key, value in SETTINGS.items()}).store
    with heard():
        try:
            await anyio.to_thread.run_sync(repair_store, settings)
            async with running_broker(root, clock=ManualClock(), **SETTINGS):
                outcome.notes["repaired"] += 1
        except VernierMQError as error:
            outcome.expect("move it away" in str(error), "wrong", f"{where}: repair does not help: {error}")


def run(seed: int, folder: Path) -> Outcome:
    return anyio.run(spoil, seed, folder)


KIND = Kind(
    "corruption",
    "messages",
    "Whatever file is damaged, no wrong body is handed out, and what is missing is said.",
    run,
)
