"""Messages by gRPC: sent, received, acknowledged, kept, given back, buried; and what remoting clients see of them."""

from __future__ import annotations

import zlib

import anyio
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
    port_of,
    producer_settings,
    until,
)
from verniermq.client import Message, Producer, PullConsumer
from verniermq.contrib.grpc.enums import Code, FilterType, MessageType, TransactionResolution
from verniermq.contrib.grpc.receive import poll_seconds
from verniermq.contrib.grpc.schema import proto
from verniermq.kernel import GroupConfig, PendingMessage, Property, SysFlag, TopicConfig
from verniermq.testing import ManualClock


async def test_a_message_comes_as_it_was_sent_and_an_acknowledged_one_does_not_come_again() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        sent = await client.send(b"hello", tag="paid", keys=["k1", "k2"], properties={"colour": "red"})
        status, (message,) = await client.receive()

        assert (sent.status.code, status.code) == (Code.OK, Code.OK)
        system = message.system_properties
        assert (message.topic.name, message.body, dict(message.user_properties)) == (TOPIC, b"hello", {"colour": "red"})
        assert (system.tag, list(system.keys), system.message_id) == ("paid", ["k1", "k2"], sent.message_id)
        assert system.body_digest.checksum == "5D41402ABC4B2A76B9719D911017C592"
        assert (system.delivery_attempt, system.message_type) == (1, MessageType.NORMAL)
        assert system.HasField("queue_offset")
        assert (await client.ack(message)).code == Code.OK
        assert (await client.ack(message)).code == Code.OK  # twice is fine, as at Apache's proxy
        assert (await client.receive())[0].code == Code.MESSAGE_NOT_FOUND


async def test_messages_that_are_not_acknowledged_come_again_until_they_are_dead_letters() -> None:
    clock = ManualClock()
    async with grpc_broker(clock=clock) as broker, client_of(broker) as client:
        broker.groups.put(GroupConfig(GROUP, {"retryMaxTimes": 2}))
        await client.send(b"too hard")
        attempts = []
        for _ in range(3):
            _, (message,) = await client.receive(invisible=10)
            attempts.append((message.system_properties.delivery_attempt, message.topic.name))
            await clock.advance(11)
        nothing, _ = await client.receive(invisible=10)
        _, (dead,) = await client.receive(topic=f"%DLQ%{GROUP}", group="undertaker")

        assert attempts == [(1, TOPIC), (2, TOPIC), (3, TOPIC)]
        assert nothing.code == Code.MESSAGE_NOT_FOUND
        assert dead.body == b"too hard"


async def test_a_message_is_given_back_with_a_time_and_gets_a_new_receipt() -> None:
    clock = ManualClock()
    async with grpc_broker(clock=clock) as broker, client_of(broker) as client:
        await client.send(b"later")
        _, (message,) = await client.receive()
        changed = await client.change(message, 5)
        await clock.advance(4)
        before, _ = await client.receive()
        await clock.advance(2)
        _, (again,) = await client.receive()

        assert changed.status.code == Code.OK
        assert changed.receipt_handle != message.system_properties.receipt_handle
        assert before.code == Code.MESSAGE_NOT_FOUND
        assert again.system_properties.delivery_attempt == 2


async def test_receipts_that_are_forged_old_or_of_others_acknowledge_nothing() -> None:
    clock = ManualClock()
    async with grpc_broker(clock=clock) as broker, client_of(broker) as client:
        await client.send(b"mine")
        await client.send(b"other", topic="elsewhere")
        _, (message,) = await client.receive(invisible=10)
        good = message.system_properties.receipt_handle
        words = good.split(" ")
        forged = [
            "", "x", "0", good[:-1], good + " ", " ".join([*words[:-1], "0" * 16]), "\x00" * 50, "ä" * 300,
            " ".join(["0", *words[1:]][:8]), " ".join([*words[:7], str(int(words[7]) + 1), *words[8:]]),
        ]  # fmt: skip

        async def codes(group: str, topic: str, handle: str) -> set[int]:
            entry = proto.AckMessageEntry(message_id="m", receipt_handle=handle)
            names = {"group": named(group), "topic": named(topic)}
            acked = await client.call("AckMessage", entries=[entry], **names)
            changed = await client.call(
                "ChangeInvisibleDuration", receipt_handle=handle, invisible_duration=duration(1), **names
            )
            buried = await client.call("ForwardMessageToDeadLetterQueue", receipt_handle=handle, **names)
            return {acked.status.code, changed.status.code, buried.status.code}

        for handle in forged:
            assert await codes(GROUP, TOPIC, handle) == {Code.INVALID_RECEIPT_HANDLE}, handle
        assert await codes("another", TOPIC, good) == {Code.INVALID_RECEIPT_HANDLE}
        assert await codes(GROUP, "elsewhere", good) == {Code.INVALID_RECEIPT_HANDLE}
        await clock.advance(11)
        assert await codes(GROUP, TOPIC, good) == {Code.INVALID_RECEIPT_HANDLE}
        _, (again,) = await client.receive()
        assert again.body == b"mine"


