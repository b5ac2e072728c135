"""Messages that are delivered later (RocketMQ: ``ScheduleMessageService``).

By level: the producer says one of the configured delays by its number, ``DELAY=3``; see ``levels``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import attrs
import orjson

from verniermq.kernel import (
    Broker,
    Command,
    Connection,
    Declaration,
    Duration,
    Handler,
    PendingMessage,
    Property,
    RequestCode,
    Service,
    SysFlag,
    TagsCoder,
    TopicConfig,
    concerns,
    hookimpl,
    parse_duration,
    setting,
)
from verniermq.plugins.schedule.courier import HALF_TOPIC
from verniermq.plugins.schedule.levels import SCHEDULE_TOPIC, Levels, level_of
from verniermq.plugins.schedule.progress import DelayOffsets

LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's ``messageDelayLevel``: clients and their users know these numbers by heart."""

USUAL_QUEUES = 18
"""How many queues an Apache broker gives the topic; it would not look at fewer."""


@attrs.frozen
class Config:
    """``[plugins.schedule]``"""

    levels: tuple[Duration, ...] = setting(
        tuple(parse_duration(text) for text in LEVELS.split()),
        "The delays that a message may ask for by number, level 1 first.",
        at_least=0.001,
        check=lambda levels: None if levels else "at least one level",
    )
    persist_interval: Duration = setting(
        parse_duration("1s"),
        "How often the progress of delivery is written; a crash repeats at most what came since.",
        at_least=0.01,
        at_most=60,
    )


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Delivers messages later, by delay level.",
        after=("txn",),
        # Going on without it would deliver a delayed message at once.
        on_failure="closed",
        when_it_keeps_failing="stop",
    )
    config: Config
    _levels: Levels = attrs.field(init=False)
    _offsets: DelayOffsets = attrs.field(init=False)

    @hookimpl
    def broker_created(self, broker: Broker) -> None:
        self._levels = Levels(self.config.levels)
        self._offsets = DelayOffsets(broker.clock.now_ms, lambda: broker.store.durable_end)

    @hookimpl
    def system_topics(self, broker: Broker) -> Iterable[TopicConfig]:
        queues = max(USUAL_QUEUES, self._levels.highest)
        return [TopicConfig(SCHEDULE_TOPIC, queues, queues)]

    @hookimpl
    def tags_coders(self, broker: Broker) -> Mapping[str, TagsCoder]:
        return {SCHEDULE_TOPIC: self._levels.delivery_time}

    @hookimpl
    def services(self, broker: Broker) -> Iterable[Service]:
        file = broker.config_file("delayOffset")
        self._offsets.load(file.load() or {})
        self._offsets.document = broker.documents.add(file, self._offsets.as_json, self.config.persist_interval)
        return self._levels.services(broker, self._offsets)

    @hookimpl
    @concerns(properties=(Property.DELAY,))
    def before_append(self, message: PendingMessage) -> None:
        if message.sys_flag & SysFlag.TRANSACTION_PREPARED or message.topic == HALF_TOPIC:
            return  # half a transaction waits for its commit first; the delay begins then
        level = level_of(message.properties)
        if level > 0:
            self._levels.schedule(message, level)

    @hookimpl
    def request_handlers(self, broker: Broker) -> Mapping[int, Handler]:
        return {RequestCode.GET_ALL_DELAY_OFFSET: self._all_offsets}

    def _all_offsets(self, request: Command, connection: Connection) -> Command:
        """For slaves, which keep a copy of the table."""
        return request.reply(body=orjson.dumps(self._offsets.as_json()))

    @hookimpl
    def broker_stopping(self, broker: Broker) -> None:
        self._offsets.stopping = True
