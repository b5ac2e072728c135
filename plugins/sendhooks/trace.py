"""Traces: what happened to a message, kept as messages themselves (RocketMQ: ``SendMessageTraceHookImpl`` and kin).

In a producer, a ``Pub`` record for each send; in a consumer, ``SubBefore`` and ``SubAfter`` for each delivery; in a
broker, a ``Pub`` record for each message that it took, whoever sent it, which traces clients that cannot trace
themselves. The records travel as messages to ``RMQ_SYS_TRACE_TOPIC``, where ``mqadmin queryMsgTraceById`` looks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Final

import attrs

from verniermq.kernel import (
    TRACE_TOPIC,
    Appended,
    ClientContext,
    Consuming,
    Context,
    Declaration,
    Duration,
    EndedTransaction,
    Message,
    PendingMessage,
    Property,
    Registry,
    Sending,
    TopicConfig,
    hookimpl,
    parse_duration,
    requests,
    setting,
    unpack_host,
)
from verniermq.plugins.sendhooks.dispatcher import TraceBatch, TraceDispatcher
from verniermq.plugins.sendhooks.records import (
    DEFAULT_REGION,
    Ending,
    Pub,
    SubAfter,
    SubBefore,
    TraceType,
    TransactionEnd,
)

NOTE: Final = "trace.request_ids"
STATES: Final = {"COMMIT": "COMMIT_MESSAGE", "ROLLBACK": "ROLLBACK_MESSAGE", "UNKNOWN": "UNKNOW"}
"""As RocketMQ spells them."""
DELAYS: Final = (
    Property.DELAY, Property.TIMER_DELAY_MS, Property.TIMER_DELAY_SEC, Property.TIMER_DELIVER_MS,
)  # fmt: skip


@attrs.frozen
class Config:
    """``[plugins.trace]``"""

    topic: str = setting(TRACE_TOPIC, "Where the records go.")
    topics: tuple[str, ...] = setting(("*",), "The topics whose messages are traced, by wildcards.")
    batch: int = setting(10, "So many records are worth a message.", at_least=1)
    interval: Duration = setting(parse_duration("5s"), "How long a record waits at most for others.")


class TracedTopics:
    """Whose messages are traced; asked once per topic, the answer is kept."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._known: dict[str, bool] = {}

    def wants(self, topic: str) -> bool:
        traced = self._known.get(topic)
        if traced is None:
            config = self._config
            traced = topic != config.topic and any(fnmatchcase(topic, pattern) for pattern in config.topics)
            if len(self._known) < 10_000:
                self._known[topic] = traced
        return traced


@attrs.define(eq=False)
class Plugin:
    """In a broker: a ``Pub`` record for each message that it took."""

    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Records what happens to messages, for mqadmin queryMsgTraceById.",
        after=("enrich",),
    )
    config: Config
    broker: Context
    _dispatcher: TraceDispatcher = attrs.field(init=False)
    _topics: TracedTopics = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._topics = TracedTopics(self.config)
        self._dispatcher = TraceDispatcher(
            self._send, self.config.batch, self.config.interval, sleep=self.broker.clock.sleep
        )

    def setup(self, registry: Registry) -> None:
        registry.topic(TopicConfig(self.config.topic, 1, 1))
        registry.service("send traces", self._dispatcher.run)

    @hookimpl
    async def broker_stopping(self) -> None:
        await self._dispatcher.flush()

    @hookimpl
    def messages_appended(self, batch: Sequence[tuple[PendingMessage, Appended]]) -> None:
        for message, appended in batch:
            # A delay or a transaction has another topic by now; the request tells the one it was sent to.
            topic, group = requests.producer_of(message)
            if self._topics.wants(topic):
                self._dispatcher.add(
                    Pub(
                        time_ms=message.born_timestamp,
                        region=message.properties.get(Property.REGION, DEFAULT_REGION),
                        group=group,
                        topic=topic,
                        message_id=message.properties.get(Property.UNIQUE_KEY, ""),
                        tags=message.properties.get(Property.TAGS, ""),
                        keys=message.properties.get(Property.KEYS, ""),
                        broker=unpack_host(appended.store_host),
                        body_length=len(message.body),
                        cost_ms=max(0, appended.store_timestamp - message.born_timestamp),
                        kind=_kind(message.properties),
                        offset_message_id=appended.message_id,
                        success=True,
                    )
                )

    async def _send(self, batch: TraceBatch) -> None:
        message = PendingMessage(self.config.topic, 0, batch.body, {Property.KEYS: batch.keys})
        message.born_timestamp = self.broker.clock.now_ms()
        await self.broker.put(message)


