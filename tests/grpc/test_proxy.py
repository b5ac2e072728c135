"""The gRPC port on its own, in front of brokers that have none."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import grpc.aio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.grpc.rocketmq5 import TOPIC, Client, consumer_settings, make_message, named, producer_settings
from verniermq.client import Credentials
from verniermq.contrib.grpc.command import receipt_key
from verniermq.contrib.grpc.enums import Code, MessageType, TransactionResolution
from verniermq.contrib.grpc.port import GrpcPort
from verniermq.contrib.grpc.remote import RemoteBrokers
from verniermq.contrib.grpc.schema import proto
from verniermq.kernel import Broker, TopicConfig
from verniermq.testing import running_broker

QUICK = {"plugins__txn__timeout": "100ms", "plugins__txn__check_interval": "200ms"}


@asynccontextmanager
async def proxy_of(
    broker: Broker, folder: Path, credentials: Credentials | None = None
) -> AsyncIterator[Client]:  # fmt: skip
    """A client of a proxy."""
    brokers = RemoteBrokers(broker.name_servers[0], credentials)
    serving = GrpcPort(
        brokers=brokers, key=receipt_key(folder), folder=folder, host="127.0.0.1", advertised="127.0.0.1", port=0
    )
    await serving.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{serving.port}") as channel:
            yield Client(channel, {"x-mq-client-id": "proxied@1"})
    finally:
        await serving.stop()
        brokers.close()


async def test_messages_go_through_a_proxy_both_ways(tmp_path: Path) -> None:
    async with running_broker() as broker, proxy_of(broker, tmp_path) as client:
        sent = await client.send(b"hello", tag="t", properties={"p": "v"})
        route = await client.call("QueryRoute", topic=named(TOPIC))
        (message,) = await client.receive_all(1)
        changed = await client.change(message, 60)
        message.system_properties.receipt_handle = changed.receipt_handle
        acked = await client.ack(message)

        assert (sent.status.code, route.status.code, acked.code) == (Code.OK, Code.OK, Code.OK)
        assert (message.body, dict(message.user_properties)) == (b"hello", {"p": "v"})
        assert {queue.broker.name for queue in route.message_queues} == {broker.name}
        assert (await client.receive())[0].code == Code.MESSAGE_NOT_FOUND


async def test_a_proxy_minds_types_and_groups_and_says_what_is_missing(tmp_path: Path) -> None:
    settings = {"topics__auto_create": False, "groups__auto_create": False}
    async with running_broker(**settings) as broker, proxy_of(broker, tmp_path) as client:
        missing = await client.call("QueryRoute", topic=named("absent"))
        broker.topics.put(TopicConfig(TOPIC, attributes={"message.type": "FIFO"}))
        with anyio.fail_after(30):
            while (await client.call("QueryRoute", topic=named(TOPIC))).status.code != Code.OK:  # noqa: ASYNC110
                await anyio.sleep(0.05)
        refused = await client.call("SendMessage", messages=[make_message(b"x")])
        nobody, _ = await client.receive(group="unknown")

        assert missing.status.code == Code.TOPIC_NOT_FOUND
        assert refused.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert nobody.code == Code.CONSUMER_GROUP_NOT_FOUND


async def test_transactions_through_a_proxy_are_ended_and_asked_about(tmp_path: Path) -> None:
    async with running_broker(**QUICK) as broker, proxy_of(broker, tmp_path) as client:
        await client.send(b"first")  # so that the topic is there
        await client.receive_all(1)
        async with client.telemetry(producer_settings(TOPIC)) as stream:
            assert (await stream.read()).status.code == Code.OK
            sent = await client.send(b"half", message_type=MessageType.TRANSACTION)
            asked = (await stream.read()).recover_orphaned_transaction_command
            ended = await client.call(
                "EndTransaction", topic=named(TOPIC), message_id=sent.message_id, transaction_id=asked.transaction_id,
                resolution=TransactionResolution.COMMIT, source=2,
            )  # fmt: skip
        (message,) = await client.receive_all(1)

        assert asked.message.system_properties.message_id == sent.message_id
        assert ended.status.code == Code.OK
        assert message.body == b"half"


async def test_a_consumer_behind_a_proxy_is_a_member_of_its_group(tmp_path: Path) -> None:
    async with running_broker() as broker, proxy_of(broker, tmp_path) as client:
        await client.send(b"x")
        async with client.telemetry(consumer_settings("billing", TOPIC)) as stream:
            assert (await stream.read()).status.code == Code.OK
            assert broker.clients.consumers["billing"].client_ids() == ["proxied@1"]


async def test_a_delayed_message_is_taken_back_through_a_proxy(tmp_path: Path) -> None:
    async with running_broker() as broker, proxy_of(broker, tmp_path) as client:
        due = proto.Timestamp()
        due.FromMilliseconds(broker.clock.now_ms() + 600_000)
        sent = await client.send(b"later", message_type=MessageType.DELAY, delivery_timestamp=due)
        recalled = await client.call("RecallMessage", topic=named(TOPIC), recall_handle=sent.recall_handle)

        assert recalled.status.code == Code.OK


@pytest.mark.parametrize(("secret", "code"), [("p-secret", Code.OK), ("wrong-secret", Code.UNAUTHORIZED)])
async def test_a_proxy_signs_in_its_own_name(secret: str, code: Code, tmp_path: Path) -> None:
    accounts = {"proxy": {"secret": "p-secret", "admin": True}}
    settings = {"plugins__enable": ["default", "acl"], "plugins__acl__accounts": accounts}
    own = Credentials("proxy", secret)
    async with running_broker(**settings) as broker, proxy_of(broker, tmp_path, own) as client:
        assert (await client.call("SendMessage", messages=[make_message(b"x")])).status.code == code


async def test_a_broker_that_went_away_is_an_error_of_the_network(tmp_path: Path) -> None:
    async with running_broker() as broker, proxy_of(broker, tmp_path) as client:
        await client.send(b"x")
        await broker.server.stop()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await client.send(b"y")
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    async with running_broker() as broker:
        options = ["--namesrv", broker.name_servers[0], "--port", "0", "--folder", str(tmp_path)]
        command = [sys.executable, "-m", "verniermq.cli", "proxy", *options]
        async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            with anyio.fail_after(60):
                said = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 1000)
            endpoint = re.findall(rb"listening on (\S+),", said)[0].decode()
            async with grpc.aio.insecure_channel(endpoint) as channel:
                sent = await Client(channel, {"x-mq-client-id": "proxied@1"}).send(b"x")
            process.terminate()
            with anyio.fail_after(60):
                ended = await process.wait()

        assert sent.status.code == Code.OK
        assert ended == 0
