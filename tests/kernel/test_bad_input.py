"""What peers get wrong: an answer with its documented code, or a closed connection and one line in the log.

Never a traceback: a mistake of a peer is nothing that an operator has to act on. And nobody else notices.
"""

from __future__ import annotations

import logging
import random
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from anyio.abc import SocketStream

from tests.plugins.peer import Peer, peer
from verniermq.kernel import Broker, Command, GroupConfig, RequestCode, ResponseCode, TopicConfig, java_hash
from verniermq.kernel.errors import LONGEST_SLIP, nearest
from verniermq.testing import running_broker

KNOWN = frozenset(ResponseCode)


class Noting(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    """What is logged at WARNING and above, by whomever; an ERROR fails the test."""
    noting = Noting()
    logging.getLogger().addHandler(noting)
    yield noting.records
    logging.getLogger().removeHandler(noting)
    errors = [record for record in noting.records if record.levelno >= logging.ERROR]
    assert [f"{record.getMessage()} {record.exc_info}" for record in errors] == []


@asynccontextmanager
async def raw(broker: Broker) -> AsyncIterator[SocketStream]:
    host, _, port = broker.address.rpartition(":")
    async with await anyio.connect_tcp(host, int(port)) as stream:
        yield stream


async def until_closed(stream: SocketStream) -> bytes:
    """Everything that still comes, until the broker closes."""
    received = b""
    with anyio.fail_after(30):
        try:
            while True:
                received += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return received


def frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    return struct.pack(">ii", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


# --- bytes that are no frames -------------------------------------------------------------

NO_FRAMES = {
    "2 GiB": b"\x7f\xff\xff\xff\0\0\0\0",
    "negative length": b"\xff\xff\xff\xff\0\0\0\0",
    "length of nought": b"\0\0\0\0\0\0\0\0",
    "larger than allowed": struct.pack(">ii", 16 * 1024 * 1024 + 1, 10),
    "header longer than its frame": struct.pack(">ii", 20, 100) + bytes(16),
    "header of 16 MiB": struct.pack(">ii", 12 * 1024 * 1024, 11 * 1024 * 1024),
    "unknown form of header": struct.pack(">ii", 20, 7 << 24 | 4) + bytes(16),
    "no JSON": frame(b"{code: 1"),
    "JSON, but a list": frame(b"[1, 2]"),
    "JSON without a code": frame(b"{}"),
    "JSON with a text for a code": frame(b'{"code": "x", "opaque": 1}'),
    "JSON with wrong fields": frame(b'{"code": 1, "opaque": 1, "extFields": [1]}'),
    "JSON with lists in lists for a code": frame(b'{"code": ' + b"[" * 1000 + b"]" * 1000 + b"}"),
    "JSON with a field of lists in lists": frame(
        b'{"code": 1, "opaque": 1, "extFields": {"a": ' + b"[" * 300 + b"]" * 300 + b"}}"
    ),
    "JSON with a field of lists in lists, and a fraction": frame(
        b'{"code": 1, "opaque": 1, "extFields": {"a": 1.5, "b": ' + b"[" * 1000 + b"]" * 1000 + b"}}"
    ),
    "JSON of very many values": frame(b'{"code": 1, "opaque": 1, "more": [' + b"[]," * 100_000 + b"1]}"),
    "no UTF-8": frame(b'{"code": 1, "remark": "\xff\xfe"}'),
    "binary, cut": frame(b"\0\x0a\0", kind=1),
    "binary, a field beyond the end": frame(bytes(17) + b"\0\0\0\x20\0\x10abc", kind=1),
    "HTTP": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "TLS": bytes.fromhex("160301020001000001fc0303") + bytes(32),
}


@pytest.mark.parametrize("name", NO_FRAMES)
async def test_bytes_that_are_no_frame_close_the_connection_with_one_line(
    name: str, lines: list[logging.LogRecord]
) -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as other:
        async with raw(broker) as stream:
            await stream.send(NO_FRAMES[name])
            answer = await until_closed(stream)
        await other.sent("orders")

    assert answer == b""
    assert len(lines) == 1
    assert lines[0].getMessage().startswith("connection closed")


@pytest.mark.parametrize("cut", [1, 3, 4, 7, 8, 20])
async def test_half_a_frame_is_waited_for_and_forgotten_with_its_connection(
    cut: int, lines: list[logging.LogRecord]
) -> None:
    whole = Command.request(RequestCode.GET_MAX_OFFSET, {"topic": "TBW102", "queueId": "0"}).encode()
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as other:
        async with raw(broker) as stream:
            await stream.send(whole[:cut])
            await other.sent("orders")
            await stream.send(whole[cut:])
            assert b'"offset":"0"' in await stream.receive()
        async with raw(broker) as stream:
            await stream.send(whole[:cut])
        await other.sent("orders")

    assert lines == []


async def test_random_bytes_disturb_nobody(lines: list[logging.LogRecord]) -> None:
    chance = random.Random(4711)
    stop = False
    sent = 0

    async def keep_sending(client: Peer) -> None:
        nonlocal sent
        while not stop:
            await client.sent("orders", str(sent).encode())
            sent += 1

    async with running_broker() as broker, peer(broker.address) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(keep_sending, client)
        for number in range(150):
            noise = chance.randbytes(chance.randrange(1, 400))
            if number % 3 == 0:  # a good frame first, so that the noise comes in the middle
                noise = Command.request(RequestCode.GET_ALL_TOPIC_CONFIG).encode() + noise
            if number % 3 == 1:  # a frame that is whole, with noise for a header
                noise = frame(noise, kind=number % 2)
            async with raw(broker) as stream:
                await stream.send(noise)
                await anyio.lowlevel.checkpoint()
            while sent < number:  # a send for each, however the turns of the loop fall
                await anyio.lowlevel.checkpoint()
        stop = True

    assert sent > 100
    assert len({record.getMessage() for record in lines}) == len(lines), "each connection has one line at most"


async def test_frames_with_damaged_bytes_disturb_nobody(lines: list[logging.LogRecord]) -> None:
    chance = random.Random(7)
    good = Command.request(
        RequestCode.SEND_MESSAGE_V2,
        {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "K\x01v\x02"},
        b"body",
    )
    async with running_broker() as broker, peer(broker.address) as client:
        for number in range(300):
            good.binary = number % 2 == 1
            damaged = bytearray(good.encode())
            for _ in range(chance.randrange(1, 4)):
                damaged[chance.randrange(4, len(damaged))] = chance.randrange(256)
            async with raw(broker) as stream:
                await stream.send(bytes(damaged))
                await stream.send_eof()
                await until_closed(stream)
        await client.sent("orders", b"good")
        assert b"good" in await client.bodies("orders")


# --- requests with wrong fields -----------------------------------------------------------

VALUES = [
    "", "x", "-1", "99999999999999999999999", "9223372036854775807", "-9223372036854775808", "1e3", "null", "0x10",
    "true", "\0", "١٢", "../../etc", "a" * 70_000,
]  # fmt: skip

FIELDS: dict[RequestCode, dict[str, str]] = {
    RequestCode.SEND_MESSAGE: {
        "producerGroup": "p", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
        "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "", "reconsumeTimes": "0",
    },
    RequestCode.SEND_MESSAGE_V2: {
        "a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0",
    },
    RequestCode.SEND_BATCH_MESSAGE: {
        "a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "m": "true",
    },
    RequestCode.PULL_MESSAGE: {
        "consumerGroup": "g", "topic": "orders", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    },
    RequestCode.QUERY_CONSUMER_OFFSET: {
        "consumerGroup": "g", "topic": "orders", "queueId": "0", "setZeroIfNotFound": "true",
    },
    RequestCode.UPDATE_CONSUMER_OFFSET: {
        "consumerGroup": "g", "topic": "orders", "queueId": "0", "commitOffset": "0",
    },
    RequestCode.GET_MAX_OFFSET: {"topic": "orders", "queueId": "0"},
    RequestCode.GET_MIN_OFFSET: {"topic": "orders", "queueId": "0"},
    RequestCode.GET_EARLIEST_MSG_STORETIME: {"topic": "orders", "queueId": "0"},
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: {
        "topic": "orders", "queueId": "0", "timestamp": "0", "boundaryType": "LOWER",
    },
    RequestCode.UNREGISTER_CLIENT: {"clientID": "me", "producerGroup": "p", "consumerGroup": "g"},
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: {"consumerGroup": "g"},
    RequestCode.UPDATE_AND_CREATE_TOPIC: {
        "topic": "made", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": "+message.type=FIFO",
    },
    RequestCode.DELETE_TOPIC_IN_BROKER: {"topic": "made"},
    RequestCode.GET_TOPIC_CONFIG: {"topic": "orders"},
    RequestCode.DELETE_SUBSCRIPTIONGROUP: {"groupName": "g", "cleanOffset": "true"},
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: {"group": "g"},
}  # fmt: skip
"""Good fields of the kernel's own requests; the tests make each of them wrong in turn."""


async def served_codes() -> list[int]:
    async with running_broker() as broker:
        return sorted(broker.handlers)


ALL_CODES = anyio.run(served_codes)


def test_the_table_of_good_fields_knows_every_field_that_can_be_wrong() -> None:
    # Those of the kernel that are not in the table take no fields, only a body.
    body_only = {
        RequestCode.HEART_BEAT, RequestCode.CHECK_CLIENT_CONFIG, RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, RequestCode.LITE_PULL_MESSAGE,
    }  # fmt: skip

    async def served_codes() -> set[int]:
        async with running_broker(plugins__enable=["topics"]) as broker:
            return set(broker.handlers)

    assert anyio.run(served_codes) == set(FIELDS) | body_only


async def ask_raw(
    client: Peer, code: int, fields: dict[str, str], body: bytes = b"", *, binary: bool = False
) -> Command:
    """Ask, and insist on a code that the protocol knows; a class of Python's in the text would be our mistake."""
    answer = await client.connection.request(Command.request(code, fields, body, binary=binary), timeout=30)
    assert answer.code in KNOWN, f"{code}: {answer.code} {answer.remark}"
    assert "Error:" not in answer.remark, f"{code} {fields} {body[:80]!r}: {answer.remark}"
    return answer


@pytest.mark.parametrize("code", FIELDS, ids=lambda code: code.name)
async def test_every_field_may_be_wrong_in_every_way(code: RequestCode, lines: list[logging.LogRecord]) -> None:
    good = FIELDS[code]
    async with running_broker() as broker, peer(broker.address) as client:
        await client.sent("orders")
        for name in good:
            for value in VALUES:
                await ask_raw(client, code, {**good, name: value}, binary=len(value) < 30_000)
            await ask_raw(client, code, {key: value for key, value in good.items() if key != name})
        await client.sent("orders", b"still here")


@pytest.mark.parametrize("code", ALL_CODES, ids=lambda code: RequestCode(code).name)
async def test_a_request_without_anything_is_answered(code: int, lines: list[logging.LogRecord]) -> None:
    async with running_broker() as broker, peer(broker.address) as client:
        await ask_raw(client, code, {})


# --- bodies that are not what they should be ----------------------------------------------

DOUBLING = ",".join(['"a0":[1]', *[f'"a{n}":[{{"$ref":"$.a{n - 1}"}},{{"$ref":"$.a{n - 1}"}}]' for n in range(1, 40)]])

BODIES: list[bytes] = [
    f'{{"consumerGroup":"g","clientId":"c","mqSet":{{"$ref":"$.a39"}},{DOUBLING}}}'.encode(),
    f'{{"topicConfigSerializeWrapper":{{"$ref":"$.a39"}},{DOUBLING}}}'.encode(),
    b"[" + b"[]," * 110_000 + b"1]", b"{" + b"0:0," * 20_000 + b"0:0}",
    b"{", b"[]", b"null", b"7", b'"text"', b"{}", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000,
    b'{"clientID":null}', b'{"clientID":"c","consumerDataSet":7}', b'{"clientID":"c","consumerDataSet":[7]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":{"a":1}}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":null,"subscriptionDataSet":[]}]}',
    *[
        orjson.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [subscription]}]})
        for subscription in (
            7, None, {}, {"topic": 5, "subVersion": "x"}, {"topic": "t", "subVersion": [1]},
            {"topic": "t", "subVersion": {}},
            {"topic": "t", "subString": {"a": 1}, "expressionType": ["TAG"]}, {"topic": ["t"], "subVersion": 1.5},
        )
    ],
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t","subVersion":1e999}]}]}',
    b'{"clientID":"c","producerDataSet":[{"groupName":{"a":1}}],"consumerDataSet":null}',
    b'{"topicConfigList":{"a":1}}', b'{"topicConfigList":[null]}', b'{"topicConfigList":[{"topicName":["a"]}]}',
    b'{"topicConfigList":[{"topicName":"t","perm":1e999}]}',
    b'{"topicConfigList":[{"topicName":"t","attributes":[1]}]}',
    b'{"topicConfigList":[{"topicName":"t","readQueueNums":[]}]}',
    b'{"groupConfigList":7}', b'{"groupConfigList":[7]}', b'{"groupName":7}',
    b'{"groupName":"g","retryQueueNums":{}}', b'{"groupName":"g","attributes":[[]],"consumeEnable":"perhaps"}',
    b'{"subscriptionData":{"topic":1,"subString":[],"expressionType":{}}}', b'{"subscriptionData":[1]}',
    b'{"subscriptionData":{"topic":"t","subString":"a > ","expressionType":"SQL92"}}',
    *[
        orjson.dumps({"groupName": "g", **members})
        for members in (
            {"retryQueueNums": 65_537}, {"retryQueueNums": -1}, {"retryMaxTimes": 2**31}, {"retryMaxTimes": True},
            {"brokerId": 1.5}, {"brokerId": 1e308}, {"groupSysFlag": "x"}, {"consumeTimeoutMinute": 1e308},
            {"whichBrokerWhenConsumeSlowly": 2**64 - 1}, {"attributes": {"a": 1}}, {"unknown": "x" * 70_000},
            {"groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1e308]}}},
            {"groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"multiplier": 1e308}}},
        )
    ],
    b'{"groupName":"g","deep":' + b'{"a":' * 300 + b"1" + b"}" * 301,
    b'{"groupConfigList":[{"groupName":"g","deep":' + b"[" * 300 + b"]" * 300 + b"}]}",
    b'{"topicConfigList":[{"topicName":"t","attributes":{"a":"' + b"x" * 70_000 + b'"}}]}',
    b'{"topicConfigList":[{"topicName":"t","readQueueNums":1e308}]}',
    b'{"topic":"orders","consumerGroup":"g","mode":"POP","popShareQueueNum":1e308}',
    b'{"topic":"orders","consumerGroup":"g","mode":"POP","popShareQueueNum":[]}',
    b'{"mqSet":[7],"clientId":1,"consumerGroup":{}}', b'{"mqSet":{"a":1}}',
    bytes(100), bytes(range(256)),
]  # fmt: skip


@pytest.mark.parametrize("code", ALL_CODES, ids=lambda code: RequestCode(code).name)
async def test_every_body_may_be_wrong(code: int, lines: list[logging.LogRecord]) -> None:
    fields = FIELDS.get(RequestCode(code), {})
    async with running_broker() as broker, peer(broker.address) as client:
        broker.topics.put(TopicConfig("orders"))
        broker.groups.put(GroupConfig("g"))
        for body in BODIES:
            await ask_raw(client, code, dict(fields), body)
        await client.sent("orders", b"still here")


def tables_of(broker: Broker) -> list[Any]:
    tables = [broker.topics.as_json(), broker.groups.as_json(), broker.offsets.as_json()]
    found: list[Any] = orjson.loads(orjson.dumps(tables))
    return found


async def test_what_was_taken_can_be_read_back_after_a_restart(tmp_path: Path, lines: list[logging.LogRecord]) -> None:
    async with running_broker(tmp_path) as broker, peer(broker.address) as client:
        for code in (
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            RequestCode.HEART_BEAT,
        ):
            for body in BODIES:
                await ask_raw(client, code, {}, body)
        put = RequestCode.UPDATE_AND_CREATE_TOPIC
        for name, value in product(FIELDS[put], VALUES):
            await ask_raw(client, put, {**FIELDS[put], name: value})
        tables = tables_of(broker)

    async with running_broker(tmp_path) as broker:
        again = tables_of(broker)
    assert [table.keys() for table in again] == [table.keys() for table in tables]
    assert again[0]["topicConfigTable"] == tables[0]["topicConfigTable"]
    assert again[1]["subscriptionGroupTable"] == tables[1]["subscriptionGroupTable"]


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("retryQueueNums", 100_000), ("retryMaxTimes", 1e308), ("brokerId", True), ("consumeEnable", "perhaps"),
        ("attributes", {"a": [1]}), ("groupRetryPolicy", {"customizedRetryPolicy": {"next": [-1]}}),
    ],
)  # fmt: skip
async def test_a_group_that_could_not_be_kept_is_refused_by_member_and_value(member: str, value: Any) -> None:
    async with running_broker(plugins__enable=["topics"]) as broker, peer(broker.address) as client:
        body = orjson.dumps({"groupName": "billing", member: value})
        answer = await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)

        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert f"group 'billing': {member} is {value!r}, expected " in answer.remark
        assert "billing" not in broker.groups


