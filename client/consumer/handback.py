"""A message that could not be consumed goes back to the broker, which offers it again later, or buries it.

If the broker cannot take it back (its record is gone, or it does not answer), the message is sent anew to the group's
retry topic; if that fails too, it stays in hand and is tried again here after a while.
"""

from __future__ import annotations

import logging
from typing import Final

import attrs

from verniermq.client.api import BrokerApi
from verniermq.client.encoder import MessageEncoder
from verniermq.client.errors import ClientError
from verniermq.client.message import ReceivedMessage
from verniermq.client.routes import Routes
from verniermq.client.sender import Sender
from verniermq.kernel import RETRY_PREFIX, Message, Property, RemotingError, RequestRefused

logger = logging.getLogger(__name__)

DEAD: Final = -1
"""The delay level that makes a message a dead letter at once."""
FIRST_RETRY_LEVEL: Final = 3
"""The third delay of the table, 10 seconds by default, is the first one that retries use."""


@attrs.define(eq=False)
class HandBack:
    api: BrokerApi
    routes: Routes
    sender: Sender
    encoder: MessageEncoder
    group: str
    max_reconsume_times: int | None
    """How often a message is offered again before it becomes a dead letter; ``None``: as the group's setting says."""

    @property
    def retry_topic(self) -> str:
        return RETRY_PREFIX + self.group

    async def hand_back(self, message: ReceivedMessage, delay_level: int = 0, reason: str = "") -> bool:
        """Say whether the broker has it now."""
        address = self.routes.broker_address(message.queue.broker_name) or message.store_host
        try:
            await self.api.send_back(
                address,
                self.group,
                message,
                delay_level=delay_level,
                max_reconsume_times=self.max_reconsume_times,
                origin_topic=message.queue.topic,
                reason=reason,
            )
            return True
        except RemotingError as error:
            logger.warning("message not taken back, sending it anew message=%s reason=%s", message.message_id, error)
        return message.body_error is None and await self.send_anew(message, delay_level)

    async def send_anew(self, message: ReceivedMessage, delay_level: int = 0) -> bool:
        """Send a copy to the retry topic; say whether that went well."""
        times = message.reconsume_times
        properties = {
            name: value
            for name, value in message.properties.items()
            if name not in (Property.TRANSACTION_PREPARED, Property.DELAY, Property.WAIT)
        }
        properties.setdefault(Property.ORIGIN_MESSAGE_ID, message.offset_message_id)
        properties[Property.RETRY_TOPIC] = properties.get(Property.RETRY_TOPIC, message.topic)
        properties[Property.RECONSUME_TIME] = str(times + 1)
        if self.max_reconsume_times is not None:
            properties[Property.MAX_RECONSUME_TIMES] = str(self.max_reconsume_times)
        copy = Message(
            self.retry_topic,
            message.body,
            properties=properties,
            flag=message.flag,
            delay_level=max(delay_level, 0) or FIRST_RETRY_LEVEL + times,
        )
        try:
            await self.sender.send(self.encoder.prepare(copy), 5.0)
            return True
        except (ClientError, RemotingError, RequestRefused) as error:
            logger.warning("message not sent anew, it stays in hand message=%s reason=%s", message.message_id, error)
            return False
