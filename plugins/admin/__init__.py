"""Answers for ``mqadmin``, consoles and our own commands (RocketMQ: ``AdminBrokerProcessor``).

Looking never changes what is looked at: nothing here touches a group's figures or offsets except what is asked to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import attrs

from verniermq.kernel import (
    OFFSET_MOVED_TOPIC,
    Answer,
    Command,
    Connection,
    Context,
    Declaration,
    DispatchEvent,
    Handler,
    NoConfig,
    Registry,
    RequestCode,
    TopicConfig,
    Work,
    gathered,
    hookimpl,
    sizes_of,
)
from verniermq.plugins.admin.days import Days, Totals
from verniermq.plugins.admin.moved import MovedOffsets
from verniermq.plugins.admin.puttimes import PutTimes
from verniermq.plugins.admin.rates import (
    BROKER_GET,
    BROKER_GET_MISSED,
    BROKER_GET_USERS,
    BROKER_PUT,
    BROKER_PUT_SIZE,
    BROKER_PUT_USERS,
    GET_NUMS,
    GET_SIZE,
    PUT_NUMS,
    PUT_SIZE,
    Rates,
)
from verniermq.plugins.admin.requests import CLASSES
from verniermq.plugins.admin.status import StatusRequests, runtime_info


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        summary="Answers mqadmin: figures, progress, connections, resets.",
        requests=(
            RequestCode.GET_BROKER_RUNTIME_INFO,
            RequestCode.VIEW_BROKER_STATS_DATA,
            RequestCode.GET_BROKER_CONFIG,
            RequestCode.UPDATE_BROKER_CONFIG,
            RequestCode.GET_BROKER_HA_STATUS,
            RequestCode.GET_BROKER_EPOCH_CACHE,
            RequestCode.RESET_MASTER_FLUSH_OFFSET,
            RequestCode.QUERY_CONSUME_QUEUE,
            RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
            RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
            RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
            RequestCode.SET_COMMITLOG_READ_MODE,
            RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
            RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
            RequestCode.CLEAN_UNUSED_TOPIC,
            RequestCode.GET_TOPIC_STATS_INFO,
            RequestCode.GET_CONSUME_STATS,
            RequestCode.GET_BROKER_CONSUME_STATS,
            RequestCode.QUERY_CONSUME_TIME_SPAN,
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            RequestCode.GET_ALL_PRODUCER_INFO,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
            RequestCode.QUERY_TOPICS_BY_CONSUMER,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            RequestCode.CLONE_GROUP_OFFSET,
            RequestCode.GET_PLUGINS,
            RequestCode.GET_PLUGIN_PAGE,
        ),
        hookspecs=(runtime_info,),
    )
    config: NoConfig
    broker: Context
    _rates: Rates = attrs.field(init=False)
    _days: Days = attrs.field(init=False)
    _put_times: PutTimes = attrs.field(init=False)
    _status: StatusRequests = attrs.field(init=False)
    _moved: MovedOffsets = attrs.field(init=False)
    _operators: dict[int, Handler] | None = None
    _missed: int = 0

    def __attrs_post_init__(self) -> None:
        clock = self.broker.clock
        self._rates = Rates(clock)
        self._days = Days(clock, self._totals)
        self._put_times = PutTimes(clock.now_ms)
        self._moved = MovedOffsets(self.broker)
        self._status = StatusRequests(self.broker, self._rates, self._days, self._put_times, self._catch_up)

    def setup(self, registry: Registry) -> None:
        served = self._status.handlers()
        for code in self.declaration.requests:
            registry.handler(code, served.get(code, self._serve_operator), CLASSES[code])
        registry.page("/runtime", lambda query: self._status.table(), title="Runtime figures")
        registry.service("sample rates", partial(self._rates.run, self._before_sample))
        registry.service("midnight", self._days.run)
        registry.topic(TopicConfig(OFFSET_MOVED_TOPIC, 1, 1), closed=True)
        registry.service("moved offsets", self._moved.run)

    def _serve_operator(self, request: Command, connection: Connection) -> Answer | Work:
        if self._operators is None:
            from verniermq.plugins.admin.operators import operators_handlers

            self._operators = operators_handlers(self.broker, self._rates)
        return self._operators[request.code](request, connection)

    @hookimpl
    def store_opened(self) -> None:
        self.broker.store.listeners.append(self._put_times)

    @hookimpl
    def broker_started(self) -> None:
        self._status.accepting_since = self.broker.clock.now_ms()

    # --- counting --------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Bring in what is not counted yet."""
        self.broker.catch_up()
        missed = self.broker.held_pulls.missed
        if missed > self._missed:
            self._rates.add(BROKER_GET_MISSED, self.broker.cluster, missed - self._missed)
            self._missed = missed

    def _before_sample(self) -> None:
        self._catch_up()
        self._put_times.sample()

    def _totals(self) -> Totals:
        self._catch_up()
        cluster = self.broker.cluster
        return Totals(self._rates.total(BROKER_PUT_USERS, cluster), self._rates.total(BROKER_GET_USERS, cluster))

    @hookimpl
    @gathered
    def messages_dispatched(self, events: Sequence[DispatchEvent]) -> None:
        """Count per topic, once per batch and topic rather than once per message."""
        cluster, users, total_size = self.broker.cluster, 0, 0
        for topic, sizes in sizes_of(events).items():
            size = sum(sizes)
            self._rates.add(PUT_NUMS, topic, len(sizes))
            self._rates.add(PUT_SIZE, topic, size)
            total_size += size
            if not self.broker.topics.is_system(topic):
                users += len(sizes)
        self._rates.add(BROKER_PUT, cluster, len(events))
        self._rates.add(BROKER_PUT_SIZE, cluster, total_size)
        self._rates.add(BROKER_PUT_USERS, cluster, users)

    @hookimpl
    def topics_changed(self, deleted: Sequence[str]) -> None:
        if deleted:
            self._rates.forget(deleted)

    @hookimpl
    def messages_pulled(self, group: str, topic: str, count: int, size: int) -> None:
        key = f"{topic}@{group}"
        self._rates.add(GET_NUMS, key, count)
        self._rates.add(GET_SIZE, key, size)
        self._rates.add(BROKER_GET, self.broker.cluster, count)
        if not self.broker.topics.is_system(topic):
            self._rates.add(BROKER_GET_USERS, self.broker.cluster, count)

    @hookimpl
    def offset_moved(self, group: str, topic: str, queue_id: int, asked: int, given: int) -> None:
        self._moved.note(group, topic, queue_id, asked, given)
