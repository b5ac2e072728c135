"""A client of RocketMQ 5's protocol, as thin as the wire: calls with the tables of the plugin."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import grpc
import grpc.aio

from verniermq.contrib.grpc.enums import ClientType, Code, FilterType, MessageType
from verniermq.contrib.grpc.schema import RPCS, SERVICE, proto
from verniermq.kernel import Broker
from verniermq.testing import running_broker

TOPIC, GROUP = "orders", "billing"
_numbers = itertools.count(1)


@attrs.define(eq=False)
class Client:
    """One client id on one channel."""

    channel: Any
    metadata: dict[str, str]

    def stub(self, name: str) -> Any:
        asked, answered = RPCS[name].split()
        kind = f"{'stream' if asked[0] == '*' else 'unary'}_{'stream' if answered[0] == '*' else 'unary'}"
        return getattr(self.channel, kind)(
            f"/{SERVICE}/{name}",
            request_serializer=getattr(proto, asked.strip("*")).SerializeToString,
            response_deserializer=getattr(proto, answered.strip("*")).FromString,
        )

    async def call(self, name: str, timeout: float = 30, **fields: Any) -> Any:
        request = getattr(proto, RPCS[name].split()[0])(**fields)
        return await self.stub(name)(request, metadata=tuple(self.metadata.items()), timeout=timeout)

    # --- producers -------------------------------------------------------------------------

    async def send(self, body: bytes, topic: str = TOPIC, **system: Any) -> Any:
        message = make_message(body, topic, **system)
        answer = await self.call("SendMessage", messages=[message])
        assert answer.entries, answer.status
        return answer.entries[0]

    # --- consumers -------------------------------------------------------------------------

    async def receive(
        self, topic: str = TOPIC, group: str = GROUP, *, poll: float = 0, count: int = 32, expression: str = "*",
        kind: FilterType = FilterType.TAG, invisible: float = 30, timeout: float = 60, **fields: Any,
    ) -> tuple[Any, list[Any]]:  # fmt: skip
        """The status, and the messages."""
        request = proto.ReceiveMessageRequest(batch_size=count, **fields)
        request.group.name, request.message_queue.topic.name = group, topic
        request.filter_expression.type, request.filter_expression.expression = kind, expression
        request.long_polling_timeout.FromMilliseconds(int(poll * 1000))
        request.invisible_duration.FromMilliseconds(int(invisible * 1000))
        parts = [
            part
            async for part in self.stub("ReceiveMessage")(
                request, metadata=tuple(self.metadata.items()), timeout=timeout
            )
        ]
        kinds = [part.WhichOneof("content") for part in parts]
        assert kinds == ["status", *["message"] * (len(parts) - 2), "delivery_timestamp"]
        return parts[0].status, [part.message for part in parts[1:-1]]

    async def receive_all(self, wanted: int, **fields: Any) -> list[Any]:
        """As many messages as are wanted, waited for."""
        found: list[Any] = []
        while len(found) < wanted:
            status, messages = await self.receive(poll=10, **fields)
            assert status.code == Code.OK, status
            found += messages
        return found

    async def ack(self, message: Any, topic: str = TOPIC, group: str = GROUP) -> Any:
        system = message.system_properties
        entry = proto.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
        return (await self.call("AckMessage", group=named(group), topic=named(topic), entries=[entry])).status

    async def change(self, message: Any, seconds: float, topic: str = TOPIC, group: str = GROUP) -> Any:
        system = message.system_properties
        return await self.call(
            "ChangeInvisibleDuration", group=named(group), topic=named(topic), receipt_handle=system.receipt_handle,
            message_id=system.message_id, invisible_duration=duration(seconds),
        )  # fmt: skip

    # --- telemetry -------------------------------------------------------------------------

    @asynccontextmanager
    async def telemetry(self, settings: Any) -> AsyncIterator[Any]:
        """A stream; the answer to the settings is to be read from it."""
        stream = self.stub("Telemetry")(metadata=tuple(self.metadata.items()))
        await stream.write(proto.TelemetryCommand(settings=settings))
        try:
            yield stream
        finally:
            stream.cancel()


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110 (nothing tells)
            await anyio.sleep(0.01)


def named(name: str) -> Any:
    return proto.Resource(name=name)


def duration(seconds: float) -> Any:
    value = proto.Duration()
    value.FromMilliseconds(int(seconds * 1000))
    return value


def make_message(body: bytes, topic: str = TOPIC, **system: Any) -> Any:
    properties = system.pop("properties", {})
    message = proto.Message(topic=named(topic), body=body, user_properties=properties)
    number = next(_numbers)
    fields = {"message_id": f"01{number:032X}", "message_type": MessageType.NORMAL, **system}
    message.system_properties.MergeFrom(proto.SystemProperties(**fields))
    return message


def producer_settings(*topics: str) -> Any:
    settings = proto.Settings(client_type=ClientType.PRODUCER)
    settings.publishing.topics.extend([named(topic) for topic in topics])
    settings.publishing.SetInParent()
    return settings


def consumer_settings(group: str = GROUP, *topics: str, kind: ClientType = ClientType.PUSH_CONSUMER) -> Any:
    settings = proto.Settings(client_type=kind)
    settings.subscription.group.name = group
    for topic in topics:
        settings.subscription.subscriptions.add(topic=named(topic)).expression.expression = "*"
    return settings


@asynccontextmanager
async def grpc_broker(**settings: Any) -> AsyncIterator[Broker]:
    async with running_broker(plugins__enable=["default", "grpc"], plugins__grpc__port=0, **settings) as broker:
        yield broker


def port_of(broker: Broker) -> int:
    return int(broker.host.active["grpc"].instance.port)


@asynccontextmanager
async def client_of(broker: Broker, client_id: str = "test@1", **metadata: str) -> AsyncIterator[Client]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port_of(broker)}") as channel:
        yield Client(channel, {"x-mq-client-id": client_id, "x-mq-language": "PYTHON", **metadata})
