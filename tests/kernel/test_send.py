"""SEND_MESSAGE in its forms: which topic, which queue, what is refused, and what is stored."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.plugins.peer import Peer, peer
from verniermq.kernel import Perm, RequestCode, ResponseCode, TopicConfig, format_properties, parse_offset_message_id
from verniermq.kernel.message import LONGEST_TAG
from verniermq.testing import running_broker

LONG = {
    "producerGroup": "producers", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0,
    "sysFlag": 0, "bornTimestamp": 1_600_000_000_000, "flag": 7, "properties": format_properties({"TAGS": "paid"}),
    "reconsumeTimes": 0,
}  # fmt: skip


async def test_a_message_is_stored_with_everything_it_came_with() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        fields = await client.sent("orders", b"hello", queue=2, KEYS="k1 k2", TAGS="paid", mine="yours")
        (message,) = await client.pull("orders", queue=2)

    assert message.body == b"hello"
    assert (message.queue_id, message.queue_offset, message.flag) == (2, 0, 7)
    assert message.born_timestamp == 1_600_000_000_000
    assert message.keys == ["k1", "k2"]
    assert message.tags == "paid"
    assert message.properties["mine"] == "yours"
    assert (fields["queueId"], fields["queueOffset"]) == ("2", "0")
    assert fields["msgId"] == message.offset_message_id
    assert parse_offset_message_id(fields["msgId"]) == (broker.address, message.commit_log_offset)
    assert fields["transactionId"] == message.unique_key


async def test_the_long_form_and_the_short_form_mean_the_same() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await client.ask_well(RequestCode.SEND_MESSAGE, b"long", **LONG)
        await client.sent("orders", b"short", TAGS="paid")
        long, short = await client.pull("orders")

    assert (long.body, short.body) == (b"long", b"short")
    for name in ("topic", "queue_id", "flag", "sys_flag", "born_timestamp", "tags", "born_host", "reconsume_times"):
        assert getattr(long, name) == getattr(short, name), name


async def test_the_broker_adds_what_clients_expect_of_it() -> None:
    async with running_broker(plugins__enable=[], broker__cluster="c1") as broker, peer(broker.address) as client:
        await client.sent("orders", UNIQ_KEY="given by the client")
        await client.sent("orders")
        first, second = await client.pull("orders")

    assert first.unique_key == "given by the client"
    assert len(second.unique_key or "") == 32
    for message in (first, second):
        assert message.properties["MSG_REGION"] == "DefaultRegion"
        assert message.properties["TRACE_ON"] == "true"
        assert message.properties["CLUSTER"] == "c1"


# --- topics that come to exist ------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "queues"), [(4, 4), (1, 1), (100, 8), (0, 1), (-3, 1)])
async def test_a_topic_is_created_with_the_queues_asked_for_within_the_template_s(wanted: int, queues: int) -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await client.ask_well(RequestCode.SEND_MESSAGE, **{**LONG, "defaultTopicQueueNums": wanted})

        assert broker.topics.get("orders") == TopicConfig("orders", queues, queues, Perm.READ_WRITE)


@pytest.mark.parametrize("template", ["", "nowhere", "plain"])
async def test_without_a_template_that_may_be_inherited_the_topic_does_not_exist(template: str) -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("plain"))
        answer = await client.ask(RequestCode.SEND_MESSAGE, **{**LONG, "defaultTopic": template})

        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert "'orders' does not exist" in answer.remark
        assert "orders" not in broker.topics


async def test_auto_creation_can_be_switched_off() -> None:
    async with running_broker(plugins__enable=[], topics__auto_create=False) as broker, peer(broker.address) as client:
        answer = await client.send("orders")

        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert "set auto_create = true in [topics]" in answer.remark


async def test_a_retry_topic_is_created_with_one_queue_even_then() -> None:
    async with running_broker(plugins__enable=[], topics__auto_create=False) as broker, peer(broker.address) as client:
        await client.sent("%RETRY%readers")

        assert broker.topics.get("%RETRY%readers") == TopicConfig("%RETRY%readers", 1, 1)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "../escape", "ä", "a/b", "x" * 128, "%RETRY%" + "x" * 249])
async def test_a_name_that_clients_would_refuse_is_refused(name: str) -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        answer = await client.send(name)

        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert name not in broker.topics


@pytest.mark.parametrize("name", ["x" * 127, "%RETRY%" + "x" * 120, "a-b_c%d|e"])
async def test_the_longest_and_the_oddest_legal_names_are_taken(name: str) -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await client.sent(name, b"hello")
        assert await client.bodies(name) == [b"hello"]


KERNELS_OWN = ("SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT")
CLOSED_BY_PLUGINS = (
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "plugins"),
    [
        *((name, ()) for name in KERNELS_OWN),
        *((name, ("default",)) for name in (*KERNELS_OWN, *CLOSED_BY_PLUGINS)),
    ],
)
async def test_nobody_sends_to_the_broker_s_own_topics(name: str, plugins: tuple[str, ...]) -> None:
    async with running_broker(plugins__enable=list(plugins)) as broker, peer(broker.address) as client:
        assert (await client.send(name)).code == ResponseCode.NO_PERMISSION


# --- queues -------------------------------------------------------------------------------


async def test_a_queue_that_the_topic_does_not_have_is_refused() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        await client.sent("orders", queue=3)
        answer = await client.send("orders", queue=4)

        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.remark == "topic 'orders' has no queue 4; it has 4 queues, 0 to 3"


async def test_a_shrinking_topic_takes_messages_while_one_count_is_still_larger() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("orders", read_queues=4, write_queues=2))
        await client.sent("orders", queue=3)
        broker.topics.put(TopicConfig("orders", read_queues=2, write_queues=2))

        assert (await client.send("orders", queue=3)).code == ResponseCode.INVALID_PARAMETER


async def test_a_negative_queue_lets_the_broker_choose_one_that_may_be_written() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("orders", read_queues=8, write_queues=2))
        answers = [await client.sent("orders", queue=-1) for _ in range(50)]

        assert {answer["queueId"] for answer in answers} == {"0", "1"}
        stored = [len(await client.pull("orders", queue=queue)) for queue in range(3)]
        assert sum(stored[:2]) == 50
        assert stored[2] == 0


# --- what cannot be stored ----------------------------------------------------------------


async def test_a_body_at_the_limit_is_stored_and_one_over_it_is_refused() -> None:
    async with (
        running_broker(plugins__enable=[], store__max_message_size="64KiB") as broker,
        peer(broker.address) as client,
    ):
        await client.sent("orders", bytes(65536))
        answer = await client.send("orders", bytes(65537))

        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "65537 bytes exceeds max_message_size of 65536 bytes" in answer.remark
        assert len(await client.pull("orders")) == 1


async def test_properties_that_no_record_can_hold_are_refused() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        assert (await client.send("orders", mine="x" * 40_000)).code == ResponseCode.MESSAGE_ILLEGAL
        await client.sent("orders", mine="x" * 30_000)


async def test_a_tag_that_takes_long_to_hash_is_refused() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        refused = await client.send("orders", TAGS="x" * (LONGEST_TAG + 1))
        await client.sent("orders", TAGS="x" * LONGEST_TAG, mine="y" * LONGEST_TAG)

        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "the tag has 1025 characters, and 1024 at most are taken" in refused.remark
        assert broker.store.max_offset("orders", 0) == 1


@pytest.mark.parametrize("flag", [0x4, 0x8, 0xC])
async def test_half_a_transaction_by_its_flag_alone_is_refused_rather_than_lost(flag: int) -> None:
    async with running_broker() as broker, peer(broker.address) as client:
        assert (await client.send("orders", flags=flag)).code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("field", ["b", "e", "f", "g", "h"])
async def test_a_missing_field_is_named(field: str) -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        fields: dict[str, Any] = {"a": "p", "b": "orders", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
        del fields[field]
        answer = await client.ask(RequestCode.SEND_MESSAGE_V2, b"", **fields)

        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert f"lacks the field '{field}'" in answer.remark


# --- batches ------------------------------------------------------------------------------


def entry(body: bytes, properties: str = "", flag: int = 0) -> bytes:
    text = properties.encode()
    head = struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(text)) + text


async def send_batch(client: Peer, body: bytes, topic: str = "orders") -> Any:
    return await client.ask(
        RequestCode.SEND_BATCH_MESSAGE, body, a="p", b=topic, c="TBW102", d=4, e=1, f=0, g=1, h=0, i="", m="true"
    )


async def test_a_batch_is_stored_as_messages_of_their_own() -> None:
    # The worked example of the protocol: two messages, the first with a key and a tag.
    body = bytes.fromhex(
        "00 00 00 2a 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 02 68 69 00 12 4b 45 59 53 01 6b 31 02"
        "54 41 47 53 01 54 61 67 41 02 00 00 00 18 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 02 79 6f 00 00"
    )
    assert body == entry(b"hi", "KEYS\x01k1\x02TAGS\x01TagA\x02") + entry(b"yo")
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as client:
        answer = await send_batch(client, body)
        first, second = await client.pull("orders", queue=1)

    assert answer.code == ResponseCode.SUCCESS
    assert answer.ext["msgId"] == f"{first.offset_message_id},{second.offset_message_id}"
    assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("1", "0")
    assert (first.body, first.keys, first.tags) == (b"hi", ["k1"], "TagA")
    assert (second.body, second.keys, second.tags, second.queue_offset) == (b"yo", [], None, 1)
    assert first.unique_key != second.unique_key


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\0", entry(b"hi")[:-1], entry(b"hi") + b"\0\0\0\1", b"\x7f\xff\xff\xff" + entry(b"hi")[4:],
        entry(b"hi")[:16] + b"\xff\xff\xff\xff" + entry(b"hi")[20:], entry(b"hi", "DELAY\x013\x02"),
        entry(b"hi", "TRAN_MSG\x01true\x02"),
    ],
    ids=["empty", "one byte", "cut", "trailing", "huge", "negative", "delayed", "transaction"],
)  # fmt: skip
async def test_a_batch_that_is_none_stores_nothing(body: bytes) -> None:
    async with running_broker() as broker, peer(broker.address) as client:
        answer = await send_batch(client, entry(b"good") + body if body else body)

        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert await client.bodies("orders", queue=1) == []


async def test_a_batch_may_not_go_to_a_retry_topic() -> None:
    async with running_broker() as broker, peer(broker.address) as client:
        assert (await send_batch(client, entry(b"hi"), "%RETRY%readers")).code == ResponseCode.MESSAGE_ILLEGAL
