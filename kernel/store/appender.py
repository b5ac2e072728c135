"""Putting messages at the end of the log: the store's busiest path (RocketMQ: ``CommitLog.asyncPutMessage``).

Tens of thousands of messages come through here each second, on one core, so this file is written for speed:
one lookup finds the queue with all that was computed for it before, and a record is copied into the map once. An append
does not wait for anything; it leaves a dispatch event behind.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import accumulate, repeat
from zlib import crc32

from verniermq.kernel.clock import Clock
from verniermq.kernel.commitlog.integrity import SECTOR
from verniermq.kernel.commitlog.log import CommitLog
from verniermq.kernel.commitlog.record import HOST_BITS, HOST_MASK, MAX_PROPERTIES, WITHOUT_ENTRY, pack_record
from verniermq.kernel.dispatch.consumequeue import ConsumeQueue
from verniermq.kernel.dispatch.dispatcher import Dispatcher
from verniermq.kernel.dispatch.event import DispatchEvent
from verniermq.kernel.dispatch.run import Run
from verniermq.kernel.errors import MessageIllegal, MessageSizeExceeded, PropertiesTooLarge, StoreNotWritable
from verniermq.kernel.message import PendingMessage, format_properties, java_hash
from verniermq.kernel.names import Property

RECORD_SLACK = 65536
"""How much a whole record may exceed the largest body, as RocketMQ allows."""

Columns = tuple[
    Sequence[bytes], Sequence[int], Sequence[bytes], Sequence[int], Sequence[bytes], Sequence[bytes], Sequence[bytes]
]
"""Of messages for one queue: bodies, flags, properties behind their length, tags codes, unique keys, other keys, and
rests, as a run has them."""

_SHARED = {hosts: struct.Struct(f">iq{hosts[0]}sq{hosts[1]}siq").pack for hosts in HOST_BITS}
_HEADS_OF_RUN = {hosts: struct.Struct(f">iIIiiqq{32 + sum(hosts)}si") for hosts in HOST_BITS}
"""A record's head, of which what all records of a run share is packed already."""


