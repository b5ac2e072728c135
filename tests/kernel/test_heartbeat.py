"""Who is there: heartbeats, leaving in three ways, and telling the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import orjson
import pytest

from tests.kernel.pulling import until
from tests.plugins.peer import PATIENCE, Peer, peer
from tests.work import WorkPerTurn
from verniermq.kernel import (
    Broker,
    ClientRegistry,
    Command,
    Connection,
    ConsumerGroup,
    GroupConfig,
    RequestCode,
    ResponseCode,
    connect,
)
from verniermq.kernel.handlers.heartbeat import REGISTERED_PER_STEP
from verniermq.kernel.tables.clients import GROUPS_LEFT_PER_STEP, NOTICES_PER_STEP
from verniermq.testing import ManualClock, running_broker


class Consumer(Peer):
    """A client that writes down which groups it was told have changed."""

    told: list[str]


@asynccontextmanager
async def consumer(broker: Broker, client_id: str) -> AsyncIterator[Consumer]:
    told: list[str] = []

    def hear(request: Command, connection: Connection) -> None:
        assert request.is_oneway
        told.append(request.text("consumerGroup"))

    handlers = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: hear}
    client = Consumer(await connect(broker.address, handlers, timeout=PATIENCE), client_id)
    client.told = told
    try:
        yield client
    finally:
        client.connection.close()
        await client.connection.wait_closed()


async def members(client: Peer, group: str = "readers") -> list[str] | None:
    answer = await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
    if answer.code == ResponseCode.SYSTEM_ERROR:
        assert answer.remark == f"group {group!r} has no live consumer"
        return None
    found: list[str] = orjson.loads(answer.body)["consumerIdList"]
    return found


async def beat(client: Peer, **data: Any) -> Command:
    return await client.ask(RequestCode.HEART_BEAT, orjson.dumps({"clientID": client.client_id, **data}))


def group(*topics: str, name: str = "readers", version: int = 1, expression: str = "*", **more: Any) -> dict[str, Any]:
    subscriptions = [{"topic": topic, "subString": expression, "subVersion": version} for topic in topics]
    return {"groupName": name, "messageModel": "CLUSTERING", "subscriptionDataSet": subscriptions, **more}


# --- coming -------------------------------------------------------------------------------


async def test_a_heartbeat_makes_a_client_a_member_of_its_groups() -> None:
    async with running_broker(plugins__enable=[]) as broker, consumer(broker, "me") as client:
        assert await members(client) is None
        groups = [group("orders"), group("x", name="two")]
        answer = await beat(client, producerDataSet=[{"groupName": "writers"}], consumerDataSet=groups)

        assert answer.code == ResponseCode.SUCCESS
        assert await members(client) == ["me"]
        assert await members(client, "two") == ["me"]
        assert list(broker.clients.producers) == ["writers"]
        assert "readers" in broker.groups


async def test_each_newcomer_is_told_to_all_at_once() -> None:
    async with (
        running_broker(plugins__enable=[], clock=ManualClock()) as broker,
        consumer(broker, "a") as one,
        consumer(broker, "b") as two,
    ):
        await beat(one, consumerDataSet=[group("orders")])
        await until(lambda: one.told == ["readers"])
        await beat(two, consumerDataSet=[group("orders")])
        await until(lambda: one.told == ["readers"] * 2 and two.told == ["readers"])
        await beat(two, consumerDataSet=[group("orders")])  # nothing new
        assert await members(one) == await members(two) == ["a", "b"]

        assert (len(one.told), len(two.told)) == (2, 1)


async def test_a_changed_set_of_topics_is_told_and_a_newer_expression_is_taken() -> None:
    async with running_broker(plugins__enable=["filter"]) as broker, consumer(broker, "a") as client:
        await beat(client, consumerDataSet=[group("orders", "bills", version=5, expression="red")])
        await beat(client, consumerDataSet=[group("orders", version=4, expression="old")])
        await until(lambda: client.told == ["readers"] * 2)
        live = broker.clients.consumers["readers"].subscriptions
        assert {topic: one.subscription.expression for topic, one in live.items()} == {"orders": "red"}

        await beat(client, consumerDataSet=[group("orders", version=6, expression="blue")])
        assert live["orders"].subscription.expression == "blue"


async def test_a_heartbeat_without_subscriptions_keeps_those_it_had() -> None:
    async with running_broker(plugins__enable=[]) as broker, consumer(broker, "a") as client:
        await beat(client, consumerDataSet=[group("orders")])
        await beat(client, consumerDataSet=[group()], withoutSub=True)

        assert list(broker.clients.consumers["readers"].subscriptions) == ["orders"]


@pytest.mark.parametrize(
    ("config", "model"), [({"notifyConsumerIdsChangedEnable": False}, "CLUSTERING"), ({}, "BROADCASTING")]
)
async def test_a_group_that_wants_no_notices_gets_none(config: dict[str, Any], model: str) -> None:
    async with running_broker(plugins__enable=[]) as broker, consumer(broker, "a") as client:
        broker.groups.put(GroupConfig("readers", config))
        await beat(client, consumerDataSet=[group("orders", messageModel=model)])
        assert await members(client) == ["a"]

        assert client.told == []


async def test_an_unknown_group_is_left_out_and_the_others_live() -> None:
    async with (
        running_broker(plugins__enable=[], groups__auto_create=False) as broker,
        consumer(broker, "a") as client,
    ):
        broker.groups.put(GroupConfig("known"))
        answer = await beat(client, consumerDataSet=[group("orders"), group("orders", name="known")])

        assert answer.code == ResponseCode.SUCCESS
        assert list(broker.clients.consumers) == ["known"]


# --- going --------------------------------------------------------------------------------


async def leave_by_word(client: Peer, clock: ManualClock) -> None:
    await client.ask_well(
        RequestCode.UNREGISTER_CLIENT, clientID=client.client_id, consumerGroup="readers", producerGroup="writers"
    )


async def leave_by_closing(client: Peer, clock: ManualClock) -> None:
    client.connection.close()


async def leave_by_silence(client: Peer, clock: ManualClock) -> None:
    await clock.advance(70)


@pytest.mark.parametrize("leave", [leave_by_word, leave_by_closing, leave_by_silence])
async def test_who_leaves_is_taken_out_and_the_others_are_told(leave: Any) -> None:
    clock = ManualClock()
    async with (
        running_broker(plugins__enable=[], clock=clock) as broker,
        consumer(broker, "a") as leaving,
        consumer(broker, "b") as staying,
    ):
        await beat(leaving, producerDataSet=[{"groupName": "writers"}], consumerDataSet=[group("orders")])
        await clock.advance(70)
        await beat(staying, consumerDataSet=[group("orders")])
        await until(lambda: staying.told == ["readers"])
        await leave(leaving, clock)

        await until(lambda: staying.told == ["readers"] * 2)
        assert await members(staying) == ["b"]
        assert broker.clients.producers == {}


async def test_a_silent_client_s_connection_is_closed() -> None:
    clock = ManualClock()
    async with running_broker(plugins__enable=[], clock=clock, clients__expiry="60s") as broker:
        async with consumer(broker, "a") as client:
            await beat(client, consumerDataSet=[group("orders")])
            await clock.advance(59)
            assert await members(client) == ["a"]
            await clock.advance(12)  # the scan comes every 10 s
            await until(lambda: client.connection.closed)

        assert broker.clients.consumers == {}


async def test_a_group_goes_with_its_last_member() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as other:
        async with consumer(broker, "a") as client:
            await beat(client, consumerDataSet=[group("orders")])
        await until(lambda: broker.clients.consumers == {})

        assert await members(other) is None


async def test_leaving_a_deleted_group_does_not_bring_it_back(caplog: pytest.LogCaptureFixture) -> None:
    async with running_broker(plugins__enable=["topics"]) as broker:
        async with consumer(broker, "a") as client:
            await beat(client, consumerDataSet=[group("orders")])
            await client.ask_well(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="readers")
        await until(lambda: broker.clients.consumers == {})

        assert "readers" not in broker.groups


# --- asking before the start --------------------------------------------------------------


@pytest.mark.parametrize(
    ("subscription", "code"),
    [
        ({"topic": "t", "subString": "a > 1", "expressionType": "SQL92"}, ResponseCode.SUCCESS),
        ({"topic": "t", "subString": "a >", "expressionType": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"topic": "t", "subString": "a || b"}, ResponseCode.SUCCESS),
        (None, ResponseCode.SUCCESS),
    ],
)
async def test_a_consumer_asks_whether_its_expression_will_do(subscription: Any, code: int) -> None:
    async with running_broker() as broker, peer(broker.address) as client:
        body = orjson.dumps({"clientId": "me", "group": "readers", "subscriptionData": subscription})
        assert (await client.ask(RequestCode.CHECK_CLIENT_CONFIG, body)).code == code


# --- many ---------------------------------------------------------------------------------


async def test_a_heartbeat_of_hundreds_of_groups_lets_others_have_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = WorkPerTurn().watch(monkeypatch, ClientRegistry, "register_consumer")
    left = WorkPerTurn().watch(monkeypatch, ClientRegistry, "_leave")
    async with running_broker(plugins__enable=[]) as broker:
        async with peer(broker.address) as client:
            answer = await beat(client, consumerDataSet=[group(name=f"group-{number}") for number in range(300)])

            assert answer.code == ResponseCode.SUCCESS
            assert len(broker.clients.consumers) == 300
        await until(lambda: not broker.clients.consumers)

    assert (registered.total, left.total) == (300, 300)
    assert registered.most <= REGISTERED_PER_STEP
    assert left.most <= GROUPS_LEFT_PER_STEP


async def test_a_heartbeat_of_hundreds_of_subscriptions_lets_others_have_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = WorkPerTurn().watch(monkeypatch, ClientRegistry, "compile")
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await beat(client, consumerDataSet=[group(*[f"topic-{number}" for number in range(300)])])

        assert len(broker.clients.consumers["readers"].subscriptions) == 300

    assert compiled.most <= REGISTERED_PER_STEP


async def test_a_client_that_goes_in_the_middle_of_its_heartbeat_leaves_nothing_behind() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as other:
        client = await connect(broker.address)
        groups = [group(name=f"group-{number}") for number in range(300)]
        body = orjson.dumps({"clientID": "me", "consumerDataSet": groups})
        client.oneway(Command.request(RequestCode.HEART_BEAT, {}, body))
        await until(lambda: broker.clients.consumers)
        client.abort()
        await until(lambda: not broker.clients.consumers)

        await other.sent("orders")
        assert not broker.clients.consumers


async def test_in_a_large_group_all_are_told_in_steps_and_many_changes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = 150
    notices = WorkPerTurn()
    oneway = Connection.oneway

    def counted(connection: Connection, command: Command) -> bool:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            notices.note()
        return oneway(connection, command)

    monkeypatch.setattr(Connection, "oneway", counted)
    async with running_broker(plugins__enable=[]) as broker, AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(consumer(broker, str(number))) for number in range(clients)]
        body = orjson.dumps({"clientID": "me", "consumerDataSet": [group("orders")]})
        for client in crowd:
            client.connection.oneway(Command.request(RequestCode.HEART_BEAT, {}, body))
            client.connection.flush()
        await until(lambda: len(broker.clients.consumers.get("readers", ConsumerGroup("")).members) == clients)
        await until(lambda: all(client.told for client in crowd))

        assert notices.most <= NOTICES_PER_STEP
        assert notices.total < clients * clients / 4, "each newcomer was told to everybody"


@pytest.mark.parametrize(
    ("setting", "data"),
    [
        ("max_groups_per_client", {"producerDataSet": [{"groupName": name} for name in "abc"]}),
        ("max_members", {"consumerDataSet": [group(name=name) for name in "abc"]}),
        ("max_subscriptions_per_group", {"consumerDataSet": [group("x", "y", "z")]}),
        ("max_subscriptions", {"consumerDataSet": [group("x", "y"), group("z", name="other")]}),
    ],
)
async def test_a_heartbeat_beyond_a_limit_is_refused_with_its_name(setting: str, data: dict[str, Any]) -> None:
    async with (
        running_broker(plugins__enable=[], **{f"clients__{setting}": 2}) as broker,
        peer(broker.address) as client,
    ):
        answer = await beat(client, **data)

        assert answer.code == ResponseCode.NO_PERMISSION
        assert f"2, as many as there may be; raise {setting} in [clients]" in answer.remark


async def test_who_leaves_makes_room_for_others() -> None:
    limits = {"clients__max_members": 1, "clients__max_subscriptions": 1}
    async with running_broker(plugins__enable=[], **limits) as broker:
        for client_id in ("a", "b", "c"):
            async with peer(broker.address, client_id) as client:
                for topic in ("x", "x"):
                    assert (await beat(client, consumerDataSet=[group(topic)])).code == ResponseCode.SUCCESS
            await until(lambda: not broker.clients.consumers)
