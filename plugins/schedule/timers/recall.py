"""Taking a timed message back before it is delivered (RocketMQ: ``RecallMessageProcessor``).

The answer to the send carries a handle (``verniermq.protocol.recall``). Taking back writes a message of its own into
the same slot, which names the other: ``TIMER_DEL_UNIQKEY=topic+key``. When the slot comes these are read first, and
what they name is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs

from verniermq.kernel import (
    RETRY_PREFIX,
    Command,
    Connection,
    Context,
    NoPermission,
    PendingMessage,
    Property,
    RequestRefused,
    ResponseCode,
)
from verniermq.protocol.recall import RecallHandle, RecallMessage

DELETE_KEY: Final = "TIMER_DEL_UNIQKEY"
RECALL_TAG: Final = "_RECALL_TAG_"


def delete_key(topic: str, unique_key: str) -> str:
    return f"{topic}+{unique_key}"


def delete_key_of(properties: Mapping[str, str]) -> str:
    """What a marker would have to name to take this message back."""
    return delete_key(properties.get(Property.REAL_TOPIC, ""), properties.get(Property.UNIQUE_KEY, ""))


def add_handle(message: PendingMessage, broker_name: str, slot_ms: int) -> None:
    """Have the answer to a send carry the handle; retries are the broker's business and get none."""
    topic, key = message.properties[Property.REAL_TOPIC], message.properties.get(Property.UNIQUE_KEY, "")
    if key and not topic.startswith(RETRY_PREFIX) and DELETE_KEY not in message.properties:
        message.add_to_answer("recallHandle", RecallHandle(topic, broker_name, slot_ms + 1, key).encode())


@attrs.define(eq=False)
class Recall:
    """Serves RECALL_MESSAGE. ``note`` is told at once what is taken back, before the marker has reached its slot."""

    broker: Context
    allowed: bool
    max_delay_ms: int
    note: Callable[[str], None]

    async def serve(self, request: Command, connection: Connection) -> Command:
        if not self.allowed:
            raise NoPermission("messages may not be taken back here; set recall = true in [plugins.schedule]")
        recall = RecallMessage.of(request)
        self.broker.topics.get(recall.topic)
        try:
            handle = RecallHandle.decode(recall.handle)
        except ValueError as error:
            raise RequestRefused(str(error), ResponseCode.ILLEGAL_OPERATION) from error
        self._check(handle, recall.topic)
        marker = self._marker(handle, recall.group, connection)
        appended = await self.broker.put(marker)
        self.note(marker.properties[DELETE_KEY])
        if self.broker.must_confirm(marker.properties):
            await self.broker.confirm(appended)
        return request.reply(ext={"msgId": handle.unique_key, "MSG_REGION": "DefaultRegion"})

    def _check(self, handle: RecallHandle, topic: str) -> None:
        left = handle.time_ms - self.broker.clock.now_ms()
        why = None
        if handle.topic != topic:
            why = f"the handle is for topic {handle.topic!r}, not {topic!r}"
        elif handle.broker != self.broker.name:
            why = f"the handle is for broker {handle.broker!r}, this is {self.broker.name!r}"
        elif left <= 0:
            why = "it is too late: the message is delivered within a second, or was"
        elif left > self.max_delay_ms:
            why = f"no message can be due at {handle.time_ms}"
        if why is not None:
            raise RequestRefused(f"nothing was taken back: {why}", ResponseCode.ILLEGAL_OPERATION)

    def _marker(self, handle: RecallHandle, group: str, connection: Connection) -> PendingMessage:
        properties = {
            Property.TAGS: RECALL_TAG,
            DELETE_KEY: delete_key(handle.topic, handle.unique_key),
            Property.UNIQUE_KEY: handle.unique_key,
            Property.TIMER_DELIVER_MS: str(handle.time_ms),
        }
        if group:
            properties[Property.PRODUCER_GROUP] = group
        return PendingMessage(
            handle.topic, 0, b"0", properties,
            born_timestamp=self.broker.clock.now_ms(), born_host=connection.packed_host,
        )  # fmt: skip
