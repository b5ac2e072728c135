"""Requests about logical queues, turned into requests about physical ones, here or on other brokers.

A request names a logical queue unless its field ``lo`` is ``false``: then a broker asks that has done the translation.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import anyio
import orjson

from verniermq.kernel import (
    FROM_SERVER,
    Answer,
    Command,
    Connection,
    Context,
    Handler,
    InvalidParameter,
    RequestCode,
    RequestRefused,
    ResponseCode,
    Work,
    object_keyed_map,
    parse_fastjson,
)
from verniermq.kernel.requests import GetMaxOffset, PullMessage, SendMessage, UpdateConsumerOffset
from verniermq.plugins.statictopic.mapping import Chain, MappedQueue, TopicMapping, following, part_of
from verniermq.plugins.statictopic.peers import PeerBrokers

STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)

Served = Answer | Work


class Translator:
    """Stands before the handlers of requests that name a queue, for as long as there are static topics."""

    def __init__(self, broker: Context, mappings: Mapping[str, TopicMapping]) -> None:
        self._broker = broker
        self._mappings = mappings
        self._peers = PeerBrokers(broker)

    def close(self) -> None:
        """Let go of the other brokers."""
        self._peers.close()

    def interceptors(self) -> dict[int, Callable[[Handler, Command, Connection], Served]]:
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
            RequestCode.PULL_MESSAGE: self._for_logical(self.pull),
            RequestCode.LITE_PULL_MESSAGE: self._for_logical(self.pull),
            RequestCode.QUERY_CONSUMER_OFFSET: self._for_logical(self.query_offset),
            RequestCode.UPDATE_CONSUMER_OFFSET: self._for_logical(self.update_offset),
            RequestCode.GET_MAX_OFFSET: self._for_logical(self.maximum),
            RequestCode.GET_MIN_OFFSET: self._for_logical(self.minimum),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._for_logical(self.by_time),
            RequestCode.GET_EARLIEST_MSG_STORETIME: self._for_logical(self.earliest_time),
            RequestCode.GET_TOPIC_CONFIG: self.topic_config,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topic_configs,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
        }

    def _mapping(self, request: Command, topic: str) -> TopicMapping | None:
        mapping = self._mappings.get(topic)
        return None if mapping is None or request.ext.get("lo") == "false" else mapping

    def _for_logical(
        self, serve: Callable[[Handler, Command, Connection, Chain], Coroutine[Any, Any, Answer]]
    ) -> Callable[[Handler, Command, Connection], Served]:
        def intercept(physical: Handler, request: Command, connection: Connection) -> Served:
            mapping = self._mapping(request, request.ext.get("topic", ""))
            if mapping is None:
                return physical(request, connection)
            return serve(physical, request, connection, chain_led(mapping, request.integer("queueId")))

        return intercept

    def _is_here(self, queue: MappedQueue) -> bool:
        return queue.broker == self._broker.name

    async def _ask(
        self, serve: Handler, request: Command, connection: Connection, queue: MappedQueue, **fields: object
    ) -> Command:
        """Ask about a physical queue: this broker's own handler, or another broker."""
        texts = {"queueId": str(queue.queue_id), **{name: str(value) for name, value in fields.items()}}
        if not self._is_here(queue):
            answer = await self._peers.ask(queue.broker, request.code, {**request.ext, **texts})
            return request.reply(answer.code, answer.ext, answer.body, answer.remark)
        request.rewrite(texts)
        return await finished(serve(request, connection))

    # --- messages in and out ---------------------------------------------------------------

    def send(self, serve: Handler, request: Command, connection: Connection) -> Served:
        send = SendMessage.of(request)
        mapping = self._mapping(request, send.topic)
        if mapping is None:
            return serve(request, connection)
        logical = send.queue_id
        if logical < 0:
            logical = next(iter(mapping.led), logical)
        leader = chain_led(mapping, logical)[-1]
        SendMessage.redirect(request, leader.queue_id)
        return self._sent(serve(request, connection), logical, leader)

    async def _sent(self, serving: Served, logical: int, leader: MappedQueue) -> Command:
        answer = await finished(serving)
        if answer.code in STORED:
            offset = leader.logical(int(answer.ext["queueOffset"])) if leader.is_decided else -1
            answer.ext.update({"queueId": str(logical), "queueOffset": str(offset)})
            answer.frame = b""
        return answer

    async def pull(self, serve: Handler, request: Command, connection: Connection, chain: Chain) -> Command:
        pull = PullMessage.of(request)
        flags = pull.sys_flag
        if flags & PullMessage.COMMIT_OFFSET and pull.commit_offset >= 0:
            await self._commit(pull, chain)
        queue = part_of(chain, pull.offset)
        offset = queue.physical(pull.offset)
        waits = flags & PullMessage.SUSPEND and pull.wait_ms > 0 and queue is chain[-1]
        fields = {"queueOffset": offset, "sysFlag": flags & ~(PullMessage.COMMIT_OFFSET | PullMessage.SUSPEND)}
        answer = await self._ask(serve, request, connection, queue, **fields)
        if answer.code == ResponseCode.PULL_NOT_FOUND and waits:
            await self._arrival(pull.topic, queue.queue_id, offset, pull.wait_ms / 1000)
            answer = await self._ask(serve, request, connection, queue, **fields)
        return translated(answer, chain, queue, offset)

    async def _arrival(self, topic: str, queue_id: int, offset: int, seconds: float) -> None:
        seconds = min(seconds, self._broker.configuration.pull.max_wait)

        async def sleep() -> None:
            await self._broker.clock.sleep(seconds)
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sleep)
            if self._broker.store.max_offset(topic, queue_id) <= offset:
                await self._broker.held_pulls.arrival(topic, queue_id, offset)
            tasks.cancel_scope.cancel()

    # --- offsets ---------------------------------------------------------------------------

    async def _commit(self, pull: PullMessage, chain: Chain) -> None:
        queue = part_of(chain, pull.commit_offset)
        offset = queue.physical(pull.commit_offset)
        if self._is_here(queue):
            self._broker.offsets.commit(pull.group, pull.topic, queue.queue_id, offset)
        else:
            told = UpdateConsumerOffset(group=pull.group, topic=pull.topic, queue_id=queue.queue_id, offset=offset)
            await self._peers.ask(queue.broker, told.code, told.ext())

    async def update_offset(self, serve: Handler, request: Command, connection: Connection, chain: Chain) -> Command:
        offset = UpdateConsumerOffset.of(request).offset
        queue = part_of(chain, offset)
        return await self._ask(serve, request, connection, queue, commitOffset=queue.physical(offset))

    async def query_offset(self, serve: Handler, request: Command, connection: Connection, chain: Chain) -> Command:
        """A group may have committed to any part; the newest counts."""
        is_single = len(chain) == 1 and chain[0].logic_offset == 0
        fields = {} if is_single else {"setZeroIfNotFound": "false"}
        answer = request.reply(ResponseCode.QUERY_NOT_FOUND)
        for queue in reversed([queue for queue in chain if queue.is_decided]):
            answer = await self._ask(serve, request, connection, queue, **fields)
            if answer.code != ResponseCode.QUERY_NOT_FOUND:
                return with_offset(answer, queue)
        return answer

    async def maximum(self, serve: Handler, request: Command, connection: Connection, chain: Chain) -> Command:
        queue = [queue for queue in chain if queue.is_decided][-1]
        return with_offset(await self._ask(serve, request, connection, queue), queue)

    async def minimum(self, serve: Handler, request: Command, connection: Connection, chain: Chain) -> Command:
        queue = part_of(chain, 0)
        return with_offset(await self._ask(serve, request, connection, queue), queue)

    async def earliest_time(self, serve: Handler, request: Command, connection: Connection, chain: Chain) -> Command:
        return await self._ask(serve, request, connection, part_of(chain, 0))

    async def by_time(self, serve: Handler, request: Command, connection: Connection, chain: Chain) -> Command:
        """The first part with a message of that time or later; a part without one answers with its end."""
        parts = [queue for queue in chain if queue.is_decided]
        for queue in parts[:-1]:
            answer = await self._ask(serve, request, connection, queue)
            end = await self._ask_end(request, queue)
            if answer.code == ResponseCode.SUCCESS and 0 <= int(answer.ext["offset"]) < end:
                return with_offset(answer, queue)
        return with_offset(await self._ask(serve, request, connection, parts[-1]), parts[-1])

    async def _ask_end(self, request: Command, queue: MappedQueue) -> int:
        topic = request.text("topic")
        if self._is_here(queue):
            return self._broker.store.max_offset(topic, queue.queue_id)
        asked = GetMaxOffset(topic=topic, queue_id=queue.queue_id)
        answer = await self._peers.ask(queue.broker, asked.code, asked.ext())
        return int(answer.ext.get("offset", 0))

    # --- configurations --------------------------------------------------------------------

    def topic_config(self, serve: Handler, request: Command, connection: Connection) -> Served:
        mapping = self._mappings.get(request.ext.get("topic", ""))
        if mapping is None or request.ext.get("lo") != "true":
            return serve(request, connection)
        return self._with_body(serve(request, connection), {"mappingDetail": mapping.as_json()})

    def all_topic_configs(self, serve: Handler, request: Command, connection: Connection) -> Served:
        details = {topic: mapping.as_json() for topic, mapping in self._mappings.items()}
        return self._with_body(serve(request, connection), {"topicQueueMappingDetailMap": details})

    async def consume_stats(self, serve: Handler, request: Command, connection: Connection) -> Command:
        """Who asks puts the parts together, and takes the newest that the group has come to: others are -1, not 0."""
        answer = await finished(serve(request, connection))
        body = bytes(answer.body)
        if answer.code != ResponseCode.SUCCESS or not any(b'"%s"' % topic.encode() in body for topic in self._mappings):
            return answer  # a group that has no static topic, and may have many others
        stats, group = parse_fastjson(body, FROM_SERVER), request.text("consumerGroup")
        rows = [(dict(key), row) for key, row in stats.pop("offsetTable").items()]
        for key, row in rows:
            committed = self._broker.offsets.committed(group, key["topic"], key["queueId"])
            if committed is None and key["topic"] in self._mappings:
                row["consumerOffset"] = -1
        answer.body = orjson.dumps(stats)[:-1] + b',"offsetTable":%s}' % object_keyed_map(rows)
        return answer

    async def _with_body(self, serving: Served, members: Mapping[str, Any]) -> Command:
        answer = await finished(serving)
        if answer.code == ResponseCode.SUCCESS:
            # Joined as text: the answer is our own, and may have more topics than is read from others.
            answer.body = bytes(answer.body).rstrip()[:-1] + b"," + orjson.dumps(members)[1:]
        return answer