async def test_tags_and_sql_choose_messages() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        for number in range(4):
            await client.send(b"%d" % number, tag="even" if number % 2 == 0 else "odd", properties={"n": str(number)})
        by_tag = await client.receive_all(2, expression="even || none")
        by_sql = await client.receive_all(2, expression="n > 1", kind=FilterType.SQL, group="sql")
        wrong, _ = await client.receive(expression="n >", kind=FilterType.SQL, group="wrong")

        assert sorted(message.body for message in by_tag) == [b"0", b"2"]
        assert sorted(message.body for message in by_sql) == [b"2", b"3"]
        assert wrong.code == Code.ILLEGAL_FILTER_EXPRESSION


async def test_a_receive_waits_for_a_message() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        broker.topics.put(TopicConfig(TOPIC))
        async with anyio.create_task_group() as tasks:

            async def receive() -> None:
                _, messages = await client.receive(poll=20)
                assert [message.body for message in messages] == [b"at last"]

            tasks.start_soon(receive)
            await until(lambda: broker.host.active["pop"].instance.runtime_info()["popWaiting"] == "1")
            await client.send(b"at last")


@pytest.mark.parametrize(
    ("asked", "left", "waited"),
    [
        (5, None, 5),
        (None, None, 20),
        (60, None, 20),
        (0, None, 0),
        (5, 2, 1.5),
        (None, 10, 9.5),
        (5, 0.2, 0),
        (-1, 9, 0),
    ],
)
def test_a_receive_ends_before_the_deadline_of_its_client(
    asked: float | None, left: float | None, waited: float
) -> None:
    request = proto.ReceiveMessageRequest()
    if asked is not None:
        request.long_polling_timeout.CopyFrom(duration(asked))

    assert poll_seconds(request, left) == waited


async def test_delayed_messages_come_when_they_are_due_and_can_be_taken_back() -> None:
    clock = ManualClock()
    async with grpc_broker(clock=clock) as broker, client_of(broker) as client:
        due = proto.Timestamp()
        due.FromMilliseconds(clock.now_ms() + 30_000)
        fields = {"message_type": MessageType.DELAY, "delivery_timestamp": due}
        await client.send(b"kept", **fields)
        taken_back = await client.send(b"taken back", **fields)
        recalled = await client.call("RecallMessage", topic=named(TOPIC), recall_handle=taken_back.recall_handle)
        before, _ = await client.receive()
        await clock.advance(33)
        _, messages = await client.receive()
        wrong = await client.call("RecallMessage", topic=named(TOPIC), recall_handle="nonsense")

        assert (recalled.status.code, recalled.message_id) == (Code.OK, taken_back.message_id)
        assert before.code == Code.MESSAGE_NOT_FOUND
        assert [message.body for message in messages] == [b"kept"]
        assert messages[0].system_properties.message_type == MessageType.DELAY
        assert wrong.status.code == Code.BAD_REQUEST


async def test_messages_of_a_group_come_in_order_and_wait_for_each_other() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        broker.groups.put(GroupConfig(GROUP, {"consumeMessageOrderly": True}))
        for number in range(3):
            await client.send(b"a%d" % number, message_type=MessageType.FIFO, message_group="a")
        _, (first,) = await client.receive(count=1)
        blocked, _ = await client.receive(count=1)
        await client.ack(first)
        _, (second,) = await client.receive(count=1)

        assert (first.body, second.body) == (b"a0", b"a1")
        assert first.system_properties.message_group == "a"
        assert first.user_properties["__SHARDINGKEY"] == "a"
        assert blocked.code == Code.MESSAGE_NOT_FOUND


