"""Messages found by their ids and keys, and the dead letters of a group."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import anyio

from verniermq.client.admin.base import AdminBase
from verniermq.client.consumer.pull import TOOLS_GROUP
from verniermq.client.encoder import MessageEncoder
from verniermq.client.errors import BodyNotReadable, MessageNotFound, NoRoute
from verniermq.client.message import ReceivedMessage
from verniermq.client.results import PullStatus
from verniermq.client.selectors import RoundRobinSelector
from verniermq.client.sender import Sender
from verniermq.kernel import (
    DEAD_LETTER_PREFIX,
    Message,
    Property,
    RemotingError,
    Subscription,
    parse_offset_message_id,
)

logger = logging.getLogger(__name__)

FOREVER: Final = 2**63 - 1

NOT_RESENT: Final = frozenset(
    {
        Property.RETRY_TOPIC, Property.ORIGIN_MESSAGE_ID, Property.RECONSUME_TIME, Property.MAX_RECONSUME_TIMES,
        Property.DELAY, Property.REAL_TOPIC, Property.REAL_QUEUE_ID, Property.UNIQUE_KEY,
        Property.TRANSACTION_PREPARED, Property.PRODUCER_GROUP, Property.WAIT, Property.REGION,
        Property.TRACE_SWITCH, Property.CLUSTER,
    }
)  # fmt: skip
"""What a message gained on its way to the dead letters, and a new one must not begin with."""


class MessageAdmin(AdminBase):
    # --- messages --------------------------------------------------------------------------

    async def message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """One message by its id: the offset id, or with ``topic`` the producer's unique id.

        Raises:
            MessageNotFound: there is none.
        """
        self._ensure_running()
        if topic is not None:
            found = await self._by_key(self._wire(topic), message_id, unique=True, limit=32, begin_ms=0, end_ms=FOREVER)
            for message in found:
                if message.message_id == message_id:
                    return message
        try:
            address, log_offset = parse_offset_message_id(message_id)
            if not await self._is_broker(address):
                # Ids of producers have the same form: we must not call whoever lives at what they happen to say.
                raise MessageNotFound(
                    message_id, topic, f"as an offset id it would be of {address}, which is no broker"
                )
            return await self._api.view(address, log_offset, "", self._wire(topic) if topic else "")
        except (ValueError, RemotingError) as error:
            raise MessageNotFound(message_id, topic, str(error)) from error

    async def _is_broker(self, address: str) -> bool:
        known = await self._name_servers.brokers()
        return any(address in ids.values() for ids in known.values())

    async def messages_by_key(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = FOREVER
    ) -> list[ReceivedMessage]:
        """Messages of a topic that carry a key, newest first."""
        self._ensure_running()
        found = await self._by_key(self._wire(topic), key, unique=False, limit=limit, begin_ms=begin_ms, end_ms=end_ms)
        found = [message for message in found if key in message.keys]
        found.sort(key=lambda message: message.store_timestamp, reverse=True)
        return found[:limit]

    async def _by_key(
        self, topic: str, key: str, *, unique: bool, limit: int, begin_ms: int, end_ms: int
    ) -> list[ReceivedMessage]:
        route = await self._routes.fetch(topic)
        found: list[ReceivedMessage] = []
        for name in route.brokers:
            address = route.address(name)
            if address is not None:
                found += await self._api.query(
                    address, name, topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms, unique=unique
                )
        return [message for message in found if message.topic == topic]

    # --- dead letters ----------------------------------------------------------------------

    async def dead_letters(self, group: str, *, limit: int = 100) -> list[ReceivedMessage]:
        """The messages that a group failed on too often, oldest first; none if there never was one."""
        self._ensure_running()
        topic = DEAD_LETTER_PREFIX + self._wire(group)
        try:
            route = await self._routes.fetch(topic)
        except NoRoute:
            return []
        found: list[ReceivedMessage] = []
        for queue in route.readable:
            address = route.address(queue.broker_name)
            offset = await self._api.min_offset(address, queue) if address is not None else 0
            while address is not None and len(found) < limit:
                pulled = await self._api.pull(
                    address, queue, offset, group=TOOLS_GROUP, max_messages=32,
                    subscription=Subscription(topic), include_subscription=True, timeout=10.0,
                )  # fmt: skip
                if pulled.status is PullStatus.NO_NEW_MESSAGE:
                    break
                found += pulled.messages
                offset = pulled.next_offset
        for message in found:
            message.topic = message.properties.get(Property.RETRY_TOPIC, message.topic)
        return found[:limit]

    async def resend_dead_letters(
        self,
        group: str,
        *,
        limit: int = 100,
        per_second: float = 100.0,
        keep: Callable[[ReceivedMessage], bool] | None = None,
    ) -> int:
        """Send dead letters to their own topics again, slowly; say how many.

        They become new messages with the old keys, tags and properties. ``keep`` chooses which. One whose body cannot
        be read stays where it is.
        """
        letters = [letter for letter in await self.dead_letters(group, limit=limit) if keep is None or keep(letter)]
        sender = Sender(self._pool, self._routes, RoundRobinSelector(), self._name_servers.text)
        encoder = MessageEncoder(f"{group}-resend"[:120])
        sent = 0
        for letter in letters:
            properties = {name: value for name, value in letter.properties.items() if name not in NOT_RESENT}
            try:
                message = Message(letter.topic, letter.body, properties=properties, flag=letter.flag)
            except BodyNotReadable as error:
                logger.error("dead letter not sent again: %s", error)
                continue
            await sender.send(encoder.prepare(message))
            sent += 1
            await anyio.sleep(1 / per_second)
        return sent
