"""SEND_BATCH_MESSAGE: many messages in one request, and what may not be among them."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.txn.peers import Peer, peer
from tests.work import WorkPerTurn
from verniermq.kernel import Command, RequestCode, ResponseCode, format_properties
from verniermq.kernel.handlers import send as sending
from verniermq.kernel.handlers.send import MESSAGES_PER_STEP
from verniermq.testing import running_broker

pytestmark = pytest.mark.anyio


def element(body: bytes, properties: dict[str, str] | None = None, flag: int = 0) -> bytes:
    text = format_properties(properties or {}).encode()
    head = struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(text)) + text


async def send_batch(producer: Peer, body: bytes, topic: str = "T", **more: object) -> Command:
    return await producer.send(topic, body, code=RequestCode.SEND_BATCH_MESSAGE, m="true", **more)  # type: ignore[arg-type]


async def test_each_message_of_a_batch_is_stored_alone() -> None:
    async with running_broker() as broker, peer(broker.address) as producer:
        await producer.send("T", b"before", queue_id=2)
        batch = element(b"a", {"UNIQ_KEY": "U1", "TAGS": "red"}, flag=5) + element(b"bc", {"KEYS": "k"})

        answer = await send_batch(producer, batch, queue_id=2)

        _, first, second = await producer.pull("T", 2)
        assert (first.body, first.flag, first.properties) == (b"a", 5, {"UNIQ_KEY": "U1", "TAGS": "red"})
        assert (second.body, second.flag, second.properties["KEYS"]) == (b"bc", 0, "k")
        assert len(second.properties["UNIQ_KEY"]) == 32
        assert (first.queue_offset, second.queue_offset) == (1, 2)
        assert first.store_timestamp == second.store_timestamp
        assert second.commit_log_offset == first.commit_log_offset + first.size
        assert answer.code == 0
        assert answer.ext["msgId"] == f"{first.offset_message_id},{second.offset_message_id}"
        assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("2", "1")
        assert "batchUniqId" not in answer.ext


async def test_the_bytes_of_the_reference_are_understood() -> None:
    wire = bytes.fromhex(
        "0000002a000000000000000000000000000000026869001"
        "24b455953016b31025441475301546167410200000018000000000000000000000000000000"
        "02796f0000"
    )
    async with running_broker() as broker, peer(broker.address) as producer:
        assert (await send_batch(producer, wire)).code == 0

        hi, yo = await producer.pull("T")
        assert (hi.body, hi.properties["KEYS"], hi.tags, yo.body) == (b"hi", "k1", "TagA", b"yo")


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"DELAY": "1"}, "'SCHEDULE_TOPIC_XXXX' because of its property DELAY, away from the others"),
        ({"TIMER_DELAY_SEC": "5"}, "'rmq_sys_wheel_timer' because of its property TIMER_DELAY_SEC"),
        ({"TIMER_DELAY_MS": "500"}, "'rmq_sys_wheel_timer' because of its property TIMER_DELAY_MS"),
        ({"TRAN_MSG": "true"}, "'RMQ_SYS_TRANS_HALF_TOPIC' because of its property TRAN_MSG"),
        ({"TAGS": "x" * 1025}, "the tag has 1025 characters"),
    ],
)
async def test_what_may_not_be_in_a_batch_is_refused_with_the_whole_of_it(
    properties: dict[str, str], words: str
) -> None:
    async with running_broker() as broker, peer(broker.address) as producer:
        answer = await send_batch(producer, element(b"good") + element(b"bad", properties))

        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert words in answer.remark
        assert await producer.bodies("T") == []


async def test_a_plugin_may_not_move_a_message_out_of_a_batch(tmp_path: Path) -> None:
    plugin = tmp_path / "divert.py"
    plugin.write_text(
        "from verniermq.kernel import Declaration, concerns, hookimpl\n"
        "class Plugin:\n"
        "    declaration = Declaration(api=1, summary='Diverts what is marked.')\n"
        "    def __init__(self, config, broker): pass\n"
        "    @hookimpl\n"
        "    @concerns(properties=('divert',))\n"
        "    async def before_append(self, message):\n"
        "        message.topic = 'elsewhere'\n"
    )
    enabled = {"plugins__enable": ["divert"], "plugins__divert__from": str(plugin)}
    async with running_broker(tmp_path / "store", **enabled) as broker, peer(broker.address) as producer:
        answer = await send_batch(producer, element(b"stays") + element(b"goes", {"divert": "1"}))

        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "message 1 of the batch would go to topic 'elsewhere' because of its property divert" in answer.remark
        assert await producer.bodies("T") == []


async def test_a_batch_is_no_transaction_and_goes_to_no_retry_topic() -> None:
    async with running_broker() as broker, peer(broker.address) as producer:
        half = await send_batch(producer, element(b"x"), sys_flag=4, properties={"TRAN_MSG": "true"})
        assert half.code == ResponseCode.MESSAGE_ILLEGAL
        await producer.join(consumers=({"groupName": "G", "subscriptionDataSet": []},))
        retry = await send_batch(producer, element(b"x"), "%RETRY%G")
        assert retry.code == ResponseCode.MESSAGE_ILLEGAL
        assert "retry topic" in retry.remark


async def test_a_batch_as_a_whole_has_the_size_limit_of_one_message() -> None:
    async with running_broker(store__max_message_size="1KiB") as broker, peer(broker.address) as producer:
        fits = element(bytes(400)) * 2
        too_much = element(bytes(400)) * 3

        assert (await send_batch(producer, fits)).code == 0
        answer = await send_batch(producer, too_much)

        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "max_message_size" in answer.remark
        assert len(await producer.bodies("T")) == 2


async def test_a_batch_without_a_message_is_refused() -> None:
    async with running_broker() as broker, peer(broker.address) as producer:
        assert (await send_batch(producer, b"")).code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_plugin_sees_the_messages_of_a_batch_that_concern_it(tmp_path: Path) -> None:
    plugin = tmp_path / "shout.py"
    plugin.write_text(
        "from verniermq.kernel import Declaration, concerns, hookimpl\n"
        "class Plugin:\n"
        "    declaration = Declaration(api=1, summary='Shouts what is marked.')\n"
        "    def __init__(self, config, broker): pass\n"
        "    @hookimpl\n"
        "    @concerns(properties=('shout',))\n"
        "    def before_append(self, message):\n"
        "        message.body = bytes(message.body).upper()\n"
    )
    enabled = {"plugins__enable": ["default", "shout"], "plugins__shout__from": str(plugin)}
    async with running_broker(tmp_path / "store", **enabled) as broker, peer(broker.address) as producer:
        assert (await send_batch(producer, element(b"quiet") + element(b"loud", {"shout": "1"}))).code == 0

        assert await producer.bodies("T") == [b"quiet", b"LOUD"]


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=120))
def test_bytes_that_are_no_batch_are_refused_and_nothing_is_stored(noise: bytes) -> None:
    import anyio

    async def run() -> None:
        async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as producer:
            good = element(b"good")
            answer = await send_batch(producer, good + b"\x00" + noise)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert await producer.bodies("T") == []

    anyio.run(run)


async def test_a_large_batch_is_read_in_steps_and_stored_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    read = WorkPerTurn().watch(monkeypatch, sending, "parse_properties")
    async with running_broker() as broker, peer(broker.address) as producer:
        bodies = [str(number).encode() for number in range(1500)]

        answer = await send_batch(producer, b"".join(map(element, bodies)), topic="large")

        assert answer.code == 0, answer.remark
        queue = broker.store.queue("large", 0)
        assert queue is not None
        messages = [broker.store.message_at(offset) for offset, _, _ in queue.entries(0, 2000)]
        assert [message.body for message in messages if message] == bodies
        assert all(a and b and b.commit_log_offset == a.commit_log_offset + a.size for a, b in pairwise(messages))
        assert len(answer.ext["msgId"].split(",")) == 1500
    assert read.total == 1501, "and once for the request"
    assert read.most <= MESSAGES_PER_STEP + 1


async def test_a_large_batch_that_would_be_torn_apart_is_refused_whole() -> None:
    async with running_broker() as broker, peer(broker.address) as producer:
        batch = element(b"x") * 600 + element(b"later", {"DELAY": "3"})

        answer = await send_batch(producer, batch)

        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert broker.store.max_offset("T", 0) == 0


async def test_a_batch_of_more_messages_than_allowed_is_refused_with_the_settings_name() -> None:
    async with running_broker(store__max_batch=10) as broker, peer(broker.address) as producer:
        assert (await send_batch(producer, element(b"x") * 10)).code == 0
        answer = await send_batch(producer, element(b"x") * 11)

        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "more than 10 messages; send it in parts, or raise max_batch in [store]" in answer.remark
        assert broker.store.max_offset("T", 0) == 10