async def test_a_repeated_attempt_gets_the_same_messages_in_order() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        broker.groups.put(GroupConfig(GROUP, {"consumeMessageOrderly": True}))
        await client.send(b"once", message_type=MessageType.FIFO, message_group="a")
        _, (first,) = await client.receive(attempt_id="one")
        _, (again,) = await client.receive(attempt_id="one")
        other, _ = await client.receive(attempt_id="two")

        assert first.body == again.body
        assert again.system_properties.delivery_attempt == 1
        assert other.code == Code.MESSAGE_NOT_FOUND


async def test_a_given_up_message_becomes_a_dead_letter_and_unblocks_its_queue() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        broker.groups.put(GroupConfig(GROUP, {"consumeMessageOrderly": True}))
        for body in (b"bad", b"good"):
            await client.send(body, message_type=MessageType.FIFO, message_group="a")
        _, (bad,) = await client.receive(count=1)
        handle = bad.system_properties.receipt_handle
        names = {"group": named(GROUP), "topic": named(TOPIC)}
        buried = await client.call("ForwardMessageToDeadLetterQueue", receipt_handle=handle, **names)
        _, (good,) = await client.receive(count=1)
        (dead,) = await client.receive_all(1, topic=f"%DLQ%{GROUP}", group="undertaker")

        assert buried.status.code == Code.OK
        assert (good.body, dead.body) == (b"good", b"bad")
        assert dead.system_properties.dead_letter_queue.topic == TOPIC


# --- transactions --------------------------------------------------------------------------


@pytest.mark.parametrize("resolution", [TransactionResolution.COMMIT, TransactionResolution.ROLLBACK])
async def test_a_transaction_is_seen_after_its_commit_only(resolution: TransactionResolution) -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        sent = await client.send(b"half", message_type=MessageType.TRANSACTION)
        before, _ = await client.receive()
        ended = await client.call(
            "EndTransaction", topic=named(TOPIC), message_id=sent.message_id, transaction_id=sent.transaction_id,
            resolution=resolution,
        )  # fmt: skip
        _, messages = await client.receive()

        assert before.code == Code.MESSAGE_NOT_FOUND
        assert ended.status.code == Code.OK
        committed = resolution == TransactionResolution.COMMIT
        assert [message.body for message in messages] == ([b"half"] if committed else [])


async def test_a_producer_of_the_topic_is_asked_about_a_transaction_that_nobody_ended() -> None:
    clock = ManualClock()
    async with grpc_broker(clock=clock) as broker, client_of(broker) as client, client_of(broker, "other@2") as other:
        sent = await client.send(b"orphan", message_type=MessageType.TRANSACTION)
        broker.clients.connection_closed(next(iter(broker.clients.producers[TOPIC])))  # the sender is gone
        async with other.telemetry(producer_settings(TOPIC)) as stream:
            assert (await stream.read()).status.code == Code.OK
            await clock.advance(61)
            command = (await stream.read()).recover_orphaned_transaction_command
            ended = await other.call(
                "EndTransaction", topic=named(TOPIC), message_id=command.message.system_properties.message_id,
                transaction_id=command.transaction_id, resolution=TransactionResolution.COMMIT, source=2,
            )  # fmt: skip
        (message,) = await client.receive_all(1)

        assert command.message.system_properties.message_id == sent.message_id
        assert (command.message.body, command.message.topic.name) == (b"orphan", TOPIC)
        assert ended.status.code == Code.OK
        assert message.body == b"orphan"


@pytest.mark.parametrize("text", ["", "x", "half 1 2", "half -1 0 broker-a", "half 99999999999999999999 0 b", "0102"])
async def test_an_id_that_names_no_transaction_is_refused(text: str) -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        fields = {"topic": named(TOPIC), "message_id": "m", "transaction_id": text, "resolution": 1}
        assert (await client.call("EndTransaction", **fields)).status.code == Code.INVALID_TRANSACTION_ID


# --- with clients of the other protocol ----------------------------------------------------


