"""Messages that are delivered later, in two ways.

By level: the producer says one of the configured delays by its number, ``DELAY=3``; see ``levels`` (RocketMQ:
``ScheduleMessageService``). At any time: it says when, ``TIMER_DELIVER_MS=1700000030250``, and may take the message
back until then; see ``timers`` (RocketMQ: ``TimerMessageStore``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
import orjson

from verniermq.kernel import (
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    Command,
    Connection,
    Context,
    Declaration,
    Duration,
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    PendingMessage,
    Property,
    Registry,
    RequestCode,
    Role,
    Size,
    SysFlag,
    TopicConfig,
    concerns,
    format_duration,
    hookimpl,
    parse_duration,
    setting,
)
from verniermq.plugins.schedule.delivery import (
    hide,
)
from verniermq.plugins.schedule.levels import (
    Levels,
    level_of,
)
from verniermq.plugins.schedule.progress import DelayOffsets
from verniermq.plugins.schedule.timers.recall import DELETE_KEY, Recall, add_handle
from verniermq.plugins.schedule.timers.timers import Timers
from verniermq.plugins.schedule.timers.times import LONGEST_WINDOW, SECOND, slot_of, wished_ms
from verniermq.protocol.recall import RecallMessage

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
        requests=(
            RequestCode.GET_ALL_DELAY_OFFSET,
            RequestCode.GET_TIMER_CHECK_POINT,
            RequestCode.GET_TIMER_METRICS,
            RequestCode.RECALL_MESSAGE,
            RequestCode.SWITCH_TIMER_ENGINE,
        ),
        properties=(Property.DELAY, *TIMES),
        # Going on without it would deliver a delayed message at once.
        on_failure="closed",
        when_it_keeps_failing="stop",
    )
    config: Config
    broker: Context
    _levels: Levels = attrs.field(init=False)
    _offsets: DelayOffsets = attrs.field(init=False)
    _timers: Timers = attrs.field(init=False)
    _registry: Registry = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        broker = self.broker
        self._levels = Levels(self.config.levels)
        self._offsets = DelayOffsets(broker.clock.now_ms, lambda: broker.store.durable_end)
        self._timers = Timers(
            broker,
            window=int(self.config.roll_window),
            file_size=self.config.timer_file_size,
            persist_interval=self.config.persist_interval,
        )

    def setup(self, registry: Registry) -> None:
        queues = max(USUAL_QUEUES, self._levels.highest)
        registry.topic(TopicConfig(SCHEDULE_TOPIC, queues, queues), closed=True)
        registry.topic(TopicConfig(TIMER_TOPIC, 1, 1), closed=True)
        registry.tags_coder(SCHEDULE_TOPIC, self._delivery_time)
        self._offsets.document = registry.table(
            "delayOffset", load=self._offsets.load, save=self._offsets.as_json, interval=self.config.persist_interval
        )
        recall = Recall(self.broker, self.config.recall, round(self.config.max_delay * 1000), self._note_recall)
        registry.handler(RequestCode.GET_ALL_DELAY_OFFSET, self._all_offsets)
        registry.handler(RequestCode.GET_TIMER_CHECK_POINT, self._timer_checkpoint)
        registry.handler(RequestCode.GET_TIMER_METRICS, self._timer_metrics)
        registry.handler(RequestCode.RECALL_MESSAGE, recall.serve, RecallMessage)
        registry.handler(RequestCode.SWITCH_TIMER_ENGINE, self._switch_engine)
        self._offer(registry)
        registry.service("timers", self._timers.run, master_only=True)
        self._registry = registry

    def _offer(self, registry: Registry) -> None:
        """By Apache's names; of messages with a time, not of those with a level, as at Apache."""
        timers = self._timers
        registry.metric(
            "rocketmq_timer_enqueue_lag", "gauge", "Messages with a time that are not taken in yet.",
            lambda: timers.not_taken_in,
        )  # fmt: skip
        registry.metric(
            "rocketmq_timer_enqueue_latency_milliseconds",
            "gauge",
            "Age of the oldest of them.",
            timers.taking_in_behind,
        )
        registry.metric(
            "rocketmq_timer_dequeue_lag", "gauge", "Messages that are due and not delivered.", timers.late_messages
        )
        registry.metric(
            "rocketmq_timer_dequeue_latency_milliseconds", "gauge", "By how much the delivery is late.",
            lambda: timers.late_seconds * 1000,
        )  # fmt: skip
        registry.metric(
            "rocketmq_timer_message_snapshot", "gauge",
            "Messages that are due within so many seconds, and not within the bound before.",
            timers.snapshot, ("timer_bound_s",),
        )  # fmt: skip

    @hookimpl
    def store_opened(self) -> None:
        self._levels.start(self.broker, self._offsets, self._registry)
        self._timers.store_opened()

    @hookimpl
    async def broker_started(self) -> None:
        await self._timers.prepare()

    @hookimpl
    def role_changed(self, role: Role) -> None:
        if role.is_master:
            self._levels.use(self.broker)
            if (prepare := self._timers.take_over()) is not None:
                self.broker.start_soon(prepare)

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

    def _delivery_time(self, properties: Mapping[str, str], store_timestamp: int) -> int:
        # If the clock was set since the last look, this message is the first of the new time.
        self.broker.store.clock_changes.look()
        return self._levels.delivery_time(properties, store_timestamp)

    def _set_timer(self, message: PendingMessage) -> None:
        now = self.broker.clock.now_ms()
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
            add_handle(message, self.broker.name, slot_ms)
        self._timers.used.set()

    def _note_recall(self, key: str) -> None:
        self._timers.recall(key)

    def _all_offsets(self, request: Command, connection: Connection) -> Command:
        """For slaves, which keep a copy of the table."""
        return request.reply(body=orjson.dumps(self._offsets.as_json()))

    def _timer_checkpoint(self, request: Command, connection: Connection) -> Command:
        """For an Apache slave, which takes timed messages into its own wheel as far as its master has."""
        return request.reply(body=self._timers.checkpoint.encode_for_slave())

    @staticmethod
    def _timer_metrics(request: Command, connection: Connection) -> Command:
        """How many timed messages wait for each topic, which is not counted here.

        An Apache slave takes the table over when its version changes, and counts what it takes into its wheel itself:
        by a version that stays, its own counts do.
        """
        version = {"counter": 0, "stateVersion": 0, "timestamp": 0}
        return request.reply(body=orjson.dumps({"dataVersion": version, "timingCount": {}}))

    def _switch_engine(self, request: Command, connection: Connection) -> Command:
        """``mqadmin switchTimerEngine``: F is the wheel of files, which is the only one here; R would be RocksDB's."""
        engine = request.text("E_T", "")
        if engine != "F":
            raise InvalidParameter(f"timer engine {engine!r:.20}: there is only F here, the wheel of files")
        return request.reply()

    @hookimpl(optionalhook=True)
    def runtime_info(self) -> Mapping[str, str]:
        """How far each level is, as ``delivered,stored``, and what waits in the timer log."""
        levels = {
            f"scheduleMessageOffset_{level}": f"{self._offsets.get(level)},{end}"
            for level in range(1, self._levels.highest + 1)
            if (end := self.broker.store.max_offset(SCHEDULE_TOPIC, level - 1))
        }
        return {**levels, **self._timers.figures()}

    @hookimpl(optionalhook=True)
    def table_copied(self, code: int, table: Mapping[str, Any]) -> None:
        if code == RequestCode.GET_ALL_DELAY_OFFSET:
            self._offsets.take_over(table)

    @hookimpl
    def check_files(self, path: Path, mend: bool) -> Iterable[str]:
        from verniermq.plugins.schedule.timers.examine import examine  # for a command, not for a broker

        return examine(path, mend=mend)