class Appender:
    """Appends to one log and tells its dispatcher."""

    def __init__(
        self,
        log: CommitLog,
        dispatcher: Dispatcher,
        *,
        clock: Clock,
        store_host: bytes,
        max_message_size: int,
        on_first: Callable[[], None],
    ) -> None:
        self.store_host = store_host
        self.max_message_size = max_message_size
        self.refusal: str | None = None
        """While set, every append raises ``StoreNotWritable`` with it."""
        self._log = log
        self._dispatcher = dispatcher
        self._queues = dispatcher.queues
        self._tags_coders = dispatcher.tags_coders
        self._now = clock.now_ms
        self._on_first = on_first

    def append(self, message: PendingMessage) -> DispatchEvent:
        """Put one message at the end of the log.

        Raises:
            MessageIllegal: it cannot be stored.
            StoreNotWritable: nothing can be stored now.
        """
        if self.refusal is not None:
            raise StoreNotWritable(self.refusal)
        log = self._log
        queue = self._queues.get((message.topic, message.queue_id)) or self._new_queue(message)
        event, record = self._encode(message, queue, self._now(), log.end, 0)
        size = event.size
        if log.end + size > log.room and log.make_room(size) != event.commit_log_offset:
            # The segment was full: the record goes to the next one and must say so.
            event, record = self._encode(message, queue, event.store_timestamp, log.end, 0)
        log.write(record)
        if not event.sys_flag & WITHOUT_ENTRY:
            queue.next_offset += 1
        pending = self._dispatcher.pending
        pending.append(event)
        if len(pending) == 1:
            self._on_first()
        return event

    def append_batch(self, messages: Sequence[PendingMessage]) -> list[DispatchEvent]:
        """Put messages one behind the other, in one segment; all of them or none.

        Raises:
            As :meth:`append`. The batch as a whole must fit into a segment.
        """
        if self.refusal is not None:
            raise StoreNotWritable(self.refusal)
        if not messages:
            return []
        log, now = self._log, self._now()
        events, records, counts = self._encode_batch(messages, now, log.end)
        size = sum(map(len, records))
        if log.end + size > log.room and log.make_room(size) != events[0].commit_log_offset:
            events, records, counts = self._encode_batch(messages, now, log.end)
        log.write(b"".join(records))
        for queue, count in counts.items():
            queue.next_offset += count
        pending = self._dispatcher.pending
        is_first = not pending
        pending.extend(events)
        if is_first:
            self._on_first()
        return events

    def append_run(
        self,
        topic: str,
        queue_id: int,
        columns: Columns,
        *,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
    ) -> Run:
        """The same as :meth:`append_batch` for messages of one queue, all with an entry in it, without an object each.

        The properties are UTF-8 and shorter than a sector, and end as properties do.

        Raises:
            As :meth:`append_batch`.
        """
        if self.refusal is not None:
            raise StoreNotWritable(self.refusal)
        bodies, flags, texts, codes, uniques, keys, rests = columns
        log, now, store_host = self._log, self._now(), self.store_host
        queue = self._queues.get((topic, queue_id)) or self._dispatcher.add_queue(topic, queue_id)
        field, magic = queue.topic_field, queue.magic
        hosts = (len(born_host), len(store_host))
        sys_flag = sys_flag & ~HOST_MASK | HOST_BITS[hosts]
        try:
            shared = _SHARED[hosts](
                sys_flag, born_timestamp, born_host, now, store_host, reconsume_times, 0
            )  # fmt: skip
            head = _HEADS_OF_RUN[hosts]
        except struct.error as error:
            raise MessageIllegal(f"the message does not fit into a record: {error}") from None
        more = head.size + len(field)
        count, body_sizes = len(bodies), list(map(len, bodies))
        sizes = [more + body_size + len(text) for body_size, text in zip(body_sizes, texts, strict=True)]
        if max(sizes) > self.max_message_size + RECORD_SLACK:
            raise MessageSizeExceeded(max(sizes), self.max_message_size)
        if log.end + sum(sizes) > log.room:
            log.make_room(sum(sizes))
        queue_offset, offsets = queue.next_offset, list(accumulate(sizes[:-1], initial=log.end))
        parts: list[bytes] = [field] * (4 * count)
        parts[::4] = map(
            head.pack, sizes, repeat(magic), [crc32(body) & 0x7FFFFFFF for body in bodies], repeat(queue_id), flags,
            range(queue_offset, queue_offset + count), offsets, repeat(shared), body_sizes,
        )  # fmt: skip
        parts[1::4] = bodies
        parts[3::4] = texts
        log.write(b"".join(parts))
        run = Run(
            topic, queue_id, queue_offset, offsets, sizes, codes, uniques, keys, texts, rests, head_size=more,
            store_timestamp=now, store_host=store_host, sys_flag=sys_flag,
            born_timestamps=[born_timestamp] * count, reconsume_times=reconsume_times,
        )  # fmt: skip
        queue.next_offset += count
        pending = self._dispatcher.pending
        pending.append(run)
        if len(pending) == 1:
            self._on_first()
        return run

    def append_encoded(self, records: bytes, runs: Sequence[Run]) -> None:
        """Put records at the end that were encoded for that place, all or none; ``runs`` are of different queues.

        Raises:
            StoreNotWritable: the disk has no room.
        """
        self._log.write(records)
        for run in runs:
            self._queues[run.topic, run.queue_id].next_offset += len(run)
        pending = self._dispatcher.pending
        is_first = not pending
        pending.extend(runs)
        if is_first:
            self._on_first()

    def _encode_batch(
        self, messages: Sequence[PendingMessage], now: int, offset: int
    ) -> tuple[list[DispatchEvent], list[bytes], dict[ConsumeQueue, int]]:
        """The messages' events and records, and how many each queue gets."""
        events: list[DispatchEvent] = []
        records: list[bytes] = []
        counts: dict[ConsumeQueue, int] = {}
        for message in messages:
            queue = self._queues.get((message.topic, message.queue_id)) or self._new_queue(message)
            ahead = counts.get(queue, 0)
            event, record = self._encode(message, queue, now, offset, ahead)
            if not event.sys_flag & WITHOUT_ENTRY:
                counts[queue] = ahead + 1
            events.append(event)
            records.append(record)
            offset += event.size
        return events, records, counts

    def _new_queue(self, message: PendingMessage) -> ConsumeQueue:
        return self._dispatcher.add_queue(message.topic, message.queue_id)

    def _encode(
        self, message: PendingMessage, queue: ConsumeQueue, now: int, offset: int, ahead: int
    ) -> tuple[DispatchEvent, bytes]:
        """A message's event and record, changing nothing; ``ahead`` messages of its queue are not added yet."""
        topic, queue_id, body = message.topic, message.queue_id, message.body
        body_size = len(body)
        if body_size > self.max_message_size:
            raise MessageSizeExceeded(body_size, self.max_message_size)
        properties, text = message.properties, message.properties_text
        born_host, store_host, sys_flag = message.born_host, self.store_host, message.sys_flag
        queue_offset = 0 if sys_flag & WITHOUT_ENTRY else queue.next_offset + ahead
        try:
            encoded = (format_properties(properties) if text is None else text).encode()
            if encoded and encoded[-1] != 2:
                encoded += b"\2"  # old clients leave it out; recovery tells a torn record by its last byte
            if len(encoded) >= SECTOR:
                _check_long_properties(encoded)
            sys_flag = sys_flag & ~HOST_MASK | HOST_BITS[len(born_host), len(store_host)]
            record = pack_record(
                queue.magic, queue.topic_field, body, encoded, queue_id, queue_offset, offset, now, store_host,
                message.flag, sys_flag, message.born_timestamp, born_host, message.reconsume_times,
                message.prepared_transaction_offset,
            )  # fmt: skip
        except (struct.error, KeyError, UnicodeEncodeError) as error:
            raise MessageIllegal(f"the message does not fit into a record: {error}") from None
        size = len(record)
        if size > self.max_message_size + RECORD_SLACK:
            raise MessageSizeExceeded(size, self.max_message_size)
        coder = self._tags_coders.get(topic)
        if coder is not None:
            code = coder(properties, now)
        else:
            tags = properties.get(Property.TAGS)
            code = java_hash(tags) if tags else 0
        event = DispatchEvent(
            offset, size, queue_id, queue_offset, now, store_host, topic, code, sys_flag,
            message.prepared_transaction_offset, properties, message.born_timestamp, body_size,
            message.reconsume_times,
        )  # fmt: skip
        return event, record


def _check_long_properties(encoded: bytes) -> None:
    if len(encoded) > MAX_PROPERTIES:
        raise PropertiesTooLarge(len(encoded), MAX_PROPERTIES)
    if bytes(SECTOR) in encoded:
        raise MessageIllegal(f"the properties have {SECTOR} zero bytes in a row, as a record has that a crash tore")