async def test_a_row_that_cannot_be_used_is_left_out_and_the_others_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "config"
    config.mkdir()
    groups = {"good": {"retryMaxTimes": 3}, "bad": {"retryMaxTimes": "often"}, "worse": 7}
    (config / "subscriptionGroup.json").write_bytes(orjson.dumps({"subscriptionGroupTable": groups}))
    topics = {"orders": {"readQueueNums": 2}, "broken": {"perm": "all"}, "worse": None}
    (config / "topics.json").write_bytes(orjson.dumps({"topicConfigTable": topics}))

    async with running_broker(tmp_path, plugins__enable=[]) as broker:
        assert broker.groups.names() == ["good"]
        assert broker.topics.get("orders").read_queues == 2
        assert not {"broken", "worse"} & {topic.name for topic in broker.topics}
    assert "retryMaxTimes is 'often', expected a whole number" in caplog.text


async def test_ten_requests_that_a_plugin_cannot_count_do_not_stop_the_broker() -> None:
    """A plugin that declares so stops the broker after ten failures in a row: no peer may bring those about."""
    async with running_broker() as broker, peer(broker.address) as client:
        good = FIELDS[RequestCode.SEND_MESSAGE_V2]
        for _ in range(12):
            fields = {**good, "b": "%RETRY%g", "l": "9" * 5000}
            answer = await client.connection.request(Command.request(RequestCode.SEND_MESSAGE_V2, fields, b"x"))
            assert answer.code == ResponseCode.SUCCESS, answer.remark

        assert not broker.stop_requested.is_set()


def test_a_name_that_is_too_long_for_a_slip_is_not_compared() -> None:
    """A peer may send one of megabytes, and comparing takes a tenth of a second for each."""
    known = "x" * LONGEST_SLIP

    assert nearest(known[1:], [known]) == f"did you mean {known!r}?"
    assert nearest(known + "x", [known]) == f"it knows {known}"


def test_the_hash_of_a_long_tag_is_not_kept() -> None:
    tag = "t" * 32_000
    references = sys.getrefcount(tag)

    java_hash(tag)

    assert sys.getrefcount(tag) == references, "thousands of these would fill the memory"
