"""Consumer groups, and how far they are."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

import attrs

from verniermq.client.admin.topics import TopicAdmin
from verniermq.client.errors import ClientError
from verniermq.client.java import shown
from verniermq.kernel import MessageQueue, RequestCode, ResponseCode, UnexpectedAnswer, check_group_name
from verniermq.protocol.groups import DeleteGroup, UpdateGroup
from verniermq.protocol.offsets import ResetOffset

GROUP_DEFAULTS: Final = {
    "attributes": {},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "whichBrokerWhenConsumeSlowly": 1,
}


@attrs.frozen
class QueueProgress:
    """How far a group is in one queue."""

    committed: int | None
    """The next message it wants; ``None`` if it never said."""
    min_offset: int
    max_offset: int

    @property
    def lag(self) -> int:
        place = self.min_offset if self.committed is None else self.committed
        return max(0, self.max_offset - max(place, self.min_offset))


class GroupAdmin(TopicAdmin):
    # --- groups ----------------------------------------------------------------------------

    async def groups(self) -> list[str]:
        """The names of all consumer groups that some broker knows."""
        self._ensure_running()
        names: set[str] = set()
        for address in (await self._masters()).values():
            body = await self._api.json(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            names.update(body.get("subscriptionGroupTable") or {})
        return sorted(names)

    async def create_group(self, name: str, *, max_reconsume_times: int = 16, retry_queues: int = 1) -> None:
        """Create a consumer group on all brokers, or change it."""
        self._ensure_running()
        wire = self._wire(name)
        check_group_name(wire)
        config = {"groupName": wire, "retryMaxTimes": max_reconsume_times, "retryQueueNums": retry_queues}
        update = UpdateGroup(config={**GROUP_DEFAULTS, **config})
        for address in (await self._masters()).values():
            await self._api.ask(address, update)

    async def delete_group(self, name: str, *, with_offsets: bool = True) -> None:
        """Forget a consumer group on all brokers."""
        self._ensure_running()
        deletion = DeleteGroup(group=self._wire(name), clean_offset=with_offsets)
        for address in (await self._masters()).values():
            await self._api.ask(address, deletion)

    async def members(self, group: str) -> list[str]:
        """The client ids of a group's live members."""
        self._ensure_running()
        found: set[str] = set()
        for address in (await self._masters()).values():
            try:
                found.update(await self._api.consumer_ids(address, self._wire(group)))
            except UnexpectedAnswer:
                continue  # nobody of the group is connected to this broker
        return sorted(found)

    # --- offsets ---------------------------------------------------------------------------

    async def progress(self, group: str, topic: str) -> dict[MessageQueue, QueueProgress]:
        """How far a group is in each queue of a topic.

        Raises:
            NoRoute: there is no such topic.
        """
        self._ensure_running()
        found = {}
        for queue, (low, high) in (await self.topic_offsets(topic)).items():
            address = self._routes.broker_address(queue.broker_name)
            assert address is not None  # topic_offsets has just asked it
            place = await self._api.committed(address, self._wire(group), queue, guess=False)
            found[queue] = QueueProgress(place, low, high)
        return found

    async def lag(self, group: str, topic: str) -> int:
        """How many messages of a topic a group has not consumed."""
        return sum(queue.lag for queue in (await self.progress(group, topic)).values())

    async def reset_offsets(
        self, group: str, topic: str, to: datetime | int | Literal["first", "last"]
    ) -> dict[MessageQueue, int]:
        """Send a group elsewhere in a topic: to a time (``datetime`` or milliseconds), the first or the last message.

        Members that run go there at once; a group without members begins there. The new offsets are returned.

        Raises:
            NoRoute: there is no such topic.
            ClientError: ``to`` is no place.
            UnexpectedAnswer: a broker refused.
        """
        self._ensure_running()
        if to not in ("first", "last") and not isinstance(to, datetime | int):
            raise ClientError(f"to={shown(to)}; expected 'first', 'last', a datetime or milliseconds since 1970")
        wire = self._wire(topic)
        route = await self._routes.fetch(wire)
        if self._wire(group) not in await self.groups():
            await self.create_group(group)
        offsets: dict[MessageQueue, int] = {}
        for queue in route.readable:
            address = route.address(queue.broker_name)
            if address is None:
                continue
            offsets[queue] = await self._offset(address, queue, to)
            await self._reset(address, group, queue, offsets[queue])
        return offsets

    async def _offset(self, address: str, queue: MessageQueue, to: datetime | int | str) -> int:
        if to == "first":
            return await self._api.min_offset(address, queue)
        if to == "last":
            return await self._api.max_offset(address, queue)
        ms = int(to.timestamp() * 1000) if isinstance(to, datetime) else int(to)
        return await self._api.offset_by_time(address, queue, ms)

    async def _reset(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        reset = ResetOffset(
            topic=queue.topic,
            group=self._wire(group),
            queue_id=queue.queue_id,
            offset=offset,
            timestamp=-1,
            is_force=True,
        )
        try:
            await self._api.ask(address, reset)
        except UnexpectedAnswer as error:
            if error.code not in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.CONSUMER_NOT_ONLINE):
                raise
            await self._api.commit(address, self._wire(group), queue, offset, wait=True)
