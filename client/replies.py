"""Request and reply: a producer that waits for a consumer's answer (RocketMQ: ``RequestResponseFuture``).

The request carries a correlation id and the client id of whoever waits. The reply goes to the topic
``<cluster>_REPLY_TOPIC`` of the same broker, which finds the waiting client among its producers and pushes the reply
to it over the connection that is there already.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from verniermq.client.errors import BadMessage, NoReply
from verniermq.client.message import ReceivedMessage
from verniermq.kernel import Command, Connection, Message, MessageQueue, Property, pack_host
from verniermq.kernel.remoting import parse_address
from verniermq.protocol.reply import PushReply

logger = logging.getLogger(__name__)

REPLY_TYPE: Final = "reply"
ARRIVE_TIME: Final = "ARRIVE_TIME"


class PendingReply:
    """One request that waits for its reply."""

    def __init__(self) -> None:
        self.correlation_id = str(uuid.uuid4())
        self.future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()

    def properties(self, client_id: str, timeout: float) -> dict[str, str]:
        return {
            Property.CORRELATION_ID: self.correlation_id,
            Property.REPLY_TO_CLIENT: client_id,
            Property.TTL: str(int(timeout * 1000)),
        }

    async def reply(self, topic: str, timeout: float) -> ReceivedMessage:
        """
        Raises:
            NoReply: none came in time.
        """
        try:
            async with asyncio.timeout(max(timeout, 0)):
                return await self.future
        except TimeoutError:
            raise NoReply(topic, timeout) from None


class Replies:
    """The requests of one producer, by correlation id."""

    def __init__(self) -> None:
        self._waiting: dict[str, PendingReply] = {}

    @contextmanager
    def waiting(self, timeout: float) -> Iterator[PendingReply]:
        request = PendingReply()
        self._waiting[request.correlation_id] = request
        try:
            yield request
        finally:
            del self._waiting[request.correlation_id]

    def arrived(self, request: Command, connection: Connection) -> Command:
        """A broker pushes a reply."""
        message = _pushed(request)
        waiting = self._waiting.get(message.properties.get(Property.CORRELATION_ID, ""))
        if waiting is None or waiting.future.done():
            logger.debug("a reply that nobody waits for any more message=%s", message.message_id)
        else:
            waiting.future.set_result(message)
        return request.reply()

    @staticmethod
    def reply_to(request: ReceivedMessage, body: bytes, properties: dict[str, str]) -> Message:
        """The message that answers a request.

        Raises:
            BadMessage: nobody waits for an answer to it.
        """
        asked = request.properties
        if Property.REPLY_TO_CLIENT not in asked or Property.CORRELATION_ID not in asked:
            raise BadMessage(f"message {request.message_id} was not sent with request(); nobody waits for a reply")
        if Property.CLUSTER not in asked:
            raise BadMessage(f"message {request.message_id} lacks the property {Property.CLUSTER}, which brokers add")
        return Message(
            f"{asked[Property.CLUSTER]}_REPLY_TOPIC",
            body,
            properties={
                **properties,
                Property.MESSAGE_TYPE: REPLY_TYPE,
                Property.CORRELATION_ID: asked[Property.CORRELATION_ID],
                Property.REPLY_TO_CLIENT: asked[Property.REPLY_TO_CLIENT],
                Property.TTL: asked.get(Property.TTL, "3000"),
            },
        )


def _pushed(request: Command) -> ReceivedMessage:
    push = PushReply.of(request)
    message = ReceivedMessage(
        push.topic, MessageQueue(push.topic, "", push.queue_id), 0, 0, len(request.body), push.flag, push.sys_flag,
        push.born_timestamp, _packed(push.born_host), push.store_timestamp, _packed(push.store_host),
        push.reconsume_times, 0, request.body, push.properties.encode(),
    )  # fmt: skip
    message.properties[ARRIVE_TIME] = str(time.time_ns() // 1_000_000)
    return message


def _packed(address: str) -> bytes:
    try:
        return pack_host(*parse_address(address.removeprefix("/")))
    except ValueError:
        return b""