async def test_both_protocols_read_what_the_other_wrote() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        await client.send(b"by gRPC", tag="t", keys=["k"], properties={"p": "v"})
        namesrv = broker.name_servers[0]
        async with Producer("remoting", namesrv=namesrv) as producer:
            large = b"by remoting " * 1000  # compressed on its way
            await producer.send(Message(TOPIC, large, tags="t", keys=["k"], properties={"p": "v"}))
        messages = await client.receive_all(2)
        async with PullConsumer("reader", namesrv=namesrv) as reader:
            found = []
            for queue in await reader.queues(TOPIC):
                found += (await reader.pull(queue, 0)).messages

        for message in messages:
            assert (message.system_properties.tag, dict(message.user_properties)) == ("t", {"p": "v"})
        assert {message.body for message in messages} == {b"by gRPC", large}
        assert {message.body for message in found} == {b"by gRPC", large}
        assert all(message.properties["p"] == "v" and message.tags == "t" for message in found)


async def test_a_body_that_a_remoting_client_compressed_is_handed_out_plain() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        broker.topics.put(TopicConfig(TOPIC))
        flag = SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB
        broker.store.append(PendingMessage(TOPIC, 0, zlib.compress(b"plain"), {Property.KEYS: "a b"}, sys_flag=flag))
        (message,) = await client.receive_all(1)

        assert (message.body, list(message.system_properties.keys)) == (b"plain", ["a", "b"])


async def test_a_namespace_is_a_part_of_the_names_and_not_of_what_is_handed_out() -> None:
    async with grpc_broker() as broker, client_of(broker) as client:
        resource = proto.Resource(resource_namespace="shop", name=TOPIC)
        message = make_message(b"mine")
        message.topic.CopyFrom(resource)
        await client.call("SendMessage", messages=[message])
        request = proto.ReceiveMessageRequest(batch_size=1, invisible_duration=duration(20))
        request.group.resource_namespace, request.group.name = "shop", GROUP
        request.message_queue.topic.CopyFrom(resource)
        request.long_polling_timeout.FromSeconds(10)
        parts = [part async for part in client.stub("ReceiveMessage")(request, metadata=(("x-mq-client-id", "a"),))]

        assert "shop%orders" in broker.topics
        assert TOPIC not in broker.topics
        assert parts[1].message.topic == resource


# --- what is worked on for long ------------------------------------------------------------


async def test_a_message_in_hand_stays_invisible_while_its_client_lives() -> None:
    clock = ManualClock()
    async with grpc_broker(clock=clock) as broker, client_of(broker) as client:
        async with client.telemetry(consumer_settings(GROUP, TOPIC)) as stream:
            await stream.read()
            await client.send(b"long work")
            _, (message,) = await client.receive(auto_renew=True)
            for _ in range(30):
                await clock.advance(10)
                await client.call("Heartbeat", group=named(GROUP), client_type=2)
            meanwhile, _ = await client.receive()
            acked = await client.ack(message)
            await clock.advance(3600)
            after, _ = await client.receive()

        assert meanwhile.code == Code.MESSAGE_NOT_FOUND
        assert acked.code == Code.OK
        assert after.code == Code.MESSAGE_NOT_FOUND


async def test_a_client_that_says_goodbye_gives_back_what_it_has_in_hand() -> None:
    clock = ManualClock()
    async with grpc_broker(clock=clock) as broker, client_of(broker) as client, client_of(broker, "next@2") as other:
        async with client.telemetry(consumer_settings(GROUP, TOPIC)) as stream:
            await stream.read()
            await client.send(b"next, please")
            await client.receive(auto_renew=True)
            goodbye = await client.call("NotifyClientTermination", group=named(GROUP))
        await clock.advance(2)
        _, (message,) = await other.receive()

        assert goodbye.status.code == Code.OK
        assert message.body == b"next, please"


async def test_a_receipt_outlives_a_restart(tmp_path: object) -> None:
    async with grpc_broker(store=tmp_path) as broker, client_of(broker) as client:
        await client.send(b"once")
        _, (message,) = await client.receive(invisible=600)
    async with grpc_broker(store=tmp_path) as broker, client_of(broker) as client:
        acked = await client.ack(message)

        assert port_of(broker)
        assert acked.code == Code.OK
