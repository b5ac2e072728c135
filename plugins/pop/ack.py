"""Done with a popped message, or not yet (RocketMQ: ``AckMessageProcessor``, ``ChangeInvisibleTimeProcessor``).

An acknowledgement of what is not in flight (any more) succeeds and does nothing: it is late, and the message
is in the retry topic already. Changing the invisible time is a new checkpoint for the one message and an
acknowledgement of the old one.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from verniermq.kernel import (
    Appended,
    Command,
    Connection,
    Context,
    InvalidParameter,
    MessageIllegal,
    RequestRefused,
    ResponseCode,
    in_steps,
)
from verniermq.plugins.pop.checkpoint import MOST_MESSAGES, CheckPoint
from verniermq.plugins.pop.handle import ORDER_QUEUE, ReceiptHandle, real_topic
from verniermq.plugins.pop.inflight import InFlight
from verniermq.plugins.pop.orderinfo import OrderTable
from verniermq.plugins.pop.requests import BatchAckMessage, member
from verniermq.protocol.pop import AckMessage, ChangeInvisibleTime

ACKS_PER_STEP: Final = 64
"""Checkpoints of a batch that are acknowledged before others have a turn: each may write to the log."""


class AckHandlers:
    """``wake`` is called with a topic when a queue of it may give messages again."""

    def __init__(self, broker: Context, inflight: InFlight, orders: OrderTable, wake: Callable[[str], None]) -> None:
        self._broker = broker
        self._inflight = inflight
        self._orders = orders
        self._wake = wake

    # --- one -------------------------------------------------------------------------------

    def acknowledge(self, request: Command, connection: Connection) -> Command | Coroutine[Any, Any, Command]:
        ack = AckMessage.of(request)
        group, topic, queue_id, offset, handle = self._checked(ack)
        if handle.is_ordered:
            self._acknowledge_ordered(group, topic, queue_id, offset, handle.pop_time)
            return request.reply()
        checkpoint = self._inflight.find((group, topic, queue_id, handle.start_offset, handle.pop_time))
        appended = None if checkpoint is None else self._inflight.acknowledge(checkpoint, [offset])
        return self._answer(request, appended)

    def _checked(self, ack: AckMessage) -> tuple[str, str, int, int, ReceiptHandle]:
        group, topic, queue_id, offset = ack.group, ack.topic, ack.queue_id, ack.offset
        handle = ReceiptHandle.parse(ack.handle)
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

    async def acknowledge_batch(self, request: Command, connection: Connection) -> Command:
        acks = BatchAckMessage.of(request).acks
        try:
            batches = [_Batch(item) async for item in in_steps(acks, ACKS_PER_STEP)]
        except (ValueError, KeyError, TypeError, OverflowError, AttributeError) as error:
            raise InvalidParameter(f"the body is no batch of acknowledgements: {error!r}") from error
        if not batches:
            raise RequestRefused("a batch without an acknowledgement", ResponseCode.NO_MESSAGE)
        appended: Appended | None = None
        async for batch in in_steps(batches, ACKS_PER_STEP):
            appended = self._acknowledge_one(batch) or appended
        answer = self._answer(request, appended)
        return answer if isinstance(answer, Command) else await answer

    def _acknowledge_one(self, batch: _Batch) -> Appended | None:
        topic = real_topic(batch.topic, batch.group, batch.mark)
        if batch.revive_queue == ORDER_QUEUE:
            for offset in batch.offsets:
                self._acknowledge_ordered(batch.group, topic, batch.queue_id, offset, batch.pop_time)
            return None
        key = (batch.group, topic, batch.queue_id, batch.start_offset, batch.pop_time)
        checkpoint = self._inflight.find(key)
        return None if checkpoint is None else self._inflight.acknowledge(checkpoint, batch.offsets)

    # --- not yet ---------------------------------------------------------------------------

    def change_invisible(self, request: Command, connection: Connection) -> Command | Coroutine[Any, Any, Command]:
        change = ChangeInvisibleTime.of(request)
        group, topic, queue_id, offset, handle = self._checked(change)
        invisible_ms = change.invisible_ms
        now = self._broker.clock.now_ms()
        if handle.is_ordered:
            return self._change_ordered(request, (topic, group, queue_id), offset, handle.pop_time, invisible_ms)
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
        self, request: Command, place: tuple[str, str, int], offset: int, pop_time: int, invisible_ms: int
    ) -> Command:
        if not self._orders.change_visible(place, offset, pop_time, invisible_ms):
            raise RequestRefused(
                f"offset {offset} is not of the last ordered pop of queue {place[2]} of {place[0]!r}",
                ResponseCode.NO_MESSAGE,
            )
        # Counted from the pop on, as the handle has it.
        since_pop = max(self._broker.clock.now_ms() - pop_time, 0) + invisible_ms
        ext = {"popTime": str(pop_time), "invisibleTime": str(since_pop), "reviveQid": str(ORDER_QUEUE)}
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
        self.group = str(member(data, "c", "consumerGroup"))
        self.topic = str(member(data, "t", "topic"))
        self.mark = str(member(data, "r", "retry"))
        self.start_offset = int(member(data, "so", "startOffset"))
        self.queue_id = int(member(data, "q", "queueId"))
        self.revive_queue = int(member(data, "rq", "reviveQueueId"))
        self.pop_time = int(member(data, "pt", "popTime"))
        self.offsets = [self.start_offset + bit for bit in _bits(member(data, "b", "bitSet"))]


def _bits(encoded: str | list[int]) -> list[int]:
    """The bits that are set in bytes, the lowest first: ``BQI=``, which is base64, or ``[5, 2]`` → 0, 2, 9."""
    if isinstance(encoded, list):
        content = bytes(byte % 256 for byte in encoded if -128 <= byte <= 255)  # Java's bytes have a sign
        if len(content) < len(encoded):
            raise ValueError(f"{encoded!r:.80} has a number that is no byte")
    else:
        try:
            content = base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError) as error:
            raise ValueError(f"{encoded!r:.80} is no base64: {error}") from error
    number = int.from_bytes(content, "little")
    if number.bit_count() > MOST_MESSAGES:
        raise ValueError(
            f"it acknowledges {number.bit_count()} messages at once, but one pop has at most {MOST_MESSAGES} of a queue"
        )
    bits = []
    while number:
        lowest = number & -number
        bits.append(lowest.bit_length() - 1)
        number ^= lowest
    return bits