async def finished(serving: Served) -> Command:
    answer = serving if serving is None or isinstance(serving, Command) else await serving
    assert answer is not None  # only a pull that waits is answered later, and none of these waits
    return answer


def chain_led(mapping: TopicMapping, logical: int) -> Chain:
    """
    Raises:
        RequestRefused: the queue is led by another broker, or there is none.
    """
    chain = mapping.chains.get(logical, ())
    if not chain or chain[-1].broker != mapping.broker:
        leader = f"it is led by {chain[-1].broker!r}" if chain else "it is led elsewhere, or does not exist"
        raise RequestRefused(
            f"topic {mapping.topic!r}: broker {mapping.broker!r} does not lead logical queue {logical}; {leader}",
            ResponseCode.NOT_LEADER_FOR_QUEUE,
        )
    if not any(queue.is_decided for queue in chain):
        raise InvalidParameter(f"topic {mapping.topic!r}: it is not decided where logical queue {logical} begins")
    return chain


def with_offset(answer: Command, queue: MappedQueue) -> Command:
    if answer.code == ResponseCode.SUCCESS:
        answer.ext["offset"] = str(queue.logical(int(answer.ext["offset"])))
    return answer


def translated(answer: Command, chain: Chain, queue: MappedQueue, offset: int) -> Command:
    """The answer to a pull from a physical queue, as one from the logical queue; at its end the next part follows."""
    if "nextBeginOffset" not in answer.ext:
        return answer
    low, high = int(answer.ext["minOffset"]), int(answer.ext["maxOffset"])
    position, later = queue.logical(int(answer.ext["nextBeginOffset"])), following(chain, queue)
    first, end = queue.logical(low), queue.logical(high)
    if answer.code != ResponseCode.SUCCESS:
        if queue is not chain[-1] and offset >= high:
            answer.code = ResponseCode.PULL_NOT_FOUND if later is None else ResponseCode.PULL_RETRY_IMMEDIATELY
            if later is not None:
                position = first = end = later.logic_offset
        elif offset < low and queue is not part_of(chain, 0):
            answer.code, position = ResponseCode.PULL_RETRY_IMMEDIATELY, first
    last = [one for one in chain if one.is_decided][-1]
    answer.ext.update(
        {
            "nextBeginOffset": str(position),
            "minOffset": str(first),
            "maxOffset": str(max(end, last.logic_offset)),
            "offsetDelta": str(queue.delta),
        }
    )
    return answer
