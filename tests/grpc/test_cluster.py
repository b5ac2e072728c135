"""Several brokers under one name server: a route names all that clients can go to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from tests.grpc.rocketmq5 import TOPIC, Client, client_of, grpc_broker, named, port_of
from verniermq.contrib.grpc.enums import Code, MessageType
from verniermq.contrib.grpc.schema import proto
from verniermq.kernel import Broker, TopicConfig
from verniermq.testing import running_broker


@asynccontextmanager
async def cluster(**settings: Any) -> AsyncIterator[tuple[Broker, Broker, Broker]]:
    """The first two have the plugin, the third has not."""
    async with grpc_broker(broker__name="a", **settings) as a:
        under = {"broker__namesrv": a.name_servers, **settings}
        async with grpc_broker(broker__name="b", **under) as b, running_broker(broker__name="c", **under) as c:
            yield a, b, c


async def route_of(client: Client, topic: str, brokers: set[str]) -> Any:
    """The route, once it names these: brokers register what is new after a moment."""
    with anyio.fail_after(30):
        while True:
            route = await client.call("QueryRoute", topic=named(topic))
            if {queue.broker.name for queue in route.message_queues} == brokers:
                return route
            await anyio.sleep(0.1)


def places(route: Any) -> dict[str, tuple[str, int]]:
    found = {queue.broker.name: queue.broker.endpoints.addresses[0] for queue in route.message_queues}
    return {name: (address.host, address.port) for name, address in found.items()}


async def test_a_route_names_every_broker_with_its_own_port_and_leaves_out_those_that_have_none() -> None:
    async with cluster() as (a, b, c), client_of(a) as client:
        for broker in (a, b, c):
            broker.topics.put(TopicConfig(TOPIC, 2, 2, attributes={"message.type": "FIFO"}))
        route = await route_of(client, TOPIC, {"a", "b"})
        assigned = await client.call("QueryAssignment", topic=named(TOPIC), group=named("g"))

        assert places(route) == {"a": ("127.0.0.1", port_of(a)), "b": ("127.0.0.1", port_of(b))}
        assert [(queue.broker.name, queue.id) for queue in route.message_queues] == [
            ("a", 0), ("a", 1), ("b", 0), ("b", 1),
        ]  # fmt: skip
        assert {tuple(queue.accept_message_types) for queue in route.message_queues} == {(MessageType.FIFO,)}
        assert [one.message_queue.broker.name for one in assigned.assignments] == ["a", "b"]


async def test_a_topic_that_only_another_broker_has_is_not_made_a_second_time() -> None:
    async with cluster() as (a, b, _c), client_of(a) as client, client_of(b, "other@1") as other:
        b.topics.put(TopicConfig(TOPIC, 1, 1))
        route = await route_of(client, TOPIC, {"b"})
        sent = await other.send(b"there")
        (message,) = await other.receive_all(1)

        assert places(route) == {"b": ("127.0.0.1", port_of(b))}
        assert (sent.status.code, message.body) == (Code.OK, b"there")


async def test_a_topic_that_is_on_brokers_without_the_plugin_alone_says_so() -> None:
    async with cluster() as (a, _b, c), client_of(a) as client:
        c.topics.put(TopicConfig(TOPIC))
        with anyio.fail_after(30):
            while (status := (await client.call("QueryRoute", topic=named(TOPIC))).status).code == Code.OK:  # noqa: ASYNC110
                await anyio.sleep(0.1)

        assert status.code == Code.NOT_IMPLEMENTED
        assert "broker 'c' has no gRPC port; switch on its plugin 'grpc', or use verniermq proxy" in status.message


async def test_a_broker_that_went_away_is_left_out_and_the_rest_is_served() -> None:
    async with cluster() as (a, b, _c), client_of(a) as client:
        for broker in (a, b):
            broker.topics.put(TopicConfig(TOPIC, 1, 1))
        await route_of(client, TOPIC, {"a", "b"})
        await b.server.stop()
        await route_of(client, TOPIC, {"a"})

        assert (await client.send(b"x")).status.code == Code.OK


async def test_a_delayed_message_is_taken_back_by_whichever_broker_is_asked() -> None:
    async with cluster() as (a, b, _c), client_of(a) as client, client_of(b, "other@1") as other:
        for broker in (a, b):
            broker.topics.put(TopicConfig(TOPIC, 1, 1))
        due = proto.Timestamp()
        due.FromMilliseconds(b.clock.now_ms() + 600_000)
        sent = await other.send(b"later", message_type=MessageType.DELAY, delivery_timestamp=due)
        recalled = await client.call("RecallMessage", topic=named(TOPIC), recall_handle=sent.recall_handle)

        assert recalled.status.code == Code.OK
