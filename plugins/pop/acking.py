"""Done with a popped message, or not yet (RocketMQ: ``AckMessageProcessor``, ``ChangeInvisibleTimeProcessor``).

An acknowledgement of what is not in flight (any more) succeeds and does nothing: it is late, and the message
is in the retry topic already. Changing the invisible time is a new checkpoint for the one message and an
acknowledgement of the old one.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson

from verniermq.kernel import (
    Appended,
    Broker,
    Command,
    Connection,
    InvalidParameter,
    MessageIllegal,
    RequestRefused,
    ResponseCode,
)
from verniermq.plugins.pop.checkpoint import CheckPoint
from verniermq.plugins.pop.handle import ORDER_QUEUE, Handle, real_topic
from verniermq.plugins.pop.inflight import InFlight
from verniermq.plugins.pop.ordering import OrderTable


class AckHandlers:
    """``wake`` is called with a topic when a queue of it may give messages again."""

    def __init__(self, broker: Broker, inflight: InFlight, orders: OrderTable, wake: Callable[[str], None]) -> None:
        self._broker = broker
        self._inflight = inflight
        self._orders = orders
        self._wake = wake

    # --- one -------------------------------------------------------------------------------

    def acknowledge(self, request: Command, connection: Connection) -> Command | Coroutine[Any, Any, Command]:
        group, topic, queue_id, offset, handle = self._decode(request)
        if handle.is_ordered:
            self._acknowledge_ordered(group, topic, queue_id, offset, handle.pop_time)
            return request.reply()
        checkpoint = self._inflight.find((group, topic, queue_id, handle.start_offset, handle.pop_time))
        appended = None if checkpoint is None else self._inflight.acknowledge(checkpoint, [offset])
        return self._answer(request, appended)

    def _decode(self, request: Command) -> tuple[str, str, int, int, Handle]:
        group, topic = request.text("consumerGroup"), request.text("topic")
        queue_id, offset = request.integer("queueId"), request.integer("offset")
        handle = Handle.parse(request.text("extraInfo"))
        config = self._broker.topics.get(topic)
        if not 0 <= queue_id < config.read_queues:
            raise MessageIllegal(f"topic {topic!r} has no queue {queue_id}; it has {config.read_queues} queues")
        low, high = self._broker.store.min_offset(topic, queue_id), self._broker.store.max_offset(topic, queue_id)
        if not low <= offset < high:
            raise RequestRefused(
                f"queue {queue_id} of topic {topic!r} has no offset {offset}; it has {low} to {high - 1}",
                ResponseCode.NO_MESSAGE,
            )
        return group, topic, queue_id, offset, handle

    def _acknowledge_ordered(self, group: str, topic: str, queue_id: int, offset: int, pop_time: int) -> None:
        if offset < (self._broker.offsets.committed(group, topic, queue_id) or 0):
            return  # done with long ago
        following = self._orders.acknowledge((topic, group, queue_id), offset, pop_time)
        if following is None:
            raise MessageIllegal(f"offset {offset} is not of the last ordered pop of queue {queue_id} of {topic!r}")
        self._broker.offsets.commit(group, topic, queue_id, following)
        if not self._orders.is_blocked((topic, group, queue_id), ""):
            self._wake(topic)

    # --- many ------------------------------------------------------------------------------

    def acknowledge_batch(self, request: Command, connection: Connection) -> Command | Coroutine[Any, Any, Command]:
        try:
            data = orjson.loads(request.body) if request.body else {}
            batches = [_Batch(item) for item in data.get("acks") or []]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidParameter(f"the body is no batch of acknowledgements: {error!r}") from error
        if not batches:
            raise RequestRefused("a batch without an acknowledgement", ResponseCode.NO_MESSAGE)
        appended: Appended | None = None
        for batch in batches:
            topic = real_topic(batch.topic, batch.group, batch.mark)
            if batch.revive_queue == ORDER_QUEUE:
                for offset in batch.offsets:
                    self._acknowledge_ordered(batch.group, topic, batch.queue_id, offset, batch.pop_time)
                continue
            checkpoint = self._inflight.find(
                (batch.group, topic, batch.queue_id, batch.start_offset, batch.pop_time)
            )
            if checkpoint is not None:
                appended = self._inflight.acknowledge(checkpoint, batch.offsets) or appended
        return self._answer(request, appended)

    # --- not yet ---------------------------------------------------------------------------

    def change_invisible(self, request: Command, connection: Connection) -> Command | Coroutine[Any, Any, Command]:
        group, topic, queue_id, offset, handle = self._decode(request)
        invisible_ms = request.integer("invisibleTime")
        now = self._broker.clock.now_ms()
        if handle.is_ordered:
            return self._change_ordered(request, (topic, group, queue_id), offset, handle.pop_time, now + invisible_ms)
        old = self._inflight.find((group, topic, queue_id, handle.start_offset, handle.pop_time))
        if old is None or offset not in old.open_offsets:
            raise RequestRefused(
                f"offset {offset} of queue {queue_id} of {topic!r} is not in flight under this handle: it was "
                "acknowledged, or its invisible time is over",
                ResponseCode.NO_MESSAGE,
            )
        pop_time = now
        while (group, topic, queue_id, offset, pop_time) in self._inflight:
            pop_time += 1
        renewed = CheckPoint(
            group, topic, queue_id, offset, pop_time, invisible_ms, [offset], old.broker_name,
            revive_queue=old.revive_queue,
        )  # fmt: skip
        self._inflight.add(renewed)
        appended = self._inflight.acknowledge(old, [offset])
        ext = {"popTime": str(pop_time), "invisibleTime": str(invisible_ms), "reviveQid": str(old.revive_queue)}
        return self._answer(request, appended, ext)

    def _change_ordered(
        self, request: Command, place: tuple[str, str, int], offset: int, pop_time: int, visible_at: int
    ) -> Command:
        if not self._orders.change_visible(place, offset, pop_time, visible_at):
            raise RequestRefused(
                f"offset {offset} is not of the last ordered pop of queue {place[2]} of {place[0]!r}",
                ResponseCode.NO_MESSAGE,
            )
        ext = {"popTime": str(pop_time), "invisibleTime": str(visible_at - pop_time), "reviveQid": str(ORDER_QUEUE)}
        return request.reply(ext=ext)

    # --- answers ---------------------------------------------------------------------------

    def _answer(
        self, request: Command, appended: Appended | None, ext: dict[str, str] | None = None
    ) -> Command | Coroutine[Any, Any, Command]:
        if appended is None or not self._broker.must_confirm({}):
            return request.reply(ext=ext)
        return self._confirmed(request, appended, ext)

    async def _confirmed(self, request: Command, appended: Appended, ext: dict[str, str] | None) -> Command:
        code, remark = await self._broker.confirm(appended)
        return request.reply(code, ext, remark=remark)


class _Batch:
    """One element of a batch: many messages of one checkpoint, as bits."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        def member(short: str, long: str) -> Any:
            return data[short] if short in data else data[long]

        self.group = str(member("c", "consumerGroup"))
        self.topic = str(member("t", "topic"))
        self.mark = str(member("r", "retry"))
        self.start_offset = int(member("so", "startOffset"))
        self.queue_id = int(member("q", "queueId"))
        self.revive_queue = int(member("rq", "reviveQueueId"))
        self.pop_time = int(member("pt", "popTime"))
        self.offsets = [self.start_offset + bit for bit in _bits(member("b", "bitSet"))]


def _bits(encoded: str) -> list[int]:
    """The bits that are set in base64 of bytes, the lowest first: ``BQI=`` → 0, 2, 9."""
    try:
        number = int.from_bytes(base64.b64decode(encoded, validate=True), "little")
    except (binascii.Error, TypeError) as error:
        raise ValueError(f"{encoded!r} is no base64: {error}") from error
    return [bit for bit in range(number.bit_length()) if number >> bit & 1]