@attrs.define(eq=False)
class ClientPlugin:
    """In a producer, a ``Pub`` record for each send; in a consumer, ``SubBefore`` and ``SubAfter``."""

    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Records what happens to messages, for mqadmin queryMsgTraceById.",
        after=("enrich",),
    )
    config: Config
    client: ClientContext
    _dispatcher: TraceDispatcher = attrs.field(init=False)
    _topics: TracedTopics = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._topics = TracedTopics(self.config)
        self._dispatcher = TraceDispatcher(self._send, self.config.batch, self.config.interval)

    @hookimpl
    def client_started(self) -> None:
        self.client.spawn(self._dispatcher.run)

    @hookimpl
    async def client_stopping(self) -> None:
        await self._dispatcher.flush()

    @hookimpl
    def after_send(self, sending: Sending) -> None:
        message, result = sending.message, sending.result
        if not self._topics.wants(message.topic) or (result is not None and not result.trace_on):
            return
        properties = message.all_properties()
        self._dispatcher.add(
            Pub(
                time_ms=_now_ms() - round(sending.latency_ms),
                region=result.region if result is not None else DEFAULT_REGION,
                group=sending.group,
                topic=message.topic,
                message_id=sending.message_id,
                tags=message.tags or "",
                keys=properties.get(Property.KEYS, ""),
                broker=sending.broker,
                body_length=len(message.body),
                cost_ms=round(sending.latency_ms),
                kind=_kind(properties),
                offset_message_id=result.offset_message_id if result is not None else "",
                success=sending.error is None,
            )
        )

    @hookimpl
    def transaction_ended(self, ended: EndedTransaction) -> None:
        if self._topics.wants(ended.topic):
            self._dispatcher.add(
                TransactionEnd(
                    time_ms=_now_ms(),
                    group=ended.group,
                    topic=ended.topic,
                    message_id=ended.message_id,
                    tags=ended.tags,
                    keys=ended.keys,
                    broker=ended.broker,
                    transaction_id=ended.transaction_id,
                    state=STATES[ended.state],
                    from_check=ended.from_check,
                )
            )

    @hookimpl
    def before_consume(self, consuming: Consuming) -> None:
        ids = consuming.notes[NOTE] = {}
        for message in consuming.messages:
            if self._topics.wants(message.topic) and message.properties.get(Property.TRACE_SWITCH) != "false":
                ids[message] = request_id = os.urandom(16).hex().upper()
                self._dispatcher.add(
                    SubBefore(
                        time_ms=_now_ms(),
                        region=message.properties.get(Property.REGION, DEFAULT_REGION),
                        group=consuming.group,
                        request_id=request_id,
                        message_id=message.message_id,
                        retry_times=message.reconsume_times,
                        keys=" ".join(message.keys),
                    )
                )

    @hookimpl
    def after_consume(self, consuming: Consuming) -> None:
        ids: Mapping[Any, str] = consuming.notes.pop(NOTE, {})
        failure = Ending.FAILED if consuming.error is None else Ending.RAISED
        ending = Ending.SUCCESS if consuming.succeeded else failure
        for message, request_id in ids.items():
            self._dispatcher.add(
                SubAfter(
                    time_ms=_now_ms(),
                    group=consuming.group,
                    request_id=request_id,
                    message_id=message.message_id,
                    cost_ms=round(consuming.latency_ms / len(ids)),
                    keys=" ".join(message.keys),
                    ending=ending,
                )
            )

    async def _send(self, batch: TraceBatch) -> None:
        message = Message(self.config.topic, batch.body, keys=[batch.keys], wait_store_ok=False)
        await self.client.post(message)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _kind(properties: Mapping[str, str]) -> TraceType:
    if properties.get(Property.TRANSACTION_PREPARED) == "true":
        return TraceType.HALF
    if any(name in properties for name in DELAYS):
        return TraceType.DELAYED
    return TraceType.ORDERED if Property.SHARDING_KEY in properties else TraceType.NORMAL
