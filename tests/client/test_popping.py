"""What popping clients leave at the broker."""

from __future__ import annotations

import anyio
import pytest

from tests.client.place import until
from tests.client.test_faults import two_brokers
from tests.work import WorkPerTurn
from verniermq.client import Message, Producer, PushConsumer, ReceivedMessage, SimpleConsumer
from verniermq.client.consumer import popservice
from verniermq.client.consumer.popper import Popper
from verniermq.client.errors import ClientError
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio


async def test_one_notification_at_most_waits_for_each_topic() -> None:
    async with running_broker() as broker:
        waiting = broker.host.active["pop"].instance._held
        namesrv = broker.name_servers[0]
        async with (
            Producer("senders", namesrv=namesrv) as producer,
            SimpleConsumer("group", namesrv=namesrv, start="first") as consumer,
        ):
            for topic in ("busy", "quiet"):
                await producer.send(Message(topic, b"first"))
                consumer.subscribe(topic)
            received = 0
            while received < 2:
                for message in await consumer.receive(32, wait=30):
                    await consumer.ack(message)
                    received += 1
            most = 0
            for _ in range(30):
                await consumer.wait_for_messages(0.01)
                await producer.send(Message("busy", b"again"))
                (message,) = await consumer.receive(wait=30)
                await consumer.ack(message)
                most = max(most, len(waiting))

    assert 1 <= most <= 2


async def test_a_time_that_would_be_over_before_it_is_renewed_is_refused() -> None:
    async with (
        running_broker() as broker,
        SimpleConsumer("group", namesrv=broker.name_servers[0], invisible=30, auto_renew=True) as consumer,
    ):
        consumer.subscribe("t")
        with pytest.raises(ClientError, match=r"invisible=5 is shorter than the 30 s of this consumer"):
            await consumer.receive(invisible=5)


async def test_a_broker_that_is_gone_holds_up_no_pops_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(popservice, "AFTER_ERROR", 3600.0)
    async with two_brokers() as (first, _second, network):
        namesrv = first.name_servers[0]
        async with Producer("senders", namesrv=namesrv) as producer:
            queues = [queue for queue in await producer.queues("t") if queue.broker_name == first.name]
            await network.stop()
            consumer = PushConsumer("group", namesrv=namesrv, mode="pop", start="first", concurrency=1)
            consumer.subscribe("t")
            handled = anyio.Semaphore(0)

            @consumer.on_message
            async def handle(message: ReceivedMessage) -> None:
                handled.release()

            async with consumer:
                with anyio.fail_after(60):
                    for number in range(5):
                        await producer.send(Message("t", b"%d" % number), queue=queues[0])
                        await handled.acquire()


async def test_a_missing_topic_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(popservice, "AFTER_ERROR", 0.01)
    looks = WorkPerTurn().watch(monkeypatch, Popper, "places")
    async with running_broker() as broker:
        consumer = PushConsumer("group", namesrv=broker.name_servers[0], mode="pop", start="first")
        consumer.subscribe("absent")

        @consumer.on_message
        async def handle(message: ReceivedMessage) -> None: ...

        async with consumer:
            await until(lambda: looks.total >= 5)

    lines = [record.getMessage() for record in caplog.records if "nothing popped" in record.getMessage()]
    assert len(lines) == 1
    assert "topic 'absent' not found" in lines[0]
