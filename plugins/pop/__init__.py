"""Popping: consumers share every queue, message by message (RocketMQ: POP consumption).

::

    POP_MESSAGE ──> handler.py    reads the request, answers it
                    reader.py     takes messages from any queue, notes it in the revive log
                    longpoll.py   … or waits for some
    ACK_MESSAGE ──> ack.py        notes that one is done with, or lets it stay invisible for longer
                    inflight.py   what was popped and not acknowledged, in memory and in the revive log
                    revive.py     what was not acknowledged in time comes again, by the group's retry topic
    order=true ───> orderinfo.py  one pop at a time for each queue
    tools ────────> records.py    what was popped and is not acknowledged
    clients ──────> assignment.py which queues, and whether to pull or to pop them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import attrs

from verniermq.kernel import (
    Connection,
    Context,
    Declaration,
    DispatchEvent,
    Document,
    Duration,
    PendingMessage,
    Registry,
    RequestCode,
    TopicConfig,
    concerns,
    hookimpl,
    hookspecs,
    setting,
)
from verniermq.plugins.pop.ack import AckHandlers
from verniermq.plugins.pop.assignment import AssignmentHandlers
from verniermq.plugins.pop.handler import PopHandler
from verniermq.plugins.pop.inflight import QUEUES, InFlight
from verniermq.plugins.pop.longpoll import HeldPops
from verniermq.plugins.pop.orderinfo import OrderTable
from verniermq.plugins.pop.reader import POP_CK, PopReader, pop_order
from verniermq.plugins.pop.records import PopRecords
from verniermq.plugins.pop.requests import BatchAckMessage
from verniermq.plugins.pop.revive import ReviveService
from verniermq.protocol.pop import AckMessage, ChangeInvisibleTime, Notification, PeekMessage, PollingInfo, PopMessage

__all__ = ["Config", "Plugin"]


@attrs.frozen
class Config:
    """``[plugins.pop]``"""

    retry_first_percent: int = setting(
        20, "How many pops of a hundred look for messages to be tried again first.", at_least=0, at_most=100
    )
    separate_retry_queues: bool = setting(
        False,
        "Whether a message that is tried again keeps its queue; RocketMQ's useSeparateRetryQueue. Else all share one.",
    )
    max_wait: Duration = setting(Duration(60), "How long a pop may wait at most.", at_least=0)
    max_waiting: int = setting(100_000, "How many requests may wait at the same time.", at_least=0)
    max_waiting_per_queue: int = setting(1024, "How many may wait for one queue of a group.", at_least=0)
    max_waiting_per_connection: int = setting(10_000, "How many of one connection may wait.", at_least=0)
    default_mode: Literal["PULL", "POP"] = setting(
        "PULL", "What clients are told that leave the sharing of queues to the broker."
    )
    default_share: int = setting(-1, "How many further consumers share a popped queue; 0 or less: all of them.")


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Popping: pop, acknowledge, change the invisible time, and bring back what was not acknowledged.",
        requests=(
            RequestCode.POP_MESSAGE,
            RequestCode.PEEK_MESSAGE,
            RequestCode.NOTIFICATION,
            RequestCode.POLLING_INFO,
            RequestCode.ACK_MESSAGE,
            RequestCode.BATCH_ACK_MESSAGE,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            RequestCode.QUERY_ASSIGNMENT,
            RequestCode.SET_MESSAGE_REQUEST_MODE,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
            RequestCode.POP_ROLLBACK,
        ),
        hookspecs=(pop_order,),
        on_failure="closed",
    )
    config: Config
    broker: Context
    _inflight: InFlight = attrs.field(init=False)
    _orders: OrderTable = attrs.field(init=False)
    _order_document: Document = attrs.field(init=False)
    _held: HeldPops = attrs.field(init=False)
    _revive: ReviveService = attrs.field(init=False)
    _reader: PopReader = attrs.field(init=False)
    _pop_handler: PopHandler = attrs.field(init=False)
    _assignment: AssignmentHandlers = attrs.field(init=False)

    # --- start and stop --------------------------------------------------------------------

    def __attrs_post_init__(self) -> None:
        broker = self.broker
        self._inflight = InFlight(broker)
        self._held = HeldPops(
            broker.clock,
            self.config.max_waiting,
            self.config.max_waiting_per_queue,
            self.config.max_waiting_per_connection,
            on_first=lambda: self.broker.hooks.pause(self, hookspecs.messages_dispatched, paused=False),
        )
        self._revive = ReviveService(broker, self.config, self._inflight)
        self._orders = OrderTable(broker.clock, on_change=lambda: self._order_document.touch())
        self._reader = PopReader(broker, self.config, self._inflight, self._orders)
        self._pop_handler = PopHandler(broker, self.config, self._reader, self._orders, self._held)
        self._assignment = AssignmentHandlers(broker, self.config)

    def setup(self, registry: Registry) -> None:
        registry.topic(TopicConfig(self._inflight.topic, QUEUES, QUEUES), closed=True)
        self._order_document = registry.table(
            "consumerOrderInfo",
            load=self._orders.load_json,
            save=self._orders.as_json,
            interval=self.broker.configuration.offsets.persist_interval,
        )
        acks = AckHandlers(self.broker, self._inflight, self._orders, wake=lambda topic: self._held.wake([topic]))
        registry.handler(RequestCode.POP_MESSAGE, self._pop_handler.pop, PopMessage)
        registry.handler(RequestCode.PEEK_MESSAGE, self._pop_handler.peek, PeekMessage)
        registry.handler(RequestCode.NOTIFICATION, self._pop_handler.notification, Notification)
        registry.handler(RequestCode.POLLING_INFO, self._pop_handler.polling_info, PollingInfo)
        registry.handler(RequestCode.ACK_MESSAGE, acks.acknowledge, AckMessage)
        registry.handler(RequestCode.BATCH_ACK_MESSAGE, acks.acknowledge_batch, BatchAckMessage)
        registry.handler(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, acks.change_invisible, ChangeInvisibleTime)
        registry.handler(RequestCode.POP_ROLLBACK, PopRecords(self.broker, self._inflight, self._orders).export)
        self._assignment.setup(registry)
        registry.service("waiting pops", self._held.run)
        self._offer(registry)
        registry.service("reviving", self._revive.run, master_only=True)

    @hookimpl
    def store_opened(self) -> None:
        self._inflight.rebuild()
        self.broker.hooks.pause(self, hookspecs.messages_dispatched)  # until the first pop waits

    @hookimpl
    def settings_changed(self, settings: Any) -> None:
        self.config = self._reader.config = self._pop_handler.config = self._assignment.config = settings
        self._revive.config = settings
        self._held.most, self._held.most_per_key = settings.max_waiting, settings.max_waiting_per_queue
        self._held.most_per_connection = settings.max_waiting_per_connection

    def _offer(self, registry: Registry) -> None:
        """By Apache's names."""
        registry.metric(
            "rocketmq_pop_checkpoint_buffer_size", "gauge", "Pops that are not acknowledged as a whole.",
            lambda: len(self._inflight),
        )  # fmt: skip
        registry.metric(
            "rocketmq_pop_offset_buffer_size", "gauge", "Always 0: offsets are not buffered here.", lambda: 0
        )
        registry.metric(
            "rocketmq_pop_revive_lag_milliseconds", "gauge",
            "Messages, though the name says milliseconds, as at Apache: what is due to come again and did not yet.",
            lambda: [((str(queue),), late) for queue, (late, _) in enumerate(self._inflight.overdue())], ("queue_id",),
        )  # fmt: skip
        registry.metric(
            "rocketmq_pop_revive_latency_milliseconds", "gauge", "By how much the oldest of them is late.",
            lambda: [((str(queue),), by) for queue, (_, by) in enumerate(self._inflight.overdue())], ("queue_id",),
        )  # fmt: skip
        registry.metric(
            "rocketmq_pop_revive_retry_messages_total", "counter", "Messages that were put into a retry topic.",
            lambda: [((group, "put_ok", topic), count) for (group, topic), count in self._revive.retried.items()],
            ("consumer_group", "put_status", "topic"),
        )  # fmt: skip
        registry.metric(
            "rocketmq_pop_buffer_scan_time_consume_milliseconds", "histogram",
            "How long a look for pops that are due took.", lambda: self._revive.scans,
        )  # fmt: skip

    @hookimpl
    def broker_stopping(self) -> None:
        self._inflight.advance()

    @hookimpl(optionalhook=True)
    def table_copied(self, code: int, table: Mapping[str, Any]) -> None:
        if code == RequestCode.GET_ALL_MESSAGE_REQUEST_MODE:
            self._assignment.take_over(table)

    @hookimpl(optionalhook=True)
    def runtime_info(self) -> Mapping[str, str]:
        return {"popCheckpointsInFlight": str(len(self._inflight)), "popWaiting": str(len(self._held))}

    # --- messages that come in -------------------------------------------------------------

    @hookimpl
    @concerns(properties=(POP_CK,))
    def before_append(self, message: PendingMessage) -> None:
        # Who sends a message on that was popped sends its handle along, which would be taken for the new one's.
        message.drop_property(POP_CK)

    # --- what wakes waiting pops -----------------------------------------------------------

    @hookimpl
    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        self._held.messages_dispatched(events)

    @hookimpl
    def connection_closed(self, connection: Connection) -> None:
        self._held.connection_closed(connection)
