"""What an account tried that was not allowed, and what an allowed one was refused: each of these worked once.

``victim`` owns topic ``secretT``, consumer group ``victimG`` and producer group ``victimP``; ``mallory`` has an account
like any other.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import pytest

from tests.plugins.acl.test_acl import signed
from verniermq.kernel import (
    Broker,
    Command,
    Connection,
    Handler,
    RequestCode,
    ResponseCode,
    connect,
    decode_records,
    format_properties,
    parse_offset_message_id,
)
from verniermq.plugins.acl.clients import MOST_PER_OWNER, ClientOwners
from verniermq.testing import ManualClock, running_broker

pytestmark = pytest.mark.anyio

SECRET = "a-long-secret"
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
ACCOUNTS: dict[str, Any] = {
    "victim": {
        "secret": SECRET, "topics": {"secretT": "PUB|SUB"}, "groups": {"victimG": "PUB|SUB", "victimP": "PUB"},
    },
    "mallory": {"secret": SECRET, "topics": {"mine": "PUB|SUB"}, "groups": {"mallory": "PUB|SUB"}},
    "answerer": {"secret": SECRET, "topics": {"DefaultCluster_REPLY_TOPIC": "PUB"}, "groups": {"p": "PUB"}},
    "open": {"secret": SECRET, "default_topic": "PUB|SUB", "default_group": "PUB|SUB"},
}  # fmt: skip
CLIENT = "victim@1"
BORN_MS = 1_700_000_000_000
"""Where a ``ManualClock`` starts."""


@asynccontextmanager
async def attacked(clock: ManualClock | None = None) -> AsyncIterator[Broker]:
    settings: dict[str, Any] = {"plugins__enable": ["default", "acl"], "plugins__acl__accounts": ACCOUNTS}
    async with running_broker(clock=clock, **settings) as broker:
        yield broker


class Caller:
    def __init__(self, connection: Connection, key: str) -> None:
        self.connection = connection
        self.key = key

    async def ask(self, code: int, fields: dict[str, Any], body: bytes = b"") -> Command:
        texts = {name: str(value) for name, value in fields.items()}
        return await self.connection.request(signed(Command.request(code, texts, body), self.key, SECRET), 30)

    async def send(self, topic: str, body: bytes = b"secret", group: str = "p", **properties: str) -> Command:
        flags = 4 if "TRAN_MSG" in properties else 0
        fields = {"a": group, "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": flags, "g": BORN_MS, "h": 0}
        return await self.ask(RequestCode.SEND_MESSAGE_V2, {**fields, "i": format_properties(properties)}, body)

    async def pull(self, topic: str, group: str) -> Command:
        fields = {
            "consumerGroup": group, "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
            "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        }  # fmt: skip
        return await self.ask(RequestCode.PULL_MESSAGE, fields)

    async def join(self, *producers: str, client_id: str = "") -> Command:
        groups = [{"groupName": group} for group in producers]
        body = {"clientID": client_id or f"{self.key}@1", "producerDataSet": groups, "consumerDataSet": []}
        return await self.ask(RequestCode.HEART_BEAT, {}, orjson.dumps(body))


@asynccontextmanager
async def caller(broker: Broker, key: str, handlers: dict[int, Handler] | None = None) -> AsyncIterator[Caller]:
    connection = await connect(broker.address, handlers or {})
    try:
        yield Caller(connection, key)
    finally:
        connection.close()


def stored(broker: Broker, topic: str) -> int:
    return sum(broker.store.max_offset(topic, queue) for queue in range(8))


LONG = {
    "producerGroup": "p", "topic": "mine", "defaultTopic": "TBW102", "defaultTopicQueueNums": 1, "queueId": 0,
    "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": "", "reconsumeTimes": 0,
}  # fmt: skip


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("topic", ["secretT", HALF, REVIVE])
async def test_nobody_writes_to_a_topic_by_naming_it_in_the_other_spelling(topic: str, first: bool) -> None:
    async with attacked() as broker, caller(broker, "victim") as victim, caller(broker, "mallory") as mallory:
        await victim.send("secretT", b"rightful")
        before = stored(broker, topic)
        fields = {"b": topic, **LONG} if first else {**LONG, "b": topic}
        await mallory.ask(RequestCode.SEND_MESSAGE, fields, b"forged")

        assert stored(broker, topic) == before


async def test_nobody_pushes_a_reply_to_a_client_through_a_topic_of_their_own() -> None:
    pushed: list[Command] = []

    def push(request: Command, connection: Connection) -> Command:
        pushed.append(request)
        return request.reply()

    properties = {"REPLY_TO_CLIENT": CLIENT, "CORRELATION_ID": "1", "MSG_TYPE": "reply"}
    text = format_properties(properties)
    handlers: dict[int, Handler] = {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: push}
    async with (
        attacked() as broker,
        caller(broker, "victim", handlers) as victim,
        caller(broker, "mallory") as mallory,
    ):
        assert (await victim.join("victimP")).code == 0
        reply = "DefaultCluster_REPLY_TOPIC"
        both = {**LONG, "properties": text, "b": reply, "e": 0, "f": 0, "g": 1, "h": 0, "i": text}
        short = {"a": "p", "b": "mine", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0, "i": text}
        answers = [
            await mallory.ask(RequestCode.SEND_REPLY_MESSAGE, both, b"forged"),
            await mallory.ask(RequestCode.SEND_REPLY_MESSAGE_V2, {**both, "topic": "mine"}, b"forged"),
            await mallory.ask(RequestCode.SEND_REPLY_MESSAGE_V2, short, b"forged"),
        ]

    assert [answer.code for answer in answers] == [ResponseCode.NO_PERMISSION] * 3
    assert pushed == []


@pytest.mark.parametrize("key", ["mallory", "open"])
async def test_nobody_gets_the_replies_for_another_client(key: str) -> None:
    clock = ManualClock()
    got: list[str] = []

    def inbox(name: str) -> dict[int, Handler]:
        def push(request: Command, connection: Connection) -> Command:
            got.append(name)
            return request.reply()

        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: push}

    async with (
        attacked(clock) as broker,
        caller(broker, key, inbox("thief")) as thief,
        caller(broker, "answerer") as answerer,
    ):

        async def reply() -> Command:
            properties = {"REPLY_TO_CLIENT": CLIENT, "CORRELATION_ID": "1", "MSG_TYPE": "reply", "CLUSTER": "c"}
            text = format_properties(properties)
            fields = {
                "a": "p",
                "b": "DefaultCluster_REPLY_TOPIC",
                "c": "TBW102",
                "d": 1,
                "e": 0,
                "f": 0,
                "g": 1,
                "h": 0,
            }
            return await answerer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, {**fields, "i": text}, b"answer")

        async with caller(broker, "victim", inbox("victim")) as first:
            assert (await first.join("victimP")).code == 0
            refused = [await thief.join(group, client_id=CLIENT) for group in ("mallory", "CLIENT_INNER_PRODUCER")]
            assert (await first.join("victimP")).code == 0
        with anyio.fail_after(30):
            while broker.clients.producer(CLIENT) is not None:  # noqa: ASYNC110 - the socket tells
                await anyio.sleep(0.001)
        refused.append(await thief.join("mallory", client_id=CLIENT))  # between two connections of the victim
        async with caller(broker, "victim", inbox("victim")) as again:
            assert (await again.join("victimP")).code == 0
            answered = await reply()
        await clock.advance(3600)
        much_later = await thief.join("mallory", client_id=CLIENT)

    assert [answer.code for answer in refused] == [ResponseCode.NO_PERMISSION] * 3
    assert "client id 'victim@1' is in use by another account" in refused[0].remark
    assert (answered.code, got) == (0, ["victim"])
    assert much_later.code == 0, "an id that nobody has used for long is free"


def test_who_claims_many_client_ids_gives_up_its_own() -> None:
    owners = ClientOwners()
    assert owners.claim("theirs", "victim", 0.0) == "victim"

    claimed = {owners.claim(f"id-{number}", "mallory", 1.0) for number in range(MOST_PER_OWNER + 100)}

    assert claimed == {"mallory"}
    assert owners.claim("theirs", "mallory", 2.0) == "victim"
    assert owners.claim("id-0", "victim", 2.0) == "victim"
    assert len(owners._owners) == MOST_PER_OWNER + 2


@pytest.mark.parametrize("kind", ["plain", "half"])
async def test_nobody_reads_a_message_by_handing_it_back(kind: str) -> None:
    async with attacked() as broker, caller(broker, "victim") as victim, caller(broker, "mallory") as mallory:
        await victim.join("victimP")
        half = {"TRAN_MSG": "true", "PGROUP": "victimP"} if kind == "half" else {}
        sent = await victim.send("secretT", group="victimP", **half)
        assert sent.code == 0, sent.remark
        _, offset = parse_offset_message_id(sent.ext["msgId"])
        back = {"offset": offset, "group": "mallory", "delayLevel": 0, "originTopic": "mine", "unitMode": "false"}
        answer = await mallory.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        dead = await mallory.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {**back, "delayLevel": -1})
        letters = await mallory.pull("%DLQ%mallory", "mallory")

        assert (answer.code, dead.code) == (ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION)
        assert b"secret" not in letters.body
        assert stored(broker, "%DLQ%mallory") == stored(broker, "SCHEDULE_TOPIC_XXXX") == 0
        if kind == "plain":
            own = await victim.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {**back, "group": "victimG"})
            assert own.code == 0, own.remark


@pytest.mark.parametrize("topic", [None, "mine", "secretT"])
@pytest.mark.parametrize("outcome", [8, 12], ids=["commit", "rollback"])
async def test_nobody_ends_the_transaction_of_another(topic: str | None, outcome: int) -> None:
    async with attacked() as broker, caller(broker, "victim") as victim, caller(broker, "mallory") as mallory:
        await victim.join("victimP")
        sent = await victim.send("secretT", group="victimP", TRAN_MSG="true", PGROUP="victimP")
        assert sent.code == 0, sent.remark
        _, offset = parse_offset_message_id(sent.ext["msgId"])
        end = {
            "producerGroup": "victimP", "tranStateTableOffset": sent.ext["queueOffset"], "commitLogOffset": offset,
            "commitOrRollback": outcome, "fromTransactionCheck": "false", "msgId": "x", "transactionId": "x",
        }  # fmt: skip
        named = {} if topic is None else {"topic": topic}
        forged = await mallory.ask(RequestCode.END_TRANSACTION, {**end, **named})
        elsewhere = await mallory.ask(RequestCode.END_TRANSACTION, {**end, **named, "commitLogOffset": offset + 1})
        rightful = await victim.ask(RequestCode.END_TRANSACTION, {**end, "commitOrRollback": 8})

        assert (forged.code, elsewhere.code) == (ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION)
        assert rightful.code == 0, rightful.remark
        assert stored(broker, "secretT") == 1


async def test_nobody_is_asked_about_the_transactions_of_another_producer_group() -> None:
    clock = ManualClock()
    checks: list[bytes] = []
    asked = anyio.Event()

    def check(request: Command, connection: Connection) -> None:
        checks.append(request.body)

    def rightful(request: Command, connection: Connection) -> None:
        asked.set()

    async with (
        attacked(clock) as broker,
        caller(broker, "victim", {RequestCode.CHECK_TRANSACTION_STATE: rightful}) as victim,
        caller(broker, "mallory", {RequestCode.CHECK_TRANSACTION_STATE: check}) as mallory,
    ):
        joined = await mallory.join("victimP")
        assert (await mallory.join("mallory", "CLIENT_INNER_PRODUCER")).code == 0
        sent = await victim.send("secretT", group="victimP", TRAN_MSG="true", PGROUP="victimP")
        assert sent.code == 0, sent.remark
        await clock.advance(70)
        assert checks == []
        assert joined.code == ResponseCode.NO_PERMISSION
        assert "account 'mallory' may not PUB with group 'victimP'" in joined.remark
        assert (await victim.join("victimP")).code == 0
        with anyio.fail_after(30):
            while not asked.is_set():
                await clock.advance(30)
                await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("topic", [HALF, REVIVE, "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"])
async def test_the_brokers_own_topics_are_nobodys_to_read(topic: str) -> None:
    async with attacked() as broker, caller(broker, "open") as reader:
        answer = await reader.pull(topic, "g")

    assert answer.code == ResponseCode.NO_PERMISSION
    assert f"PULL_MESSAGE (11) for '{topic}' takes an administrator" in answer.remark


@pytest.mark.parametrize("topic", [REVIVE, "rmq_sys_wheel_timer", HALF])
async def test_the_brokers_own_topics_are_nobodys_to_write_with_or_without_accounts(topic: str) -> None:
    async with running_broker() as broker:
        connection = await connect(broker.address)
        fields = {"a": "p", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
        answer = await connection.request(Command.request(RequestCode.SEND_MESSAGE_V2, fields, b"forged"))
        connection.close()

        assert answer.code == ResponseCode.NO_PERMISSION
        assert stored(broker, topic) == 0


async def test_a_consumer_that_pops_acknowledges_what_is_tried_again() -> None:
    clock = ManualClock()
    pop = {
        "consumerGroup": "victimG", "topic": "secretT", "queueId": -1, "maxMsgNums": 8, "invisibleTime": 10_000,
        "pollTime": 0, "bornTime": 0, "initMode": 0,
    }  # fmt: skip
    async with (
        attacked(clock) as broker,
        caller(broker, "victim") as victim,
        caller(broker, "mallory") as mallory,
    ):
        await victim.send("secretT")
        (first,) = decode_records((await victim.ask(RequestCode.POP_MESSAGE, pop)).body)
        again: list[Any] = []
        with anyio.fail_after(60):
            while not again:
                await clock.advance(15)
                again = list(decode_records((await victim.ask(RequestCode.POP_MESSAGE, pop)).body))
        handle = again[0].properties["POP_CK"].split(" ")
        ack = {
            "consumerGroup": "victimG", "topic": "%RETRY%victimG_secretT", "queueId": handle[6],
            "offset": again[0].queue_offset, "extraInfo": " ".join(handle),
        }  # fmt: skip
        stolen = await mallory.ask(RequestCode.ACK_MESSAGE, ack)
        as_own = await mallory.ask(RequestCode.ACK_MESSAGE, {**ack, "consumerGroup": "mallory"})
        longer = await victim.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, {**ack, "invisibleTime": 20_000})
        handle[0], handle[1] = str(again[0].queue_offset), longer.ext.get("popTime", "")
        done = await victim.ask(RequestCode.ACK_MESSAGE, {**ack, "extraInfo": " ".join(handle)})

    assert first.body == again[0].body == b"secret"
    assert (stolen.code, as_own.code) == (ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION)
    assert longer.code == 0, longer.remark
    assert done.code == 0, done.remark


async def test_a_batch_of_acknowledgements_may_name_only_what_the_account_may_read() -> None:
    bits = base64.b64encode(b"\1").decode()
    ack = {"c": "victimG", "t": "secretT", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1, "b": bits}
    own = {**ack, "c": "mallory", "t": "mine"}
    async with attacked() as broker, caller(broker, "mallory") as mallory:
        both = await mallory.ask(RequestCode.BATCH_ACK_MESSAGE, {}, orjson.dumps({"acks": [own, ack]}))
        one = await mallory.ask(RequestCode.BATCH_ACK_MESSAGE, {}, orjson.dumps({"acks": [own]}))

    assert both.code == ResponseCode.NO_PERMISSION
    assert one.code == 0, one.remark
