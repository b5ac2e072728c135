"""Request–reply over real sockets: the asker, the answerer, and what happens when one of them is missing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plugins.txn.peers import BORN_MS, Peer, peer
from verniermq.kernel import Command, Connection, RequestCode, ResponseCode, format_properties, parse_properties
from verniermq.testing import ManualClock, running_broker

pytestmark = pytest.mark.anyio

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
ASKER = "10.0.0.9@4711"


def reply_properties(**more: str) -> dict[str, str]:
    return {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": ASKER, "MSG_TYPE": "reply", "TTL": "3000", **more}


async def reply(answerer: Peer, body: bytes = b"42", properties: dict[str, str] | None = None, **more: Any) -> Command:
    return await answerer.send(
        REPLY_TOPIC,
        body,
        reply_properties() if properties is None else properties,
        code=RequestCode.SEND_REPLY_MESSAGE_V2,
        **more,
    )


class Inbox:
    """What an asker does with a pushed reply: keep it, and answer with a code."""

    def __init__(self, code: int = 0) -> None:
        self.received: list[Command] = []
        self.code = code

    def __call__(self, request: Command, connection: Connection) -> Command:
        self.received.append(request)
        return request.reply(self.code, remark="no such request" if self.code else "")

    @property
    def handlers(self) -> dict[int, Any]:
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self}


async def test_a_reply_is_pushed_to_the_client_that_asked() -> None:
    inbox, clock = Inbox(), ManualClock()
    async with (
        running_broker(clock=clock) as broker,
        peer(broker.address, ASKER, inbox.handlers) as asker,
        peer(broker.address, "answerer@1") as answerer,
    ):
        await asker.join(producers=("askers",))

        answer = await reply(answerer, b"42", reply_properties(mine="yes"), sys_flag=1)

        assert answer.code == 0, answer.remark
        (pushed,) = inbox.received
        assert pushed.body == b"42"
        assert not pushed.is_oneway
        properties = parse_properties(pushed.ext["properties"])
        assert properties["CORRELATION_ID"] == "c-1"
        assert properties["mine"] == "yes"
        assert properties["PUSH_REPLY_TIME"] == str(clock.now_ms())
        assert pushed.ext["topic"] == REPLY_TOPIC
        assert pushed.ext["producerGroup"] == "P"
        assert (pushed.ext["sysFlag"], pushed.ext["flag"], pushed.ext["queueId"]) == ("1", "0", "0")
        assert pushed.ext["bornTimestamp"] == str(BORN_MS)
        assert pushed.ext["storeHost"] == broker.address
        assert pushed.ext["bornHost"].startswith("127.0.0.1:")
        assert pushed.ext["storeTimestamp"] == str(clock.now_ms())


async def test_a_reply_is_stored_and_the_answer_says_where() -> None:
    async with (
        running_broker() as broker,
        peer(broker.address, ASKER, Inbox().handlers) as asker,
        peer(broker.address, "answerer@1") as answerer,
    ):
        await asker.join(producers=("askers",))

        answer = await reply(answerer)

        (stored,) = await answerer.pull(REPLY_TOPIC)
        assert stored.body == b"42"
        assert stored.properties["CORRELATION_ID"] == "c-1"
        assert answer.ext["msgId"] == stored.offset_message_id
        assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "0")


async def test_the_long_names_are_understood_too() -> None:
    inbox = Inbox()
    async with (
        running_broker() as broker,
        peer(broker.address, ASKER, inbox.handlers) as asker,
        peer(broker.address, "answerer@1") as answerer,
    ):
        await asker.join(producers=("askers",))
        fields = {
            "producerGroup": "P", "topic": REPLY_TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
            "queueId": 0, "sysFlag": 0, "bornTimestamp": BORN_MS, "flag": 3,
            "properties": format_properties(reply_properties()), "reconsumeTimes": 0, "unitMode": "false",
        }  # fmt: skip

        answer = await answerer.ask(RequestCode.SEND_REPLY_MESSAGE, fields, b"long")

        assert answer.code == 0, answer.remark
        assert inbox.received[0].ext["flag"] == "3"
        assert inbox.received[0].ext["unitMode"] == "false"
        assert await answerer.bodies(REPLY_TOPIC) == [b"long"]


async def test_replies_need_not_be_stored() -> None:
    async with (
        running_broker(plugins__reply__store=False) as broker,
        peer(broker.address, ASKER, Inbox().handlers) as asker,
        peer(broker.address, "answerer@1") as answerer,
    ):
        await asker.join(producers=("askers",))

        answer = await reply(answerer)

        assert answer.code == 0
        assert (answer.ext["msgId"], answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "0", "0")
        assert await answerer.bodies(REPLY_TOPIC) == []


async def test_a_reply_to_a_client_that_is_not_there_says_so() -> None:
    async with running_broker() as broker, peer(broker.address, "answerer@1") as answerer:
        answer = await reply(answerer)

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert repr(ASKER) in answer.remark


async def test_a_reply_to_nobody_says_so() -> None:
    async with running_broker() as broker, peer(broker.address, "answerer@1") as answerer:
        answer = await reply(answerer, properties={"CORRELATION_ID": "c-1"})

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "REPLY_TO_CLIENT" in answer.remark


async def test_the_answerer_hears_that_the_asker_refused() -> None:
    async with (
        running_broker() as broker,
        peer(broker.address, ASKER, Inbox(code=1).handlers) as asker,
        peer(broker.address, "answerer@1") as answerer,
    ):
        await asker.join(producers=("askers",))

        answer = await reply(answerer)

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "no such request" in answer.remark


async def test_an_asker_that_does_not_confirm_is_not_waited_for_forever() -> None:
    def swallow(request: Command, connection: Connection) -> None:
        return None

    async with (
        running_broker(plugins__reply__push_timeout="100ms") as broker,
        peer(broker.address, ASKER, {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: swallow}) as asker,
        peer(broker.address, "answerer@1") as answerer,
    ):
        await asker.join(producers=("askers",))

        answer = await reply(answerer)

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "within 0.1 s" in answer.remark


async def test_an_asker_that_left_is_not_found() -> None:
    async with running_broker() as broker, peer(broker.address, "answerer@1") as answerer:
        async with peer(broker.address, ASKER, Inbox().handlers) as asker:
            await asker.join(producers=("askers",))
            assert (await reply(answerer)).code == 0
            leaving = {"clientID": ASKER, "producerGroup": "askers"}
            assert (await asker.ask(RequestCode.UNREGISTER_CLIENT, leaving)).code == 0

            answer = await reply(answerer)

        assert "not connected" in answer.remark


async def test_without_the_plugin_a_reply_is_refused_by_its_name() -> None:
    async with running_broker(plugins__enable=[]) as broker, peer(broker.address) as answerer:
        answer = await reply(answerer)

        assert "SEND_REPLY_MESSAGE_V2 (325) needs the plugin 'reply'" in answer.remark
