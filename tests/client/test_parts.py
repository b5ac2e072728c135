"""The parts that need no broker: ids, batches, selectors, records, the guard."""

from __future__ import annotations

import struct
import sys
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verniermq.client import IdempotenceGuard, Message, MessageQueue, Producer, ReceivedMessage
from verniermq.client.batch import MOST_MESSAGES, encode_batch, encoded_size, split
from verniermq.client.compression import FLAGS, Compression, check_compression, compress, decompress
from verniermq.client.consumer.outcome import Consumed, Later, Outcome, verdict_of
from verniermq.client.consumer.processqueue import Limits, ProcessQueue
from verniermq.client.consumer.subscription import Sql, TopicSubscription
from verniermq.client.encoder import MessageEncoder
from verniermq.client.errors import BodyNotReadable, BodyTooLarge, ClientError, MissingLibrary
from verniermq.client.identity import UniqueIds, client_id
from verniermq.client.message import decode_messages, decode_one
from verniermq.client.names import with_namespace, without_namespace
from verniermq.client.routes import Route
from verniermq.client.selectors import RoundRobinSelector, queue_by_key
from verniermq.kernel import CorruptRecord, SysFlag, java_hash
from verniermq.kernel.commitlog.record import pack_record, topic_field

QUEUE = MessageQueue("T", "b-0", 2)

# The worked example of a stored record: topic T, body "hi", KEYS=k1, TAGS=TagA.
RECORD = bytes.fromhex(
    "00000070daa320a758932aac00000002000000000000000000000007000000000000123400000000"
    "0000018bcfe568000a0000090000c8220000018bcfe568050a00000500002a9f00000000"
    "0000000000000000000000026869015400124b455953016b3102544147530154616741 02".replace(" ", "")
)

bodies = st.binary(min_size=1, max_size=400)
messages = st.lists(st.builds(Message, st.sampled_from(["a", "b"]), bodies, wait_store_ok=st.booleans()), max_size=40)


def test_a_record_is_read_as_it_was_written() -> None:
    (message,), damaged = decode_messages(RECORD, QUEUE)

    assert (message.body, message.tags, message.keys) == (b"hi", "TagA", ["k1"])
    assert (message.queue_offset, message.commit_log_offset, message.size) == (7, 0x1234, 112)
    assert (message.born_host, message.store_host) == ("10.0.0.9:51234", "10.0.0.5:10911")
    assert message.message_id == message.offset_message_id == "0A00000500002A9F0000000000001234"
    assert not damaged


@given(st.binary(min_size=1, max_size=300))
def test_bytes_that_are_no_records_are_damage(data: bytes) -> None:
    messages, damaged = decode_messages(data, QUEUE, first=5)

    assert not messages
    assert damaged[0].queue_offset == 5
    with pytest.raises(CorruptRecord):
        decode_one(data, "b-0")


@given(st.integers(0, 111), st.integers(0, 255))
def test_no_damage_to_one_record_hides_the_next_or_changes_a_body(position: int, value: int) -> None:
    torn = bytearray(RECORD)
    torn[position] = value
    following = RECORD[:20] + (8).to_bytes(8, "big") + RECORD[28:]

    messages, damaged = decode_messages(bytes(torn) + following, QUEUE, first=7, following=9)

    assert messages[-1].queue_offset == 8
    assert [message.queue_offset for message in messages] + [one.queue_offset for one in damaged] in ([7, 8], [8, 7])
    assert all(body_of(message) == b"hi" and isinstance(message.properties, dict) for message in messages)


def body_of(message: ReceivedMessage) -> bytes:
    """The body; a flag that calls it compressed by mistake makes it an error, which is no changed body either."""
    try:
        return message.body
    except BodyNotReadable:
        assert message.sys_flag & SysFlag.COMPRESSED
        return b"hi"


def test_a_record_in_a_body_is_not_taken_for_the_next_one() -> None:
    magic, topic = topic_field("T")
    inner = pack_record(
        magic, topic, b"9000 EUR", b"", queue_id=0, queue_offset=1, commit_log_offset=0, store_timestamp=1,
        store_host=bytes(8),
    )  # fmt: skip
    outer = bytearray(
        pack_record(
            magic, topic, inner, b"", queue_id=2, queue_offset=7, commit_log_offset=0, store_timestamp=1,
            store_host=bytes(8),
        )
    )  # fmt: skip
    outer[3] ^= 1

    messages, damaged = decode_messages(bytes(outer), QUEUE)

    assert (messages, len(damaged)) == ([], 1)


@given(messages, st.integers(500, 4000))
def test_the_splitter_keeps_order_and_makes_legal_batches(given_messages: list[Message], limit: int) -> None:
    batches = list(split(given_messages, limit))

    assert [message for batch in batches for message in batch] == given_messages
    for batch in batches:
        assert len({(message.topic, message.wait_store_ok) for message in batch}) == 1
        assert len(encode_batch(MessageEncoder("g"), batch).body) == sum(map(encoded_size, batch)) <= limit


