"""Putting a message that is due into the topic it was meant for.

A delayed message waits in a topic of the broker's own, with the real topic and queue in two properties. When it
is due its record is written again, with those two as its place::

    SCHEDULE_TOPIC_XXXX, queue 2          ->    orders, queue 5
    REAL_TOPIC=orders REAL_QID=5 DELAY=3        REAL_TOPIC=orders REAL_QID=5 DELAY=3

The copy goes straight into the log: plugins saw the message when it was sent, and a delay must not be applied to
it a second time.
"""

from __future__ import annotations

import logging
from typing import Final

import attrs

from verniermq.kernel import (
    HALF_TOPIC,
    Appended,
    Context,
    MessageIllegal,
    PendingMessage,
    Property,
    RequestRefused,
    StoredMessage,
)

logger = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 1.0
"""How long we wait when the store takes no writes before we try again."""


def hide(message: PendingMessage, topic: str, queue_id: int) -> None:
    """Have a message wait in a topic of ours, with where it was going in its properties."""
    message.set_property(Property.REAL_TOPIC, message.topic)
    message.set_property(Property.REAL_QUEUE_ID, str(message.queue_id))
    message.topic = topic
    message.queue_id = queue_id


def reveal(stored: StoredMessage) -> PendingMessage | None:
    """The message as it goes to where it was meant to go; ``None`` if it does not say where, or may not go there."""
    topic = stored.properties.get(Property.REAL_TOPIC)
    queue_id = stored.properties.get(Property.REAL_QUEUE_ID, "")
    if not topic or not queue_id.isdecimal():
        logger.error("a delayed message does not say where it goes; it is skipped id=%s", stored.offset_message_id)
        return None
    if topic == HALF_TOPIC:
        # Half a transaction that came out of a delay would never be asked about: nobody waits for it any more.
        logger.error("half a transaction was delayed; it is skipped id=%s", stored.offset_message_id)
        return None
    return stored.pending(topic=topic, queue_id=int(queue_id))


@attrs.define(eq=False)
class Delivery:
    """Appends what is due, and waits where the store refuses instead of losing or reordering anything."""

    broker: Context

    async def append(self, message: PendingMessage, waited_at: int) -> Appended | None:
        """Put a message into the log, however long that takes; ``None`` if no log can hold it.

        It waited at the commit-log offset ``waited_at``; if its topic was deleted since, it is gone with it.

        Returns in the same turn of the loop in which it appended, so a caller that notes its progress next
        cannot be cancelled between the two.
        """
        topics, real = self.broker.topics, message.properties.get(Property.REAL_TOPIC, message.topic)
        queue_id, refused = message.queue_id, False
        while True:
            if real not in topics and topics.was_deleted_after(real, waited_at):
                logger.warning(
                    "a message is due but its topic was deleted, and it with it topic=%s key=%s",
                    real, message.properties.get(Property.UNIQUE_KEY),
                )  # fmt: skip
                return None
            try:
                message.queue_id = topics.for_delivery(message.topic, queue_id)
                if (saving := self.broker.saving_topic(message)) is not None:
                    await saving
                return self.broker.store.append(message)
            except MessageIllegal as error:
                logger.error(
                    "a message is due but cannot be stored; it is skipped topic=%s key=%s why=%s",
                    message.topic, message.properties.get(Property.UNIQUE_KEY), error,
                )  # fmt: skip
                return None
            except (RequestRefused, OSError) as error:
                if not refused:
                    logger.warning("a message is due but the store refuses it: %s; tried every second", error)
                refused = True
                await self.broker.clock.sleep(PAUSE_SECONDS)
