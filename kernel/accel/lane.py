"""Plain sends on their compiled way: when they may take it, and what becomes of what it makes.

::

    chunk of bytes ──> _lane.pyx ──> records ──> the log, in one write
                          │    └──> columns ──> runs, dispatched at the end of the turn
                          │    └──> answers ──> the connection
                          └─ a frame that is not plain, and all behind it ──> frame.py, send.py …

What is plain: SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE of ASCII, to a topic that is known and concerns no plugin, with
properties that concern none, a unique key, no system flag, from a peer with an IPv4 address. While the disk or other
brokers have to confirm, while a plugin hears of appended messages or stands before the handlers, or while the store
takes no writes, nothing is. Where plugins are asked before requests or told of them, each is asked once for a peer, its
group and a topic whether such sends may pass (``Registry.sends_pass``).
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from verniermq.kernel import hookspecs
from verniermq.kernel.accel.served import ServedSends
from verniermq.kernel.codes import RequestCode
from verniermq.kernel.commitlog.record import MAGIC_V1, topic_field
from verniermq.kernel.compiled import compiled
from verniermq.kernel.dispatch.run import Run
from verniermq.kernel.errors import StoreNotWritable
from verniermq.kernel.handlers.plainbatch import PlainTexts
from verniermq.kernel.names import Property
from verniermq.kernel.remoting import Connection, Handler
from verniermq.kernel.remoting.binary_header import language_number
from verniermq.kernel.remoting.interceptor import passed_by

if TYPE_CHECKING:
    from verniermq.kernel.handlers.parts import BrokerParts
    from verniermq.kernel.handlers.send import SendHandler

MOST_PAIRS: Final = 1024
"""Pairs of group and topic that are remembered of a peer."""

NOTHING: Final[frozenset[int]] = frozenset()


def compiled_lane() -> Any | None:
    """The compiled module, if it is there."""
    return compiled("verniermq.kernel.accel", "_lane")


def plain_lane(broker: BrokerParts, handler: SendHandler) -> PlainLane | None:
    """The compiled way beside the handler of sends, if there is one."""
    module = compiled_lane()
    if module is None:
        return None
    own: dict[int, Handler] = {
        RequestCode.SEND_MESSAGE_V2: handler.send,
        RequestCode.SEND_BATCH_MESSAGE: handler.send_batch,
    }
    handler.lane = lane = PlainLane(module, broker, handler.added_text, own)
    return lane


class PlainLane:
    """The compiled way of one broker."""

    @property
    def codes(self) -> frozenset[int]:
        return self._codes if self._is_open else NOTHING

    @property
    def _is_open(self) -> bool:
        return self._store.takes_encoded and not self._appended and not self._confirming

    def __init__(self, compiled: Any, broker: BrokerParts, added: str, own: Mapping[int, Handler]) -> None:
        """``own`` are the handlers that it does the work of; where another one serves, it does not."""
        store = broker.store
        self._own = {int(code): handler for code, handler in own.items()}
        self._codes = frozenset(self._own)
        self._store = store
        self._now = broker.clock.now_ms
        self._appended = broker.host.calls(hookspecs.messages_appended)
        self._confirming = broker.host.calls(hookspecs.confirm_append)
        self._topic = compiled.Topic
        self._topics: dict[bytes, Any] = {}
        self._host = host = broker.host
        limits = broker.configuration.remoting
        self._passing: WeakKeyDictionary[Connection, dict[tuple[bytes, str], bool]] = WeakKeyDictionary()
        """By peer: whether sends of a group to a topic may pass by the plugins that are asked about requests."""
        self._generation = -1
        self._before: dict[int, Handler | None] = {}
        """The handlers as they were looked at last."""
        self._is_own = False
        self._lane = compiled.Lane(
            self._topics,
            store.queue_table,
            PlainTexts(lambda: host.concerned_properties, not_plain=frozenset({Property.REGION})),
            PlainTexts(lambda: host.concerned_properties),
            added.encode(),
            longest_frame=limits.max_frame_size - 4,
            longest_header=min(limits.max_header_size, 0xFFFFFF),
            largest=store.settings.max_message_size,
            most=store.settings.max_batch,
        )
        self.served = ServedSends(self._lane.totals)

    def learn(self, topic: str, queues: int) -> None:
        """Messages to this topic concern no plugin."""
        magic, field = topic_field(topic)
        if topic.isascii() and magic == MAGIC_V1 and not topic.startswith("%"):
            self._topics[topic.encode()] = self._topic(topic, queues, field)

    def forget(self, topic: str) -> None:
        self._topics.pop(topic.encode(), None)

    def take(self, data: bytes, start: int, connection: Connection) -> tuple[int, bytes]:
        """Serve the plain frames from ``start`` on; say where they end, and what is answered to them."""
        store = self._store
        if not self._is_open:
            return start, b""
        if not self._serves(connection.handlers):
            return start, b""  # a plugin stands before them
        passing = None
        if connection.guards or connection.observers:
            if connection.guards is not self._host.guards:
                return start, b""  # the broker stops
            passing = self._passing_of(connection)
        began = perf_counter_ns() if self.served.is_awaited else 0
        binary = connection.binary
        language = bytes((language_number(connection.language),)) if binary else connection.language.encode()
        now, store_host = self._now(), store.store_host
        end, records, answers, columns = self._lane.take(
            data, start, store.end, store.room, connection.packed_host, store_host, now, language, connection.version,
            binary, passing, lambda pair: self._ask(pair, connection),
        )  # fmt: skip
        if not records:
            return start, b""
        runs = [
            Run(
                column.topic, column.queue_id, column.first, column.offsets, column.sizes, column.codes, column.uniques,
                column.keys, column.texts, column.rests, head_size=column.head_size, store_timestamp=now,
                store_host=store_host, sys_flag=0, born_timestamps=column.born, reconsume_times=0,
            )
            for column in columns
        ]  # fmt: skip
        try:
            store.append_encoded(records, runs)
        except StoreNotWritable:
            self._lane.take_back()
            return start, b""  # nothing was written; each of them is told why
        if began:
            self.served.begin(perf_counter_ns() - began)
        return end, answers

    def _serves(self, handlers: Mapping[int, Handler]) -> bool:
        """Whether its handlers are those that would serve; notes whom to tell of what it did."""
        if any(handlers.get(code) is not handler for code, handler in self._before.items()) or not self._before:
            self._before = {code: handlers.get(code) for code in self._own}
            behind = {code: passed_by(handler) for code, handler in self._before.items()}
            self._is_own = all(behind[code][0] == handler for code, handler in self._own.items())
            self.served.tell_these({code: told for code, (_, told) in behind.items() if told})
        return self._is_own

    def _passing_of(self, connection: Connection) -> dict[tuple[bytes, str], bool]:
        if self._generation != self._host.generation:
            self._generation = self._host.generation
            self._passing.clear()
        return self._passing.setdefault(connection, {})

    def _ask(self, pair: tuple[bytes, str], connection: Connection) -> bool:
        passing = self._passing_of(connection)
        if len(passing) >= MOST_PAIRS:
            passing.clear()
        group, topic = pair
        passes = passing[pair] = self._host.sends_pass(group.decode("ascii"), topic, connection)
        return passes
