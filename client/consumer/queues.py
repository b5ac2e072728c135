"""Looking at queues: which there are, where they begin and end, and where a group is in them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from verniermq.client.base import Client
from verniermq.client.errors import ClientError
from verniermq.client.java import shown
from verniermq.client.names import with_namespace
from verniermq.kernel import MessageQueue, PeerUnreachable


class QueueInspector(Client):
    """What the consumers that are asked for messages have in common."""

    _wire_group: str

    def _wire(self, topic: str) -> str:
        return with_namespace(self.options.namespace, topic)

    async def _address(self, queue: MessageQueue, broker_id: int = 0) -> str:
        """
        Raises:
            PeerUnreachable: nobody knows where the queue's broker is.
            ClientError: it is no queue.
        """
        if not isinstance(queue, MessageQueue):
            raise ClientError(f"queue={shown(queue)}, expected a MessageQueue: one of those that queues(topic) lists")
        topic = self._wire(queue.topic)
        address = (await self._routes.get(topic)).address(queue.broker_name, broker_id)
        if address is None:
            address = (await self._routes.fetch(topic)).address(queue.broker_name, broker_id)
        if address is None:
            raise PeerUnreachable(queue.broker_name, f"the name server knows no such broker of topic {queue.topic!r}")
        return address

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """All queues of a topic that can be read.

        Raises:
            NoRoute: there is no such topic.
        """
        self._ensure_running()
        return (await self._routes.fetch(self._wire(topic))).readable

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first message that is still there."""
        self._ensure_running()
        return await self._api.min_offset(await self._address(queue), queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """One past the last message."""
        self._ensure_running()
        return await self._api.max_offset(await self._address(queue), queue)

    async def offset_at(self, queue: MessageQueue, when: datetime | int) -> int:
        """The first message stored at a time (``datetime``, or milliseconds since 1970) or later."""
        self._ensure_running()
        ms = int(when.timestamp() * 1000) if isinstance(when, datetime) else when
        return await self._api.offset_by_time(await self._address(queue), queue, ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Where the group is in a queue, as the broker has it; ``None`` if it never was there."""
        self._ensure_running()
        return await self._api.committed(await self._address(queue), self._wire_group, queue, guess=False)
