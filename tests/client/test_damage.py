"""Messages that lie damaged in the broker's log: nobody handles them, everybody hears of them, and nobody waits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest

from tests.client.place import Place, until
from verniermq.client import Admin, LitePullConsumer, PullConsumer, PushConsumer, ReceivedMessage
from verniermq.client.errors import ClientError
from verniermq.testing import broker_process

pytestmark = pytest.mark.anyio

BODIES = [b"from A to B: 1000 EUR", b"from B to C: 2000 EUR", b"from C to D: 3000 EUR"]
SIZE, MAGIC, QUEUE_OFFSET, BODY_LENGTH, TOPIC_LENGTH = -88, -84, -68, -4, len(BODIES[0])


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[Path, Place]]:
    """A broker, and the file that has its log."""
    with broker_process(None) as process:
        log = process.store / "commitlog" / f"{0:020}"
        yield log, Place(process.namesrv, process.broker)


async def _damaged(store: tuple[Path, Place], at: int, bits: int) -> tuple[Place, str]:
    """A topic with three messages, the second of them damaged ``at`` bytes from where its body begins."""
    log, place = store
    topic = await place.topic("damage", queues=1)
    await place.send(topic, BODIES)
    with log.open("r+b") as file:
        whole = file.read(1 << 20)
        position = whole.rindex(BODIES[1]) + at
        file.seek(position)
        file.write(bytes((whole[position] ^ bits,)))
    return place, topic


PLACES = pytest.mark.parametrize(
    ("at", "bits"),
    [(13, 0x0B), (SIZE + 3, 0x08), (MAGIC, 0x80), (QUEUE_OFFSET + 4, 1), (BODY_LENGTH + 2, 1), (TOPIC_LENGTH, 0x40)],
    ids=["body", "size", "magic", "queue offset", "body length", "topic length"],
)


@PLACES
@pytest.mark.parametrize("orderly", [False, True])
async def test_a_damaged_message_is_skipped_and_said_to_be(
    store: tuple[Path, Place], at: int, bits: int, orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    place, topic = await _damaged(store, at, bits)
    consumer = PushConsumer(place.name("group"), namesrv=place.namesrv, start="first", orderly=orderly)
    consumer.subscribe(topic)
    got: list[bytes] = []

    @consumer.on_message
    async def pay(message: ReceivedMessage) -> None:
        got.append(message.body)

    async with consumer:
        await until(lambda: len(got) == 2)
        await place.send(topic, [b"later"])
        await until(lambda: len(got) == 3)

    assert sorted(got) == sorted([BODIES[0], BODIES[2], b"later"])
    (said,) = [record.message for record in caplog.records if "damaged message skipped" in record.message]
    assert f"{topic}@" in said
    assert "offset 1 " in said
    async with Admin(namesrv=place.namesrv) as admin:
        assert await admin.lag(consumer.group, topic) == 0


async def test_a_consumer_that_shall_wait_at_damage_goes_on_when_it_is_mended(
    store: tuple[Path, Place], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("verniermq.client.consumer.puller.AFTER_DAMAGE", 0.02)
    place, topic = await _damaged(store, 13, 0x0B)
    consumer = PushConsumer(place.name("group"), namesrv=place.namesrv, start="first", on_damage="wait")
    consumer.subscribe(topic)
    got: list[bytes] = []

    @consumer.on_message
    async def pay(message: ReceivedMessage) -> None:
        got.append(message.body)

    def times() -> int:
        return len([record for record in caplog.records if "the queue waits at it" in record.message])

    async with consumer:
        await until(lambda: times() >= 3)
        before = list(got)
        log, _ = store
        with log.open("r+b") as file:
            whole = file.read(1 << 20)
            file.seek(whole.rindex(BODIES[1][:13] + b"9") + 13)
            file.write(b"2")
        await until(lambda: len(got) == 3)

    assert (before, got) == ([BODIES[0]], BODIES)


async def test_whoever_polls_gets_what_is_whole(store: tuple[Path, Place]) -> None:
    place, topic = await _damaged(store, SIZE + 3, 0x08)
    consumer = LitePullConsumer(place.name("group"), namesrv=place.namesrv, start="first", poll_batch=32)
    consumer.subscribe(topic)
    got: list[bytes] = []

    async with consumer:
        while len(got) < 2:
            got += [message.body for message in await consumer.poll(timeout=30)]
            await anyio.lowlevel.checkpoint()

    assert got == [BODIES[0], BODIES[2]]


async def test_whoever_pulls_hears_what_is_damaged_and_where_to_go_on(
    store: tuple[Path, Place], caplog: pytest.LogCaptureFixture
) -> None:
    place, topic = await _damaged(store, 13, 0x0B)

    async with PullConsumer(namesrv=place.namesrv) as consumer:
        (queue,) = await consumer.queues(topic)
        result = await consumer.pull(queue, 0)

    (damaged,) = result.damaged
    assert [message.body for message in result.messages] == [BODIES[0], BODIES[2]]
    assert (damaged.queue, damaged.queue_offset, result.next_offset) == (queue, 1, 3)
    assert "its body's checksum is" in damaged.why
    assert any(record.levelno == logging.ERROR and str(damaged) in record.message for record in caplog.records)


def test_only_two_things_can_be_done_about_damage() -> None:
    wrong: Any = "ignore"
    with pytest.raises(ClientError, match="on_damage='ignore', expected 'skip' or 'wait'"):
        PushConsumer("payments", on_damage=wrong)
