"""Popping: consumers share every queue, message by message (RocketMQ: POP consumption).

::

    POP_MESSAGE ──> popping.py    reads the request, answers it
                    taking.py     takes messages from any queue, notes it in the revive log
                    waiting.py    … or waits for some
    ACK_MESSAGE ──> acking.py     notes that one is done with, or lets it stay invisible for longer
                    inflight.py   what was popped and not acknowledged, in memory and in the revive log
                    reviving.py   what was not acknowledged in time comes again, by the group's retry topic
    order=true ───> ordering.py   one pop at a time for each queue
    clients ──────> assignment.py which queues, and whether to pull or to pop them
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import attrs

from verniermq.kernel import (
    Broker,
    Connection,
    Declaration,
    DispatchEvent,
    Duration,
    Handler,
    PendingMessage,
    RequestCode,
    Service,
    TopicConfig,
    concerns,
    hookimpl,
    setting,
)
from verniermq.plugins.pop.acking import AckHandlers
from verniermq.plugins.pop.assignment import Assignment
from verniermq.plugins.pop.inflight import QUEUES, InFlight
from verniermq.plugins.pop.ordering import OrderTable
from verniermq.plugins.pop.popping import Popper
from verniermq.plugins.pop.reviving import Reviver
from verniermq.plugins.pop.taking import POP_CK, Taker
from verniermq.plugins.pop.waiting import WaitingRoom

__all__ = ["Config", "Plugin"]


@attrs.frozen
class Config:
    """``[plugins.pop]``"""

    retry_first_percent: int = setting(
        20, "How many pops of a hundred look for messages to be tried again first.", at_least=0, at_most=100
    )
    max_wait: Duration = setting(Duration(60), "How long a pop may wait at most.", at_least=0)
    max_waiting: int = setting(100_000, "How many requests may wait at the same time.", at_least=0)
    max_waiting_per_queue: int = setting(1024, "How many may wait for one queue of a group.", at_least=0)
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
        on_failure="closed",
    )
    config: Config
    _broker: Broker = attrs.field(init=False)
    _inflight: InFlight = attrs.field(init=False)
    _orders: OrderTable = attrs.field(init=False)
    _room: WaitingRoom = attrs.field(init=False)
    _reviver: Reviver = attrs.field(init=False)
    _taker: Taker = attrs.field(init=False)
    _popper: Popper = attrs.field(init=False)
    _assignment: Assignment = attrs.field(init=False)

    # --- start and stop --------------------------------------------------------------------

    @hookimpl
    def broker_created(self, broker: Broker) -> None:
        self._broker = broker
        self._inflight = InFlight(broker)
        self._room = WaitingRoom(broker.clock, self.config.max_waiting, self.config.max_waiting_per_queue)
        self._reviver = Reviver(broker, self._inflight)

    @hookimpl
    def system_topics(self) -> Iterable[TopicConfig]:
        return [TopicConfig(self._inflight.topic, QUEUES, QUEUES)]

    @hookimpl
    def request_handlers(self) -> Mapping[int, Handler]:
        broker = self._broker
        file = broker.config_file("consumerOrderInfo")
        self._orders = OrderTable(broker.clock.now_ms, on_change=lambda: document.touch())
        self._orders.load_json(file.load() or {})
        document = broker.documents.add(file, self._orders.as_json, broker.configuration.offsets.persist_interval)
        self._inflight.rebuild()
        self._taker = Taker(broker, self.config, self._inflight, self._orders)
        self._popper = Popper(broker, self.config, self._taker, self._orders, self._room)
        self._assignment = Assignment(broker, self.config)
        acks = AckHandlers(broker, self._inflight, self._orders, wake=lambda topic: self._room.wake([topic]))
        return {
            RequestCode.POP_MESSAGE: self._popper.pop,
            RequestCode.PEEK_MESSAGE: self._popper.peek,
            RequestCode.NOTIFICATION: self._popper.notification,
            RequestCode.POLLING_INFO: self._popper.polling_info,
            RequestCode.ACK_MESSAGE: acks.acknowledge,
            RequestCode.BATCH_ACK_MESSAGE: acks.acknowledge_batch,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: acks.change_invisible,
            **self._assignment.handlers(),
        }

    @hookimpl
    def services(self) -> Iterable[Service]:
        return [Service("waiting pops", self._room.run), Service("reviving", self._reviver.run)]

    @hookimpl
    def settings_changed(self, settings: Any) -> None:
        self.config = self._taker.config = self._popper.config = self._assignment.config = settings
        self._room.most, self._room.most_per_key = settings.max_waiting, settings.max_waiting_per_queue

    @hookimpl
    def broker_stopping(self) -> None:
        self._inflight.advance()

    @hookimpl
    def runtime_info(self) -> Mapping[str, str]:
        return {"popCheckpointsInFlight": str(len(self._inflight)), "popWaiting": str(len(self._room))}

    # --- messages that come in -------------------------------------------------------------

    @hookimpl
    @concerns(properties=(POP_CK,))
    def before_append(self, message: PendingMessage) -> None:
        # Who sends a message on that was popped sends its handle along, which would be taken for the new one's.
        message.drop_property(POP_CK)

    # --- what wakes waiting pops -----------------------------------------------------------

    @hookimpl
    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        self._room.messages_dispatched(events)

    @hookimpl
    def connection_closed(self, connection: Connection) -> None:
        self._room.connection_closed(connection)
