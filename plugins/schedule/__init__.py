"""Messages that are delivered later, in two ways.

By level: the producer says one of the configured delays by its number, ``DELAY=3``; see ``levels`` (RocketMQ:
``ScheduleMessageService``). At any time: it says when, ``TIMER_DELIVER_MS=1700000030250``, and may take the message
back until then; see ``timers`` (RocketMQ: ``TimerMessageStore``).
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
    MessageIllegal,
    NoPermission,
    PendingMessage,
    Property,
    RequestCode,
    Service,
    Size,
    SysFlag,
    TagsCoder,
    TopicConfig,
    concerns,
    format_duration,
    hookimpl,
    parse_duration,
    setting,
)
from verniermq.plugins.schedule.courier import HALF_TOPIC, hide
from verniermq.plugins.schedule.levels import SCHEDULE_TOPIC, Levels, level_of
from verniermq.plugins.schedule.progress import DelayOffsets
from verniermq.plugins.schedule.timers.intake import TIMER_TOPIC
from verniermq.plugins.schedule.timers.recall import DELETE_KEY, Recall, add_handle
from verniermq.plugins.schedule.timers.service import LONGEST_WINDOW, Timers
from verniermq.plugins.schedule.timers.times import SECOND, slot_of, wished_ms

LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's ``messageDelayLevel``: clients and their users know these numbers by heart."""

USUAL_QUEUES = 18
"""How many queues an Apache broker gives the topic; it would not look at fewer."""

TIMES = (Property.TIMER_DELAY_SEC, Property.TIMER_DELAY_MS, Property.TIMER_DELIVER_MS)


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
    max_delay: Duration = setting(
        parse_duration("365d"), "How far ahead a message may name its time; RocketMQ allows 3d.", at_least=1
    )
    recall: bool = setting(True, "Whether producers may take a timed message back before it is delivered.")
    roll_window: Duration = setting(
        parse_duration("2d"),
        "A message that waits longer is written anew this often; keep it below the time that the log is kept.",
        at_least=10,
        at_most=LONGEST_WINDOW,
    )
    timer_file_size: Size = setting(
        Size(100 << 20), "The size of a file of the timer log, as an Apache broker expects it.", at_least=4096
    )


@attrs.define(eq=False)
class Plugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Delivers messages later: by delay level, or at any time, with recall.",
        after=("txn",),
        # Going on without it would deliver a delayed message at once.
        on_failure="closed",
        when_it_keeps_failing="stop",
    )
    config: Config
    _broker: Broker = attrs.field(init=False)
    _levels: Levels = attrs.field(init=False)
    _offsets: DelayOffsets = attrs.field(init=False)
    _timers: Timers = attrs.field(init=False)

    @hookimpl
    def broker_created(self, broker: Broker) -> None:
        self._broker = broker
        self._levels = Levels(self.config.levels)
        self._offsets = DelayOffsets(broker.clock.now_ms, lambda: broker.store.durable_end)

    @hookimpl
    def system_topics(self, broker: Broker) -> Iterable[TopicConfig]:
        queues = max(USUAL_QUEUES, self._levels.highest)
        return [TopicConfig(SCHEDULE_TOPIC, queues, queues), TopicConfig(TIMER_TOPIC, 1, 1)]

    @hookimpl
    def tags_coders(self, broker: Broker) -> Mapping[str, TagsCoder]:
        return {SCHEDULE_TOPIC: self._levels.delivery_time}

    @hookimpl
    def services(self, broker: Broker) -> Iterable[Service]:
        file = broker.config_file("delayOffset")
        self._offsets.load(file.load() or {})
        self._offsets.document = broker.documents.add(file, self._offsets.as_json, self.config.persist_interval)
        self._timers = Timers(
            broker,
            window=int(self.config.roll_window),
            file_size=self.config.timer_file_size,
            persist_interval=self.config.persist_interval,
        )
        return [*self._levels.services(broker, self._offsets), Service("timers", self._timers.run)]

    @hookimpl
    async def broker_started(self, broker: Broker) -> None:
        await self._timers.prepare()

    @hookimpl
    @concerns(properties=(Property.DELAY, *TIMES), topic_prefixes=(TIMER_TOPIC,))
    def before_append(self, message: PendingMessage, connection: Connection | None) -> None:
        if message.topic == TIMER_TOPIC and connection is not None:
            # It could name any topic as the real one, past whoever guards that.
            raise NoPermission(f"topic {TIMER_TOPIC!r} is the broker's own; producers may not send to it")
        if message.sys_flag & SysFlag.TRANSACTION_PREPARED or message.topic == HALF_TOPIC:
            return  # half a transaction waits for its commit first; the delay begins then
        level = level_of(message.properties)
        if level > 0:
            for name in TIMES:
                message.drop_property(name)
            self._levels.schedule(message, level)
        elif Property.TIMER_OUT_MS not in message.properties:
            self._set_timer(message)

    def _set_timer(self, message: PendingMessage) -> None:
        now = self._broker.clock.now_ms()
        wished = wished_ms(message.properties, now)
        if wished is None:
            return
        if wished <= now:
            if DELETE_KEY in message.properties:
                raise MessageIllegal(f"it is too late to take a message back that was due at {wished}")
            return  # due already: an ordinary message
        if wished - now > self.config.max_delay * 1000:
            raise MessageIllegal(
                f"the message is due in {format_duration((wished - now) / 1000)}, more than "
                f"{format_duration(self.config.max_delay)}; raise max_delay in [plugins.schedule]"
            )
        slot_ms = slot_of(wished) * SECOND
        message.set_property(Property.TIMER_OUT_MS, str(slot_ms))
        message.set_property(Property.TIMER_DELIVER_MS, str(wished))
        hide(message, TIMER_TOPIC, 0)
        if self.config.recall:
            add_handle(message, self._broker.name, slot_ms)
        self._timers.used.set()

    @hookimpl
    def request_handlers(self, broker: Broker) -> Mapping[int, Handler]:
        recall = Recall(broker, self.config.recall, round(self.config.max_delay * 1000), self._note_recall)
        return {
            RequestCode.GET_ALL_DELAY_OFFSET: self._all_offsets,
            RequestCode.RECALL_MESSAGE: recall.serve,
        }

    def _note_recall(self, key: str) -> None:
        self._timers.recall(key)

    def _all_offsets(self, request: Command, connection: Connection) -> Command:
        """For slaves, which keep a copy of the table."""
        return request.reply(body=orjson.dumps(self._offsets.as_json()))

    @hookimpl
    def broker_stopping(self, broker: Broker) -> None:
        self._offsets.stopping = self._timers.stopping = True