def test_a_delayed_message_is_alone_in_its_batch() -> None:
    plain, delayed = Message("t", b"x"), Message("t", b"y", delay_level=3)

    assert list(split([plain, delayed, plain, plain])) == [[plain], [delayed], [plain, plain]]


def test_a_message_that_is_too_large_for_a_batch_goes_alone() -> None:
    sizes = [1, 1, 2000, 2000, 1]

    batches = list(split([Message("t", b"x" * size) for size in sizes], 1000))

    assert [[len(message.body) for message in batch] for batch in batches] == [[1, 1], [2000], [2000], [1]]


def test_a_batch_has_the_layout_of_the_wire() -> None:
    batch = [
        Message("t", b"hi", properties={"KEYS": "k1", "TAGS": "TagA", "UNIQ_KEY": "U1"}),
        Message("t", b"yo", properties={"UNIQ_KEY": "U2"}, flag=9),
    ]

    body = encode_batch(MessageEncoder("g"), batch).body

    size, magic, crc, flag, length = struct.unpack_from(">iiiii", body)
    assert (magic, crc, flag, length, body[20:22]) == (0, 0, 0, 2, b"hi")
    second = struct.unpack_from(">iiiii", body, size)
    assert second == (len(body) - size, 0, 0, 9, 2)


def test_unique_ids_are_unique_and_have_the_form_of_rocketmq() -> None:
    ids = UniqueIds()
    made = {ids.next(1_700_000_000_000 + number // 1000) for number in range(50_000)}

    assert len(made) == 50_000
    assert all(len(one) == 32 and int(one, 16) for one in made)
    assert ids.next(1_702_000_000_000)[:20] == ids.next(1_705_000_000_000)[:20]


def test_a_client_id_names_the_machine_and_the_instance() -> None:
    assert client_id("orders", "10.0.0.5") == "10.0.0.5@orders"
    assert client_id() != client_id()


@given(st.text(min_size=1))
def test_a_sharding_key_chooses_the_queue_that_java_would(key: str) -> None:
    queues = [MessageQueue("t", "b", number) for number in range(7)]
    code = java_hash(key)
    remainder = code - 7 * int(code / 7)  # Java's: with the sign of the dividend

    assert queue_by_key(queues, key).queue_id == abs(remainder)


def test_round_robin_avoids_the_broker_that_failed() -> None:
    queues = [MessageQueue("t", broker, number) for broker in ("a", "b") for number in range(3)]
    turn = RoundRobinSelector()

    assert {turn.choose(queues, "a").broker_name for _ in range(20)} == {"b"}
    assert {turn.choose(queues, None).broker_name for _ in range(20)} == {"a", "b"}
    assert turn.choose(queues[:3], "a").broker_name == "a"


def test_a_route_offers_only_queues_that_can_be_used() -> None:
    route = Route.from_json(
        "T",
        {
            "brokerDatas": [
                {"brokerName": "b", "brokerAddrs": {"0": "m:1", "1": "s:1"}, "cluster": "c"},
                {"brokerName": "a", "brokerAddrs": {"1": "s:2"}, "cluster": "c"},
            ],
            "queueDatas": [
                {"brokerName": "b", "perm": 6, "readQueueNums": 3, "writeQueueNums": 2},
                {"brokerName": "a", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1},
                {"brokerName": "gone", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1},
            ],
        },
    )

    assert [str(queue) for queue in route.writable] == ["T@b:0", "T@b:1"]
    assert [str(queue) for queue in route.readable] == ["T@a:0", "T@b:0", "T@b:1", "T@b:2"]
    assert (route.address("b", 1), route.address("b", 7), route.master("a")) == ("s:1", "m:1", None)


def test_an_order_topic_has_the_queues_that_the_name_server_fixed() -> None:
    route = Route.from_json("T", {"orderTopicConf": "a:1;b:2", "brokerDatas": [], "queueDatas": []})

    assert [str(queue) for queue in route.writable] == ["T@a:0", "T@b:0", "T@b:1"]


def test_names_get_a_namespace_and_lose_it_again() -> None:
    for name, wire in (("t", "ns%t"), ("%RETRY%g", "%RETRY%ns%g"), ("%DLQ%g", "%DLQ%ns%g")):
        assert with_namespace("ns", name) == wire
        assert with_namespace("ns", wire) == wire
        assert without_namespace("ns", wire) == name
        assert with_namespace("", name) == name


def test_subscriptions_are_compared_by_text_and_sent_with_their_hashes() -> None:
    tags = TopicSubscription.make("T", " TagA||TagB ")
    sql = TopicSubscription.make("T", Sql("a > 1"))

    assert tags.as_json()["codeSet"] == [2598919, 2598920]
    assert (tags.tags, sql.tags, sql.is_sql) == ({"TagA", "TagB"}, frozenset(), True)
    with pytest.raises(ClientError, match="names no tag"):
        TopicSubscription.make("T", "||")
    with pytest.raises(ClientError, match="empty SQL"):
        TopicSubscription.make("T", Sql(" "))


def test_bodies_are_compressed_and_inflated() -> None:
    body = b"again and again " * 300
    flag = SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB

    assert decompress(compress(body), flag) == body
    assert decompress(zlib.compress(body), SysFlag.COMPRESSED) == body
    with pytest.raises(ClientError, match="marked as compressed and cannot be read"):
        decompress(b"plain", flag)
    with pytest.raises(ClientError, match="use zlib, lz4 or zstd"):
        check_compression("rar")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", FLAGS)
def test_every_kind_of_compression_is_undone(kind: Compression) -> None:
    assert decompress(compress(b"x" * 5000, kind), FLAGS[kind]) == b"x" * 5000
    with pytest.raises(ClientError, match="marked as compressed and cannot be read"):
        decompress(b"plain", FLAGS[kind])


@pytest.mark.parametrize(("kind", "module"), [("lz4", "lz4.frame"), ("zstd", "zstandard")])
def test_without_its_library_a_compression_says_what_to_install(
    kind: Compression, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = compress(b"x" * 5000, kind)
    monkeypatch.setitem(sys.modules, module, None)  # what a module that is not installed looks like to an import

    with pytest.raises(MissingLibrary, match=r"pip install 'verniermq\[compression\]'"):
        Producer("senders", compression=kind)
    with pytest.raises(MissingLibrary, match=module.partition(".")[0]):
        decompress(body, FLAGS[kind])


@pytest.mark.parametrize("kind", FLAGS)
def test_a_body_is_inflated_up_to_its_limit_and_no_further(kind: Compression) -> None:
    limit = 1 << 20
    exact, bomb = compress(b"x" * limit, kind), compress(bytes(24 << 20), kind)

    assert decompress(exact, FLAGS[kind], limit) == b"x" * limit
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge, match=r"body of message U7 .* more than max_body_size of 1048576 bytes"):
            decompress(bomb, FLAGS[kind], limit, "message U7")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 4 * limit + len(bomb)


@pytest.mark.parametrize("kind", ["zlib", "lz4"])
def test_a_compressed_body_that_is_cut_off_is_not_taken_for_whole(kind: Compression) -> None:
    body = compress(bytes(range(256)) * 40, kind)

    with pytest.raises(BodyNotReadable):
        decompress(body[:-6], FLAGS[kind])


def message(offset: int, size: int = 100) -> ReceivedMessage:
    key = b"UNIQ_KEY\x01U%d\x02" % offset
    return ReceivedMessage("T", QUEUE, offset, 0, size, 0, 0, 0, b"", 0, b"", 0, 0, b"x", key)


@given(st.permutations(range(12)))
def test_the_offset_to_commit_is_that_of_the_first_message_not_done(order: list[int]) -> None:
    held = ProcessQueue(QUEUE, 0)
    pending = {number: message(number) for number in range(12)}
    held.add(list(pending.values()))

    for number in order:
        offset = held.remove([pending.pop(number)])
        assert offset == min(pending, default=12)


def test_a_process_queue_is_full_by_number_size_or_span() -> None:
    for limits, full in (
        (Limits(messages=3), [message(n) for n in range(4)]),
        (Limits(bytes=300), [message(n) for n in range(4)]),
        (Limits(span=5), [message(0), message(6)]),
    ):
        held = ProcessQueue(QUEUE, 0, limits)
        held.add(full[:1])
        assert held.has_room
        held.add(full[1:])
        assert not held.has_room
        held.remove(full)
        assert held.has_room


@pytest.mark.parametrize(
    ("answer", "consumed"),
    [(None, 3), (True, 3), (Outcome.CONSUMED, 3), (False, 0), (Outcome.LATER, 0), (Later(), 0), (Consumed(2), 2)],
)
def test_answers_of_handlers(answer: object, consumed: int) -> None:
    assert verdict_of(answer, 3, none_means_later=False).consumed == consumed


def test_an_answer_that_means_nothing_is_an_error() -> None:
    assert verdict_of(None, 3, none_means_later=True).consumed == 0
    with pytest.raises(ClientError, match="a handler returned 'ok'"):
        verdict_of("ok", 1, none_means_later=False)


@pytest.mark.anyio
async def test_the_guard_forgets_after_its_window_and_beyond_its_capacity() -> None:
    now = 0.0
    guard = IdempotenceGuard(window=10, capacity=2, clock=lambda: now)

    assert await guard.begin(message(1))
    assert not await guard.begin(message(1))
    now = 10.0
    assert await guard.begin(message(1))
    assert await guard.begin(message(2))
    assert await guard.begin(message(3))
    assert await guard.begin(message(1))  # pushed out by the others
    await guard.finish(message(3), consumed=False)
    assert await guard.begin(message(3))  # it failed, so its retry is welcome
    assert guard.dropped == 1


def test_the_splitter_makes_no_batch_of_more_messages_than_a_broker_takes_at_once() -> None:
    batches = list(split([Message("t", b"")] * (MOST_MESSAGES + 1)))

    assert [len(batch) for batch in batches] == [MOST_MESSAGES, 1]
