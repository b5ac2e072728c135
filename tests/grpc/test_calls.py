"""What calls are told: routes, settings, and a code for each thing that can be wrong."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from tests.grpc.rocketmq5 import (
    GROUP,
    TOPIC,
    client_of,
    consumer_settings,
    duration,
    grpc_broker,
    make_message,
    named,
    producer_settings,
    until,
)
from verniermq.contrib.grpc.enums import AddressScheme, ClientType, Code, MessageType, Permission
from verniermq.contrib.grpc.schema import proto
from verniermq.kernel import GroupConfig, Perm, TopicConfig
from verniermq.testing import ManualClock


def endpoints(host: str = "mq.example", port: int = 1234) -> Any:
    scheme = AddressScheme.DOMAIN_NAME
    return proto.Endpoints(scheme=scheme, addresses=[proto.Address(host=host, port=port)])


# --- routes --------------------------------------------------------------------------------


async def test_a_route_names_the_endpoint_that_the_client_used() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        broker.topics.put(TopicConfig(TOPIC, 3, 2))
        route = await client.call("QueryRoute", topic=named(TOPIC), endpoints=endpoints())

        assert route.status.code == Code.OK
        assert [queue.id for queue in route.message_queues] == [0, 1, 2]
        kinds = [queue.permission for queue in route.message_queues]
        assert kinds == [Permission.READ_WRITE, Permission.READ_WRITE, Permission.READ]
        assert all(queue.broker.endpoints == endpoints() for queue in route.message_queues)
        assert {queue.broker.name for queue in route.message_queues} == {broker.name}
        assert list(route.message_queues[0].accept_message_types) == [1, 2, 3, 4]


async def test_a_topic_that_a_send_would_create_has_a_route_and_others_have_none() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        assert (await client.call("QueryRoute", topic=named("new"))).status.code == Code.OK
        assert "new" not in broker.topics
    async with grpc_broker(topics__auto_create=False) as broker, client_of(broker) as client:
        refused = (await client.call("QueryRoute", topic=named("new"))).status
        assert refused.code == Code.TOPIC_NOT_FOUND
        assert "verniermq topic create new" in refused.message


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY"])
async def test_the_type_of_a_topic_is_told_and_minded(kind: str) -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        broker.topics.put(TopicConfig(TOPIC, attributes={"message.type": kind}))
        route = await client.call("QueryRoute", topic=named(TOPIC))
        codes = {}
        for sent in ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY"):
            fields = {"message_group": "g"} if sent == "FIFO" else {"priority": 1} if sent == "PRIORITY" else {}
            message = make_message(b"x", message_type=MessageType[sent], **fields)
            codes[sent] = (await client.call("SendMessage", messages=[message])).status.code

        assert list(route.message_queues[0].accept_message_types) == [MessageType[kind]]
        assert {sent for sent, code in codes.items() if code == Code.OK} == {kind}
        assert {codes[sent] for sent in codes if sent != kind} == {Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE}


async def test_a_push_consumer_gets_any_queue_of_the_broker_and_one_in_order_each_queue() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        broker.topics.put(TopicConfig(TOPIC, 2, 2))
        broker.groups.put(GroupConfig("in-order", {"consumeMessageOrderly": True}))
        names = {"topic": named(TOPIC), "endpoints": endpoints()}
        usual = await client.call("QueryAssignment", group=named(GROUP), **names)
        in_order = await client.call("QueryAssignment", group=named("in-order"), **names)

        assert [one.message_queue.id for one in usual.assignments] == [-1]
        assert [one.message_queue.id for one in in_order.assignments] == [0, 1]
        assert usual.assignments[0].message_queue.broker.endpoints == endpoints()


async def test_a_topic_that_may_not_be_read_or_written_says_so() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        broker.topics.put(TopicConfig("readable", perm=Perm.READ))
        broker.topics.put(TopicConfig("writable", perm=Perm.WRITE))
        sent = await client.call("SendMessage", messages=[make_message(b"x", "readable")])
        received, _ = await client.receive("writable")
        assigned = await client.call("QueryAssignment", topic=named("writable"), group=named(GROUP))

        assert [sent.status.code, received.code, assigned.status.code] == [Code.FORBIDDEN] * 3


# --- settings ------------------------------------------------------------------------------


async def test_a_producer_is_told_everything_that_it_takes_without_a_look() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        async with client.telemetry(producer_settings(TOPIC)) as stream:
            answer = await stream.read()
        settings = answer.settings

        assert answer.status.code == Code.OK
        assert settings.publishing.max_body_size == 4 << 20
        assert settings.publishing.validate_message_type
        assert settings.backoff_policy.max_attempts == 3
        assert settings.backoff_policy.exponential_backoff.initial == duration(0.01)
        assert settings.backoff_policy.exponential_backoff.max == duration(1)
        assert settings.backoff_policy.exponential_backoff.multiplier == 2
        assert [topic.name for topic in settings.publishing.topics] == [TOPIC]
        assert settings.HasField("metric")
        assert not settings.metric.on


async def test_a_consumer_is_told_the_settings_of_its_group() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        broker.groups.put(GroupConfig(GROUP, {"retryMaxTimes": 4, "consumeMessageOrderly": True}))
        async with client.telemetry(consumer_settings(GROUP, TOPIC)) as stream:
            settings = (await stream.read()).settings
            members = list(broker.clients.consumers[GROUP].members.values())
            subscribed = list(broker.clients.consumers[GROUP].subscriptions)
            beat = await client.call("Heartbeat", group=named(GROUP), client_type=ClientType.PUSH_CONSUMER)

        subscription = settings.subscription
        assert (subscription.fifo, subscription.receive_batch_size) == (True, 32)
        assert subscription.long_polling_timeout == duration(20)
        assert settings.backoff_policy.max_attempts == 5
        pauses = [step.seconds for step in settings.backoff_policy.customized_backoff.next]
        assert pauses[:4] == [1, 5, 10, 30]
        assert [member.client_id for member in members] == ["test@1"]
        assert members[0].connection.peer_host == "127.0.0.1"
        assert subscribed == [TOPIC]
        assert beat.status.code == Code.OK


async def test_a_client_whose_stream_breaks_is_in_no_group_any_more() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        async with client.telemetry(consumer_settings(GROUP, TOPIC)) as stream:
            await stream.read()
            assert GROUP in broker.clients.consumers
        await until(lambda: GROUP not in broker.clients.consumers)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (proto.Settings(client_type=1), Code.BAD_REQUEST),
        (consumer_settings("bad group"), Code.ILLEGAL_CONSUMER_GROUP),
        (consumer_settings(GROUP, "bad topic"), Code.ILLEGAL_TOPIC),
        (consumer_settings("unknown"), Code.CONSUMER_GROUP_NOT_FOUND),
        (consumer_settings(GROUP, kind=ClientType.LITE_PUSH_CONSUMER), Code.NOT_IMPLEMENTED),
    ],
)
async def test_a_stream_that_is_refused_says_why_and_ends(settings: Any, code: Code) -> None:
    async with grpc_broker(groups__auto_create=False) as broker, client_of(broker) as client:
        async with client.telemetry(settings) as stream:
            answer = await stream.read()
            end = await stream.code()

        assert (answer.status.code, answer.WhichOneof("command")) == (code, None)
        assert end == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_heartbeat_or_goodbye_of_a_stranger_is_told_so() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        for name in ("Heartbeat", "NotifyClientTermination"):
            assert (await client.call(name, group=named(GROUP))).status.code == Code.UNRECOGNIZED_CLIENT_TYPE


# --- what can be wrong ---------------------------------------------------------------------

FAR = proto.Timestamp(seconds=4_000_000_000)
WRONG_MESSAGES = [
    (make_message(b""), Code.MESSAGE_BODY_EMPTY),
    (make_message(bytes((4 << 20) + 1)), Code.MESSAGE_BODY_TOO_LARGE),
    (make_message(b"x", "bad topic"), Code.ILLEGAL_TOPIC),
    (make_message(b"x", "t" * 128), Code.ILLEGAL_TOPIC),
    (make_message(b"x", ""), Code.ILLEGAL_TOPIC),
    (make_message(b"x", "SCHEDULE_TOPIC_XXXX"), Code.ILLEGAL_TOPIC),
    (make_message(b"x", message_id=" "), Code.ILLEGAL_MESSAGE_ID),
    (make_message(b"x", message_id="a\x01b"), Code.ILLEGAL_MESSAGE_ID),
    (make_message(b"x", properties={"TAGS": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (make_message(b"x", properties={"TIMER_X": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (make_message(b"x", properties={"a": "\x02"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (make_message(b"x", properties={str(n): "" for n in range(129)}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    (make_message(b"x", properties={"a": "x" * 16384}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
    (make_message(b"x", tag=" "), Code.ILLEGAL_MESSAGE_TAG),
    (make_message(b"x", tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
    (make_message(b"x", keys=["a", " "]), Code.ILLEGAL_MESSAGE_KEY),
    (make_message(b"x", message_type=MessageType.FIFO, message_group="g" * 64), Code.ILLEGAL_MESSAGE_GROUP),
    (make_message(b"x", message_type=MessageType.FIFO), Code.ILLEGAL_MESSAGE_GROUP),
    (make_message(b"x", message_type=MessageType.DELAY, delivery_timestamp=FAR), Code.ILLEGAL_DELIVERY_TIME),
    (make_message(b"x", message_type=77), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (make_message(b"x", message_type=MessageType.LITE, lite_topic="l"), Code.NOT_IMPLEMENTED),
    (make_message(b"x", orphaned_transaction_recovery_duration=duration(3601)), Code.BAD_REQUEST),
    (make_message(b"x", born_host="a\x01b"), Code.BAD_REQUEST),
]


async def test_a_message_that_cannot_be_sent_says_why() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        for message, code in WRONG_MESSAGES:
            answer = await client.call("SendMessage", messages=[message])
            assert answer.status.code == code, (Code(code).name, answer.status)
            assert answer.status.message
            assert len(answer.status.message) < 1001
        none = await client.call("SendMessage")
        differing = await client.call("SendMessage", messages=[make_message(b"x", "a"), make_message(b"x", "b")])

        assert [none.status.code, differing.status.code] == [Code.MESSAGE_CORRUPTED] * 2
        assert broker.store.max_offset(TOPIC, 0) == 0


async def test_a_batch_has_an_entry_for_each_message() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        answer = await client.call("SendMessage", messages=[make_message(b"1"), make_message(b"2")])

        assert answer.status.code == Code.OK
        assert len({entry.message_id for entry in answer.entries}) == 2
        assert len(await client.receive_all(2)) == 2


async def test_calls_that_are_wrong_are_told_so() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        broker.topics.put(TopicConfig(TOPIC))
        names = {"group": named(GROUP), "topic": named(TOPIC)}
        too_short, _ = await client.receive(invisible=9)
        too_long, _ = await client.receive(invisible=12 * 3600 + 1)
        no_batch, _ = await client.receive(count=0)
        bad_group, _ = await client.receive(group="a b")
        system_group, _ = await client.receive(group="CID_RMQ_SYS_REVIVE_GROUP")
        no_entry = await client.call("AckMessage", **names)
        back = {"receipt_handle": "x", "invisible_duration": duration(-1)}
        negative = await client.call("ChangeInvisibleDuration", **names, **back)
        lite = await client.call("SyncLiteSubscription", **names)

        assert [too_short.code, too_long.code] == [Code.ILLEGAL_INVISIBLE_TIME] * 2
        assert no_batch.code == Code.BAD_REQUEST
        assert [bad_group.code, system_group.code] == [Code.ILLEGAL_CONSUMER_GROUP] * 2
        assert no_entry.status.code == Code.BAD_REQUEST
        assert negative.status.code == Code.ILLEGAL_INVISIBLE_TIME
        assert lite.status.code == Code.NOT_IMPLEMENTED


async def test_a_call_that_does_not_say_who_calls_is_refused_and_one_that_no_client_makes_is_unknown() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        client.metadata.clear()
        assert (await client.call("QueryRoute", topic=named(TOPIC))).status.code == Code.CLIENT_ID_REQUIRED
        assert (await client.receive())[0].code == Code.CLIENT_ID_REQUIRED
        pull = client.channel.unary_stream("/apache.rocketmq.v2.MessagingService/PullMessage")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await pull(b"", timeout=30).read()
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_more_clients_than_are_allowed_are_told_to_come_later() -> None:
    async with grpc_broker(plugins__grpc__max_clients=2) as broker, client_of(broker) as client:
        codes = []
        for number in range(3):
            client.metadata["x-mq-client-id"] = f"client-{number}"
            codes.append((await client.call("SendMessage", messages=[make_message(b"x")])).status.code)
        assert codes == [Code.OK, Code.OK, Code.TOO_MANY_REQUESTS]


async def test_a_client_of_which_nothing_is_heard_is_forgotten() -> None:
    clock = ManualClock()
    async with grpc_broker(clock=clock) as broker, client_of(broker) as client:
        await client.send(b"x")
        before = broker.host.active["grpc"].instance.runtime_info()["grpcClients"]
        await clock.advance(130)
        after = broker.host.active["grpc"].instance.runtime_info()["grpcClients"]

        assert (before, after) == ("1", "0")
