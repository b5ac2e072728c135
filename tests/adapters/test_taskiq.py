"""Taskiq's own classes with a real broker: what is acknowledged is gone, the rest comes again."""

from __future__ import annotations

import anyio
import pytest
from taskiq import AckableMessage
from taskiq.api import run_receiver_task
from taskiq.exceptions import SendTaskError

from verniermq.client import Message, Producer, ReceivedMessage
from verniermq.client.errors import ClientError
from verniermq.contrib.taskiq import VernierMQBroker
from verniermq.testing import BrokerProcess

pytestmark = pytest.mark.anyio


async def test_a_receiver_runs_tasks(verniermq_broker: BrokerProcess) -> None:
    broker = VernierMQBroker(verniermq_broker.namesrv)
    done: list[int] = []
    all_done = anyio.Event()

    @broker.task(task_name="note")
    async def note(number: int) -> None:
        done.append(number)
        if len(done) == 20:
            all_done.set()

    async with anyio.create_task_group() as group:
        broker.is_worker_process = True
        await broker.startup()
        group.start_soon(run_receiver_task, broker)
        for number in range(20):
            await note.kiq(number)
        with anyio.fail_after(30):
            await all_done.wait()
        group.cancel_scope.cancel()
    await broker.shutdown()

    assert sorted(done) == list(range(20))


async def test_what_is_no_task_is_acknowledged_and_does_not_come_again(
    verniermq_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = VernierMQBroker(verniermq_broker.namesrv, topic="junk", group="junk", invisible=60)
    done = anyio.Event()

    @broker.task(task_name="real")
    async def real() -> None:
        done.set()

    acknowledged = 0
    acknowledge = broker._acknowledge

    async def counted(message: ReceivedMessage) -> None:
        nonlocal acknowledged
        await acknowledge(message)
        acknowledged += 1

    monkeypatch.setattr(broker, "_acknowledge", counted)
    broker.is_worker_process = True
    await broker.startup()
    async with Producer("others", namesrv=verniermq_broker.namesrv) as producer:
        for body in (b"no task at all", b"{}"):
            await producer.send(Message("junk", body))
        async with anyio.create_task_group() as group:
            group.start_soon(run_receiver_task, broker)
            await real.kiq()
            with anyio.fail_after(30):
                await done.wait()
                while acknowledged < 3:  # noqa: ASYNC110 - the library tells nobody
                    await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        await anyio.to_thread.run_sync(verniermq_broker.advance, 61)
        await producer.send(Message("junk", b"the last"))
        with anyio.fail_after(30):
            message: AckableMessage = await anext(broker.listen())
    await broker.shutdown()

    assert message.data == b"the last"


async def test_what_is_not_acknowledged_comes_again(verniermq_broker: BrokerProcess) -> None:
    async def first(acknowledge: bool) -> bytes:
        broker = VernierMQBroker(verniermq_broker.namesrv, invisible=60)
        broker.is_worker_process = True
        await broker.startup()
        listening = broker.listen()
        message: AckableMessage = await anext(listening)
        await listening.aclose()
        if acknowledge:
            ended = message.ack()
            assert ended is not None
            await ended
        await broker.shutdown()
        return message.data

    sender = VernierMQBroker(verniermq_broker.namesrv)

    @sender.task(task_name="lost")
    async def lost() -> None: ...

    await sender.startup()
    await lost.kiq()
    await sender.shutdown()
    with anyio.fail_after(30):
        one = await first(acknowledge=False)
        await anyio.to_thread.run_sync(verniermq_broker.advance, 61)
        two = await first(acknowledge=True)

    assert one == two


async def test_a_broker_that_was_not_started_says_so() -> None:
    broker = VernierMQBroker("127.0.0.1:1")

    @broker.task(task_name="never")
    async def never() -> None: ...

    with pytest.raises(SendTaskError) as raised:
        await never.kiq()
    assert isinstance(raised.value.__cause__, ClientError)
    assert "call startup" in str(raised.value.__cause__)
