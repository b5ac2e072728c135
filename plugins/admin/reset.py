"""Moving a group to another place (``mqadmin resetOffsetByTime``, ``cloneGroupOffset``), exactly and at once.

The new offset is stored and the group's next pull of the queue is told to jump; a pull that waits is woken for
it. It works whether or not consumers are there, by time or to an explicit offset.
"""

from __future__ import annotations

from typing import Final

import orjson
from anyio.lowlevel import checkpoint

from verniermq.kernel import (
    Command,
    Connection,
    Context,
    Handler,
    InvalidParameter,
    RemotingError,
    RequestCode,
    RequestRefused,
    in_steps,
    object_keyed_map,
)
from verniermq.plugins.admin.requests import CloneOffsets, GetConsumerStatus
from verniermq.protocol.consumer import GetConsumerOffsets
from verniermq.protocol.offsets import ResetOffset

QUEUES_PER_STEP: Final = 32
"""Queues that are reset before others have a turn: a place is found by time, with a look into the log at each step."""
ALL_QUEUES: Final = -1
ASK_TIMEOUT: Final = 5.0


class ResetRequests:
    def __init__(self, broker: Context) -> None:
        self._broker = broker

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
        }

    async def reset(self, request: Command, connection: Connection) -> Command:
        asked = ResetOffset.of(request)
        topic, group = self._broker.topics.get(asked.topic), asked.group
        self._broker.groups.for_use(group, connection.peer_host)
        wanted, queue_id, timestamp = asked.offset, asked.queue_id, asked.timestamp
        if wanted < -1 or not ALL_QUEUES <= queue_id < topic.queues:
            raise InvalidParameter(f"queue {queue_id} at {wanted}: expected one of {topic.queues} queues, 0 or more")
        queues = range(topic.queues) if queue_id == ALL_QUEUES else [queue_id]
        offsets = {
            queue: await self._target(topic.name, queue, timestamp, wanted)
            async for queue in in_steps(queues, QUEUES_PER_STEP)
        }
        rows = []
        async for queue, offset in in_steps(offsets.items(), QUEUES_PER_STEP):
            self._broker.offsets.reset(group, topic.name, queue, offset)
            self._broker.held_pulls.wake_queue(topic.name, queue)
            rows.append(({"brokerName": self._broker.name, "queueId": queue, "topic": topic.name}, offset))
        return request.reply(body=b'{"offsetTable":%s}' % object_keyed_map(rows))

    async def _target(self, topic: str, queue_id: int, timestamp: int, wanted: int) -> int:
        store = self._broker.store
        queue = store.queue(topic, queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        if wanted >= 0:
            if not low <= wanted <= high:
                raise RequestRefused(f"offset {wanted} of queue {queue_id} of {topic!r}: expected {low} to {high}")
            return wanted
        return high if timestamp < 0 else await store.find_by_time(topic, queue_id, timestamp)

    async def consumer_status(self, request: Command, connection: Connection) -> Command:
        """Where each consumer of a group itself believes to be."""
        asked = GetConsumerStatus.of(request)
        topic, name, only = asked.topic, asked.group, asked.client_id
        group = self._broker.clients.consumers.get(name)
        parts = []
        for member in list(group.members.values()) if group is not None else []:
            if only and member.client_id != only:
                continue
            question = GetConsumerOffsets(topic=topic, group=name).command()
            try:
                answer = await member.connection.request(question, ASK_TIMEOUT)
            except RemotingError as error:
                raise RequestRefused(f"consumer {member.client_id!r}: {error}") from error
            # The client's map has objects for keys, which is no JSON; its text is passed on as it is.
            table = answer.body.partition(b'"messageQueueTable":')[2].rstrip()[:-1] or b"{}"
            parts.append(b"%s:%s" % (orjson.dumps(member.client_id), table))
        return request.reply(body=b'{"consumerTable":{%s},"messageQueueTable":{}}' % b",".join(parts))

    async def clone(self, request: Command, connection: Connection) -> Command:
        asked = CloneOffsets.of(request)
        source, target, topic = asked.source, asked.target, asked.topic
        self._broker.groups.for_use(target)
        for name in [topic] if topic else self._broker.offsets.topics_of(source):
            offsets = list(self._broker.offsets.queues(source, name).items())
            async for queue_id, offset in in_steps(offsets):
                self._broker.offsets.commit(target, name, queue_id, offset)
            await checkpoint()
        return request.reply()
