"""How far a group is in everything that it consumes, asked of each broker with one request (GET_CONSUME_STATS)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import attrs

from verniermq.client.admin.groups import GroupAdmin
from verniermq.client.errors import ClientError
from verniermq.kernel import RETRY_PREFIX, MessageQueue, RemotingError, ResponseCode, UnexpectedAnswer
from verniermq.protocol.figures import GetConsumeStats, GetRunningInfo


@attrs.frozen
class QueueLag:
    """How far a group is in one queue, as its broker says."""

    queue: MessageQueue
    committed: int
    end: int
    last_ms: int
    """When the last message that it consumed was stored; 0 if there is none."""

    @property
    def lag(self) -> int:
        return max(0, self.end - self.committed)


@attrs.frozen
class GroupProgress:
    group: str
    clients: tuple[str, ...]
    rate: float
    """Messages a second, of the last minute."""
    queues: tuple[QueueLag, ...]

    @property
    def members(self) -> int:
        return len(self.clients)

    @property
    def lag(self) -> int:
        return sum(row.lag for row in self.queues)

    @property
    def topics(self) -> tuple[str, ...]:
        names = {row.queue.topic for row in self.queues}
        return tuple(sorted(name for name in names if not name.startswith(RETRY_PREFIX)))

    @property
    def behind_ms(self) -> int:
        """How long ago the last message was stored that it consumed, in the queue where that is longest ago; 0 if
        nothing waits."""
        waiting = [row.last_ms for row in self.queues if row.lag and row.last_ms > 0]
        return max(0, round(time.time() * 1000) - min(waiting)) if waiting else 0


class ProgressAdmin(GroupAdmin):
    async def group_progress(self, group: str) -> GroupProgress:
        """How far a group is in all topics that it has offsets of; nothing if no broker knows any.

        Raises:
            UnexpectedAnswer: a broker refused.
        """
        self._ensure_running()
        queues: list[QueueLag] = []
        rate = 0.0
        for address in (await self._masters()).values():
            try:
                body = await self._api.json(address, GetConsumeStats(group=self._wire(group)))
            except UnexpectedAnswer as error:
                if error.code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
                    continue  # Apache's brokers say so of a group that has no offsets there
                raise
            rate += float(body.get("consumeTps") or 0)
            queues += [_row(queue, row) for queue, row in object_pairs(body.get("offsetTable"))]
        queues.sort(key=lambda row: (row.queue.topic, row.queue.broker_name, row.queue.queue_id))
        return GroupProgress(group, tuple(await self.members(group)), rate, tuple(queues))

    async def owners(self, group: str) -> dict[MessageQueue, str]:
        """Queue → the client id of the member that has it, as members say; those that do not answer are left out."""
        self._ensure_running()
        found: dict[MessageQueue, str] = {}
        wire = self._wire(group)
        for address in (await self._masters()).values():
            try:
                members = await self._api.consumer_ids(address, wire)
            except UnexpectedAnswer:
                continue  # nobody of the group is connected to this broker
            for member in members:
                try:
                    body = await self._api.json(address, GetRunningInfo(group=wire, client_id=member))
                except RemotingError:
                    continue  # it went, or is a client that cannot say
                for table in ("mqTable", "mqPopTable"):
                    for queue, _ in object_pairs(body.get(table)):
                        found[_queue(queue)] = member
        return found

    async def offset_at(self, queue: MessageQueue, moment: datetime | int | Literal["first", "last"]) -> int:
        """The offset in a queue at a time (``datetime`` or milliseconds), or at one of its ends."""
        self._ensure_running()
        return await self._offset(await self._address_of(queue), queue, moment)

    async def set_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Send a group to these offsets, whether or not its members run.

        Raises:
            UnexpectedAnswer: a broker refused.
        """
        self._ensure_running()
        for queue, offset in offsets.items():
            await self._reset(await self._address_of(queue), group, queue, offset)

    async def _address_of(self, queue: MessageQueue) -> str:
        route = await self._routes.fetch(queue.topic)
        address = route.address(queue.broker_name)
        if address is None:
            raise ClientError(f"broker {queue.broker_name!r} of topic {queue.topic!r} has no master now")
        return address


def object_pairs(table: Any) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """A map whose keys are objects; they are read as pairs of names and values."""
    return [(dict(key), row) for key, row in (table or {}).items() if isinstance(key, tuple)]


def _row(queue: Mapping[str, Any], row: Mapping[str, Any]) -> QueueLag:
    return QueueLag(
        _queue(queue),
        int(row.get("consumerOffset") or 0),
        int(row.get("brokerOffset") or 0),
        int(row.get("lastTimestamp") or 0),
    )


def _queue(members: Mapping[str, Any]) -> MessageQueue:
    return MessageQueue(str(members["topic"]), str(members["brokerName"]), int(members["queueId"]))
