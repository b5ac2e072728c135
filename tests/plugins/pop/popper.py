"""A popping consumer, as thin as the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs

from tests.plugins.txn.peers import Peer, peer
from verniermq.kernel import Command, RequestCode, StoredMessage, decode_records

TOPIC, GROUP = "T", "G"
RETRY = "%RETRY%G_T"


@attrs.frozen
class Popped:
    """A message with its handle, worked out as clients do."""

    message: StoredMessage
    handle: str
    topic: str
    """The one to acknowledge it under: the retry topic, if it came from there."""

    @property
    def body(self) -> bytes:
        return self.message.body


def popped_of(answer: Command, broker_name: str, topic: str = TOPIC, group: str = GROUP) -> list[Popped]:
    starts = {}
    for text in answer.ext["startOffsetInfo"].split(";"):
        mark, queue_id, start = text.split(" ")
        starts[mark, int(queue_id)] = start
    found = []
    for message in decode_records(answer.body):
        handle = message.properties.get("POP_CK")
        if handle is None:
            handle = " ".join(
                [
                    starts["0", message.queue_id], answer.ext["popTime"], answer.ext["invisibleTime"],
                    answer.ext["reviveQid"], "0", broker_name, str(message.queue_id), str(message.queue_offset),
                ]
            )  # fmt: skip
        found.append(Popped(message, handle, topic if handle.split(" ")[4] == "0" else f"%RETRY%{group}_{topic}"))
    return found


@attrs.define
class Consumer:
    peer: Peer
    broker_name: str
    group: str = GROUP
    topic: str = TOPIC

    async def ask_pop(self, **changes: object) -> Command:
        fields = {
            "consumerGroup": self.group, "topic": self.topic, "queueId": -1, "maxMsgNums": 32, "invisibleTime": 60_000,
            "pollTime": 0, "bornTime": 0, "initMode": 0, **changes,
        }  # fmt: skip
        return await self.peer.ask(RequestCode.POP_MESSAGE, fields)

    async def pop(self, **changes: object) -> list[Popped]:
        answer = await self.ask_pop(**changes)
        if answer.code == 210:
            return []
        assert answer.code == 0, answer.remark
        return popped_of(answer, self.broker_name, self.topic, self.group)

    def about(self, popped: Popped) -> dict[str, object]:
        return {
            "consumerGroup": self.group, "topic": popped.topic, "queueId": popped.handle.split(" ")[6],
            "extraInfo": popped.handle, "offset": popped.message.queue_offset,
        }  # fmt: skip

    async def ack(self, popped: Popped) -> Command:
        return await self.peer.ask(RequestCode.ACK_MESSAGE, self.about(popped))

    async def change(self, popped: Popped, invisible_ms: int) -> Command:
        fields = {**self.about(popped), "invisibleTime": invisible_ms}
        return await self.peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)

    def renewed(self, popped: Popped, answer: Command) -> Popped:
        """The same message with the handle that a change of its invisible time gave it."""
        words = popped.handle.split(" ")
        words[:4] = [words[7], answer.ext["popTime"], answer.ext["invisibleTime"], answer.ext["reviveQid"]]
        return attrs.evolve(popped, handle=" ".join(words))


@asynccontextmanager
async def consumer(address: str, name: str = "broker-a", group: str = GROUP) -> AsyncIterator[Consumer]:
    async with peer(address) as connected:
        yield Consumer(connected, name, group)
