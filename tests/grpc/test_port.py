"""One port for TLS and plain, who may come by it, and what it does with whatever comes."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import hmac
import ssl
import subprocess
import sys
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.grpc.rocketmq5 import (
    GROUP,
    TOPIC,
    Client,
    client_of,
    consumer_settings,
    grpc_broker,
    named,
    port_of,
    producer_settings,
    until,
)
from verniermq.contrib.grpc.enums import Code, MessageType, TransactionResolution
from verniermq.kernel import VernierMQError
from verniermq.testing import ManualClock, running_broker

ACCOUNTS = {
    "producer": {"secret": "p-secret", "topics": {TOPIC: "PUB"}},
    "consumer": {"secret": "c-secret", "topics": {TOPIC: "SUB"}, "groups": {GROUP: "SUB"}},
}
WITH_ACL = {"plugins__enable": ["default", "acl", "grpc"], "plugins__grpc__port": 0}


def signed(key: str, secret: str, date: str = "20261117T101112Z") -> dict[str, str]:
    signature = hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest()
    text = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"authorization": text, "x-mq-date-time": date}


# --- TLS -----------------------------------------------------------------------------------


async def test_the_same_port_serves_tls_and_plain(tmp_path: Path) -> None:
    async with grpc_broker(store=tmp_path) as broker, client_of(broker) as plain:
        certificate = tmp_path / "config" / "grpcCertificate.pem"
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{port_of(broker)}", credentials) as channel:
            private = Client(channel, {"x-mq-client-id": "private@1"})
            await private.send(b"by TLS")
            (message,) = await plain.receive_all(1)

        assert message.body == b"by TLS"
        assert (tmp_path / "config" / "grpcKey.pem").stat().st_mode & 0o777 == 0o600


async def test_a_certificate_is_made_once(tmp_path: Path) -> None:
    async with grpc_broker(store=tmp_path):
        first = (tmp_path / "config" / "grpcCertificate.pem").read_bytes()
    async with grpc_broker(store=tmp_path):
        assert (tmp_path / "config" / "grpcCertificate.pem").read_bytes() == first


async def test_a_port_that_is_in_use_keeps_the_broker_from_starting() -> None:
    async with grpc_broker() as broker:
        with pytest.raises(VernierMQError, match=r"cannot listen on .* in \[plugins.grpc\]"):
            async with running_broker(plugins__enable=["default", "grpc"], plugins__grpc__port=port_of(broker)):
                pass


# --- access --------------------------------------------------------------------------------


async def test_signed_calls_do_what_their_account_may() -> None:
    async with running_broker(**WITH_ACL, plugins__acl__accounts=ACCOUNTS) as broker:
        async with client_of(broker, "p@1", **signed("producer", "p-secret")) as producer:
            sent = await producer.send(b"mine")
            elsewhere = await producer.send(b"no", topic="elsewhere")
            received, _ = await producer.receive()
            async with producer.telemetry(producer_settings(TOPIC)) as stream:
                welcome = await stream.read()
        async with client_of(broker, "c@1", **signed("consumer//Rocketmq", "c-secret")) as consumer:
            _, (message,) = await consumer.receive(poll=10)
            acked = await consumer.ack(message)
            refused = await consumer.send(b"no")
            async with consumer.telemetry(consumer_settings(GROUP, "elsewhere")) as stream:
                unwelcome = await stream.read()
                end = await stream.code()

        assert (sent.status.code, welcome.status.code, acked.code) == (Code.OK, Code.OK, Code.OK)
        codes = [elsewhere.status.code, received.code, refused.status.code, unwelcome.status.code]
        assert codes == [Code.UNAUTHORIZED] * 4
        assert end == grpc.StatusCode.PERMISSION_DENIED
        assert message.body == b"mine"


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        signed("producer", "wrong"),
        signed("", ""),  # a Python client without credentials
        signed("nobody", "p-secret"),
        {"authorization": signed("producer", "p-secret")["authorization"]},
        {**signed("producer", "p-secret"), "x-mq-date-time": "20261117T101113Z"},
        {**signed("producer", "p-secret"), "authorization": "Bearer x"},
        {**signed("producer", "p-secret"), "authorization": "MQv2-HMAC-SHA1 Credential=producer,,=,Signature"},
    ],
)
async def test_calls_that_are_not_signed_rightly_are_refused(metadata: dict[str, str]) -> None:
    settings = {**WITH_ACL, "plugins__acl__accounts": ACCOUNTS}
    async with running_broker(**settings) as broker, client_of(broker, "p@1", **metadata) as client:
        answer = await client.send(b"x")

        assert answer.status.code == Code.UNAUTHORIZED
        assert broker.store.max_offset(TOPIC, 0) == 0


async def test_a_producer_ends_transactions_with_the_right_to_send_alone() -> None:
    async with running_broker(**WITH_ACL, plugins__acl__accounts=ACCOUNTS) as broker:
        async with client_of(broker, "p@1", **signed("producer", "p-secret")) as producer:
            sent = await producer.send(b"half", message_type=MessageType.TRANSACTION)
            fields = {"message_id": sent.message_id, "transaction_id": sent.transaction_id}
            end = {"topic": named(TOPIC), "resolution": TransactionResolution.COMMIT, **fields}
            async with client_of(broker, "c@1", **signed("consumer", "c-secret")) as consumer:
                refused = await consumer.call("EndTransaction", **end)
            ended = await producer.call("EndTransaction", **end)

        assert (refused.status.code, ended.status.code) == (Code.UNAUTHORIZED, Code.OK)


def test_a_broker_with_the_port_starts_without_the_client() -> None:
    program = (
        "import sys, verniermq.contrib.grpc.port, verniermq.contrib.grpc.neighbours;"
        "print([name for name in sys.modules if name.startswith('verniermq.client.')])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    parts = {name.rpartition(".")[2] for name in ast.literal_eval(said)}

    assert parts <= {"receipt", "errors", "compression", "credentials", "java"}


# --- whatever comes ------------------------------------------------------------------------


async def _is_served(client: Client) -> bool:
    return bool((await client.send(b"control")).status.code == Code.OK)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 100_000,
        b"\x16\x03\x01\xff\xff" + b"x" * 70_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        b"\x16",
    ],
)
async def test_garbage_disturbs_nobody_else(data: bytes) -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        assert await _is_served(client)
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker))
            writer.write(data)
            try:
                await asyncio.wait_for(reader.read(10_000), 0.05)
            except (TimeoutError, ConnectionError):
                pass
            writer.close()
        assert await _is_served(client)


async def test_messages_that_are_no_protobuf_end_as_errors_of_their_call() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        assert await _is_served(client)
        call = client.channel.unary_unary("/apache.rocketmq.v2.MessagingService/SendMessage")
        for garbage in (b"\xff" * 1000, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x03abc"):
            with pytest.raises(grpc.aio.AioRpcError):
                await call(garbage, metadata=(("x-mq-client-id", "x"),), timeout=30)
        huge = client.channel.unary_unary("/apache.rocketmq.v2.MessagingService/QueryRoute")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await huge(b"", metadata=(("x-mq-client-id", "x" * 100_000),), timeout=30)
        assert error.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
        assert await _is_served(client)


async def test_a_client_that_goes_away_while_it_waits_takes_no_message_with_it() -> None:
    async with grpc_broker() as broker, client_of(broker) as client, client_of(broker, "next@2") as other:
        assert await _is_served(client)
        await client.receive_all(1)
        waiting = asyncio.create_task(client.receive(poll=20))
        pop = broker.host.active["pop"].instance
        while pop.runtime_info()["popWaiting"] == "0":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        waiting.cancel()
        await other.send(b"for whoever is there")
        (message,) = await other.receive_all(1)

        assert message.body == b"for whoever is there"


async def test_a_receive_that_is_given_up_waits_no_longer_at_the_broker() -> None:
    async with grpc_broker(clock=ManualClock()) as broker, client_of(broker) as client:
        pop = broker.host.active["pop"].instance
        assert await _is_served(client)
        await client.receive_all(1)
        for _ in range(2):
            waiting = [asyncio.create_task(client.receive(poll=20)) for _ in range(40)]
            await until(lambda: pop.runtime_info()["popWaiting"] == "40")
            for task in waiting:
                task.cancel()
            await until(lambda: pop.runtime_info()["popWaiting"] == "0")


async def test_many_waiting_receives_keep_nobody_from_being_served() -> None:
    async with grpc_broker() as broker, client_of(broker) as client, client_of(broker, "control@2") as control:
        assert await _is_served(client)
        await client.receive_all(1)
        waiting = [asyncio.create_task(client.receive(poll=20, group=f"g{number % 10}")) for number in range(300)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)  # a new group finds the message of before
        assert await _is_served(control)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert await _is_served(control)


async def test_a_tls_handshake_that_never_ends_is_ended() -> None:
    async with grpc_broker(tls__handshake_timeout="100ms") as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker))
        context = ssl.create_default_context()
        outgoing = ssl.MemoryBIO()
        tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        writer.write(outgoing.read()[:20])
        assert await asyncio.wait_for(reader.read(), 30) is not None
        writer.close()
