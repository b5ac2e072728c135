"""Messages, read by position: no group, no subscription, no counter of the broker takes notice.

A queue's entries say where records lie (QUERY_CONSUME_QUEUE), and each record is read by that place
(VIEW_MESSAGE_BY_ID). A pull would count as one, and wants a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs

from verniermq.client.errors import ClientError
from verniermq.client.message import ReceivedMessage, decode_one
from verniermq.contrib.console.inquiry import Inquiry
from verniermq.kernel import Property, RemotingError, UnexpectedAnswer, parse_offset_message_id
from verniermq.plugins.admin.requests import QueryConsumeQueue
from verniermq.protocol.query import QueryMessage, ViewMessage

CHUNK: Final = 32
"""Records that are read at a time."""
BUDGET: Final = 2000
"""Records that one page looks at; then it says where it stopped."""
FOREVER: Final = 2**63 - 1

Wanted = Callable[[ReceivedMessage], bool]


@attrs.frozen
class Part:
    """What was found in one queue."""

    messages: list[ReceivedMessage]
    looked_at: int
    further: int | None
    """Where to go on in the same direction; ``None`` at the end."""
    why: str = ""
    """Why some could not be shown."""


async def read_forward(
    ask: Inquiry, broker: str, topic: str, queue: int, begin: int, end: int, *, wanted: Wanted, most: int, budget: int
) -> Part:
    """Messages from an offset on, up to just before another."""
    found: list[ReceivedMessage] = []
    looked_at, why, at = 0, "", begin
    while at < end and len(found) < most and looked_at < budget:
        step = min(CHUNK, end - at)
        messages, why = await _read(ask, broker, topic, queue, at, step)
        for message in messages:
            if wanted(message) and len(found) < most:
                found.append(message)
                at = message.queue_offset + 1
        looked_at += step
        if len(found) < most:
            at = begin + looked_at
    return Part(found, looked_at, at if at < end else None, why)


async def read_backward(
    ask: Inquiry, broker: str, topic: str, queue: int, begin: int, end: int, *, wanted: Wanted, most: int, budget: int
) -> Part:
    """The newest messages before ``end``, down to ``begin``, the newest first."""
    found: list[ReceivedMessage] = []
    looked_at, why, at = 0, "", end
    while at > begin and len(found) < most and looked_at < budget:
        step = min(CHUNK, at - begin, most - len(found) if wanted is everything else CHUNK)
        messages, why = await _read(ask, broker, topic, queue, at - step, step)
        found += [message for message in reversed(messages) if wanted(message)]
        looked_at += step
        at -= step
    return Part(found[:most], looked_at, at if at > begin else None, why)


def everything(message: ReceivedMessage) -> bool:
    return True


async def _read(
    ask: Inquiry, broker: str, topic: str, queue: int, index: int, count: int
) -> tuple[list[ReceivedMessage], str]:
    address = (await ask.masters())[broker]
    asked = QueryConsumeQueue(topic=topic, queue_id=queue, index=index, count=count)
    try:
        body = await ask.json(address, asked)
    except RemotingError as error:
        return [], str(error)
    places = [int(entry["physicOffset"]) for entry in body.get("queueData") or ()]
    answers = await asyncio.gather(*(message_at(ask, address, broker, place) for place in places))
    messages = [answer for answer in answers if isinstance(answer, ReceivedMessage)]
    return messages, next((answer for answer in answers if isinstance(answer, str)), "")


async def message_at(ask: Inquiry, address: str, broker: str, place: int) -> ReceivedMessage | str:
    """The message at a place of a broker's log, or why it cannot be read."""
    try:
        answer = await ask.ask(address, ViewMessage(offset=place).command())
        return decode_one(answer.body, broker)
    except (RemotingError, ClientError, ValueError) as error:
        return str(error)


async def message_by_id(ask: Inquiry, message_id: str, topic: str = "") -> list[ReceivedMessage]:
    """A message by the id that says where it lies, or with a topic by the one that its producer gave it."""
    found = await messages_by_key(ask, topic, message_id, unique=True) if topic else []
    found = [message for message in found if message.message_id == message_id]
    if found:
        return found
    try:
        address, place = parse_offset_message_id(message_id)
    except ValueError:
        return []
    for broker in await ask.brokers():
        if broker.address == address:
            message = await message_at(ask, address, broker.name, place)
            return [message] if isinstance(message, ReceivedMessage) else []
    return []


async def messages_by_key(ask: Inquiry, topic: str, key: str, *, unique: bool = False) -> list[ReceivedMessage]:
    """Messages of a topic that carry a key, the newest first; at most some of each broker."""

    async def one(broker: str, address: str) -> list[ReceivedMessage]:
        query = QueryMessage(
            topic=topic, key=key, max_messages=CHUNK, begin_ms=0, end_ms=FOREVER, unique=unique or None
        )
        try:
            body = (await ask.ask(address, query.command(), timeout=18.0)).body
        except UnexpectedAnswer:
            return []  # there is none, or no such topic
        except RemotingError as error:
            ask.troubles[broker] = str(error)
            return []
        found, position = [], 0
        while position < len(body):
            message = decode_one(body[position:], broker)
            found.append(message)
            position += message.size
        return found

    answers = await asyncio.gather(*(one(*item) for item in (await ask.masters()).items()))
    found = [message for answer in answers for message in answer if message.topic == topic]
    if not unique:
        found = [message for message in found if key in message.keys]
    return sorted(found, key=lambda message: -message.store_timestamp)


def offsets_of_queues(queues: Iterable[dict[str, Any]]) -> dict[tuple[str, int], tuple[int, int]]:
    return {(row["broker"], row["queue"]): (row["first"], row["end"]) for row in queues}


def real_topic(message: ReceivedMessage) -> str:
    """Where a message of the brokers' own topics is meant to go."""
    properties = message.properties
    return properties.get(Property.REAL_TOPIC) or properties.get(Property.RETRY_TOPIC) or message.topic
