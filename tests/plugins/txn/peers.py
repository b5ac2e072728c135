"""Clients for tests, as thin as the wire: what a Java client would send, field by field."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import attrs
import orjson
from anyio.streams.memory import MemoryObjectReceiveStream

from verniermq.kernel import (
    Command,
    Connection,
    Handler,
    RequestCode,
    StoredMessage,
    connect,
    decode_record,
    decode_records,
    format_properties,
    parse_offset_message_id,
)

BORN_MS = 1_700_000_000_000
"""Where a ``ManualClock`` starts."""


@attrs.frozen
class HalfSent:
    """The answer to a half message, as its producer reads it."""

    queue_offset: int
    log_offset: int
    answer: Command

    @classmethod
    def of(cls, answer: Command) -> HalfSent:
        assert answer.code == 0, answer.remark
        _, log_offset = parse_offset_message_id(answer.ext["msgId"])
        return cls(int(answer.ext["queueOffset"]), log_offset, answer)


@attrs.define
class Peer:
    """One connection to a broker."""

    connection: Connection
    client_id: str
    checks: MemoryObjectReceiveStream[Command]
    born: int = BORN_MS
    """When its messages are made, if a test says nothing else."""

    async def ask(self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"") -> Command:
        fields = {name: str(value) for name, value in (ext or {}).items()}
        return await self.connection.request(Command.request(code, fields, body), timeout=30)

    async def join(self, *, producers: tuple[str, ...] = (), consumers: tuple[dict[str, Any], ...] = ()) -> None:
        """One heartbeat."""
        beat = {
            "clientID": self.client_id,
            "producerDataSet": [{"groupName": group} for group in producers],
            "consumerDataSet": list(consumers),
        }
        answer = await self.ask(RequestCode.HEART_BEAT, body=orjson.dumps(beat))
        assert answer.code == 0, answer.remark

    async def send(
        self,
        topic: str,
        body: bytes = b"body",
        properties: Mapping[str, str] | None = None,
        *,
        queue_id: int = 0,
        sys_flag: int = 0,
        born: int | None = None,
        code: int = RequestCode.SEND_MESSAGE_V2,
        **more: object,
    ) -> Command:
        fields = {
            "a": "P", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": sys_flag,
            "g": self.born if born is None else born, "h": 0,
            "i": format_properties(properties or {}), **more,
        }  # fmt: skip
        return await self.ask(code, fields, body)

    async def send_half(
        self,
        topic: str,
        body: bytes = b"body",
        properties: Mapping[str, str] | None = None,
        *,
        group: str = "P",
        queue_id: int = 0,
        born: int | None = None,
    ) -> HalfSent:
        transactional = {"TRAN_MSG": "true", "PGROUP": group, **(properties or {})}
        return HalfSent.of(await self.send(topic, body, transactional, queue_id=queue_id, sys_flag=4, born=born))

    async def end(self, half: HalfSent, outcome: int, *, group: str = "P", **changes: object) -> Command:
        fields = {
            "producerGroup": group,
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": half.log_offset,
            "commitOrRollback": outcome,
            "msgId": half.answer.ext.get("transactionId", ""),
            **changes,
        }
        return await self.ask(RequestCode.END_TRANSACTION, fields)

    async def checked(self) -> tuple[Command, StoredMessage]:
        """The next CHECK_TRANSACTION_STATE that the broker sends here."""
        with anyio.fail_after(30):
            request = await self.checks.receive()
        return request, decode_record(request.body)

    async def pull(self, topic: str, queue_id: int = 0, offset: int = 0, group: str = "reader") -> list[StoredMessage]:
        answer = await self.ask(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": group, "topic": topic, "queueId": queue_id, "queueOffset": offset, "maxMsgNums": 32,
                "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
                "expressionType": "TAG",
            },
        )  # fmt: skip
        return decode_records(answer.body) if answer.code == 0 else []

    async def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        return [message.body for message in await self.pull(topic, queue_id)]


@asynccontextmanager
async def peer(
    address: str, client_id: str = "C@1", handlers: Mapping[int, Handler] | None = None, born: int = BORN_MS
) -> AsyncIterator[Peer]:
    sending, checks = anyio.create_memory_object_stream[Command](1000)

    def note_check(request: Command, connection: Connection) -> None:
        sending.send_nowait(request)

    served: dict[int, Handler] = {RequestCode.CHECK_TRANSACTION_STATE: note_check, **(handlers or {})}
    with sending, checks:  # whoever is cancelled while it connects leaves them closed as well
        connection = await connect(address, served)
        try:
            yield Peer(connection, client_id, checks, born)
        finally:
            connection.close()
