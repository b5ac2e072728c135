"""Groups of both worlds: remoting and gRPC clients consume what the other sent, and share a group."""

from __future__ import annotations

import anyio

from tests.grpc.rocketmq5 import GROUP, TOPIC, Client, client_of, consumer_settings, grpc_broker, until
from verniermq.client import Admin, Later, Message, Producer, PushConsumer, ReceivedMessage
from verniermq.contrib.grpc.enums import Code
from verniermq.kernel import Broker, GroupConfig, TopicConfig

SOON = {"plugins__schedule__levels": ["1s", "2s"]}


async def dead_letters(broker: Broker, group: str, wanted: int) -> list[ReceivedMessage]:
    """All of them, once there are so many different ones."""
    async with Admin(namesrv=broker.name_servers[0]) as admin:
        with anyio.fail_after(30):
            while f"%DLQ%{group}" not in broker.topics:  # noqa: ASYNC110
                await anyio.sleep(0.05)
            while True:
                found = await admin.dead_letters(group)
                if len({one.body for one in found}) >= wanted:
                    return list(found)
                await anyio.sleep(0.05)


def remoting_member(broker: Broker, failing: bytes, seen: list[tuple[bytes, int]]) -> PushConsumer:
    """A consumer that fails on some bodies."""
    consumer = PushConsumer(GROUP, namesrv=broker.name_servers[0], start="first")
    consumer.subscribe(TOPIC)

    @consumer.on_message
    async def take(message: ReceivedMessage) -> Later | None:
        seen.append((message.body, message.reconsume_times))
        return Later(delay_level=1) if message.body.startswith(failing) else None

    return consumer


async def consume(client: Client, failing: bytes, seen: list[tuple[bytes, int]]) -> None:
    """The same by gRPC, until cancelled."""
    while True:
        _, messages = await client.receive(poll=5, invisible=30)
        for message in messages:
            seen.append((message.body, message.system_properties.delivery_attempt - 1))
            if message.body.startswith(failing):
                assert (await client.change(message, 1)).status.code == Code.OK
            else:
                assert (await client.ack(message)).code == Code.OK


async def test_a_remoting_consumer_retries_and_buries_what_was_sent_by_grpc() -> None:
    async with grpc_broker(**SOON) as broker, client_of(broker) as client:
        broker.groups.put(GroupConfig(GROUP, {"retryMaxTimes": 1}))
        await client.send(b"bad", tag="t", keys=["k"], properties={"p": "v"})
        seen: list[tuple[bytes, int]] = []
        async with remoting_member(broker, b"bad", seen):
            (dead,) = await dead_letters(broker, GROUP, 1)

        assert seen == [(b"bad", 0), (b"bad", 1)]
        assert (dead.body, dead.tags, dead.properties["p"]) == (b"bad", "t", "v")


async def test_a_grpc_consumer_retries_and_buries_what_was_sent_by_remoting() -> None:
    async with grpc_broker(**SOON) as broker, client_of(broker) as client:
        broker.groups.put(GroupConfig(GROUP, {"retryMaxTimes": 1}))
        async with Producer("senders", namesrv=broker.name_servers[0]) as producer:
            await producer.send(Message(TOPIC, b"bad", tags="t", properties={"p": "v"}))
        seen: list[tuple[bytes, int]] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consume, client, b"bad", seen)
            (dead,) = await dead_letters(broker, GROUP, 1)
            tasks.cancel_scope.cancel()

        assert seen == [(b"bad", 0), (b"bad", 1)]
        assert (dead.body, dead.tags, dead.properties["p"]) == (b"bad", "t", "v")


async def test_members_of_both_protocols_share_a_group() -> None:
    wanted = {f"{kind}-{number}".encode() for kind in ("good", "bad") for number in range(20)}
    bad = {body for body in wanted if body.startswith(b"bad")}
    async with grpc_broker(**SOON) as broker, client_of(broker) as client:
        broker.topics.put(TopicConfig(TOPIC, 4, 4))
        broker.groups.put(GroupConfig(GROUP, {"retryMaxTimes": 1}))
        remoting: list[tuple[bytes, int]] = []
        by_grpc: list[tuple[bytes, int]] = []
        member = remoting_member(broker, b"bad", remoting)
        async with client.telemetry(consumer_settings(GROUP, TOPIC)) as stream, member:
            assert (await stream.read()).status.code == Code.OK
            await until(lambda: len(broker.clients.consumers[GROUP].client_ids()) == 2)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consume, client, b"bad", by_grpc)
                async with Producer("senders", namesrv=broker.name_servers[0]) as producer:
                    for number, body in enumerate(sorted(wanted)):
                        if number % 2:
                            await producer.send(Message(TOPIC, body))
                        else:
                            assert (await client.send(body)).status.code == Code.OK
                dead = await dead_letters(broker, GROUP, len(bad))
                await until(lambda: {body for body, _ in [*remoting, *by_grpc]} == wanted)
                tasks.cancel_scope.cancel()

        assert {message.body for message in dead} == bad
        assert {times for body, times in [*remoting, *by_grpc] if body in bad} == {0, 1}
