"""A client of the fewest words: what a test says to a broker over a real socket, and what it gets back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import orjson

from verniermq.kernel import (
    Broker,
    Command,
    Connection,
    RequestCode,
    ResponseCode,
    StoredMessage,
    connect,
    decode_records,
    format_properties,
)
from verniermq.testing import ManualClock, running_broker

PATIENCE: Final = 30.0
"""Seconds; for answers on a busy machine."""


@attrs.define(eq=False)
class Peer:
    connection: Connection
    client_id: str = "127.0.0.1@test"

    async def ask(self, code: RequestCode, body: bytes = b"", **fields: object) -> Command:
        ext = {name: str(value) for name, value in fields.items()}
        return await self.connection.request(Command.request(code, ext, body), PATIENCE)

    async def ask_well(self, code: RequestCode, body: bytes = b"", **fields: object) -> Command:
        """Ask, and insist on success."""
        answer = await self.ask(code, body, **fields)
        assert answer.code == ResponseCode.SUCCESS, f"{code.name}: {answer.code} {answer.remark}"
        return answer

    async def send(
        self, topic: str, body: bytes = b"hello", *, queue: int = 0, times: int = 0, most: int | None = None,
        flags: int = 0, born: int = 1_600_000_000_000, **properties: object,
    ) -> Command:  # fmt: skip
        texts = {name: str(value) for name, value in properties.items()}
        fields: dict[str, object] = {
            "a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": flags, "g": born, "h": 7,
            "i": format_properties(texts), "j": times,
        }  # fmt: skip
        if most is not None:
            fields["l"] = most
        return await self.ask(RequestCode.SEND_MESSAGE_V2, body, **fields)

    async def sent(self, topic: str, body: bytes = b"hello", **options: object) -> dict[str, str]:
        """Send, insist on success, and return the fields of the answer."""
        answer = await self.send(topic, body, **options)  # type: ignore[arg-type]
        assert answer.code == ResponseCode.SUCCESS, f"{answer.code} {answer.remark}"
        return answer.ext

    async def pull(self, topic: str, queue: int = 0, offset: int = 0) -> list[StoredMessage]:
        """Everything that a queue has from an offset on, without waiting and without committing."""
        found: list[StoredMessage] = []
        while True:
            answer = await self.ask(
                RequestCode.PULL_MESSAGE, consumerGroup="readers", topic=topic, queueId=queue, queueOffset=offset,
                maxMsgNums=32, sysFlag=4, commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0,
            )  # fmt: skip
            if answer.code != ResponseCode.SUCCESS:
                return found
            found += decode_records(answer.body)
            offset = int(answer.ext["nextBeginOffset"])

    async def bodies(self, topic: str, queue: int = 0) -> list[bytes]:
        return [message.body for message in await self.pull(topic, queue)]

    async def arrived(self, topic: str, count: int, queue: int = 0) -> set[bytes]:
        """Wait until so many different messages are in a queue: a broker beside the test delivers when it can."""
        with anyio.fail_after(60):
            while len(bodies := set(await self.bodies(topic, queue))) < count:  # noqa: ASYNC110 - the socket tells
                await anyio.sleep(0.02)
            return bodies

    async def fail(self, message: StoredMessage, group: str, level: int = 0, **fields: object) -> Command:
        """Give a message back as a consumer does that could not process it."""
        return await self.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK, offset=message.commit_log_offset, group=group, delayLevel=level,
            originMsgId=message.offset_message_id, originTopic=message.topic, **fields,
        )  # fmt: skip

    async def heartbeat(self, group: str, topics: Iterable[str] = ()) -> None:
        subscriptions = [{"topic": topic, "subString": "*", "expressionType": "TAG"} for topic in topics]
        consumer = {"groupName": group, "messageModel": "CLUSTERING", "subscriptionDataSet": subscriptions}
        body = orjson.dumps({"clientID": self.client_id, "consumerDataSet": [consumer]})
        await self.ask_well(RequestCode.HEART_BEAT, body)


@asynccontextmanager
async def peer(address: str, client_id: str = "127.0.0.1@test") -> AsyncIterator[Peer]:
    connection = await connect(address, timeout=PATIENCE)
    try:
        yield Peer(connection, client_id)
    finally:
        connection.close()
        await connection.wait_closed()


@asynccontextmanager
async def served(store: Path, clock: ManualClock | None = None, **settings: Any) -> AsyncIterator[tuple[Broker, Peer]]:
    """A broker of the test's own, and a client of it."""
    async with running_broker(store, clock=clock, **settings) as broker, peer(broker.address) as client:
        yield broker, client
