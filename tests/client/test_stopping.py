"""What stops a consumer, and what does not: nothing that a handler raises, and nobody without a word."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.client.place import Place, eventually, numbered, until
from verniermq.client import Admin, PushConsumer, ReceivedMessage, sync
from verniermq.client.errors import NotRunning

pytestmark = pytest.mark.anyio


def _consumer(place: Place, topic: str, **options: Any) -> PushConsumer:
    consumer = PushConsumer(place.name("group"), namesrv=place.namesrv, **{"start": "first", **options})
    consumer.subscribe(topic)
    return consumer


async def _members(place: Place, group: str) -> list[str]:
    async with Admin(namesrv=place.namesrv) as admin:
        return await admin.members(group)


def _fails_once(got: Counter[bytes], error: type[BaseException]) -> Any:
    def note(message: ReceivedMessage) -> None:
        got[message.body] += 1
        if message.body == b"3" and got[message.body] == 1:
            raise error()

    return note


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("kind", ["concurrent", "orderly", "batch", "plain", "hooked"])
async def test_whatever_a_handler_raises_its_consumer_goes_on(
    place: Place, kind: str, error: type[BaseException]
) -> None:
    topic = await place.topic("going-on", queues=1)
    consumer = _consumer(place, topic, orderly=kind == "orderly", suspend=0.01, concurrency=1)
    got: Counter[bytes] = Counter()
    note = _fails_once(got, error)

    async def handle(message: ReceivedMessage) -> None:
        note(message)

    async def handle_all(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            note(message)

    if kind == "batch":
        consumer.on_batch(handle_all)
    else:
        consumer.on_message(note if kind == "plain" else handle)
    if kind == "hooked":
        consumer.before_consume(lambda consuming: None)
    await place.send(topic, numbered(20))

    async with consumer:
        await until(lambda: len(got) == 20)
        if kind == "orderly":
            await until(lambda: got[b"3"] == 2)
        members = await _members(place, consumer.group)

    assert len(members) == 1
    assert await _members(place, consumer.group) == []


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
async def test_a_handler_in_a_thread_ends_nothing_with_system_exit(place: Place, error: type[BaseException]) -> None:
    topic = await place.topic("no-exit", queues=1)
    consumer = sync.PushConsumer(place.name("group"), namesrv=place.namesrv, start="first")
    consumer.subscribe(topic)
    got: Counter[bytes] = Counter()
    consumer.on_message(_fails_once(got, error))
    await place.send(topic, numbered(20))

    await anyio.to_thread.run_sync(consumer.start)
    try:
        await until(lambda: len(got) == 20)
    finally:
        await anyio.to_thread.run_sync(consumer.close)


async def test_a_task_that_the_program_cancels_after_its_handler_returned_works_on(place: Place) -> None:
    topic = await place.topic("cancelled-late", queues=1)
    consumer = _consumer(place, topic, concurrency=1)
    workers: list[asyncio.Task[Any]] = []

    @consumer.on_message
    async def handle(message: ReceivedMessage) -> None:
        task = asyncio.current_task()
        assert task is not None
        workers.append(task)

    async with consumer:
        await place.send(topic, [b"one"])
        await until(lambda: len(workers) == 1)
        workers[0].cancel()
        await place.send(topic, [b"two"])
        await until(lambda: len(workers) == 2)


async def test_a_guard_that_fails_is_asked_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verniermq.client.consumer.concurrent.AGAIN_HERE", 0.05)
    topic = await place.topic("guarded", queues=1)
    asked: list[str] = []
    got: list[bytes] = []

    class Guard:
        async def begin(self, message: ReceivedMessage) -> bool:
            asked.append(message.message_id)
            if len(asked) == 1:
                raise ConnectionError("the guard's database is away")
            return True

        async def finish(self, message: ReceivedMessage, *, consumed: bool) -> None:
            pass

    consumer = _consumer(place, topic, deduplicate=Guard(), orderly=True, suspend=0.01)

    @consumer.on_message
    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)

    await place.send(topic, [b"one"])
    async with consumer:
        await until(lambda: got == [b"one"])

    assert len(asked) == 2


async def test_a_consumer_whose_tasks_were_all_cancelled_says_so_and_leaves_its_group(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await place.topic("all-cancelled", queues=1)
    consumer = _consumer(place, topic)
    got: list[bytes] = []

    @consumer.on_message
    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)

    await place.send(topic, [b"one"])
    ours = asyncio.all_tasks()
    await consumer.start()
    await until(lambda: got == [b"one"])
    await anyio.wait_all_tasks_blocked()
    for task in asyncio.all_tasks() - ours:
        task.cancel()
    with pytest.raises(NotRunning, match="somebody cancelled all of its tasks"):
        await consumer.run()
    with pytest.raises(NotRunning, match="somebody cancelled all of its tasks"):
        await consumer.__aexit__(None, None, None)

    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert any("client stopped" in record.message and consumer.group in record.message for record in said)
    assert await eventually(lambda: _members(place, consumer.group), lambda members: not members) == []


async def test_a_loop_over_a_consumer_that_was_stopped_raises(place: Place) -> None:
    topic = await place.topic("loop-stopped", queues=1)
    consumer = _consumer(place, topic)
    await place.send(topic, [b"one"])
    ours = asyncio.all_tasks()

    async def read() -> None:
        async for _ in consumer:
            await anyio.wait_all_tasks_blocked()
            for task in asyncio.all_tasks() - ours:
                task.cancel()

    await consumer.start()
    with pytest.raises(NotRunning):
        await read()


async def test_waiting_for_a_consumer_ends_when_it_is_closed(place: Place) -> None:
    topic = await place.topic("closed", queues=1)
    consumer = _consumer(place, topic)
    consumer.on_message(lambda message: None)
    await consumer.start()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consumer.run)
        await anyio.wait_all_tasks_blocked()
        await consumer.close()
