"""OpenTelemetry in clients: a span for each send and each delivery, their figures, and the context that ties them.

::

    Producer("orders", plugins=["otel"])
    PushConsumer("billing", plugins=["otel"])

Names are those of the conventions for messaging systems; the context travels in the message's properties
(``traceparent``, ``tracestate``, ``baggage``), so clients in other languages take part.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

import attrs
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from verniermq.contrib.otel.attributes import message_attributes, received_attributes, server_attributes
from verniermq.contrib.otel.carrier import TRACE_CONTEXT, context_of, creation_context
from verniermq.kernel import ClientContext, Consuming, Declaration, Sending, hookimpl, setting

__all__ = ["ClientPlugin", "Config", "context_of"]

NAME: Final = "verniermq"
NOTE: Final = "otel"
DURATIONS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bounds in seconds, as the conventions advise."""


@attrs.frozen
class Config:
    """``[plugins.otel]``"""

    follow: Literal["link", "parent"] = setting(
        "link", "How the span of a single delivery is tied to that of its send: by a link, or as its child."
    )
    trace_context: bool = setting(False, "Also write RocketMQ's own property TRACE_CONTEXT, for clients that read it.")


@attrs.define(eq=False)
class ClientPlugin:
    declaration: ClassVar = Declaration(
        api=1,
        config=Config,
        summary="Spans and metrics of OpenTelemetry for sends and deliveries.",
        after=("enrich", "flow"),  # what is really sent, and no delivery that is put off
    )
    config: Config
    client: ClientContext
    _tracer: trace.Tracer = attrs.field(init=False)
    _duration: metrics.Histogram = attrs.field(init=False)
    _sent: metrics.Counter = attrs.field(init=False)
    _consumed: metrics.Counter = attrs.field(init=False)
    _processing: metrics.Histogram = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._tracer = trace.get_tracer(NAME)
        meter = metrics.get_meter(NAME)
        self._duration = meter.create_histogram(
            "messaging.client.operation.duration", "s", "How long a send takes.",
            explicit_bucket_boundaries_advisory=DURATIONS,
        )  # fmt: skip
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Messages that were sent.")
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were handed to a handler."
        )
        self._processing = meter.create_histogram(
            "messaging.process.duration", "s", "How long a handler takes.",
            explicit_bucket_boundaries_advisory=DURATIONS,
        )  # fmt: skip

    # --- sending ---------------------------------------------------------------------------

    @hookimpl
    def before_send(self, sending: Sending) -> None:
        message = sending.message
        span = self._tracer.start_span(
            f"send {message.topic}",
            kind=SpanKind.PRODUCER,
            attributes={**_common("send", "send", message.topic, sending.client_id), **message_attributes(message)},
        )
        sending.notes[NOTE] = span
        propagate.inject(message.properties, trace.set_span_in_context(span))
        if self.config.trace_context and "traceparent" in message.properties:
            message.properties[TRACE_CONTEXT] = message.properties["traceparent"]

    @hookimpl
    def after_send(self, sending: Sending) -> None:
        span: Span | None = sending.notes.pop(NOTE, None)
        if span is None:
            return
        attributes = _common("send", "send", sending.message.topic)
        attributes |= _failure(sending.error) | server_attributes(sending.broker)
        self._sent.add(1, attributes)
        self._duration.record(sending.latency_ms / 1000, attributes)
        if sending.message_id:
            span.set_attribute("messaging.message.id", sending.message_id)
        if sending.queue is not None:
            span.set_attribute("messaging.destination.partition.id", _partition(sending.queue))
        span.set_attributes(server_attributes(sending.broker))
        _end(span, sending.error)

    # --- consuming -------------------------------------------------------------------------

    @hookimpl
    def before_consume(self, consuming: Consuming) -> None:
        messages = consuming.messages
        topic = messages[0].topic
        created = [creation_context(message.properties) for message in messages]
        parent: Context | None = None
        if self.config.follow == "parent" and len(messages) == 1:
            parent = context_of(messages[0])
        attributes = {
            **_common("process", "process", topic, consuming.client_id),
            "messaging.consumer.group.name": consuming.group,
            "messaging.destination.partition.id": _partition(consuming.queue),
        }
        if len(messages) == 1:
            attributes |= received_attributes(messages[0])
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        span = self._tracer.start_span(
            f"process {topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(context) for context in created if context is not None],
        )
        # The handler runs in this task, or in a thread with a copy of its context: the span is current there.
        consuming.notes[NOTE] = (span, attach(trace.set_span_in_context(span, parent)))

    @hookimpl
    def after_consume(self, consuming: Consuming) -> None:
        noted: tuple[Span, Any] | None = consuming.notes.pop(NOTE, None)
        if noted is None:
            return
        span, token = noted
        detach(token)
        attributes = _common("process", "process", consuming.messages[0].topic)
        attributes["messaging.consumer.group.name"] = consuming.group
        attributes |= _failure(consuming.error, consuming.succeeded)
        self._consumed.add(len(consuming.messages), attributes)
        self._processing.record(consuming.latency_ms / 1000, attributes)
        _end(span, consuming.error, consuming.succeeded)


def _common(name: str, kind: str, topic: str, client_id: str = "") -> dict[str, Any]:
    namespace, separator, rest = topic.rpartition("%")
    attributes: dict[str, Any] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": rest,
        "messaging.rocketmq.namespace": namespace if separator else "",
    }
    if client_id:
        attributes["messaging.client.id"] = client_id
    return attributes


def _partition(queue: Any) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


def _failure(error: BaseException | None, succeeded: bool = True) -> dict[str, str]:
    if error is not None:
        return {"error.type": type(error).__qualname__}
    return {} if succeeded else {"error.type": "later"}


def _end(span: Span, error: BaseException | None, succeeded: bool = True) -> None:
    span.set_attributes(_failure(error, succeeded))
    if error is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    elif not succeeded:
        span.set_status(Status(StatusCode.ERROR, "the handler asked for the messages to come again"))
    span.end()
